"""Where and how a run was made: the facts stored with every result.

Nothing here initialises MPI except `gather`, which is given a communicator.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpicoll.base import processors
from mpicoll.base.sizes import parse_size

if TYPE_CHECKING:
    from mpi4py import MPI

_KEPT = re.compile(
    r"(OMPI_MCA_|PRTE_MCA_|PMIX_MCA_|MPICH_|MPIR_CVAR_|HYDRA_|I_MPI_|FI_|UCX_|UCC_|MPICOLL_|OMP_|"
    r"OPENBLAS_|MKL_|BLIS_|KMP_|GOMP_|NCCL_|CUDA_VISIBLE_DEVICES$|GLIBC_TUNABLES$|PYTHONHASHSEED$)"
)
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS|CRED|AUTH|COOKIE|URI|_wdir$|precondition", re.IGNORECASE
)
# Folders of a path, which say who worked where; the last part says what was used.
_FOLDERS = re.compile(r"(?<![^\s:;,=\"'])[~.]{0,2}/+(?:[^\s:;,/=\"']+/+)*")
_SLURM = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_STEP_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "SLURM_RESTART_COUNT",
)


class Host(NamedTuple):
    """The host of one rank, and the cores that the rank may use there."""

    name: str
    cores: tuple[int, ...]


def by_host(ranks: Sequence[Host]) -> dict[str, dict[str, list[int]]]:
    """Of each host its ``ranks``, and the ``cores`` that any of them may use."""
    found: dict[str, dict[str, list[int]]] = {}
    for rank, (name, cores) in enumerate(ranks):
        entry = found.setdefault(name, {"ranks": [], "cores": []})
        entry["ranks"].append(rank)
        entry["cores"] = sorted({*entry["cores"], *cores})
    return found


def _short_of_cores(ranks: Sequence[Host]) -> list[tuple[str, int, int]]:
    """Hosts with more ranks than cores, sorted: name, ranks and cores of each."""
    counted = [(name, len(own["ranks"]), len(own["cores"])) for name, own in by_host(ranks).items()]
    return sorted(entry for entry in counted if entry[1] > entry[2])


def oversubscribed(ranks: Sequence[Host]) -> tuple[str, ...]:
    """Hosts, sorted, on which more ranks run than there are cores for them."""
    return tuple(name for name, _, _ in _short_of_cores(ranks))


def crowded(facts: Mapping[str, Any], ranks: int) -> list[tuple[str, int, int]]:
    """Hosts with too few cores for those of the first ranks that ran there.

    Returns:
        The host, how many ranks, and how many cores, for each; none where the facts do not tell.
    """
    if not {"hosts", "binding"} <= set(facts):
        return []
    names = {rank: name for name, entry in facts["hosts"].items() for rank in entry["ranks"]}
    binding = facts["binding"][:ranks]
    return _short_of_cores([Host(names[rank], tuple(own)) for rank, own in enumerate(binding)])


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that change how MPI and the arithmetic run.

    Without secrets, addresses and folders: of a path only the last part is kept.
    """
    return {
        name: without_folders(value)
        for name, value in sorted(environment.items())
        if _KEPT.match(name) and not _SECRET.search(name)
    }


def without_folders(value: str) -> str:
    """A text with the folders of absolute and of dotted paths left out, ``.../name``."""
    return _FOLDERS.sub(".../", value)


def slurm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Identity and shape of the SLURM job, empty outside of one."""
    return {name: environment[name] for name in _SLURM if name in environment}


def commit() -> str | None:
    """Commit of the source that runs, with ``-dirty`` if changed; None for an installed copy."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def last_level_cache(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Bytes of the last-level caches of this host together, None where the system does not tell."""
    caches: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text(encoding="utf-8"))
            shared = (index / "shared_cpu_list").read_text(encoding="utf-8").strip()
            size = (index / "size").read_text(encoding="utf-8").strip()
            caches[level, shared] = parse_size(size)
        except (OSError, ValueError):
            continue
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def clock() -> dict[str, Any]:
    """The clock that times are read from: its name, resolution and cost of a reading (seconds)."""
    info = time.get_clock_info("perf_counter")
    readings = [time.perf_counter() for _ in range(1001)]
    cost = (readings[-1] - readings[0]) / (len(readings) - 1)
    return {
        "name": f"perf_counter: {info.implementation}",
        "resolution": info.resolution,
        "cost": cost,
    }


def mpi_library() -> tuple[str, str]:
    """Its name and version, and the version of the standard."""
    from mpi4py import MPI

    library = MPI.Get_library_version().rstrip("\0").strip().replace("\n", ", ")
    return library, ".".join(map(str, MPI.Get_version()))


def gather(comm: MPI.Intracomm) -> dict[str, Any]:
    """The facts of a launch, the same on every rank. Collective.

    Returns:
        A dictionary of plain values, ready for JSON.
    """
    import mpi4py
    import numpy
    from mpi4py import MPI

    import mpicoll

    library, standard = mpi_library()
    ranks = comm.allgather(Host(MPI.Get_processor_name(), processors.cores()))
    here = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mpicoll": mpicoll.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "mpi4py": mpi4py.__version__,
        "mpi": library,
        "mpi_standard": standard,
        "ranks": comm.Get_size(),
        "hosts": by_host(ranks),
        "binding": [list(own) for _, own in ranks],
        "oversubscribed": list(oversubscribed(ranks)),
        "processor": processors.model_name(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "cache": last_level_cache(),
        "clock": clock(),
        "environment": variables(),
        "slurm": slurm(),
    }
    return comm.bcast(here)
