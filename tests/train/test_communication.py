"""What a step sends, in numbers and in words."""

import json
from math import prod

import pytest

from mpicoll.cli import session
from mpicoll.train.driver import explained
from mpicoll.train.models import transformer
from mpicoll.train.parallel.communication import MESSAGE, Call, Total, totals
from mpicoll.train.parallel.mesh import Mesh
from mpicoll.train.parallel.pipeline import Pipeline


def test_a_ring_sends_its_vector_for_each_rank_but_one():
    calls = [Call("data", "allreduce", 1200, 4), Call("data", "allgather", 80, 4)]
    every = [[*calls, Call("pipe", MESSAGE, 7)]] * 4
    assert totals(every) == [
        Total("data", "allreduce", 1, 2 * 3 * 1200),
        Total("data", "allgather", 1, 3 * 80),
        Total("pipe", MESSAGE, 4, 28),
    ]


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_one_process_sends_nothing(schedule):
    model = transformer(11, 5, 8, blocks=1, heads=2)
    pipeline = Pipeline(model, Mesh(), schedule, microbatches=3)
    assert pipeline.communication(12) == []
    shapes = [prod(shape) for shape in model.parameter_shapes.values()]
    # Were there replicas: the shared vectors count for each of the layers that have them.
    shared = prod(model.parameter_shapes["embedding.weight"])
    assert pipeline.replicas.collectives([]) == [("allreduce", 4 * (sum(shapes) + shared))]


def test_words():
    found = [Total("data", "reduce_scatter", 2, 1234567), Total("pipe", MESSAGE, 16, 4096)]
    text = explained.words("allreduce", 4, 16, found, as_json=False)
    assert text.splitlines()[0] == "A step of 16 samples sends, by 4 ranks together:"
    assert text.splitlines()[1].split() == ["data", "2", "reduce_scatter", "1,234,567", "bytes"]
    assert json.loads(explained.words("allreduce", 4, 16, found, as_json=True))[1] == {
        "axis": "pipe",
        "name": "message",
        "calls": 16,
        "sent": 4096,
    }
    assert explained.words("allreduce", 1, 16, [], as_json=False) == "Nothing is sent in a step."
    gossip = explained.words("gossip", 4, 16, [], as_json=False)
    assert gossip == "What strategy gossip sends is not known beforehand."


def test_the_command_asks(command, monkeypatch):
    seen = []
    monkeypatch.setattr(session, "communicator", lambda: None)
    monkeypatch.setattr(
        "mpicoll.train.driver.console.main", lambda config, _, **how: seen.append(how) or 0
    )
    assert command("train", "--explain", "--json", "digits").status == 0
    assert seen == [{"as_json": True, "progress": None, "compare": False, "explain": True}]
