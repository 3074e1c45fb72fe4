"""What a run prints: what is trained, where it resumes, a line for each epoch, and the result.

One rank prints: the first of those that train, which is rank 0 until ranks die. Results go to
standard output; progress, signals and dead ranks to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mpicoll.base import arrays
from mpicoll.base.wording import plural
from mpicoll.train import threads
from mpicoll.train.config import Config
from mpicoll.train.data import PARTS, Dataset, trigram_loss
from mpicoll.train.driver import named
from mpicoll.train.driver.callbacks import OnStep
from mpicoll.train.records import Beginning, Epoch, Loss, Result, Step
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Characters of a line of the table, where that is possible.
_WIDTH = 80
#: Bytes of a text at most that a trigram table is made of.
_TABLE = 1 << 24


class Printer:
    """Prints a run as it goes. Every rank has one; `begin` says which of them prints.

    Args:
        config: The run.
        comm: The ranks that were started; None for one process.
        on_step: Called after each step, on the rank that prints, such as a progress bar
            (`progress.shown`).
        brought: What a program brings, in words, by the field of the configuration it replaces.
    """

    def __init__(
        self,
        config: Config,
        comm: MPI.Intracomm | None,
        on_step: OnStep | None,
        brought: Mapping[str, str | None] | None = None,
    ) -> None:
        self._config, self._on_step = config, on_step
        self._brought = {name: words for name, words in (brought or {}).items() if words}
        self._ranks = 1 if comm is None else comm.Get_size()
        self._is_first = comm is None or comm.Get_rank() == 0
        self._dataset: Dataset | None = None
        self._table = _Table()
        self._prints = self._has_head = False

    def head(self, dataset: Dataset) -> None:
        """Print what is trained, once."""
        if not self._has_head:
            self._has_head = True
            self._say(header(self._config, self._ranks, dataset, self._brought))

    def begin(self, dataset: Dataset, beginning: Beginning | None, prints: bool) -> None:
        """An attempt begins.

        Args:
            dataset: The data.
            beginning: Where the run begins; None where ranks have died and the others go on.
            prints: Whether this rank prints from now on.
        """
        self._dataset, self._prints = dataset, prints
        if prints and beginning is not None:
            self.head(dataset)
            if self._config.resume is not None:
                self._say(resumed(self._config, beginning))

    def add(self, record: Step | Epoch) -> None:
        """Print an epoch; show progress after a step."""
        if isinstance(record, Epoch):
            lines = self._table.lines(record)  # on all ranks, so that heads are printed once
            if self._prints:
                self._say(lines)
        elif self._on_step is not None and self._prints:
            self._on_step(record)  # type: ignore[call-arg]

    def close(self) -> None:
        """An attempt is over: nothing is open."""

    def pause(self) -> None:
        """This rank trains no more; another one prints."""
        self._prints = False

    def end(self, result: Result) -> None:
        """Print what came of the run, on the rank that has printed it."""
        if not self._prints or self._dataset is None:
            return
        for remark in remarks(self._config, result):
            warn(remark)
        if result.stopped != "signal":
            self._say(conclusion(outcome(self._config, self._ranks, self._dataset, result)))

    def _say(self, words: str) -> None:
        say(words, started_first=self._is_first)


def say(words: str, *, started_first: bool) -> None:
    """Print what a run has found.

    Args:
        words: That.
        started_first: Whether this process is rank 0 of those that were started. The command closes
            the output of all others.
    """
    print(words, file=sys.stdout if started_first else sys.__stdout__, flush=True)


def warn(words: str) -> None:
    """Print what has gone wrong."""
    print(words, file=sys.stderr, flush=True)


def remarks(config: Config, result: Result) -> list[str]:
    """What has gone wrong in a run: deaths of ranks and what they cost, a signal that ended it."""
    found = [_lost(loss) for loss in result.lost]
    if result.stopped == "signal":
        kept = "nothing is kept" if config.checkpoint is None else f"see {config.checkpoint}"
        found.append(f"stopped by a signal after step {result.steps}: {kept}")
    return found


def _lost(loss: Loss) -> str:
    """What the death of ranks has cost."""
    which = f"lost {plural(len(loss.ranks), 'rank')}: {', '.join(map(str, loss.ranks))}"
    cost = [f"{1e3 * loss.seconds:.0f} ms until {plural(loss.left, 'rank')} went on"]
    if loss.spare:
        cost.append(f"{plural(loss.spare, 'rank')} spare")
    if loss.repeated:
        cost.append(f"{plural(loss.repeated, 'step')} made again")
    if loss.checkpoint is not None:
        cost.append(f"from {loss.checkpoint}, since what they alone knew was lost")
    return f"{which} after step {loss.step}; {', '.join(cost)}"


def outcome(
    config: Config,
    ranks: int,
    dataset: Dataset,
    result: Result,
    verdict: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What came of a run, as facts.

    Args:
        config, dataset, result: The run.
        ranks: The ranks that were started.
        verdict: The comparison with one process, if there was one.
    """
    return {
        "ranks": ranks,
        "steps": result.steps,
        "stopped": result.stopped,
        "validation": result.history[-1].validation if result.history else {},
        "test": result.test,
        **({"trigram": _trigram(dataset)} if config.dataset == dataset.name == "text" else {}),
        "seconds": sum(epoch.seconds for epoch in result.history),
        "communication_a_step": {"measured": result.communicated, "predicted": result.predicted},
        "difference_from_one_process": verdict,
    }


class _Table:
    """The lines of epochs, under heads that say what is measured."""

    _heads = ""

    def lines(self, epoch: Epoch) -> str:
        """An epoch, and the heads before the first."""
        cells = [("epoch", str(epoch.number)), ("loss", f"{epoch.loss:.4f}")]
        for part in PARTS:
            for name, value in getattr(epoch, part).items():
                cells.append((f"{part} {name}", f"{value:.4f}"))
        cells.append(("seconds", f"{epoch.seconds:.2f}"))
        cells.append(("exposed", f"{epoch.communication:.0%}"))
        names, values = zip(*cells, strict=True)
        widths = [max(len(name), 8 * (place > 0)) for place, name in enumerate(names)]
        rows = [names]
        if sum(widths) + 2 * len(widths) > _WIDTH:  # heads of two words on two lines
            rows = [*zip(*(name.rpartition(" ")[::2] for name in names), strict=True)]
            words = (max(map(len, pair)) for pair in zip(*rows, strict=True))
            widths = [max(most, 7 * (place > 0)) for place, most in enumerate(words)]
        heads, line = (
            "\n".join("  ".join(map(str.rjust, row, widths)) for row in several)
            for several in (rows, [values])
        )
        new, self._heads = heads != self._heads, heads
        return f"{heads}\n{line}" if new else line


def resumed(config: Config, beginning: Beginning) -> str:
    """Where a run resumes that was asked to."""
    if beginning.checkpoint is None:
        return f"no checkpoint in {config.checkpoint}: starts at step 1"
    said = (
        f"resumed from {beginning.checkpoint}, epoch {min(beginning.epoch, config.epochs)} "
        f"(attempt {beginning.attempt})"
    )
    done = None
    if beginning.epoch > config.epochs:
        done = f"all {plural(config.epochs, 'epoch')} are done; raise --epochs to train on"
    elif config.steps is not None and beginning.step >= config.steps:
        done = f"all {plural(config.steps, 'step')} are done; raise --steps to train on"
    return f"{said}\nnothing is left to train: {done}" if done else said


def header(config: Config, ranks: int, dataset: Dataset, brought: Mapping[str, str]) -> str:
    """What is trained; `brought` as of `Printer`."""
    sets = [
        f"{len(wanted):,} {'training' if part == 'train' else part}"
        for part, (_, wanted) in dataset.parts.items()
    ]
    samples = len(dataset.train_targets)
    model = brought.get("model") or f"{config.model} {named.described(config, dataset)}"
    lines = [
        f"train {dataset.name}: {model} in "
        f"{config.dtype}, {plural(ranks, 'rank')}, {strategy_of(config).describe(config)}",
        f"{', '.join(sets[:-1])}{' and ' * (len(sets) > 1)}{sets[-1]} samples, "
        f"batch {min(config.global_batch(config.worker_count(ranks - config.spares)), samples)}, "
        f"{brought.get('optimizer', config.optimizer)} with "
        f"{brought.get('schedule', f'lr {config.lr:g}')}, seed {config.seed}, "
        f"BLAS threads a rank: {threads.describe_blas_threads()}",
    ]
    if dataset.about:
        lines.append(dataset.about)
    chooses = config.checkpoint, config.target_loss, config.target_accuracy
    if dataset.held_out != "validation" and any(choice is not None for choice in chooses):
        by = "test set" if dataset.held_out else "training loss"
        lines.append(f"no validation set: what is best, and when to stop, is by the {by}")
    return "\n".join(lines)


def _trigram(dataset: Dataset) -> float:
    """The loss of a table of three bytes on the validation set of a text."""
    most = _TABLE // dataset.features
    text, held_out = (
        arrays.host(dataset.parts[part][0][:most]).reshape(-1) for part in ("train", "validation")
    )
    return trigram_loss(text, held_out)


def conclusion(facts: Mapping[str, Any]) -> str:
    """What came of a run, in words; `facts` as of `outcome`."""
    found = [
        f"{part} {name} {value:.4f}"
        for part in ("validation", "test")
        for name, value in facts[part].items()
    ]
    reached = f"{', '.join(found) or 'trained'} after {facts['seconds']:.1f} s of steps"
    if "trigram" in facts:
        reached += (
            f"\nvalidation loss of an interpolated trigram table: {facts['trigram']:.4f}, in nats "
            "a byte as all of these losses"
        )
    travel = facts["communication_a_step"]
    if travel["predicted"] is not None:
        reached += (
            f"\ncommunication a step: {1e3 * travel['measured']:.3f} ms on rank 0, "
            f"{1e3 * travel['predicted']:.3f} ms by the fitted model"
        )
    verdict = facts["difference_from_one_process"]
    if verdict is None:
        return reached
    bound = f"limit {verdict['limit']:g}: {'ok' if verdict['ok'] else 'EXCEEDED'}"
    hint = ""
    if not verdict["ok"]:
        hint = (
            "\nAn unstable training multiplies rounding errors from step to step: try a lower "
            "learning rate, less momentum or a larger batch before you suspect the all-reduce."
        )
    if verdict["speed_up"] is not None:
        ranks = plural(facts["ranks"], "rank")
        reached += (
            f"\none process takes {verdict['seconds']:.1f} s: a speed-up of "
            f"{verdict['speed_up']:.2f} on {ranks}"
        )
    return (
        f"{reached}\n"
        f"largest difference of the weights from one process: {verdict['largest']:.1e} of the "
        f"largest value of {verdict['array']} ({bound}){hint}"
    )
