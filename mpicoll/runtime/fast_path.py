"""What a communicator lets go the engine's fast path: blocking calls like earlier ones, of plain
arrays, and the starts of persistent ones.

The first call of its kind goes the slow path (:mod:`mpicoll.comm.dispatch`), which then tells here
how it was run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpicoll import hooks, tuning
from mpicoll.base import caller
from mpicoll.cuda.group import CUDA_IPC
from mpicoll.engine import progress, transport
from mpicoll.engine.lanes import Lane
from mpicoll.runtime.calls import Call
from mpicoll.runtime.guard import Guard
from mpicoll.runtime.plans import Plans, Runnable
from mpicoll.schedule.methods import METHODS, Method

#: The methods whose calls it tells by a number, in the order of these numbers.
_NUMBERED = sorted(
    (method for method in METHODS.values() if method.fast is not None),
    key=lambda method: method.fast or 0,
)


class FastCalls:
    """The calls of one communicator that go the fast path; none where it has no fast path.

    Args:
        nodes: the number of each rank's node.

    Attributes:
        path: the engine's; None where every call goes the slow path.
    """

    def __init__(self, nodes: tuple[int, ...]) -> None:
        self._nodes = nodes
        self.path: transport.FastPath | None = None

    def open(self, private: MPI.Intracomm, plans: Plans, guard: Guard, peers: Any) -> None:
        """Let calls go the fast path from now on, where MPI allows threads.

        Args:
            private: carries the messages that MPI carries.
            plans: those of the communicator.
            guard: waits for the calls, and is told of their failures.
            peers: serves arrays in device memory; None if nothing does.
        """
        if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
            return
        self._plans = plans
        self.path = transport.FastPath(
            private,
            guard.idle,
            progress.poll,
            progress.under_way,
            hooks.installed,
            caller.parent,
            guard.fail,
        )
        if peers is not None:
            self.path.serve_devices(peers, [(each.collective, CUDA_IPC) for each in _NUMBERED])

    def learn(
        self, call: Call, arguments: tuple[Any, ...], choice: tuning.Choice, ran: Runnable
    ) -> None:
        """Let a call of the same arguments, buffers apart, go the fast path from now on.

        Args:
            call: the parsed call.
            arguments: send buffer, receive buffer, operator, root, counts.
            choice: how it was run.
            ran: what ran it.
        """
        method = METHODS[call.definition.method]
        path = self._path_for(method, arguments, choice)
        if path is None or not call.is_direct:
            return
        known = tuning.named(choice), (method.collective, choice.algorithm), call, ran.execution
        path.learn(key_of(method), arguments, *known)

    def pass_on(
        self,
        method: Method,
        arguments: tuple[Any, ...],
        choice: tuning.Choice,
        function: Callable[..., Any],
    ) -> None:
        """The same for a call that a function of the MPI library serves."""
        path = self._path_for(method, arguments, choice)
        if path is None:
            return
        name = method.collective, choice.algorithm
        known = tuning.named(choice), name, function, method.arguments
        path.pass_on(key_of(method), arguments, *known)

    def _path_for(
        self, method: Method, arguments: tuple[Any, ...], choice: tuning.Choice
    ) -> transport.FastPath | None:
        """The fast path of a call; a user's operator may be another one next time."""
        op = arguments[2]
        if self.path is None or not (op is None or op.is_predefined):
            return None
        return self.path if tuning.is_default(method.collective, choice, self._nodes) else None

    def starter(self, runnable: Runnable, lane: Lane, call: Call) -> transport.Starter | None:
        """The fast path of a persistent call, None if it has none."""
        if self.path is None or not call.is_direct:
            return None
        execution = self._plans.bind(runnable, lane, call)
        name = runnable.shape.collective, runnable.shape.algorithm
        return transport.Starter(self.path, execution, name, progress.pollers, progress.lock)

    def calls(self) -> dict[tuple[str, str], int]:
        """Number of calls that went the fast path, by (collective, algorithm)."""
        return {} if self.path is None else dict(self.path.calls())

    def forget(self) -> None:
        """Let every call go the slow path once more."""
        if self.path is not None:
            self.path.forget()

    def close(self) -> None:
        """Let every call go the slow path from now on."""
        if self.path is not None:
            self.path.open = False


def key_of(method: Method) -> int | str:
    """What the fast path tells a method by."""
    return method.name if method.fast is None else method.fast
