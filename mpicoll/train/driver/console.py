"""`mpicoll train`: train, print what happens, compare with one process.

Rank 0 alone prints: results to standard output, the progress bar to standard error. Where it has
died, the lowest rank that is left does.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.deaths import dead, survives
from mpicoll.base.json_lines import finite
from mpicoll.base.sleeping import meet
from mpicoll.base.wording import plural
from mpicoll.errors import RankLost
from mpicoll.train import threads
from mpicoll.train.config import Config
from mpicoll.train.data import PARTS, Dataset, load, trigram_loss
from mpicoll.train.driver import memory, named, parity
from mpicoll.train.driver.attempt import Callbacks
from mpicoll.train.driver.failure_detector import failure_detector
from mpicoll.train.driver.loop import members_of, run, run_on
from mpicoll.train.driver.progress import beats, progress_bar
from mpicoll.train.ranks import health, signals
from mpicoll.train.ranks.members import Members
from mpicoll.train.ranks.workers import TrainingError, together
from mpicoll.train.records import Beginning, Epoch, Loss, Result
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: Characters of a line of the table, where that is possible.
_WIDTH = 80
#: Bytes of a text at most that a table is made of.
_TABLE = 1 << 24
#: What to say of a death where nothing has been begun that others could go on with.
_TOO_EARLY = "a rank has died before the run has begun: start it again"


def main(
    config: Config,
    comm: MPI.Intracomm,
    *,
    as_json: bool = False,
    progress: bool | None = None,
    compare: bool = False,
) -> int:
    """Train on all ranks of `comm`, and print what comes of it; collective.

    Args:
        config: What to do, equal on all ranks.
        comm: An `mpicoll.Intracomm`.
        as_json: Print one JSON object at the end instead of text.
        progress: Draw a progress bar; None draws one if standard error is a terminal, and writes a
            line now and then in long epochs elsewhere. Launchers connect the ranks through pipes,
            so ask for the bar where that pipe ends on a terminal.
        compare: Train again in one process, where the same weights are promised.

    Returns:
        Exit status, the same on all ranks: 0; 1 if training failed or the weights differ from those
        of one process by more than rounding explains; `signals.STATUS` if a signal ended the run.
        Where the launcher goes on when a rank dies, and the run cannot, this process ends; where
        the run can (`config.survive`), a process ends that fails alone.
    """
    if not config.survive:
        with failure_detector(config, comm):
            return _main(config, comm, None, as_json, progress, compare)
    try:
        members = members_of(config, comm)
    except TrainingError as error:
        if comm.Get_rank() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except RankLost:
        health.end(comm, RuntimeError(_TOO_EARLY))
    from mpicoll.comm import exit_on_exception  # starts MPI

    with exit_on_exception():
        status = _main(config, comm, members, as_json, progress, compare)
        if members.missing():
            members.leave(status)
        return status


def _main(
    config: Config,
    comm: MPI.Intracomm,
    members: Members | None,
    as_json: bool,
    progress: bool | None,
    compare: bool,
) -> int:
    speaker = _Speaker(comm, members)
    try:
        workers = placement.members(config, comm) if members is None else members.workers
        with together(workers, "sharing out the ranks"):
            config.worker_count(workers.size if members is None else members.places)
        memory.make_room(workers, memory.reading(config))
        with together(workers, f"reading {config.dataset}"):
            dataset = load(config.dataset, config.data, config.context)
        say = (lambda _: None) if as_json else speaker.say
        say(_header(config, comm.Get_size(), dataset))
        table = _Table()
        wanted = sys.stderr.isatty() if progress is None else progress
        lines = beats() if progress is None and not wanted and speaker.is_first else None
        with progress_bar(speaker.is_first and wanted) as bar:
            callbacks = Callbacks(
                None,
                None if config.resume is None else lambda begin: say(_goes_on(config, begin)),
                bar or lines,
                lambda epoch: say(table.lines(epoch)),
            )
            if members is None:
                result = run(config, comm, dataset=dataset, **vars(callbacks))
            else:
                given = dataset, None, None
                result = run_on(members, config, given, None, callbacks)
    except health.NeededRankLost as error:
        health.end(comm, error)
    except RankLost as error:
        if error.given_up is not None:
            raise
        health.end(comm, RuntimeError(_TOO_EARLY))
    except TrainingError as error:
        speaker.warn(f"error: {error}")
        return 1
    for loss in result.lost:
        speaker.warn(_lost(loss))
    if result.stopped == "signal":
        kept = "nothing is kept" if config.checkpoint is None else f"see {config.checkpoint}"
        speaker.warn(f"stopped by a signal after step {result.steps}: {kept}")
        if members is not None:
            return signals.STATUS
        if _report_lost(config, comm):
            health.leave(signals.STATUS)
        meet(comm)  # a launcher ends all ranks when the first has left
        return signals.STATUS
    if _report_lost(config, comm):
        if speaker.is_first:
            speaker.say(_conclude(config, comm.Get_size(), dataset, result, None, as_json))
        health.leave(0)
    verdict = None
    if compare and not strategy_of(config).has_whole:
        speaker.warn(
            f"no comparison: under strategy {config.strategy} no rank has all parameters; compare "
            "strategy zero1, which has the same"
        )
    elif compare and (config.resume is not None or parity.limit(config) is None):
        speaker.warn(
            "no comparison: the weights of one process are promised to whole runs in float64, on "
            "ranks that have all of them"
        )
    elif compare:
        if speaker.is_first:
            places = comm.Get_size() - config.spares
            verdict = _compare(config, config.worker_count(places), dataset, result)
        if members is None:
            meet(comm)
    found = comm.bcast(verdict, root=0) if members is None else members.tell(verdict)
    if speaker.is_first:
        speaker.say(_conclude(config, comm.Get_size(), dataset, result, found, as_json))
    return int(found is not None and not found["ok"])


class _Speaker:
    """Prints on one rank: the first, or the lowest that is left.

    Args:
        comm: All ranks.
        members: The same, where some may die.
    """

    def __init__(self, comm: MPI.Intracomm, members: Members | None) -> None:
        self._first, self._members = comm.Get_rank() == 0, members

    @property
    def is_first(self) -> bool:
        return self._first if self._members is None else self._members.is_first

    def say(self, words: str) -> None:
        """Say what the run has found."""
        if self.is_first:
            # The command closes the output of all ranks but the first.
            print(words, file=sys.stdout if self._first else sys.__stdout__, flush=True)

    def warn(self, words: str) -> None:
        """Say what has gone wrong."""
        if self.is_first:
            print(words, file=sys.stderr, flush=True)


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


def _report_lost(config: Config, comm: MPI.Intracomm) -> bool:
    """Whether servers have died that others stood in for; rank 0 says so: the launcher does not."""
    if not (strategy_of(config).notices_deaths and survives()):
        return False
    lost = dead(comm)
    if lost and comm.Get_rank() == 0:
        ranks = ", ".join(map(str, lost))
        print(f"rank(s) {ranks} died, and others held what they did", file=sys.stderr, flush=True)
    return bool(lost)


def _compare(config: Config, ranks: int, dataset: Dataset, result: Result) -> dict[str, Any]:
    """Train again in this process alone and compare the weights."""
    reference = run(replace(config.alone(ranks), checkpoint=None, metrics=None), dataset=dataset)
    differences = parity.differences(result.parameters, reference.parameters)
    worst = max(differences, key=lambda name: np.nan_to_num(differences[name], nan=np.inf))
    limit = parity.limit(config)
    seconds = sum(epoch.seconds for epoch in reference.history)
    own = sum(epoch.seconds for epoch in result.history)
    return {
        "seconds": seconds,
        "speed_up": seconds / own if own else None,
        "largest": differences[worst],
        "array": worst,
        "limit": limit,
        "ok": limit is not None and differences[worst] <= limit,
    }


def _conclude(
    config: Config,
    ranks: int,
    dataset: Dataset,
    result: Result,
    verdict: dict[str, Any] | None,
    as_json: bool,
) -> str:
    """What came of the run."""
    facts = {
        "config": asdict(config),
        **({"about": dataset.about} if dataset.about else {}),
        "ranks": ranks,
        "blas_threads": threads.describe_blas_threads(),
        "epochs": [asdict(epoch) for epoch in result.history],
        "beginning": asdict(result.beginning),
        "steps": result.steps,
        "stopped": result.stopped,
        **({"lost": [asdict(loss) for loss in result.lost]} if config.survive else {}),
        "validation": result.history[-1].validation if result.history else {},
        "test": result.test,
        **({"trigram": _trigram(dataset)} if config.dataset == "text" else {}),
        "seconds": sum(epoch.seconds for epoch in result.history),
        "communication_a_step": {"measured": result.communicated, "predicted": result.predicted},
        "difference_from_one_process": verdict,
    }
    return json.dumps(finite(facts), indent=2) if as_json else _conclusion(facts)


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
        cells.append(("in messages", f"{epoch.communication:.0%}"))
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


def _goes_on(config: Config, beginning: Beginning) -> str:
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


def _header(config: Config, ranks: int, dataset: Dataset) -> str:
    sets = [
        f"{len(wanted):,} {'training' if part == 'train' else part}"
        for part, (_, wanted) in dataset.parts.items()
    ]
    samples = len(dataset.train_targets)
    lines = [
        f"train {dataset.name}: {config.model} {named.described(config, dataset)} in "
        f"{config.dtype}, {plural(ranks, 'rank')}, {strategy_of(config).describe(config)}",
        f"{', '.join(sets[:-1])}{' and ' * (len(sets) > 1)}{sets[-1]} samples, "
        f"batch {min(config.global_batch(config.worker_count(ranks - config.spares)), samples)}, "
        f"{config.optimizer} with lr {config.lr:g}, seed {config.seed}, "
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
    text, held_out = (dataset.parts[part][0] for part in ("train", "validation"))
    most = _TABLE // dataset.features
    return trigram_loss(text[:most].reshape(-1), held_out[:most].reshape(-1))


def _conclusion(facts: dict[str, Any]) -> str:
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
