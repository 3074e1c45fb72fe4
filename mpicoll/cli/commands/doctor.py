"""``mpicoll doctor``: what this installation and this launch are, and what is wrong with them."""

from __future__ import annotations

import os
import platform
import warnings
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mpicoll import errors
from mpicoll.base import launcher, libraries, processors
from mpicoll.base.wording import intervals, plural
from mpicoll.bench import environment
from mpicoll.cli import gpus, output
from mpicoll.cli.errors import UsageError
from mpicoll.cli.options import Json

if TYPE_CHECKING:
    from mpi4py import MPI

#: The least tag limit that a library may have, and all that is ever used here.
_TAGS = 32767
_PACKAGES = ("numpy", "mpi4py", "Cython", "typer", "rich", "plotly", "matplotlib", "scipy", "cupy")

_AWARE = {None: "unknown: the library does not say", True: "yes", False: "no"}


def command(json: Json = False) -> int:
    """Check MPI, the launch and the installation; alone or under mpirun.

    The exit status is 1 if something is wrong.
    """
    facts = examine()
    if json:
        output.facts(facts)
    else:
        _print(facts)
    return 0 if facts["ok"] else 1


def examine() -> dict[str, Any]:
    """The facts, as plain values, the same on every rank. Collective.

    ``problems`` holds what is wrong, ``warnings`` what is worth knowing; ``ok`` is whether there
    is no problem.
    """
    from mpicoll.cli.session import world

    started = launcher.launch()
    facts: dict[str, Any] = {
        "mpicoll": _installation(),
        "launcher": {"name": started.name, "processes": started.size},
    }
    problems: list[str] = []
    warnings: list[str] = []
    try:
        comm = world()
    except UsageError as error:
        facts["mpi"] = None
        problems.append(str(error))
    else:
        facts["mpi"] = _mpi(comm)
        facts["engine"] = _engine(comm)
        facts["gpus"] = gpus.examine(comm)
        facts["ranks"] = _ranks(comm)
        facts["hosts"] = _hosts(facts["ranks"])
        problems += _mpi_problems(facts["mpi"], started)
        warnings += _host_warnings(facts["hosts"]) + _thread_warnings(facts["ranks"])
        if facts["engine"]["problem"]:
            warnings.append(
                f"the compiled engine does not serve: {facts['engine']['problem']}; install "
                "mpicoll with this MPI's mpicc on PATH"
            )
    if facts["mpicoll"]["kernels"] is None:
        warnings.append(
            "the compiled reductions are not built, NumPy does their work more slowly; build them "
            "with `python setup.py build_ext --inplace` or install the package"
        )
    return {"ok": not problems, "problems": problems, "warnings": warnings, **facts}


def _installation() -> dict[str, Any]:
    import mpicoll
    from mpicoll.ops import reductions

    kernels = getattr(reductions, "_kernels", None)
    return {
        "version": mpicoll.__version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "simd": reductions.simd_level(),
        "kernels": kernels and {"compiler": libraries.compiler_of(kernels.__file__)},
        "blas_threads": libraries.blas_threads(),
    }


def _version(package: str) -> str | None:
    from importlib import metadata  # slow, and every start of the command imports this file

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _mpi(comm: MPI.Intracomm) -> dict[str, Any]:
    from mpi4py import MPI

    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    library, standard = environment.mpi_library()
    names = {getattr(MPI, f"THREAD_{level}"): level.lower() for level in levels}
    return {
        "library": library,
        "standard": standard,
        "files": [str(path) for path in libraries.loaded(r"libmpi\w*\.so")],
        "ranks": comm.Get_size(),
        "thread_level": names[MPI.Query_thread()],
        "tag_limit": MPI.COMM_WORLD.Get_attr(MPI.TAG_UB),
        "cuda_aware": libraries.cuda_aware(),
    }


def _engine(comm: MPI.Intracomm) -> dict[str, Any]:
    """What runs the algorithms, and the memory that the ranks of this rank's node share."""
    import mpicoll
    from mpicoll.engine import transport

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.LaunchWarning)  # it is among the problems
        own = mpicoll.Intracomm(comm.Dup())
    try:
        return {"problem": transport.engine_problem(), "shared": own.shared_memory()}
    finally:
        own.Free()


def _ranks(comm: MPI.Intracomm) -> list[dict[str, Any]]:
    """Of each rank its host, the cores it may use there, and the threads of its BLAS library."""
    from mpi4py import MPI

    here = {
        "host": MPI.Get_processor_name(),
        "cores": list(processors.cores()),
        "blas_threads": libraries.blas_threads(),
    }
    return [{"rank": rank, **place} for rank, place in enumerate(comm.allgather(here))]


def _hosts(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hosts = environment.by_host([environment.Host(r["host"], tuple(r["cores"])) for r in ranks])
    return [
        {"host": name, "ranks": len(own["ranks"]), "cores": len(own["cores"])}
        for name, own in hosts.items()
    ]


def _mpi_problems(mpi: dict[str, Any], started: launcher.Launch) -> list[str]:
    found = []
    lone = launcher.mismatch(started, mpi["ranks"])
    if lone is not None:
        found.append(lone)
    if mpi["tag_limit"] is not None and mpi["tag_limit"] < _TAGS:
        found.append(
            f"the MPI library takes tags up to {mpi['tag_limit']}, less than the {_TAGS} that the "
            "standard demands; use another transport or library"
        )
    return found


def _host_warnings(hosts: list[dict[str, Any]]) -> list[str]:
    return [
        f"{host['host']} has {host['ranks']} ranks on {plural(host['cores'], 'core')}: it works, "
        "but times are not performance; start fewer ranks, or bind them to more cores"
        for host in hosts
        if host["ranks"] > host["cores"]
    ]


def _thread_warnings(ranks: list[dict[str, Any]]) -> list[str]:
    """Ranks whose BLAS library would start more threads than they may use cores."""
    crowded = [rank for rank in ranks if (rank["blas_threads"] or 0) > len(rank["cores"])]
    if not crowded:
        return []
    first = crowded[0]
    return [
        f"{plural(len(crowded), 'rank')}, the first is rank {first['rank']} on "
        f"{first['host']}, would use {first['blas_threads']} BLAS threads on "
        f"{plural(len(first['cores']), 'core')}; set OMP_NUM_THREADS={len(first['cores'])}"
    ]


def _print(facts: dict[str, Any]) -> None:
    output.table(("what", "found"), _lines(facts), fold=("found",))
    for warning in facts["warnings"]:
        output.text(f"warning: {warning}")
    for problem in facts["problems"]:
        output.text(f"problem: {problem}")
    verdict = "nothing is wrong, but see above" if facts["warnings"] else "all is well"
    output.text(verdict if facts["ok"] else "see the problems above")


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    own, started, mpi = facts["mpicoll"], facts["launcher"], facts["mpi"]
    lines = [("mpicoll", own["version"]), ("Python", own["python"])]
    lines += [(name, version or "not installed") for name, version in own["packages"].items()]
    if mpi is not None:
        lines += [
            ("MPI library", mpi["library"]),
            ("MPI standard", mpi["standard"]),
            ("MPI library files", ", ".join(mpi["files"]) or "unknown"),
            ("launcher", started["name"]),
            ("processes launched", _or_unknown(started["processes"])),
            ("ranks seen", str(mpi["ranks"])),
            ("thread level", mpi["thread_level"]),
            ("tag limit", _or_unknown(mpi["tag_limit"])),
            ("CUDA-aware", _AWARE[mpi["cuda_aware"]]),
        ]
        for host in facts["hosts"]:
            words = f"{plural(host['ranks'], 'rank')}, {plural(host['cores'], 'core')}"
            lines.append((f"host {host['host']}", words))
        lines += [
            *_layout(facts["ranks"]),
            ("engine", "Python" if facts["engine"]["problem"] else "compiled"),
            ("shared memory", _shared(facts["engine"]["shared"])),
            *gpus.lines(facts["gpus"]),
        ]
    kernels = own["kernels"]
    built = f"compiled by {kernels['compiler'] or 'an unknown compiler'}" if kernels else "NumPy"
    limits = [
        f"{n}={os.environ[n]}"
        for n in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        if n in os.environ
    ]
    lines += [
        ("reductions", built),
        ("SIMD level", own["simd"]),
        ("BLAS threads", ", ".join([_or_unknown(own["blas_threads"]), *limits])),
    ]
    return lines


def _layout(ranks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """A line for each stretch of ranks that are alike."""
    lines = []
    alike = ("host", "cores", "blas_threads")
    for _, group in groupby(ranks, lambda rank: [rank[name] for name in alike]):
        first, *more = group
        last = more[-1]["rank"] if more else first["rank"]
        title = f"ranks {first['rank']}-{last}" if more else f"rank {last}"
        cores = f"core{'s' * (len(first['cores']) != 1)} {intervals(first['cores'])}"
        threads = _or_unknown(first["blas_threads"])
        lines.append((title, f"{first['host']}, {cores}, BLAS threads {threads}"))
    return lines


def _shared(memory: dict[str, Any] | None) -> str:
    if memory is None:
        return "none"
    size = f"{memory['bytes'] / (1 << 20):.1f} MiB a node for each communicator"
    slots = f"{memory['slots']} slots of {memory['slot'] >> 10} KiB a rank"
    reads = "read" if memory["reads"] else "not read"
    return f"{size} ({slots}); large messages are {reads} from the sender's memory"


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
