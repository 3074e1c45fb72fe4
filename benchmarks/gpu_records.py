"""What the benchmarks of GPUs write: the machine and the source first, then every finished point.

A line of JSON each, on the disk as soon as it is known; rank 0 writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
from mpi4py import MPI

from mpicoll.base.json_lines import Appender, Attempt, new_run
from mpicoll.bench import environment

WORLD = MPI.COMM_WORLD


def options(parser: argparse.ArgumentParser) -> None:
    """The options of what is written, for a command."""
    parser.add_argument("--json", type=Path, help="a file to which each point is appended")
    parser.add_argument("--commit", help="of the source, where git cannot be asked")


def use_own_gpu() -> None:
    """This rank's GPU, before a communicator is built; those of a host are taken in turn."""
    cupy.cuda.Device(WORLD.rank % cupy.cuda.runtime.getDeviceCount()).use()


class Records:
    """Prints records, and appends them to a file if one is named.

    Args:
        given: what the command's options are.
        shown: a record in words.
    """

    def __init__(
        self, given: argparse.Namespace, shown: Callable[[dict[str, Any]], str] = json.dumps
    ) -> None:
        self._path, self._commit, self._shown = given.json, given.commit, shown
        self._run = Attempt(new_run())

    def describe(self, **more: object) -> None:
        """Write down machine, versions and source.  Collective."""
        runtime = cupy.cuda.runtime
        facts = {
            "commit": self._commit or environment.commit(),
            "gpu": runtime.getDeviceProperties(cupy.cuda.Device().id)["name"].decode(),
            "gpus": runtime.getDeviceCount(),
            "driver": driver(),
            "cuda": {"driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()},
            "cupy": cupy.__version__,
            **more,
            "environment": environment.gather(WORLD),
        }
        self._put(facts, json.dumps(facts))

    def write(self, record: dict[str, Any]) -> None:
        """Write a finished point."""
        self._put(record, self._shown(record))

    def _put(self, record: dict[str, Any], words: str) -> None:
        if WORLD.rank:
            return
        print(words, flush=True)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with Appender(self._path, durable=True) as file:
                file.append(self._run, record)


def driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The line that names the driver's version, None where the system does not tell."""
    try:
        return " ".join(path.read_text(encoding="utf-8").splitlines()[0].split())
    except (OSError, IndexError):
        return None
