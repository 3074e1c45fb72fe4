"""What strategy fsdp does not take, and what it says of itself."""

import pytest

from mpicoll.train import Config
from mpicoll.train.strategies.protocol import strategy_of


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gather": "some"}, "unknown gather 'some': known are all, broadcast"),
        ({"bucket": 100}, "does not take bucket 100, because gradients are summed layer by layer"),
        ({"device": "gpu"}, "does not take device gpu, because parts are kept in the memory of"),
        (
            {"wire": "fp16"},
            "strategy fsdp sends gradients as they are, not as fp16: give wire full",
        ),
        ({"invariant": 4}, "invariant does not go together with strategy fsdp: give strategy"),
        ({"survive": True, "spares": 1}, "does not take spares 1, because a rank that sleeps"),
        ({"deterministic": True, "algorithm": "linear"}, "deterministic does not go together with"),
    ],
)
def test_what_does_not_go_together_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Config(strategy="fsdp", **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "fsdp with all-gather and reduce-scatter by the algorithms of the communicator"),
        (
            {"gather": "broadcast", "keep_gathered": True, "algorithm": "linear"},
            "fsdp with broadcast and reduce, gathered once a step by linear",
        ),
    ],
)
def test_it_says_how_it_gathers(changes, words):
    config = Config(strategy="fsdp", **changes)
    assert strategy_of(config).describe(config) == words
