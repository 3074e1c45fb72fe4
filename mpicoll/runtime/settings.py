"""What rank 0 reads from its environment when a communicator is built."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mpi4py import MPI

from mpicoll import tuning
from mpicoll.base import extensions
from mpicoll.base.consensus import Problem, attempt, from_rank_0
from mpicoll.base.wording import ranges
from mpicoll.cuda import driver, transports
from mpicoll.engine.transport import TRANSPORTS
from mpicoll.runtime import schedules
from mpicoll.schedule.collectives import COLLECTIVES

if TYPE_CHECKING:
    from mpicoll.simulate.costs import CostModel

#: The variables of mpicoll's, those that other places read among them.
VARIABLES = frozenset(
    {f"MPICOLL_{name.upper()}" for name in COLLECTIVES}
    | {"MPICOLL_FALLBACK", "MPICOLL_PROGRESS", "MPICOLL_TRANSPORT", "MPICOLL_GPU"}
    | {"MPICOLL_TIMEOUT", "MPICOLL_CHECK", "MPICOLL_MODEL", "MPICOLL_TUNING", "MPICOLL_TRACE"}
    | {"MPICOLL_SIMD", "MPICOLL_SHARE_CORES", extensions.VARIABLE}
)
#: What to do with a call that mpicoll cannot serve: raise, warn once, or just count it.
POLICIES = ("error", "warn", "silent")


class Settings(NamedTuple):
    """What rank 0 read from its environment; the same on all ranks."""

    #: Rules that come before those of :data:`mpicoll.tuning.BUILTIN`.
    rules: tuning.Table
    policy: str
    #: Seconds that a call may wait; 0: for ever.
    timeout: float = 0.0
    #: Whether ranks compare their calls before they run.
    check: bool = False
    #: Common name of the trace's files, "" for none.
    trace: str = ""
    #: One of :data:`mpicoll.engine.transport.TRANSPORTS`.
    transport: str = "auto"
    #: Whether a thread of each process makes progress.
    progress: bool = False
    #: Fitted parameters, for predictions; None without.
    model: CostModel | None = None
    #: One of :data:`mpicoll.cuda.transports.TRANSPORTS`.
    gpu: str = "auto"
    #: Whether its program may have arrays in device memory, and the driver for them.
    devices: bool = False
    #: Whether the death of a rank is told to the others; asked for by the program.
    survive: bool = False
    #: Modules from outside that register algorithms.
    imports: tuple[str, ...] = ()

    @property
    def is_watched(self) -> bool:
        """Whether something is to be known of every call from the first one on."""
        kept = self.check or self.timeout > 0 or self.trace != ""
        return kept or self.progress or self.survive


def read(comm: MPI.Intracomm) -> Settings:
    """Read the environment of rank 0.  Raises the same ValueError on all ranks."""
    found = from_rank_0(comm, lambda: _settings_from(os.environ))
    if found.imports:
        done = attempt(comm, lambda: extensions.load(found.imports), ValueError)
        if isinstance(done, Problem):
            raise ValueError(f"{extensions.VARIABLE}, {done}")
    schedules.share(comm, found.rules)
    if found.progress:
        levels = comm.allgather(MPI.Query_thread())
        below = [rank for rank, level in enumerate(levels) if level < MPI.THREAD_MULTIPLE]
        if below:
            raise RuntimeError(
                f"MPICOLL_PROGRESS=thread needs MPI_THREAD_MULTIPLE, which {ranges(below)} did not "
                "get; set mpi4py.rc.thread_level = 'multiple' before MPI is imported, or unset "
                "MPICOLL_PROGRESS"
            )
    return found


def _warn_of_misspelt(environment: Mapping[str, str]) -> None:
    """Tell of variables whose names are nearly those of mpicoll's."""
    strange = {name for name in environment if name.startswith("MPICOLL_")} - VARIABLES
    if not strange:
        return
    from difflib import get_close_matches  # seldom needed

    for name in sorted(strange):
        if near := get_close_matches(name, VARIABLES, 1, 0.9):
            warnings.warn(f"{name} is no variable of mpicoll's; is {near[0]} meant?", stacklevel=2)


def _settings_from(environment: Mapping[str, str]) -> Settings:
    _warn_of_misspelt(environment)
    check = environment.get("MPICOLL_CHECK") or "0"
    if check not in ("0", "1"):
        raise ValueError(f"MPICOLL_CHECK={check!r} must be 1 or 0")
    thread = environment.get("MPICOLL_PROGRESS") or ""
    if thread not in ("", "thread"):
        raise ValueError(f"MPICOLL_PROGRESS={thread!r} must be thread, or unset")
    imports = extensions.named(environment)
    try:
        extensions.load(imports)
    except ValueError as error:
        raise ValueError(f"{extensions.VARIABLE}: {error}") from None
    model = _model_from(environment)
    return Settings(
        _rules_from(environment, model),
        _one_of(POLICIES, "MPICOLL_FALLBACK", environment.get("MPICOLL_FALLBACK", "warn")),
        timeout=_timeout_from(environment),
        check=check == "1",
        trace=environment.get("MPICOLL_TRACE", ""),
        transport=_one_of(
            TRANSPORTS, "MPICOLL_TRANSPORT", environment.get("MPICOLL_TRANSPORT") or "auto"
        ),
        progress=thread == "thread",
        model=model,
        gpu=_one_of(transports.TRANSPORTS, "MPICOLL_GPU", environment.get("MPICOLL_GPU") or "auto"),
        devices=driver.is_usable(),
        imports=imports,
    )


def _model_from(environment: Mapping[str, str]) -> CostModel | None:
    path = environment.get("MPICOLL_MODEL", "")
    if not path:
        return None
    from mpicoll.tuning import cost_files  # with all that a simulation needs

    try:
        return cost_files.read(path)
    except (ValueError, ModuleNotFoundError) as error:
        raise ValueError(f"MPICOLL_MODEL: {error}") from None


def _rules_from(environment: Mapping[str, str], model: CostModel | None) -> tuning.Table:
    asked = tuning.from_environment(environment)
    return tuning.combined(_predicted(environment, model), _file_from(environment), asked)


def _file_from(environment: Mapping[str, str]) -> tuning.Table:
    path = environment.get("MPICOLL_TUNING", "")
    if not path:
        return {}
    from mpicoll.tuning import rule_files

    try:
        return rule_files.load(path)
    except (ValueError, ModuleNotFoundError) as error:
        raise ValueError(f"MPICOLL_TUNING: {error}") from None


def _predicted(environment: Mapping[str, str], model: CostModel | None) -> tuning.Table:
    """The rules that follow from fitted parameters."""
    if model is None:
        return {}
    source = f"cost model {environment['MPICOLL_MODEL']}"
    try:
        return tuning.table_from(model.rules, source, tuning.MODEL)
    except ValueError as error:
        raise ValueError(f"MPICOLL_MODEL: {source}: {error}") from None


def _one_of(known: Sequence[str], variable: str, value: str) -> str:
    if value not in known:
        raise ValueError(f"{variable}={value!r} must be one of {', '.join(known)}")
    return value


def _timeout_from(environment: Mapping[str, str]) -> float:
    value = environment.get("MPICOLL_TIMEOUT") or "0"
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise ValueError(
            f"MPICOLL_TIMEOUT={value!r} must be a number of seconds, or 0 for no limit"
        )
    return seconds
