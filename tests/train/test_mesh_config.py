"""What a configuration says of a mesh, and what it refuses."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from clouds import clouds
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.cli import session
from mpicoll.train import Config
from mpicoll.train.config import OF_AXES, TOGETHER
from mpicoll.train.driver import preparation
from mpicoll.train.models import MLP, resnet
from mpicoll.train.models.flat import Flat
from mpicoll.train.options import Options
from mpicoll.train.parallel import mesh
from mpicoll.train.parallel.mesh import AXES, count_replicas, groups, parse
from mpicoll.train.registry import STRATEGIES
from mpicoll.train.strategies.meshed import Stages
from mpicoll.train.strategies.protocol import strategy_of, sums_between_ranks

lengths = st.integers(1, 6)


@given(st.dictionaries(st.sampled_from(AXES), lengths, min_size=1))
def test_axes_are_read_in_any_order(axes):
    text = ", ".join(f"{name} = {length}" for name, length in axes.items())
    assert parse(text) == axes


@given(lengths, lengths, lengths)
def test_replicas_take_the_rest(data, pipe, tensor):
    size = data * pipe * tensor
    assert count_replicas(size, None, pipe, tensor) == data
    assert count_replicas(size, data, pipe, tensor) == data
    with pytest.raises(ValueError, match=f"has {size} rank.* and {size + 1} were started: start"):
        count_replicas(size + 1, data, pipe, tensor)


@pytest.mark.parametrize("text", ["", "pipe", "pipe=0", "pipe=x", "pipe=2,pipe=2", "rows=2"])
def test_what_is_no_mesh(text):
    with pytest.raises(ValueError, match="give each axis of data, pipe, tensor at most once"):
        Config(mesh=text)


@pytest.mark.parametrize("axis", ["pipe", "tensor"])
@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "parameter_server"},
        {"wire": "fp16"},
        {"balance": "speed"},
        {"batch_per_rank": 4},
        {"lr_scaling": "linear"},
        {"data_servers": 1},
        {"deterministic": True, "algorithm": "recursive_doubling"},
        {"device": "gpu"},
        {"bucket": 100},
        {"keep_gathered": True},
    ],
    ids=str,
)
def test_what_a_mesh_does_not_take(axis, options):
    name = next(iter(options))
    if axis == "tensor" and name == "keep_gathered":
        assert name not in TOGETHER[axis]  # layers are gathered one by one, or once
        return
    assert options.keys() - {"algorithm"} <= {"strategy", *TOGETHER[axis]}
    with pytest.raises(ValueError, match=f"{axis} does not go together with {name} .*: give"):
        Config(mesh=f"{axis}=2", **options)


def test_all_that_a_mesh_does_not_take_is_tested():
    """Each cell of the table: the options above are those of the declaration."""
    [mark] = [
        mark for mark in test_what_a_mesh_does_not_take.pytestmark if mark.args[0] == "options"
    ]
    tested = {next(iter(options)) for options in mark.args[1]}
    assert tested == {"strategy", *TOGETHER["pipe"]}


@pytest.mark.parametrize("name", OF_AXES)
def test_what_is_of_axes_needs_them(name):
    value = {"cut": "0,1", "pipeline_schedule": "gpipe", "timeline": "x.json"}.get(name, 2)
    value = True if name in ("sequence", "recompute") else value
    with pytest.raises(ValueError, match=f"{name} is {value}, and all ranks are replicas"):
        Config(mesh="data=2", **{name: value})
    alone = Config(mesh="pipe=2", model="mlp").alone(2)
    assert getattr(alone, name) == getattr(Options, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline_schedule": "1b1f"}, "1f1b"),
        ({"pipeline_schedule": "forward"}, "has only forward passes"),
        ({"pipeline_schedule": "gpipe", "ahead": 1}, "ahead"),
        ({"pipeline_schedule": "pipedream", "clip": 1.0}, "pipedream does not take clip"),
        ({"pipeline_schedule": "pipedream", "accumulate": 2}, "does not take accumulate"),
        ({"pipeline_schedule": "pipedream", "invariant": 8}, "does not take invariant"),
        ({"pipeline_schedule": "pipedream", "dtype": "float16"}, "does not scale the loss"),
        ({"pipeline_schedule": "pipedream", "strategy": "zero1"}, "give strategy allreduce, or"),
        ({"pipeline_schedule": "pipedream", "strategy": "fsdp"}, "fsdp changes parameters at the"),
        ({"pipeline_schedule": "pipedream", "strategy": "gossip"}, "gossip changes parameters at"),
        ({"strategy": "local_sgd", "clip": 1.0}, "no rank knows the gradient of the whole batch"),
        ({"strategy": "local_sgd", "invariant": 8}, "does not go together with strategy local_sgd"),
        ({"strategy": "local_sgd", "survive": True}, "local_sgd does not take survive on a mesh"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"survive": True, "wire": "int8"}, "survive does not go together with wire int8"),
        ({"mesh": "pipe=2,tensor=2", "invariant": 8}, "tensor does not go together with invariant"),
    ],
)
def test_what_a_pipeline_does_not_take(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**{"mesh": "pipe=2", **options})


def test_the_strategy_follows_the_mesh():
    plain, cut = Config(mesh="data=2"), Config(mesh="pipe=2,data=2", accumulate=3)
    assert strategy_of(plain) is STRATEGIES["allreduce"]
    assert cut.step_schedule.microbatches == 4 * 2 * 3
    assert strategy_of(cut).describe(cut) == "allreduce, mesh pipe=2,data=2, 1f1b, 8 microbatches"
    for name in "zero1", "fsdp":
        alike = replace(cut, strategy=name)
        assert strategy_of(alike).describe(alike).startswith(f"{name}, mesh pipe=2,data=2, 1f1b")
    with pytest.raises(ValueError, match=r"mesh data=2,pipe=2 has 4 ranks and 3 were started"):
        cut.worker_count(3)
    assert cut.worker_count(4) == 4


def test_ranks_of_a_layer_on_several_nodes_are_told():
    def ranks(nodes):
        return SimpleNamespace(allgather=lambda _: nodes, Get_rank=lambda: 0)

    with pytest.warns(RuntimeWarning, match=r"ranks 2-3 share layers \(tensor=2\) and are on"):
        mesh.warn_of_nodes(ranks(["a", "a", "a", "b"]), 2)
    mesh.warn_of_nodes(ranks(["a", "a", "b", "b"]), 2)


def test_a_norm_over_the_batch_of_all_is_refused():
    for axis in ("pipe", "tensor"):
        config = Config(model="resnet", mesh=f"{axis}=2")
        with pytest.raises(ValueError, match=r"each microbatch by itself.*give norm local"):
            sums_between_ranks(config, resnet((8, 8, 1), (4,), 1, 3, "float32"))


def test_a_loader_is_refused():
    dataset = replace(clouds(), feed=object())
    with pytest.raises(ValueError, match="clouds comes from a loader: give the samples"):
        preparation._check(Config(mesh="tensor=2"), dataset, MLP((12, 4)), ())


def test_the_command_takes_a_mesh(command, monkeypatch):
    seen = []
    monkeypatch.setattr(session, "communicator", lambda: None)
    monkeypatch.setattr(
        "mpicoll.train.driver.console.main", lambda config, *_, **__: seen.append(config)
    )
    line = "--mesh data=2,pipe=2 --pipeline-schedule 1f1b --ahead 1 --microbatches 8 --recompute"
    assert command("train", *line.split(), "digits").status == 0
    [config] = seen
    assert (config.axes, config.ahead, config.microbatches) == (
        {"data": 2, "pipe": 2, "tensor": 1},
        1,
        8,
    )
    assert config.recompute and config.step_schedule.order.name == "1f1b"


def test_stacks_say_which_task_each_rank_is_in(job):
    script = """
        import os, signal, time
        sys.path[:0] = [HERE]
        from clouds import clouds
        from mpicoll.train import Config, run
        def asks(step):
            if step.number == 3 and comm.rank == 1:
                time.sleep(1)  # rank 0 begins the next step, and waits
                os.kill(os.getpid(), signal.SIGUSR2)
                time.sleep(2)  # rank 0 is asked, and writes
        config = Config(model="mlp", batch=8, steps=4, mesh="pipe=2", microbatches=2)
        run(config, comm, dataset=clouds(), on_step=asks)
    """
    status, _, err = job(2, script.replace("HERE", repr(str(Path(__file__).parents[1]))))
    assert status == 0, err
    for who in (r"\[rank 1\] stacks: asked for by a signal", r"\[rank 0\] .*asked for by rank 1"):
        assert re.search(rf"{who}, in \w+ of \w+ \d, microbatch \d", err)


@pytest.mark.parametrize(("data", "pipe", "tensor"), [(1, 1, 1), (2, 3, 4), (3, 1, 2), (1, 4, 2)])
def test_groups_of_ranks_along_each_axis(data, pipe, tensor):
    grid = np.arange(data * pipe * tensor).reshape(pipe, data, tensor)
    for number, axis in enumerate(("pipe", "data", "tensor")):
        expected = np.moveaxis(grid, number, -1).reshape(-1, grid.shape[number]).tolist()
        assert sorted(map(list, groups(axis, data, pipe, tensor))) == sorted(expected)


@pytest.mark.parametrize(
    ("strategy", "what", "copies"),
    [
        ("allreduce", "the step before", 1),
        ("zero1", "copies of parts", 4),
        ("fsdp", "copies of parts", 4),
    ],
)
def test_what_survival_keeps_is_counted(strategy, what, copies):
    """Of what this rank updates: parameters, and two arrays of Adam's for each."""
    config = Config(mesh="data=2,pipe=2", strategy=strategy, survive=True, optimizer="adam")
    owned = {"w": (np.zeros(5), 0, 5), "b": (np.zeros(2), 5, 7)}
    replicas = SimpleNamespace(
        nbytes=lambda slots: {"optimizer": slots},
        owned=lambda: owned,
        owns_pieces=strategy != "allreduce",
    )
    pipeline = SimpleNamespace(replicas=replicas)
    holding = Stages(Flat({"w": np.zeros(1)}), {}, mesh.Mesh(), pipeline, None)
    needed = strategy_of(config).memory(config, 0, 4, holding)
    assert needed == {"optimizer": 2, what: copies * 3 * 7 * 8}
    without = replace(config, survive=False)
    assert strategy_of(without).memory(without, 0, 4, holding) == {"optimizer": 2}
