"""What a communicator tells of itself: what ran, what would run, and what messages go through."""

from __future__ import annotations

from mpicoll import algorithms, tuning
from mpicoll.base.wording import plural
from mpicoll.comm.dispatch import Dispatch
from mpicoll.comm.passed import NEIGHBOURHOOD
from mpicoll.runtime.state import State, Stats, find
from mpicoll.schedule import collectives
from mpicoll.schedule.methods import spelled
from mpicoll.tuning import NATIVE


class Inspection(Dispatch):
    """What can be asked of a communicator; nothing is sent."""

    def stats(self) -> Stats:
        """What ran on this rank: this communicator's collectives by algorithm, and fallbacks."""
        return self._local().stats()

    def shared_memory(self) -> dict[str, int] | None:
        """The memory that the ranks of this node share for this communicator; None if none.

        ``bytes``: total size, without windows; ``slots``: number of slots of each rank; ``slot``:
        size of a slot in bytes; ``inside``: the longest message, in bytes, that needs no slot;
        ``reads``: whether large messages are read from the sender's memory; ``windows``: bytes in
        arrays of :func:`mpicoll.empty`.
        """
        connection = self._local().connection
        device = None if connection is None else connection.plans.device
        return None if device is None else device.memory_of_node()

    def gpu_transport(self) -> str | None:
        """The transport of arrays in device memory, and why it is not a faster one.

        ``cuda_ipc``, ``aware`` or ``staged``, with the reason in parentheses.  None if the ranks
        agreed on none; then such arrays go through the host as a whole.  See
        :mod:`mpicoll.cuda.group`.
        """
        gpus = self._local().gpus
        return None if gpus is None else gpus.described()

    def explain(self, collective: str, nbytes: int = 0) -> str:
        """Which algorithm a call without ``algorithm=`` would run, why, and how long it takes.

        The time is predicted if ``MPICOLL_MODEL`` names fitted parameters.

        Args:
            collective: name as in ``mpicoll list``, or of a method, such as ``Allreduce``.
            nbytes: bytes of the whole vector (of all blocks, for all-gather, reduce-scatter, ...).

        Raises:
            ValueError: unknown collective, or a negative number of bytes.
        """
        state = self._local()
        if collective in NEIGHBOURHOOD:
            return (
                f"{collective} on {plural(state.size, 'rank')}: {NATIVE} (passed through: "
                f"neighbourhood collectives are the MPI library's own); known are {NATIVE}"
            )
        method = spelled(collective)
        collective = method.collective if method else collectives.collective(collective).name
        if nbytes < 0:
            raise ValueError(f"nbytes={nbytes} must not be negative")
        choice = tuning.choose_fitting(collective, state.size, nbytes, state.table)
        time = ""
        if state.settings.model is not None:
            from mpicoll.tuning import predict  # with all that a simulation needs

            time = "; " + predict.in_words(
                state.settings.model, collective, choice, state.size, nbytes, state.nodes
            )
        choice = tuning.placed(collective, choice, state.nodes)
        known = ", ".join((*algorithms.names(collective), NATIVE))
        return (
            f"{collective} of {plural(nbytes, 'byte')} on {plural(state.size, 'rank')}: "
            f"{choice.words} ({choice.source}){time}; known are {known}"
        )

    def _local(self) -> State:
        """What belongs to the handle, without setting it up (which is collective)."""
        state, first_calls = self._state or find(self), self._first_calls
        if state is None and first_calls is not None and self._fast_path is first_calls:
            state = self._begun()
        if state is None:
            raise ValueError("no collective has been called on this communicator yet")
        self._state = state
        state.guard.check()
        return state
