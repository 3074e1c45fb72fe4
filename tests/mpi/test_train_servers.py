"""Parameter servers on the launched ranks: every placement with every consistency model."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import staleness
from clouds import clouds
from float64 import MLP, Config
from mpi4py import MPI

from mpicoll.train import TrainingError, history, run
from mpicoll.train.driver import checkpoints, parity
from mpicoll.train.servers import consistency

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(MPI.COMM_WORLD.size > 5, reason="fewer ranks show the same"),
]
#: What needs no further numbers of ranks.
few = pytest.mark.skipif(MPI.COMM_WORLD.size not in (2, 4), reason="2 and 4 ranks show it")
four = pytest.mark.skipif(MPI.COMM_WORLD.size != 4, reason="4 ranks show it")
PLACEMENTS = ["1", "2", "colocated", "decentralized"]
MODELS = ["bsp", "ssp:2", "adaptive:1,3", "async"]


def configured(comm, placement, **changes):
    """A run with servers, if there are ranks enough."""
    if placement.isdigit() and int(placement) >= comm.size:
        pytest.skip(f"{placement} servers and a worker need more ranks")
    return Config(strategy="parameter_server", servers=placement, **{"batch": 8, **changes})


def alone(config, comm):
    config = replace(config.alone(config.worker_count(comm.size)), metrics=None)
    return run(config, dataset=clouds())


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "epochs": 16, "steps": 200},
        {"optimizer": "adam", "lr": 0.01, "epochs": 3, "accumulate": 2},
        {"optimizer": "momentum", "epochs": 3, "batch": 2, "consistency": "ssp:0"},
        {"optimizer": "adam", "lr": 0.01, "epochs": 3, "send_every": 1},
    ],
    ids=["sgd", "adam, accumulation", "momentum, few samples", "adam, unasked"],
)
def test_bsp_is_one_process(comm, placement, changes):
    config = configured(comm, placement, **changes)
    ours, reference = run(config, comm, dataset=clouds()), alone(config, comm)
    assert ours.steps == reference.steps
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12
    assert ours.history[-1].test["accuracy"] == reference.history[-1].test["accuracy"]


def traces(folder, comm):
    """Shard by shard; all ranks have written theirs."""
    comm.Barrier()
    found = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(Path(folder).glob("shard-*.jsonl"))
    ]
    return [[event for event in trace if event["kind"] != "change"] for trace in found]


@few
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "unasked",
    [
        {},
        pytest.param({"send_every": 1}, marks=four),
        pytest.param({"send_every": 3, "apply_at_once": True}, marks=four),
    ],
    ids=["pulled", "sent", "sent now and then"],
)
def test_every_cell_trains_within_its_bound(comm, folder, placement, model, unasked):
    config = configured(
        comm,
        placement,
        consistency=model,
        optimizer="sgd",
        epochs=3,
        metrics=str(folder),
        **unasked,
    )
    result = run(config, comm, dataset=clouds())
    assert result.steps == 39 and len(result.history) == 3
    assert result.history[-1].loss < 1.1 * alone(config, comm).history[-1].loss + 0.05
    same = comm.allgather(result.parameters["layer1.weight"].tobytes())
    assert len(set(same)) == 1
    found, read = traces(folder, comm), consistency.parse(model)
    assert len(found) == (int(placement) if placement.isdigit() else comm.size)
    workers = config.worker_count(comm.size)
    high = None if model == "async" else read.high
    for trace in found:
        assert sum(event["kind"] == "push" for event in trace) == 39 * workers
        assert list(staleness.violations(trace, workers, high, read.low)) == []
        # Others' pushes may come to a decentralized rank before its own: their order there is not
        # the order in which they were allowed.
        if high is not None and placement != "decentralized":
            assert list(staleness.starved(trace, int(high), read.at_least)) == []


@few
def test_the_trace_of_a_run_has_the_steps_of_all_workers(comm, folder):
    run(configured(comm, "1", epochs=1, metrics=str(folder)), comm, dataset=clouds())
    comm.Barrier()
    found = history.read(folder)
    assert sorted(found.clocks) == list(range(comm.size))
    spans = [event for event in history.chrome(found)["traceEvents"] if event["ph"] == "X"]
    workers = range(comm.size - 1)
    for name in ("pull", "compute", "push"):
        assert [e["pid"] for e in spans if e["name"] == name] == [
            w for w in workers for _ in range(13)
        ]


@few
@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("model", ["bsp", "ssp:2", "async"])
@pytest.mark.parametrize("send_every", [None, pytest.param(1, marks=four)], ids=["pulled", "sent"])
def test_a_straggler_is_left_behind_as_far_as_allowed(comm, folder, model, send_every):
    """Nobody but the model keeps the others: how far they get while one sleeps."""
    slow = comm.rank == 0

    class Slow(MLP):
        def push_gradients(self, parameters, batch, push):
            time.sleep(0.02 * slow)
            return super().push_gradients(parameters, batch, push)

    config = configured(
        comm, "1", consistency=model, epochs=1, metrics=str(folder), send_every=send_every
    )
    run(config, comm, dataset=clouds(), model=Slow((12, 4)))
    (trace,) = traces(folder, comm)
    clocks, furthest = dict.fromkeys(range(comm.size - 1), 0), 0
    for event in trace:
        if event["kind"] == "push":
            clocks[event["worker"]] += 1
            furthest = max(furthest, max(clocks.values()) - clocks[0])
    allowed = {"bsp": 1, "ssp:2": 3}.get(model, 13)
    assert furthest <= allowed
    assert furthest == allowed or (model == "async" and furthest > 3)


@four
@pytest.mark.parametrize("at_once", [False, True])
def test_what_arrives_is_taken_over_while_gradients_are_computed_or_not(comm, at_once):
    changed = []

    class Watching(MLP):
        def push_gradients(self, parameters, batch, push):
            before = parameters["layer1.weight"].copy()

            def pause(*gradient):
                # Others push meanwhile: with one pace for all they would do so at the same time.
                time.sleep(0.004 * (1 + comm.rank))
                push(*gradient)

            loss = super().push_gradients(parameters, batch, pause)
            changed.append(not np.array_equal(parameters["layer1.weight"], before))
            return loss

    config = configured(
        comm, "1", consistency="async", epochs=2, send_every=1, apply_at_once=at_once
    )
    run(config, comm, dataset=clouds(), model=Watching((12, 4)))
    assert any(comm.allreduce(changed)) == at_once


@few
@pytest.mark.parametrize("placement", ["1", "colocated", "decentralized"])
@pytest.mark.parametrize("model", ["bsp", "ssp:1"])
def test_what_is_not_finite_is_refused_and_counted(comm, placement, model):
    class Poisoned(MLP):
        calls = 0

        def push_gradients(self, parameters, batch, push):
            self.calls += 1
            loss = super().push_gradients(parameters, batch, push)
            return np.nan if self.calls == 3 and comm.rank == 0 else loss

    config = configured(comm, placement, consistency=model, epochs=1)
    result = run(config, comm, dataset=clouds(), model=Poisoned((12, 4)))
    assert result.steps == 13 and result.history[0].skipped == 1
    assert np.isfinite(result.parameters["layer1.weight"]).all()


@few
@pytest.mark.parametrize("placement", ["1", "colocated", "decentralized"])
@pytest.mark.parametrize("model", ["bsp", "ssp:1", "async"])
@pytest.mark.parametrize("send_every", [None, pytest.param(2, marks=four)], ids=["pulled", "sent"])
def test_a_worker_that_fails_ends_the_run_on_all_ranks(comm, placement, model, send_every):
    class Failing(MLP):
        calls = 0

        def push_gradients(self, parameters, batch, push):
            self.calls += 1
            if self.calls == 3 and comm.rank == 0:
                raise OSError("the disk is on fire")
            return super().push_gradients(parameters, batch, push)

    config = configured(comm, placement, consistency=model, epochs=1, send_every=send_every)
    with pytest.raises(TrainingError, match="failed on rank 0: OSError: the disk is on fire"):
        run(config, comm, dataset=clouds(), model=Failing((12, 4)))
    assert comm.allgather(comm.rank) == list(range(comm.size))


@few
def test_too_many_pushes_refused_in_a_row_end_the_run(comm):
    class Poisoned(MLP):
        def push_gradients(self, parameters, batch, push):
            return super().push_gradients(parameters, batch, push) * np.nan

    config = configured(comm, "colocated", consistency="async", epochs=1, skip_limit=2)
    with pytest.raises(TrainingError, match=r"failed on rank \d: FloatingPointError: the loss"):
        run(config, comm, dataset=clouds(), model=Poisoned((12, 4)))


@few
@pytest.mark.parametrize("placement", ["1", "colocated", "decentralized"])
@pytest.mark.parametrize("model", ["bsp", "ssp:2"])
@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("send_every", [None, pytest.param(1, marks=four)], ids=["pulled", "sent"])
def test_a_signal_to_any_rank_stops_all_at_one_clock(
    comm, folder, placement, model, where, send_every
):
    """Of the last rank, which may be a server, and of the first."""
    config = configured(
        comm, placement, consistency=model, epochs=2, checkpoint=str(folder), send_every=send_every
    )
    mine = comm.rank == (0 if where == "first" else comm.size - 1)

    class Signalled(MLP):
        def losses_and_outputs(self, *arguments):  # after the first epoch, of all ranks
            if mine:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().losses_and_outputs(*arguments)

    stopped = run(config, comm, dataset=clouds(), model=Signalled((12, 4)))
    assert stopped.stopped == "signal"
    assert 13 < stopped.steps <= (26 if (placement, model) == ("decentralized", "ssp:2") else 18)
    _, facts = checkpoints.load(checkpoints.find(folder))
    assert (facts["epoch"], facts["position"]) == (2, stopped.steps - 13)
    on = Config(**{**vars(config), "resume": "auto"})
    resumed = run(on, comm, dataset=clouds())
    assert resumed.steps == 26 and len(resumed.history) == 2
    if model == "bsp":
        reference = alone(Config(**{**vars(config), "checkpoint": None}), comm)
        differences = parity.differences(resumed.parameters, reference.parameters)
        assert max(differences.values()) <= 1e-12


@few
def test_a_run_with_servers_goes_on_without(comm, folder):
    config = {"batch": 8, "epochs": 1, "optimizer": "adam", "lr": 0.01}
    run(configured(comm, "colocated", checkpoint=str(folder), **config), comm, dataset=clouds())
    config = {**config, "epochs": 2}
    ours = run(Config(resume=str(folder), **config), comm, dataset=clouds())
    reference = run(Config(**config), dataset=clouds())
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12


class Sign:
    """A server's update of the user's own: a step of one size for each element."""

    slots = ("steps",)

    def update(self, weights, gradient, state, lr, step):
        weights -= lr * np.sign(gradient)
        state["steps"] += 1


@few
@pytest.mark.parametrize("placement", ["1", "colocated"])
def test_servers_call_the_users_own_update(comm, placement):
    config = configured(comm, placement, epochs=1, lr=0.01)
    ours = run(config, comm, dataset=clouds(), optimizer=Sign())
    reference = run(
        config.alone(config.worker_count(comm.size)), dataset=clouds(), optimizer=Sign()
    )
    assert max(parity.differences(ours.parameters, reference.parameters).values()) <= 1e-12


@few
def test_more_servers_than_ranks_are_refused_on_all(comm):
    config = Config(strategy="parameter_server", servers=str(comm.size))
    with pytest.raises(
        TrainingError, match=rf"{comm.size} server\(s\) on {comm.size} rank\(s\) le"
    ):
        run(config, comm, dataset=clouds())
