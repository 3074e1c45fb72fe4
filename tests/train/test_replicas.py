"""Servers that die: replicas take over, and without them the run stops and says so.

Whole numbers as gradients and powers of two as rates: every sum is exact in any order, so what the
parameters end as tells each push that was lost or counted twice.
"""

import json
import random

import launch
import numpy as np
import pytest

import mpicoll
from mpicoll.train import Config, TrainingError
from mpicoll.train.driver import checkpoints
from mpicoll.train.ranks import health
from mpicoll.train.strategies import placement

SURVIVES = {"options": ("--with-ft", "ulfm")}

PROGRAM = """
import json, os, signal, sys
from mpicoll.train import threads
threads.limit_blas_threads()
import numpy as np
from mpi4py import MPI
import mpicoll
from mpicoll.train import Config, Dataset, main, run
from mpicoll.train.driver import console
from mpicoll.train.ranks import health
from mpicoll.train.servers import messages

consistency, replicas, epochs, *deaths = json.loads(sys.argv[1])
comm = mpicoll.Intracomm(MPI.COMM_WORLD)
for rank, left in deaths:
    if comm.rank == rank:
        # A server dies when it is about to answer, or to pass on, for the so manieth time.
        send = messages.ServerMessage.send
        def dying(self, *arguments, **named):
            global left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            send(self, *arguments, **named)
        messages.ServerMessage.send = dying
        break


class Counts:
    def initial_parameters(self, seed):
        return {"w": np.zeros(60), "b": np.arange(5.0)}

    def loss_and_gradients(self, parameters, batch):
        counts = np.bincount(batch.targets, minlength=65) / batch.total
        return 0.0, {"w": counts[:60], "b": counts[60:]}

    def losses_and_outputs(self, parameters, inputs, labels):
        return np.zeros(len(labels)), np.zeros((len(labels), 65))


labels = np.random.default_rng(1).integers(0, 65, 256)
labels[0] = 64
data = Dataset("counts", 65, np.zeros((256, 1)), labels, np.zeros((4, 1)), labels[:4])
config = Config(
    strategy="parameter_server", servers="3", workers=comm.size - 3, replicas=replicas,
    consistency=consistency, optimizer="sgd", lr=0.25, batch=16, epochs=epochs,
    checkpoint=sys.argv[2] if len(sys.argv) > 2 else None, seed=2,
)
model = Counts()
if len(sys.argv) > 2:  # through the command's own way to print and to leave
    console.load = lambda *_: data
    train = console.train
    console.train = lambda config, comm, given, *rest: train(
        config, comm, given._replace(model=model), *rest
    )
    sys.exit(main(config, comm, compare=False))
result = run(config, comm, dataset=data, model=model)
start = np.concatenate([np.zeros(60), np.arange(5.0)])
expected = start - 0.25 * epochs * np.bincount(labels, minlength=65) / 16
found = np.concatenate([result.parameters["w"], result.parameters["b"]])
print(json.dumps([comm.rank, bool((found == expected).all()), result.steps, health.dead(comm)]))
if health.dead(comm):
    health.leave(0)
"""


def can_survive():
    return "Open MPI v5" in launch._library()


pytestmark = pytest.mark.skipif(not can_survive(), reason="no rank may die with this library")


@pytest.fixture
def trained(mpirun, tmp_path):
    """Train on five ranks, of which the last three serve: what each rank that is left says."""

    def train(consistency, replicas, epochs, *deaths):
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        done = mpirun(5, program, json.dumps([consistency, replicas, epochs, *deaths]), **SURVIVES)
        said = [json.loads(line) for line in done.out.splitlines() if line.startswith("[")]
        return {rank: tuple(rest) for rank, *rest in said}, done.err

    return train


MODELS = ["bsp", "ssp:2", "adaptive:1,3", "async"] if launch._long() else ["bsp", "async"]


@pytest.mark.parametrize("model", MODELS)
def test_replicas_change_nothing(trained, model):
    said, err = trained(model, 1, 2)
    assert said == dict.fromkeys(range(5), (True, 32, [])), err


#: Twenty in the long suite.
POINTS = range(20 if launch._long() else 2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("point", POINTS)
def test_a_server_dies_and_nothing_acknowledged_is_lost_or_counted_twice(trained, point):
    drawn = random.Random(point)
    victim, place = drawn.randrange(2, 5), drawn.randrange(1, 600)
    said, err = trained(MODELS[point % 4], 1, 8, (victim, place))
    left = [rank for rank in range(5) if rank != victim]
    assert said == dict.fromkeys(left, (True, 128, [victim])), err


def test_two_of_three_holders_die(trained):
    said, err = trained("ssp:2", 2, 8, (2, 150), (3, 300))
    assert said == dict.fromkeys((0, 1, 4), (True, 128, [2, 3])), err


@pytest.mark.parametrize(
    ("replicas", "victim", "words"),
    [
        (0, 3, "error: rank(s) 3 have died, and with them part 1 of the parameters: go on from"),
        (1, 1, "error: rank 1, a worker, has died"),
    ],
    ids=["no replicas", "a worker"],
)
def test_what_cannot_go_on_says_so_and_its_checkpoint_loads(
    mpirun, tmp_path, replicas, victim, words
):
    program, kept = tmp_path / "program.py", tmp_path / "kept"
    program.write_text(PROGRAM)
    job = json.dumps(["ssp:2", replicas, 60, (victim, 400)])
    done = mpirun(5, program, job, kept, **SURVIVES)
    assert done.status != 0
    assert done.err.count("error: rank") == 1 and words in done.err
    arrays, facts = checkpoints.load(checkpoints.find(kept))
    assert facts["epoch"] > 1
    assert np.isfinite(arrays["parameter/w"]).all()


def test_replicas_where_no_rank_may_die_are_refused(mpirun, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = mpirun(5, program, json.dumps(["bsp", 1, 2]))
    assert done.status != 0
    assert "start with mpirun --with-ft ulfm of Open MPI 5, or leave replicas out" in done.err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"servers": "colocated"}, "takes a worker with it: give a number of servers"),
        ({"servers": "decentralized"}, "takes a worker with it: give a number of servers"),
        ({"servers": "1"}, r"1 replica\(s\) of each part need at least 2 servers, not 1"),
        ({"servers": "2", "send_every": 1}, "leave send_every out, or replicas"),
    ],
)
def test_replicas_that_cannot_be_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(strategy="parameter_server", replicas=1, **changes)


def test_each_part_is_held_by_the_next_servers_too():
    config = Config(strategy="parameter_server", servers="3", replicas=1)
    assert [place.rank for place in placement.shard_ranges(config, 5, 10)] == [2, 3, 4]
    assert [placement.holders(config, 5, rank) for rank in (2, 3, 4)] == [[2, 3], [3, 4], [4, 2]]


class Fake:
    """A communicator of six ranks, as far as `Health` asks."""

    class Group:
        def __init__(self, ranks):
            self.ranks = ranks

        def Get_size(self):
            return len(self.ranks)

        def Translate_ranks(self, numbers, _):
            return [self.ranks[number] for number in numbers]

        def Free(self):
            assert self.ranks

    def __init__(self):
        self.dead = []

    def Get_failed(self):
        return self.Group(self.dead)

    def Get_group(self):
        return self.Group(range(6))


def test_the_next_that_is_alive_answers(monkeypatch):
    monkeypatch.setattr(health, "_PAUSE", 0)
    monkeypatch.setattr(health, "require_place", lambda comm: None)  # nobody has given it up
    comm = Fake()
    seen = health.Health(comm, ["a worker"] * 3 + ["a server"] * 3)
    seen.holders, seen.replaces = [[3, 4, 5], [4, 5, 3]], True
    assert not seen.look()
    comm.dead = [3]
    assert seen.look() and not seen.look()
    assert (seen.chain(0), seen.chain(1)) == ([4, 5], [4, 5])
    comm.dead = [3, 4, 5]
    with pytest.raises(TrainingError, match=r"rank\(s\) 3, 4, 5 have died, and with them part 0"):
        seen.look()
    # A rank that was in a model's code hears of it again; programs know it by either name.
    with pytest.raises(mpicoll.RankLost) as caught:
        seen.look()
    assert mpicoll.train.RankLost is mpicoll.RankLost and caught.value.ranks == (3, 4, 5)
