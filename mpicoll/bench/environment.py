"""Where and how a run was made: the facts stored with every result.

Nothing here initialises MPI except `gather`, which is given a communicator.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Place(NamedTuple):
    """Where one rank runs: its host and the cores it may use there."""

    host: str
    cores: tuple[int, ...]


def cores() -> tuple[int, ...]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def oversubscribed(places: list[Place]) -> tuple[str, ...]:
    """Hosts, sorted, on which more ranks run than there are cores for them."""
    ranks: dict[str, int] = {}
    usable: dict[str, set[int]] = {}
    for host, own in places:
        ranks[host] = ranks.get(host, 0) + 1
        usable.setdefault(host, set()).update(own)
    return tuple(sorted(host for host in ranks if ranks[host] > len(usable[host])))


def places(facts: Mapping[str, Any]) -> list[Place]:
    """Where each rank of a launch ran, from its facts."""
    hosts = {rank: host for host, entry in facts["hosts"].items() for rank in entry["ranks"]}
    return [Place(hosts[rank], tuple(own)) for rank, own in enumerate(facts["binding"])]


def crowded(facts: Mapping[str, Any], ranks: int) -> list[tuple[str, int, int]]:
    """Hosts with too few cores for those of the first ranks that ran there.

    Returns:
        The host, how many ranks, and how many cores, for each; none where the facts do not tell.
    """
    if not {"hosts", "binding"} <= set(facts):
        return []
    first = places(facts)[:ranks]
    return [
        (
            host,
            sum(place.host == host for place in first),
            len({core for place in first if place.host == host for core in place.cores}),
        )
        for host in oversubscribed(first)
    ]


def variables(environment: dict[str, str] | None = None) -> dict[str, str]:
    """The environment variables that change how MPI and the arithmetic run.

    Without secrets, addresses and folders: of a path only the last part is kept.
    """
    environment = dict(os.environ) if environment is None else environment
    return {
        name: without_folders(value)
        for name, value in sorted(environment.items())
        if _KEPT.match(name) and not _SECRET.search(name)
    }


def without_folders(value: str) -> str:
    """A text with the folders of absolute and of dotted paths left out, ``.../name``."""
    return _FOLDERS.sub(".../", value)


def slurm(environment: dict[str, str] | None = None) -> dict[str, str]:
    """Identity and shape of the SLURM job, empty outside of one."""
    environment = dict(os.environ) if environment is None else environment
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
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip()


def processor() -> str:
    """Model name of the processor, or its architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def last_level_cache(cpus: Path = Path("/sys/devices/system/cpu")) -> int | None:
    """Bytes of the last-level caches of this host together, None where the system does not tell."""
    caches: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        try:
            level = int((index / "level").read_text())
            shared = (index / "shared_cpu_list").read_text().strip()
            size = (index / "size").read_text().strip()
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


def gather(comm: MPI.Intracomm) -> dict[str, Any]:
    """The facts of a launch, the same on every rank. Collective.

    Returns:
        A dictionary of plain values, ready for JSON.
    """
    import mpi4py
    import numpy
    from mpi4py import MPI

    import mpicoll

    places = comm.allgather(Place(MPI.Get_processor_name(), cores()))
    hosts: dict[str, dict[str, Any]] = {}
    for rank, (host, own) in enumerate(places):
        entry = hosts.setdefault(host, {"ranks": [], "cores": []})
        entry["ranks"].append(rank)
        entry["cores"] = sorted({*entry["cores"], *own})
    here = {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mpicoll": mpicoll.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "mpi4py": mpi4py.__version__,
        "mpi": MPI.Get_library_version().rstrip("\0").strip().replace("\n", ", "),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "ranks": comm.Get_size(),
        "hosts": hosts,
        "binding": [list(own) for _, own in places],
        "oversubscribed": list(oversubscribed(places)),
        "processor": processor(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "cache": last_level_cache(),
        "clock": clock(),
        "environment": variables(),
        "slurm": slurm(),
    }
    return comm.bcast(here)
