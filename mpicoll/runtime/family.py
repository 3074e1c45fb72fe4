"""What communicators have in common that come from one another."""

from __future__ import annotations

from mpicoll import tuning
from mpicoll.runtime.places import Places
from mpicoll.runtime.settings import Settings


class Family:
    """What communicators have in common that come from one another.

    Args:
        settings: equal on all ranks.
        places: where their processes are, None if that cannot be known of their parts.

    Attributes:
        settings, places: the same.
        is_plain: nothing is asked for but what is built in, and nobody is to be asked: a new member
            needs no more than to be told whose it is.
    """

    def __init__(self, settings: Settings, places: Places | None) -> None:
        self.settings, self.places = settings, places
        self.is_plain = not (settings.rules or settings.is_watched or places is None)
        self._tables: dict[tuple[bool, bool], tuning.Table] = {}

    def table(self, hints: tuning.Table, near: bool, grouped: bool) -> tuning.Table:
        """What chooses where the caller names no algorithm.

        Args:
            hints: of a communicator.
            near, grouped: see :func:`mpicoll.tuning.for_layout`.
        """
        if hints:
            every = tuning.combined(tuning.BUILTIN, self.settings.rules, hints)
            return tuning.for_layout(every, near, grouped)
        if (near, grouped) not in self._tables:
            every = tuning.combined(tuning.BUILTIN, self.settings.rules)
            self._tables[near, grouped] = tuning.for_layout(every, near, grouped)
        return self._tables[near, grouped]
