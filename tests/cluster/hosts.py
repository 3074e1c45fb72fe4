"""An emulated cluster: hosts with networks of their own, and a switch that delays and limits.

By hand, as root, with the words of a command that is run on the first host::

    python tests/cluster/hosts.py --hosts 4 --delay 1e-3 --rate 200e6 -- mpirun -n 4 mpicoll doctor

Everything of a cluster is in namespaces whose first process is the switch (``switch.py``), and the
kernel ends that one with the process that made it.  So nothing stays behind, and clusters do not
know of one another.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TOOLS = ("ip", "nsenter", "unshare", "setpriv", "chrt", "sysctl", "mount", "cc")
NAMESPACES = ("--mount", "--net", "--pid", "--ipc")


def missing() -> str:
    """Why there can be no cluster here; "" if there can."""
    if not sys.platform.startswith("linux"):
        return "an emulated cluster needs Linux"
    if os.geteuid() != 0:
        return "an emulated cluster needs root"
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    if absent:
        needs = "iproute2, util-linux, procps and a C compiler"
        return f"an emulated cluster needs {needs}: there is no {', '.join(absent)}"
    if not Path("/dev/net/tun").exists():
        return "an emulated cluster needs /dev/net/tun"
    words = ["unshare", *NAMESPACES, "--fork", "mount", "-t", "tmpfs", "trial", "/mnt"]
    tried = subprocess.run(words, capture_output=True, text=True)
    if tried.returncode:
        return f"an emulated cluster needs namespaces: {tried.stderr.strip()}"
    return ""


class Cluster:
    """Hosts h1, h2, ... joined by a switch.

    Args:
        hosts: how many.
        delay: seconds that a frame takes from host to host.
        rate: bit/s of each link, each way; a list where the hosts differ.
        per_host: ranks that mpirun starts on each host, one host after the other; a list where the
            hosts differ.
        apart: whether each host has a /tmp and a /dev/shm of its own. ``shared`` is what all see.

    Raises:
        RuntimeError: it does not come up; the message says why.
    """

    def __init__(
        self,
        hosts: int,
        delay: float,
        rate: float | Sequence[float],
        per_host: int | Sequence[int] = 1,
        apart: bool = False,
    ) -> None:
        self.hosts = [f"h{k + 1}" for k in range(hosts)]
        # Where the machine's own /tmp is not seen, what runs there still must be.
        self.kept = [str(ROOT), sys.prefix, sys.base_prefix] if apart else []
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._first = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc"),
                *(sys.executable, str(HERE / "switch.py")),
                *(str(hosts), repr(delay), _written(rate), *self.kept),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        assert self._first.stdout is not None
        if self._first.stdout.readline() != "ready\n":
            raise RuntimeError(f"the cluster did not come up: {self._end()}")
        self._tmp = "/tmp" if apart else "/mnt/tmp"
        ranks = [per_host] * hosts if isinstance(per_host, int) else per_host
        for name, line in (("openmpi", "{} slots={}\n"), ("mpich", "{}:{}\n")):
            lines = map(line.format, self.hosts, ranks)
            (self.root / "mnt" / name).write_text("".join(lines))

    @property
    def switch(self) -> int:
        """Process number of the switch."""
        pid = self._first.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    @property
    def root(self) -> Path:
        """The cluster's root folder, as this process sees it."""
        return Path(f"/proc/{self.switch}/root")

    @property
    def shared(self) -> Path:
        """The folder that all hosts see as /mnt/shared, as this process sees it."""
        return self.root / "mnt" / "shared"

    def environment(self) -> dict[str, str]:
        """The variables with which mpirun starts ranks on all hosts, over TCP between them."""
        agent = str(HERE / "agent.sh")
        return {
            "TMPDIR": self._tmp,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "self,sm,tcp",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_plm_ssh_agent": agent,
            "PRTE_MCA_prte_if_include": "eth0",
            "PRTE_MCA_prte_default_hostfile": "/mnt/openmpi",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "PRTE_MCA_rmaps_default_mapping_policy": "slot",
            # ... and of MPICH
            "HYDRA_HOST_FILE": "/mnt/mpich",
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": agent,
            "HYDRA_IFACE": "eth0",
            "UCX_TLS": "tcp,self",  # its shared memory would take all hosts for one
        }

    def command(self, words: Sequence[str], host: str = "h1") -> list[str]:
        """The words that run some words on a host."""
        # Ranks sleep most of the time (nap.c); when they wake up, nothing else comes first.
        there = ["chrt", "--rr", "10", "env", f"--chdir={Path.cwd()}", "LD_PRELOAD=/mnt/nap.so"]
        return [*self.enter(host), *there, *words]

    def enter(self, host: str) -> list[str]:
        """The words before those that are run on a host."""
        holder = (self.root / "mnt" / f"{host}.pid").read_text().strip()
        place = [f"--mount=/proc/{holder}/ns/mnt", f"--net=/mnt/{host}.net"]
        inside = ["nsenter", "--target", str(self.switch), "--mount", "--pid", "--ipc"]
        return [*inside, "nsenter", *place, f"--uts=/mnt/{host}.uts"]

    def run(
        self,
        words: Sequence[str],
        host: str = "h1",
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, see :func:`subprocess.run`."""
        return subprocess.run(
            self.command(words, host),
            env={**os.environ, **self.environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            text=True,
            check=False,
            **options,
        )

    def _end(self) -> str:
        """End every process of the cluster; what the switch has complained of."""
        self._first.kill()
        self._first.communicate()
        with self._complaints as file:
            file.seek(0)
            return file.read().strip()

    def close(self) -> None:
        """End every process of the cluster.

        Raises:
            RuntimeError: the switch has lost frames, so nothing was as it should be.
        """
        if complaints := self._end():
            raise RuntimeError(complaints)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _written(rate: object) -> str:
    """A rate, or those of all hosts, as the switch takes it."""
    return ",".join(map(repr, rate)) if isinstance(rate, Sequence) else repr(rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--delay", type=float, default=1e-3, help="seconds from host to host")
    parser.add_argument("--rate", type=float, default=200e6, help="bit/s of each link, each way")
    parser.add_argument("--per-host", type=int, default=1, help="ranks on each host")
    parser.add_argument("words", nargs="+", metavar="COMMAND", help="run on the first host")
    options = parser.parse_args()
    if reason := missing():
        parser.exit(2, f"{reason}\n")
    with Cluster(options.hosts, options.delay, options.rate, options.per_host) as cluster:
        return cluster.run(options.words).returncode


if __name__ == "__main__":
    sys.exit(main())
