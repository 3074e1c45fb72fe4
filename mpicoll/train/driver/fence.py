"""Files of a run that only those ranks may write to that have not been given up.

A process may be stopped for so long that the others go on without it, and then go on itself. Those
that went on have taken the locks of the run's files from it: it sees that before each write.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mpicoll.base.locks import Claim


class GivenUp(RuntimeError):
    """The other ranks go on without this process, which may write no more."""


class Fence:
    """The locks of a run's files as they are now, on one rank.

    Args:
        paths: What is locked, each by the first rank.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._claims = {path: Claim(path) for path in paths}

    def claim(self, path: Path) -> Claim:
        """Who holds a path, for the one that takes the place."""
        return self._claims[path]

    def check(self) -> None:
        """Refuse to write, where the others have gone on without this process.

        Raises:
            GivenUp: They have.
        """
        for path, claim in self._claims.items():
            if not claim.is_current():
                raise GivenUp(
                    f"{path} is not written to: the other ranks of the run have given up this "
                    "process, and go on without it"
                )

    def close(self) -> None:
        """Look no more."""
        for claim in self._claims.values():
            claim.close()
