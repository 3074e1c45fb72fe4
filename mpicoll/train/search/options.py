"""The options of a search beside its space; also those of ``mpicoll search``.

Importing this loads no NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

from mpicoll.base.options import option

#: Names of the methods.
METHODS = ("random", "grid", "asha", "pbt")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. Equal on all ranks; checked when made.

    Raises:
        ValueError: A value is out of its range; the message names value, limit and remedy.
    """

    method: str = option("random", f"Method: {', '.join(METHODS[:-1])} or {METHODS[-1]}.")
    """`asha`: L. Li et al., "A system for massively parallel hyperparameter tuning", 2020.
    `pbt`: M. Jaderberg et al., "Population based training of neural networks", 2017."""
    trials: int | None = option(None, "Number of trials; all points of a grid, else 16.")
    """With `pbt`, the size of the population."""
    ranks_per_trial: int = option(1, "Ranks that train a trial together.")
    """One more rank distributes trials. A single process does both."""
    min_epochs: int = option(1, "Epochs of the first rung (asha) or between comparisons (pbt).")
    """The last rung has the `epochs` of the space's file."""
    eta: int = option(3, "asha promotes one of N trials, to N times the epochs.")
    measure: str | None = option(None, "Measure of the validation set: accuracy, r2 or loss.")
    """None: accuracy or R², by the model's loss; otherwise the loss."""
    hold_out: int = option(10, "Hold out one of N training samples without a validation set.")
    """The last of every N samples of each class."""
    seed: int = option(0, "Random seed for drawing from the space.")
    survive: bool = option(
        False, "Continue when ranks die (Open MPI 5, mpirun --with-ft ulfm).", "--survive"
    )
    """Another group trains the trial of a group that has lost a rank."""
    out: str = option(
        "search", "Folder of trials.jsonl and of the checkpoints.", "-o --output", metavar="FOLDER"
    )

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}: known are {', '.join(METHODS)}")
        for name, least in (
            ("trials", 1),
            ("ranks_per_trial", 1),
            ("min_epochs", 1),
            ("eta", 2),
            ("hold_out", 2),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}: give a whole number of at least {least}")
        if self.method == "pbt" and self.trials == 1:
            raise ValueError("pbt copies better trials, and trials is 1: give at least 2")

    def groups(self, ranks: int) -> int:
        """The number of trials trained at a time on this number of ranks.

        Raises:
            ValueError: The ranks are not one rank that distributes trials, and whole groups.
        """
        each = self.ranks_per_trial
        if ranks == 1 and each == 1:
            return 1
        groups, left = divmod(ranks - 1, each)
        if groups < 1 or left:
            more = 1 + each * max(groups, 1)
            raise ValueError(
                f"{ranks} rank(s) are one that hands trials out and {ranks - 1} in groups of "
                f"{each}: start {more} or {more + each} ranks, or give other ranks_per_trial"
            )
        return groups
