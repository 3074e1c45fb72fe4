"""What the trace and the hooks are told of one call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mpicoll import hooks
from mpicoll.engine import runner
from mpicoll.runtime.calls import Prepared
from mpicoll.runtime.state import State

_UNOBSERVED = nullcontext()


class Observation:
    """A call that begins now, and that the trace or hooks want to know of."""

    def __init__(self, state: State, prepared: Prepared) -> None:
        self._prepared = prepared
        self._place = state.size, state.rank
        name, algorithm = prepared.definition.name, prepared.choice.algorithm
        self._tracer = state.tracer.call(name, algorithm) if state.tracer is not None else None
        self._start = time.perf_counter()

    @property
    def step(self) -> runner.Step | None:
        """What is to be told of every step."""
        return self._tracer.step if self._tracer is not None else None

    def end(self, failure: BaseException | None = None, complete: bool = True) -> None:
        """The call ends now, or has been started and will not be heard of any more."""
        seconds = time.perf_counter() - self._start
        definition, _, choice, _ = self._prepared
        nbytes = self._prepared.nbytes
        if self._tracer is not None:
            self._tracer.end(nbytes, failure, complete)
        name, algorithm = definition.name, choice.algorithm
        hooks.report(hooks.Event(name, algorithm, *self._place, nbytes, seconds, failure, complete))


def observing(
    state: State, prepared: Prepared, complete: bool = True
) -> AbstractContextManager[runner.Step | None]:
    """Observe a call that runs in the ``with`` block; gives what is to be told of its steps.

    ``complete``: whether the call is over then; otherwise it has been started, unless this failed.
    """
    observation = observe(state, prepared)
    return _UNOBSERVED if observation is None else _observing(observation, complete)


@contextmanager
def _observing(observation: Observation, complete: bool) -> Iterator[runner.Step | None]:
    failure: BaseException | None = None
    try:
        yield observation.step
    except BaseException as error:
        failure = error
        raise
    finally:
        observation.end(failure, complete or failure is not None)


def observe(state: State, prepared: Prepared) -> Observation | None:
    """The observation of a call that begins now; None if nobody wants to know."""
    wanted = hooks.installed or state.tracer is not None
    return Observation(state, prepared) if wanted else None
