"""`mpicoll train`: train, print what happens, compare with one process.

One rank prints, results to standard output and the progress bar to standard error: the first of
those that train, which is rank 0 until ranks die.
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
from mpicoll.errors import RankLost
from mpicoll.train import threads
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load
from mpicoll.train.driver import memory, parity, printer
from mpicoll.train.driver.attempt import Callbacks
from mpicoll.train.driver.explained import explained, words
from mpicoll.train.driver.failure_detector import failure_detector
from mpicoll.train.driver.loop import members_of, run, run_on, train
from mpicoll.train.driver.preparation import Given
from mpicoll.train.driver.printer import Printer
from mpicoll.train.driver.progress import shown
from mpicoll.train.ranks import health, signals
from mpicoll.train.ranks.members import Members
from mpicoll.train.ranks.workers import TrainingError, together
from mpicoll.train.records import Result, Step
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI

#: What to say of a death where nothing has been begun that others could go on with.
_TOO_EARLY = "a rank has died before the run has begun: start it again"


def main(
    config: Config,
    comm: MPI.Intracomm,
    *,
    as_json: bool = False,
    progress: bool | None = None,
    compare: bool = False,
    explain: bool = False,
) -> int:
    """Train on all ranks of `comm` and print the result, as ``mpicoll train`` does; collective.

    Args:
        config: The configuration, equal on all ranks.
        comm: An `mpicoll.Intracomm`.
        as_json: Print one JSON object at the end instead of text.
        progress: Draw a progress bar. None draws one if standard error is a terminal; otherwise a
            line is written every 30 seconds of an epoch. Launchers connect ranks by pipes: give
            True if the pipe ends on a terminal.
        compare: Train again in one process and compare the weights.
        explain: Print what a step sends, and train nothing.

    Returns:
        Exit status, the same on all ranks: 0; 1 if training failed, or if the weights differ from
        those of one process by more than rounding explains; 75 if a signal ended the run. If a rank
        dies, the launcher continues and the run cannot, this process ends. With `config.survive`,
        only a process that fails by itself ends.
    """
    if explain:
        return _explain(config, comm, as_json)
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


def _explain(config: Config, comm: MPI.Intracomm, as_json: bool) -> int:
    speaker = _Speaker(comm, None)
    try:
        samples, found = explained(config, comm)
    except TrainingError as error:
        speaker.warn(f"error: {error}")
        return 1
    speaker.say(words(config.strategy, comm.Get_size(), samples, found, as_json))
    return 0


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
        workers = placement.members(config, comm) if members is None else members.everyone
        with together(workers, "sharing out the ranks"):
            config.worker_count(workers.size if members is None else members.places)
        memory.make_room(workers, memory.reading(config))
        with together(workers, f"reading {config.dataset}"):
            dataset = load(config.dataset, config.data, config.context)
        with shown(progress) as on_step:

            def on_first(step: Step) -> None:
                if speaker.is_first and on_step is not None:
                    on_step(step)  # type: ignore[call-arg]

            callbacks = Callbacks(on_step=on_first)
            if not as_json:
                prints = Printer(config, comm, on_step)
                callbacks = Callbacks(printer=prints)
                if speaker.is_first:
                    prints.head(dataset)
            given = Given(dataset)
            if members is None:
                result = train(config, comm, given, None, callbacks)
            else:
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
    for remark in printer.remarks(config, result):
        speaker.warn(remark)
    if result.stopped == "signal":
        if members is not None:
            return signals.STATUS
        if _report_lost(config, comm):
            health.leave(signals.STATUS)
        meet(comm)  # a launcher ends all ranks when the first has left
        return signals.STATUS
    if _report_lost(config, comm):
        if speaker.is_first:
            speaker.say(_report(config, comm.Get_size(), dataset, result, None, as_json))
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
        speaker.say(_report(config, comm.Get_size(), dataset, result, found, as_json))
    return int(found is not None and not found["ok"])


class _Speaker:
    """Prints on one rank: the first of those that train.

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
        """Print what the run has found."""
        if self.is_first:
            printer.say(words, started_first=self._first)

    def warn(self, words: str) -> None:
        """Print what has gone wrong."""
        if self.is_first:
            printer.warn(words)


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
    alone = replace(config.alone(ranks), checkpoint=None, metrics=None)
    reference = run(alone, dataset=dataset, quiet=True)
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


def _report(
    config: Config,
    ranks: int,
    dataset: Dataset,
    result: Result,
    verdict: dict[str, Any] | None,
    as_json: bool,
) -> str:
    """What came of the run, as text or as JSON."""
    outcome = printer.outcome(config, ranks, dataset, result, verdict)
    if not as_json:
        return printer.conclusion(outcome)
    facts = {
        "config": asdict(config),
        **({"about": dataset.about} if dataset.about else {}),
        "blas_threads": threads.describe_blas_threads(),
        "epochs": [asdict(epoch) for epoch in result.history],
        "beginning": asdict(result.beginning),
        **({"lost": [asdict(loss) for loss in result.lost]} if config.survive else {}),
        **outcome,
    }
    return json.dumps(finite(facts), indent=2)
