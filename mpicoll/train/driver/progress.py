"""How far an epoch is: a bar on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from mpicoll.train.driver.callbacks import OnStep
from mpicoll.train.records import Step

if TYPE_CHECKING:
    from rich.progress import Progress

_REFRESH_SECONDS = 0.1
#: Seconds of an epoch between lines.
_LINE_SECONDS = 30.0


def beats() -> OnStep:
    """A function to call after each step; in a long epoch it writes a line now and then."""
    epoch = first = 0
    begun = said = 0.0

    def on_step(step: Step) -> None:
        nonlocal epoch, first, begun, said
        now = time.monotonic()
        if step.epoch != epoch:
            epoch, first, begun, said = step.epoch, step.position, now, now
        elif now - said > _LINE_SECONDS and step.position < step.of:
            said = now
            left = (now - begun) / (step.position - first) * (step.of - step.position)
            words = f"epoch {step.epoch}: step {step.position} of {step.of}, {left:.0f} s left"
            print(words, file=sys.stderr, flush=True)

    return on_step


@contextmanager
def shown(bar: bool | None = None) -> Iterator[OnStep | None]:
    """Show how far each epoch is; yields the function to call after a step.

    All ranks have one, and that which prints calls it.

    Args:
        bar: Draw a bar. None draws one if standard error is a terminal and Rich is installed, and
            writes lines elsewhere; False shows nothing.
    """
    wanted = has_rich() and sys.stderr.isatty() if bar is None else bar
    if wanted:
        with progress_bar() as on_step:
            yield on_step
    else:
        yield beats() if bar is None else None


def has_rich() -> bool:
    """Whether the package that draws bars is installed."""
    return find_spec("rich") is not None


@contextmanager
def progress_bar() -> Iterator[OnStep]:
    """A bar for each epoch, erased at its end; yields the function to call after a step.

    It may begin in the middle of an epoch, where the rank that has drawn one until then has died.
    """
    bar: Progress | None = None
    last, drawn = 0.0, 0

    def on_step(step: Step) -> None:
        nonlocal bar, last, drawn
        bar = bar or _bar()
        (task,) = bar.task_ids
        if step.epoch != drawn:
            drawn = step.epoch
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
        if bar is not None:
            bar.stop()


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(
        console=Console(stderr=True, force_terminal=True),
        transient=True,
        auto_refresh=False,  # no thread of its own beside the training
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("epoch")
    return bar
