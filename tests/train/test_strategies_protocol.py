"""Only `mpicoll.train.strategies` knows which strategies there are; another is one file more."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from float64 import Config

import mpicoll
from mpicoll.train import run
from mpicoll.train.driver import parity
from mpicoll.train.registry import STRATEGIES

TRAIN = Path(mpicoll.__file__).parent / "train"
KINDS = {"Trainer", "ServerTrainer", "Survivors", "AllReduceWorkers"}


def names(node):
    """The last words of all names in an expression."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Name):
            yield part.id


def violations(source):
    """Lines that compare a strategy's name, or ask what kind training or workers are of."""
    for node in ast.walk(ast.parse(source)):
        operands = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Match):
            operands = [node.subject]
        compared = any(
            isinstance(operand, (ast.Attribute, ast.Name)) and next(names(operand)) == "strategy"
            for operand in operands
        )
        asked = (
            isinstance(node, ast.Call)
            and "isinstance" in names(node.func)
            and KINDS & set(names(node.args[1]))
        )
        if compared or asked:
            yield node.lineno


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(TRAIN.rglob("*.py")) if path.parent.name != "strategies"],
    ids=lambda path: str(path.relative_to(TRAIN)),
)
def test_nobody_else_asks_which_strategy_it_is(path):
    assert list(violations(path.read_text())) == []


def test_strategies_do_not_ask_what_workers_are():
    for path in (TRAIN / "strategies").glob("*.py"):
        assert "isinstance(workers" not in path.read_text()


@pytest.mark.parametrize(
    "line",
    [
        'if config.strategy == "zero1": pass',
        'if config.strategy != "zero1": pass',
        'x = 1 if strategy in ("local_sgd", "gossip") else 2',
        'y = "zero1" == self._config.strategy',
        'z = config.strategy not in ("zero1",)',
        "isinstance(workers, Survivors)",
        "isinstance(training, (int, lockstep.Trainer))",
        "isinstance(training, Trainer | ServerTrainer)",
        'match config.strategy:\n    case "zero1": pass',
    ],
)
def test_who_asks_is_found(line):
    assert list(violations(f"pass\n{line}")) == [2]


def test_strategies_are_imported_when_they_are_asked_for():
    program = (
        "import sys\n"
        "from mpicoll.train.config import Config\n"
        "loaded = [name for name in sys.modules if name.startswith('mpicoll.train.strategies')]\n"
        "assert not loaded, loaded\n"
        "Config(strategy='zero1')\n"
        "assert 'mpicoll.train.strategies.lockstep' in sys.modules\n"
        "assert 'mpicoll.train.strategies.server_trainer' not in sys.modules\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_all_answer_what_is_asked_of_a_name():
    for name, strategy in STRATEGIES.items():
        config = Config(strategy=name)
        assert strategy.describe(config)
        assert strategy.servers(config) == 0
        assert config.worker_count(3) == 3
    assert STRATEGIES.taking("wire") == ("allreduce",)
    assert STRATEGIES.taking("balance") == ("allreduce", "zero1", "fsdp")


@pytest.fixture
def plain(monkeypatch):
    """A sixth strategy: a file, and in it the line that names it."""
    monkeypatch.setattr(STRATEGIES, "data", dict(STRATEGIES.data))
    monkeypatch.delitem(sys.modules, "plain", raising=False)
    import plain

    return plain


def test_another_strategy_is_a_file_and_a_line(plain, tmp_path):
    """It trains, is described and measured, checkpoints, and goes on where all-reduce was."""
    changes = {"optimizer": "momentum", "batch": 8, "epochs": 2}
    reference = run(Config(**changes), dataset=clouds()).parameters
    folder = str(tmp_path)
    config = Config(strategy="plain", **changes)
    ours = run(config, dataset=clouds()).parameters
    assert max(parity.differences(ours, reference).values()) == 0
    run(Config(checkpoint=folder, **{**changes, "epochs": 1}), dataset=clouds())
    resumed = run(Config(strategy="plain", resume=folder, **changes), dataset=clouds())
    assert resumed.steps == 26
    for name, array in resumed.parameters.items():
        assert np.array_equal(array, reference[name])
    assert parity.limit(config) == 1e-12
    assert "plain" in STRATEGIES


def test_what_another_strategy_does_not_take_is_refused(plain):
    with pytest.raises(ValueError, match="strategy plain does not take clip"):
        Config(strategy="plain", clip=1.0)
    with pytest.raises(ValueError, match="plain sends gradients as they are, not as fp16: give wi"):
        Config(strategy="plain", wire="fp16")
    with pytest.raises(ValueError, match="invariant does not go together with strategy plain"):
        Config(strategy="plain", invariant=4)
    with pytest.raises(ValueError, match=r"unknown strategy 'plane': known are .*gossip, plain$"):
        Config(strategy="plane")
