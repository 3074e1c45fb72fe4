"""A SLURM cluster of emulated hosts: a real controller, and a daemon on each host.

By hand, as root, with the words of a command that is run on the first host::

    python tests/slurm/lab.py --hosts 4 -- sbatch --wrap hostname

No systemd is needed, and nothing of the machine's own SLURM, if it has one, is touched: daemons,
keys, state and logs are in the namespaces of a :class:`cluster.hosts.Cluster`, which the kernel
ends with the process that made it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from cluster import hosts  # noqa: E402

TOOLS = ("sbatch", "srun", "slurmctld", "slurmd", "munged")
FOLDER = "/mnt/slurm"
SHARED = "/mnt/shared"
GPUS = 2  # of each host, which are none
DELAY, RATE = 20e-6, 10e9  # short and wide: nothing here is measured
START, LIMIT = 30.0, 120.0  # seconds until all hosts are idle; that anything may take

#: A job is over in one of these states.
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")


def missing() -> str:
    """Why there can be no SLURM cluster here; "" if there can."""
    absent = [tool for tool in TOOLS if not shutil.which(tool)]
    if absent:
        install = "`make test-slurm` installs it, as root on Debian"
        return f"SLURM is not installed: there is no {', '.join(absent)}; {install}"
    return hosts.missing()


class Slurm(hosts.Cluster):
    """Hosts h1, h2, ...; the controller is on the first one, which is a node, too.

    Each has two processors and two GPUs that are none.  Jobs of the partition ``urgent`` take nodes
    from those of ``requeue`` and ``cancel``, which are then queued again or gone; others are in
    ``main`` and ``gpu``.

    Args:
        number: of hosts.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, DELAY, RATE, apart=True)
        folder = self.root / FOLDER[1:]
        for name in ("state", "log", "munge"):
            (folder / name).mkdir(parents=True)
        (folder / "munge").chmod(0o755)
        settings = {"folder": FOLDER, "last": number, "nodes": "\n".join(map(_node, self.hosts))}
        for path in (HERE / "conf").iterdir():
            (folder / path.name).write_text(Template(path.read_text()).substitute(settings))
        try:
            self._start_daemons()
        except BaseException:
            self._end()
            raise

    def _start_daemons(self) -> None:
        """Start them and wait until all hosts are idle.

        Raises:
            RuntimeError: some are not; the message is what the daemons say.
        """
        key = f"{FOLDER}/munge/key"
        (self.root / key[1:]).write_bytes(os.urandom(128))
        (self.root / key[1:]).chmod(0o600)
        places = {"key-file": key, "socket": f"{FOLDER}/munge/socket"}
        for name in ("pid", "seed", "log"):
            places[f"{name}-file"] = f"{FOLDER}/munge/{name}"
        self.do("munged", "--force", *(f"--{name}={place}" for name, place in places.items()))
        for number in range(GPUS):
            self.do("mknod", f"{FOLDER}/gpu{number}", "c", "1", "3")  # as /dev/null
        self.do("slurmctld", "-c")
        for host in self.hosts:
            self.do("slurmd", "-N", host, host=host)
        try:
            wait(lambda: self._idle() == len(self.hosts), START)
        except TimeoutError:
            logs = (self.root / FOLDER[1:] / "log").iterdir()
            said = "\n".join(path.read_text() for path in sorted(logs))
            raise RuntimeError(f"SLURM did not come up:\n{said}") from None

    def _idle(self) -> int:
        return int(self.do("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D") or 0)

    def environment(self) -> dict[str, str]:
        # Jobs inherit it, so there is nothing in it of what starts ranks on emulated hosts: SLURM
        # itself has to say where ranks go.
        return {"SLURM_CONF": f"{FOLDER}/slurm.conf", "TMPDIR": "/tmp", "PYTHONPATH": str(ROOT)}

    def command(self, words: Sequence[str], host: str = "h1") -> list[str]:
        """The words that run some words on a host, in the folder that all hosts see."""
        return [*self.enter(host), "env", f"--chdir={SHARED}", *words]

    def do(self, *words: str, host: str = "h1") -> str:
        """What a command prints that must succeed."""
        done = self.run(words, host, capture_output=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr}")
        return done.stdout

    def site(self, name: str = "site.env", **settings: str) -> str:
        """Write settings of this site, as ``site.env.example`` with other values."""
        lines = {
            "SCRIPTS": shlex.quote(str(ROOT / "mpicoll" / "cli" / "slurm")),
            "SHARED": SHARED,
            "LOCAL": "/tmp",
            "OPTIONS": "(--time=5)",
            "GPU_OPTIONS": "(--partition=gpu)",
            "LAUNCHER": "mpirun",
            "SRUN_MPI": "pmix",
            "BIND": "none",
            "RESTARTS": "50",
            **settings,
        }
        prepare = (
            f"prepare() {{ export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n"
            # All hosts share the cores of this machine; see nap.c.
            "export MPICOLL_SHARE_CORES=1 LD_PRELOAD=/mnt/nap.so OMPI_MCA_btl=^ofi\n"
            # Jobs of these tests are root's, and PMIx does not know this munge.
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
            "export PMIX_MCA_psec=native; }\n"
        )
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        (self.shared / name).write_text(text + prepare)
        return f"{SHARED}/{name}"

    def submit(
        self, kind: str, name: str, *words: str, site: str = "", **options: str | bool
    ) -> list[str]:
        """Numbers of the jobs that ``mpicoll slurm submit`` submits; options by their names."""
        given = [
            f"--{key.replace('_', '-')}{'' if value is True else f'={value}'}"
            for key, value in options.items()
        ]
        command = [sys.executable, "-m", "mpicoll", "slurm", "submit", kind, f"--name={name}"]
        site = site or f"{SHARED}/site.env"
        return self.do(*command, f"--site={site}", *given, "--", *words).split()

    def facts(self, job: str) -> dict[str, str]:
        """What SLURM says of a job."""
        words = self.do("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job: str) -> str:
        return self.facts(job)["JobState"]

    def ended(self, *jobs: str, limit: float = LIMIT) -> list[str]:
        """Wait for jobs; their final states."""
        for job in jobs:
            wait(lambda job=job: self.state(job) in OVER, limit)
        return [self.state(job) for job in jobs]

    def said(self, name: str) -> str:
        """What all jobs of a run have written."""
        return said([self.shared / name])

    def tidy(self) -> None:
        """Cancel all jobs and wait until no process of any is left.

        Raises:
            TimeoutError: some stay.
        """
        self.do("scancel", "--user=root")
        wait(lambda: not self.do("squeue", "-h") and not self.processes(), 60)

    def clear(self) -> None:
        """Remove the files that are left."""
        for host, names in self.leftovers().items():
            self.do("rm", "-rf", *names, host=host)

    def processes(self) -> list[str]:
        """Command lines of the processes of jobs."""
        found = []
        for entry in (self.root / "proc").glob("[0-9]*"):
            try:
                if b"\0SLURM_JOB_ID=" in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it has ended
                continue
        return found

    def leftovers(self) -> dict[str, list[str]]:
        """Files in shared memory and in /tmp, by host; not the machine's folders that are there."""
        words = ["find", "/dev/shm", "/tmp", "-mindepth", "1", "-maxdepth", "1"]
        found = {host: self.do(*words, host=host).splitlines() for host in self.hosts}
        return {
            host: [
                name for name in names if not any(f"{k}/".startswith(f"{name}/") for k in self.kept)
            ]
            for host, names in found.items()
        }


def at_once(slurm: Slurm, job: str) -> None:
    """Wait until a job is queued again, and let it start without the usual pause.

    Its old credential was revoked for the second in which it ended.
    """
    wait(lambda: slurm.state(job) in ("PENDING", *OVER))
    assert slurm.state(job) == "PENDING", slurm.facts(job)
    slurm.do("scontrol", "update", f"JobId={job}", "StartTime=now+2")


def said(paths: Sequence[Path]) -> str:
    """What jobs have written: logs, and those of the runs in folders."""
    files = [file for path in paths for file in (path, *sorted(path.glob("*.out")))]
    logs = (file for file in files if file.suffix in (".log", ".out"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in logs)


def _node(host: str) -> str:
    address = f"10.77.0.{host[1:]}"
    return f"NodeName={host} NodeAddr={address} CPUs=2 RealMemory=4000 Gres=gpu:{GPUS}"


def wait(until: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it does not within the limit, in seconds.
    """
    end = time.monotonic() + limit
    while not until():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit:g} s")
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("words", nargs="+", metavar="COMMAND", help="run on the first host")
    options = parser.parse_args()
    if reason := missing():
        parser.exit(2, f"{reason}\n")
    with Slurm(options.hosts) as slurm:
        slurm.site()
        return slurm.run(options.words).returncode


if __name__ == "__main__":
    sys.exit(main())
