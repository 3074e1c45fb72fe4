"""What reaches a server before it begins, and what the next holder of a shard knows.

Servers and workers of one process: what is sent arrives when the other looks, and a holder dies
where the test says so.
"""

import json
import random
from collections import defaultdict, deque
from types import SimpleNamespace

import launch
import numpy as np
import pytest

from mpicoll.train import optimizers
from mpicoll.train.servers.client import Client
from mpicoll.train.servers.consistency import parse
from mpicoll.train.servers.replica import Replica
from mpicoll.train.servers.server import Server
from mpicoll.train.servers.shard import Push, Shard, ShardRange

PROGRAM = """
import json, os, signal, sys, time
from mpicoll.train import threads
threads.limit_blas_threads()
from mpi4py import MPI
import mpicoll
from mpicoll.train import Config, TrainingError, run
from mpicoll.train.ranks import health, survivors
from mpicoll.train.servers import server

tests, fails, dies, changes = json.loads(sys.argv[1])
sys.path[:0] = [tests]
from clouds import clouds

comm = mpicoll.Intracomm(MPI.COMM_WORLD)
send, give = survivors.Survivors._send, server.Server._give
gifts, made = [], []


def late(self, fact, rank):
    # The last ranks hear late of what rank 0 says, and begin late.
    if comm.rank == 0 and rank == 2:
        time.sleep(0.05)
    send(self, fact, rank)


def dying(self, *arguments, **named):
    # It gets a signal, tells one worker where to stop, and dies before it tells the other.
    gifts.append(self._stop_clock)
    if len(gifts) == 10:
        signal.raise_signal(signal.SIGTERM)
    if len(gifts) > 1 and gifts[-2] >= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    give(self, *arguments, **named)


def failing(_):
    if comm.rank == fails:
        raise ValueError("no more")


if not dies:
    survivors.Survivors._send = late
if comm.rank == dies:
    server.Server._give = dying
config = Config(
    dataset="digits", strategy="parameter_server", epochs=2, batch=8 if dies else 64, **changes
)
try:
    result = run(config, comm, dataset=clouds(), on_step=made.append, on_epoch=failing)
    found = [len(made), result.steps, result.stopped]
except TrainingError as error:
    found = str(error)
print(json.dumps([comm.rank, found]), flush=True)
if health.dead(comm):
    health.leave(0)
"""

survives = pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)


@pytest.fixture
def trained(mpirun, tmp_path):
    """Train on so many ranks: what each that is left says."""

    def train(ranks, changes, fails=None, dies=None):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        job = json.dumps([str(launch.ROOT / "tests"), fails, dies, changes])
        done = mpirun(ranks, program, job, options=("--with-ft", "ulfm"), limit=20)
        said = [json.loads(line) for line in done.out.splitlines() if line.startswith("[")]
        return dict(said), done.err

    return train


class Net:
    """Messages between ranks of one process; `at` is the communicator of a rank."""

    def __init__(self):
        self.under_way = defaultdict(deque)

    def at(self, rank):
        return SimpleNamespace(
            Isend=lambda data, target, tag: self._send(data, (rank, target, tag)),
            Irecv=lambda data, source, tag: self._receive(data, (source, rank, tag)),
        )

    def lose(self, rank):
        """What a rank has sent and has not arrived does not."""
        for (source, *_), waiting in self.under_way.items():
            if source == rank:
                waiting.clear()

    def _send(self, data, way):
        self.under_way[way].append(data.copy())
        return SimpleNamespace(Test=lambda: True)

    def _receive(self, data, way):
        def test():
            if not self.under_way[way]:
                return False
            found = self.under_way[way].popleft()
            data[: found.size] = found
            return True

        return SimpleNamespace(Test=test)


class Row:
    """Workers 0 .. workers - 1, and the holders of one shard behind them; all but one may die.

    Attributes:
        at_wait: Called where a worker waits, before the holders are polled.
    """

    def __init__(self, model="ssp:2", workers=2, holders=2):
        self.net, self.at_wait, self._idle = Net(), lambda: None, 0
        ranks = list(range(workers, workers + holders))
        self.health = SimpleNamespace(chain=lambda shard: ranks)
        self.ranks, self.workers = ranks, range(workers)
        self.servers = {rank: self._server(rank, parse(model), holders) for rank in ranks}
        self.clients = [self._client(worker) for worker in self.workers]

    @property
    def first(self):
        return self.servers[self.ranks[0]]

    def begin(self, clock=0):
        """All begin an epoch."""
        for server in self.servers.values():
            server.begin(clock)
        for client in self.clients:
            client.begin()

    def push(self, worker, clock, stop=False):
        self.clients[worker].push(Push(clock, 1, 2, True, 1.0, 1.0, 0), stop)

    def poll(self):
        """All holders do what they can; whether that was anything."""
        self.at_wait()
        moved = [server.poll() for server in self.servers.values()]
        self._idle = 0 if any(moved) else self._idle + 1
        assert self._idle < 50, "who waits waits for ever"
        return any(moved)

    def die(self, lose=False):
        """The first holder dies, and all notice."""
        dead = self.ranks.pop(0)
        del self.servers[dead]
        if lose:
            self.net.lose(dead)
        for server in self.servers.values():
            server.regroup()
        for client in self.clients:
            client._ranges[0].rank = self.ranks[0]
            client.renew([0])

    def _server(self, rank, model, holders):
        shard = Shard(np.zeros(1), optimizers.SGD(), len(self.workers), model, lambda s: 1, "share")
        lockstep = model.kind == "bsp"
        args = (self.net.at(rank), shard, 0, self.workers, self.workers, lockstep, None, None)
        if holders == 1:
            return Server(*args)
        return Replica(*args, rank=rank, health=self.health)

    def _client(self, worker):
        place, vectors = ShardRange(self.ranks[0], 0, 1), (np.zeros(1), np.ones(1))
        return Client(self.net.at(worker), [place], [0], *vectors, self.poll, np.inf)


# --- before a server begins ---


def begun_after(row, polls, clock=0):
    """Servers begin when they have been polled so often."""
    left = iter([*range(polls), None])

    def count():
        if next(left, 0) is None:
            for server in row.servers.values():
                server.begin(clock)

    row.at_wait = count


@pytest.mark.parametrize("clock", [0, 40], ids=["start", "resumed"])
@pytest.mark.parametrize("holders", [1, 2])
def test_steps_of_a_worker_that_begins_before_its_server(holders, clock):
    row = Row("bsp", 1, holders)
    for first in (clock, clock + 3):
        begun_after(row, 10, first)
        (client,) = row.clients
        client.begin()
        for step in range(first, first + 3):
            client.pull(step)
            row.push(0, step)
        client.leave(failed=False)
        for _ in range(20):
            row.poll()
        assert all(server.over() for server in row.servers.values())
    assert client.updates == 6
    assert [server.shard.updates for server in row.servers.values()] == [6] * holders


@pytest.mark.parametrize("holders", [1, 2])
def test_a_push_that_nothing_was_asked_before(holders):
    """As decentralized workers send them to each other."""
    row = Row("async", 1, holders)
    row.clients[0].begin()
    row.push(0, 0)
    for _ in range(5):
        row.poll()
    assert row.first.shard.updates == 0
    row.servers[1].begin(0)
    row.poll()
    assert row.first.shard.updates == 1


@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("holders", [1, 2])
def test_a_worker_that_leaves_before_its_server_begins(holders, epochs):
    """Such as one whose callback has failed after the epoch before."""
    row = Row("bsp", 1, holders)
    (client,) = row.clients
    for epoch in range(epochs):
        row.begin(epoch)
        client.pull(epoch)
        row.push(0, epoch)
        client.leave(failed=False)
    begun_after(row, 10, epochs)
    client.begin()
    client.leave(failed=True)
    for _ in range(20):
        row.poll()
    assert all(server.over() for server in row.servers.values())
    assert all(server._stop_clock == 0 for server in row.servers.values())


def test_a_leave_that_the_next_holder_has_is_answered_all_the_same():
    row = Row("bsp", 1)
    row.begin()
    row.clients[0].pull(0)
    row.push(0, 0)

    def die():
        if len(row.ranks) == 2 and row.servers[2].shard.idle:  # and nobody was answered
            row.die()

    row.at_wait = die
    row.clients[0].leave(failed=False)
    assert row.ranks == [2] and row.first.over()
    assert row.clients[0].updates == 1


@survives
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("changes", "fails"),
    [({"servers": "decentralized"}, None), ({"servers": "2", "replicas": 1}, 1)],
    ids=["pushes", "leaves"],
)
def test_servers_that_begin_late(trained, changes, fails):
    said, err = trained(4, changes, fails)
    failure = f"epoch 2 failed on rank {fails}: ValueError: no more"
    expected = [4, 4, "epochs"] if fails is None else failure
    assert said == dict.fromkeys(range(4), expected), err


# --- where to stop ---


def test_the_next_holder_stops_workers_where_the_first_did():
    """The first alone knows what it has granted: worker 1 computes its third step."""
    row = Row("ssp:2")
    row.begin()
    for clock in range(2):
        row.clients[1].pull(clock)
        row.push(1, clock)
    row.clients[1].pull(2)
    row.clients[0].pull(0)
    row.push(0, 0, stop=True)
    assert row.clients[0].pull(1) == 3
    row.die()
    row.push(1, 2)
    row.push(0, 1)
    assert row.clients[1].pull(3) == row.clients[0].pull(2) == 3


def test_the_next_holder_stops_workers_after_what_the_first_had_granted():
    """The wish came to the first alone, which died with it; the worker repeats it."""
    row = Row("ssp:2")
    row.begin()
    for clock in range(2):
        row.clients[1].pull(clock)
        row.push(1, clock)
    row.clients[1].pull(2)
    row.clients[0].pull(0)
    row.push(0, 0, stop=True)
    row.first.poll()
    row.die(lose=True)
    row.push(1, 2)
    assert row.clients[1].pull(3) == row.clients[0].pull(1) == 3


def test_the_next_holder_knows_of_a_signal_to_the_first():
    row = Row("ssp:2")
    row.begin()
    for client in row.clients:
        client.pull(0)
    row.first.stop = True
    row.push(0, 0)
    assert row.clients[0].pull(1) == 1
    row.die()
    row.push(1, 0)
    assert row.clients[1].pull(1) == 1
    assert row.first.stop


@pytest.mark.parametrize(("model", "bound"), [("bsp", 0), ("ssp:2", 2), ("async", 99)])
def test_workers_stop_at_one_clock_whenever_holders_die(model, bound):
    """The wish is a worker's, or that of the first holder, with which it may die."""
    for seed in range(100):
        clocks, stopped, lost = stopping(model, bound, seed)
        assert stopped == ({} if lost else dict(enumerate(clocks))), seed


def stopping(model, bound, seed):
    """Clocks of workers, where they were told to stop, and whether nobody is left to tell them."""
    drawn = random.Random(seed)
    deaths, wisher = drawn.sample(range(30), 2), drawn.randrange(3)
    row = Row(model, 2, 3)
    row.begin()
    clocks, computing, stopped = [0, 0], [False, False], {}
    for turn in range(100):
        if turn in deaths:
            row.die(lose=drawn.random() < 0.5)
        for rank in drawn.sample(row.ranks, drawn.randint(0, len(row.ranks))):
            row.servers[rank].poll()
        if wisher == 2 and max(clocks) > 2 and 2 in row.servers:
            row.first.stop = True
        ready = [
            worker
            for worker in row.workers
            if worker not in stopped and clocks[worker] - min(clocks) <= bound
        ]
        if not ready:
            break
        worker = drawn.choice(ready)
        clock = clocks[worker]
        if computing[worker]:
            row.push(worker, clock, stop=worker == wisher and clock > 2)
            clocks[worker] += 1
            computing[worker] = False
        elif 0 <= (told := row.clients[worker].pull(clock)) <= clock:
            stopped[worker] = told
        else:
            computing[worker] = True
    return clocks, stopped, wisher == 2 and not row.first.stop


@survives
@pytest.mark.timeout(60)
def test_a_server_dies_that_has_told_one_worker_where_to_stop(trained):
    said, err = trained(5, {"servers": "3", "replicas": 1, "consistency": "ssp:2"}, dies=2)
    assert said.keys() == {0, 1, 3, 4}, err
    (made, steps, stopped), others = said[0], [said[rank][1:] for rank in (1, 3, 4)]
    assert made == said[1][0] == steps and stopped == "signal"
    assert others == [[steps, "signal"]] * 3
