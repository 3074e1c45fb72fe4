"""`mpicoll train`: train, print what happens, compare with one process.

Rank 0 alone prints: results to standard output, the progress bar to standard error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpicoll.base.sleeping import meet
from mpicoll.base.wording import plural
from mpicoll.train import threads
from mpicoll.train.config import Config
from mpicoll.train.data import Dataset, load
from mpicoll.train.driver import memory, parity
from mpicoll.train.driver.failure_detector import failure_detector
from mpicoll.train.driver.loop import OnStep, run
from mpicoll.train.ranks import health, signals
from mpicoll.train.ranks.workers import TrainingError, together
from mpicoll.train.records import Beginning, Epoch, Result, Step
from mpicoll.train.strategies import placement
from mpicoll.train.strategies.protocol import strategy_of

if TYPE_CHECKING:
    from mpi4py import MPI

_REFRESH_SECONDS = 0.1


def main(
    config: Config,
    comm: MPI.Intracomm,
    *,
    as_json: bool = False,
    progress: bool | None = None,
    compare: bool = True,
) -> int:
    """Train on all ranks of `comm`, then compare with one process; collective.

    Args:
        config: What to do, equal on all ranks.
        comm: An `mpicoll.Intracomm`.
        as_json: Print one JSON object at the end instead of text.
        progress: Draw a progress bar; None draws one if standard error is a terminal. Launchers
            connect the ranks through pipes, so ask for it where that pipe ends on a terminal.
        compare: Train again in one process, where the same weights are promised.

    Returns:
        Exit status, the same on all ranks: 0; 1 if training failed or the weights differ from those
        of one process by more than rounding explains; `signals.STATUS` if a signal ended the run.
        Where the launcher goes on when a rank dies, and the run cannot, this process ends.
    """
    with failure_detector(config, comm):
        return _main(config, comm, as_json, progress, compare)


def _main(
    config: Config, comm: MPI.Intracomm, as_json: bool, progress: bool | None, compare: bool
) -> int:
    first = comm.Get_rank() == 0
    try:
        workers = placement.members(config, comm)
        with together(workers, "sharing out the ranks"):
            config.worker_count(comm.Get_size())
        memory.make_room(workers, memory.reading(config))
        with together(workers, f"reading {config.dataset}"):
            dataset = load(config.dataset, config.data)
        say = print if first and not as_json else lambda *_, **__: None
        say(_header(config, comm.Get_size(), dataset), flush=True)
        wanted = sys.stderr.isatty() if progress is None else progress
        with _progress_bar(first and wanted) as on_step:
            result = run(
                config,
                comm,
                dataset=dataset,
                on_begin=lambda begin: say(_begins(config, begin), flush=True),
                on_step=on_step,
                on_epoch=lambda epoch: say(_line(epoch), flush=True),
            )
    except health.RankLost as error:
        health.end(comm, error)
    except TrainingError as error:
        if first:
            print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    if result.stopped == "signal":
        if first:
            kept = "nothing is kept" if config.checkpoint is None else f"see {config.checkpoint}"
            words = f"stopped by a signal after step {result.steps}: {kept}"
            print(words, file=sys.stderr, flush=True)
        if _report_lost(config, comm):
            health.leave(signals.STATUS)
        meet(comm)  # a launcher ends all ranks when the first has left
        return signals.STATUS
    if _report_lost(config, comm):
        if first:
            _conclude(config, comm.Get_size(), result, None, as_json)
        health.leave(0)
    verdict = None
    if compare and config.resume is None and parity.limit(config) is not None:
        if first:
            verdict = _compare(config, config.worker_count(comm.Get_size()), dataset, result)
        meet(comm)
    status: int = comm.bcast(int(verdict is not None and not verdict["ok"]), root=0)
    if first:
        _conclude(config, comm.Get_size(), result, verdict, as_json)
    return status


def _report_lost(config: Config, comm: MPI.Intracomm) -> bool:
    """Whether servers have died that others stood in for; rank 0 says so: the launcher does not."""
    if not (strategy_of(config).notices_deaths and health.survives()):
        return False
    lost = health.dead(comm)
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
    return {
        "largest": differences[worst],
        "array": worst,
        "limit": limit,
        "ok": limit is not None and differences[worst] <= limit,
    }


def _conclude(
    config: Config, ranks: int, result: Result, verdict: dict[str, Any] | None, as_json: bool
) -> None:
    """Print what came of the run."""
    facts = {
        "config": asdict(config),
        "ranks": ranks,
        "blas_threads": threads.describe_blas_threads(),
        "epochs": [asdict(epoch) for epoch in result.history],
        "beginning": asdict(result.beginning),
        "steps": result.steps,
        "stopped": result.stopped,
        "test_accuracy": result.history[-1].test_accuracy,
        "seconds": sum(epoch.seconds for epoch in result.history),
        "communication_a_step": {"measured": result.communicated, "predicted": result.predicted},
        "difference_from_one_process": verdict,
    }
    print(json.dumps(facts, indent=2) if as_json else _conclusion(facts), flush=True)


_COLUMNS = (
    f"{'epoch':>5}  {'loss':>8}  {'train acc.':>10}  {'test acc.':>9}  {'seconds':>7}  in messages"
)


def _line(epoch: Epoch) -> str:
    return (
        f"{epoch.number:>5}  {epoch.loss:>8.4f}  {epoch.train_accuracy:>10.4f}  "
        f"{epoch.test_accuracy:>9.4f}  {epoch.seconds:>7.2f}  {epoch.communication:>11.0%}"
    )


def _begins(config: Config, beginning: Beginning) -> str:
    """Where a run goes on that was asked to; and the heads of the lines that follow."""
    if config.resume is None:
        return _COLUMNS
    words = f"no checkpoint in {config.checkpoint}: begins with step 1"
    if beginning.checkpoint is not None:
        words = (
            f"goes on from {beginning.checkpoint}: step {beginning.step} is made, attempt "
            f"{beginning.attempt} begins in epoch {beginning.epoch}"
        )
    return f"{words}\n{_COLUMNS}"


def _header(config: Config, ranks: int, dataset: Dataset) -> str:
    train, test = len(dataset.train_labels), len(dataset.test_labels)
    layers = {
        "softmax": (dataset.features, dataset.classes),
        "mlp": (dataset.features, *config.hidden, dataset.classes),
        "conv": (*dataset.shape, *config.channels, *config.hidden, dataset.classes),
        "resnet": (*dataset.shape, *config.channels, dataset.classes),
    }[config.model]
    return (
        f"train {dataset.name}: {config.model} {'-'.join(map(str, layers))} in {config.dtype}, "
        f"{plural(ranks, 'rank')}, "
        f"{strategy_of(config).describe(config)}\n"
        f"{train:,} training and {test:,} test samples, "
        f"batch {min(config.global_batch(config.worker_count(ranks)), train)}, "
        f"{config.optimizer} with lr {config.lr:g}, seed {config.seed}, "
        f"BLAS threads a rank: {threads.describe_blas_threads()}"
    )


def _conclusion(facts: dict[str, Any]) -> str:
    reached = f"test accuracy {facts['test_accuracy']:.4f} after {facts['seconds']:.1f} s of steps"
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
    return (
        f"{reached}\n"
        f"largest difference of the weights from one process: {verdict['largest']:.1e} of the "
        f"largest value of {verdict['array']} ({bound}){hint}"
    )


@contextmanager
def _progress_bar(wanted: bool) -> Iterator[OnStep | None]:
    """A bar for each epoch, erased at its end; yields the function to call after a step."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(
        console=Console(stderr=True, force_terminal=True),
        transient=True,
        auto_refresh=False,  # no thread of its own beside the training
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task("epoch")
    last = 0.0

    def on_step(step: Step) -> None:
        nonlocal last
        if step.position == 1:
            bar.reset(task, total=step.of, description=f"epoch {step.epoch}")
            bar.start()
        bar.update(task, completed=step.position)
        if time.monotonic() - last > _REFRESH_SECONDS:
            bar.refresh()
            last = time.monotonic()
        if step.position == step.of:
            bar.stop()

    try:
        yield on_step
    finally:
        bar.stop()
