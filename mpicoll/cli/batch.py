"""What is submitted to SLURM: the words of each ``sbatch``, as asked for and as the site wants it.

The batch scripts themselves are in the folder ``slurm`` beside this file; `write_scripts` copies
them to where a site's nodes see them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mpicoll.base.files import replacing, write_atomically
from mpicoll.cli.errors import RankError, UsageError

KINDS = (
    *("sweep", "train", "search", "run"),
    *("gpu-sweep", "gpu-train", "gpu-search", "gpu-run"),
    "report",
)

#: The batch scripts, and the example of a site's settings.
SCRIPTS = Path(__file__).parent / "slurm"
_EXAMPLE, _SITE = "site.env.example", "site.env"

# The file is a program in bash that the user wrote; its name is no part of what runs.
_READ = r"""
set -u
. "$1" >/dev/null &&
    printf '%s\0' "$SCRIPTS" "$SHARED" "${#OPTIONS[@]}" "${OPTIONS[@]}" "${GPU_OPTIONS[@]}"
"""


class Site(NamedTuple):
    """What a file of settings says of a site.

    Attributes:
        file: The file itself.
        scripts: Folder of the batch scripts.
        shared: Folder of results, seen by all nodes.
        options: Of every ``sbatch``.
        gpu_options: Further ones of jobs with GPUs.
    """

    file: Path
    scripts: Path
    shared: Path
    options: tuple[str, ...] = ()
    gpu_options: tuple[str, ...] = ()


def site(file: Path) -> Site:
    """Read the settings of a site.

    Raises:
        UsageError: if there is no such file, or it cannot be read by bash.
    """
    if not file.is_file():
        raise UsageError(
            f"{file} is no file; write it by `mpicoll slurm init` and edit it, or name your "
            "site's settings by --site"
        )
    file = file.absolute()
    try:
        read = subprocess.run(
            ["bash", "-c", _READ, "bash", str(file)], capture_output=True, check=False
        )
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}: bash") from None
    if read.returncode:
        reason = " ".join(os.fsdecode(read.stderr).split()) or f"exit status {read.returncode}"
        raise UsageError(f"{file} cannot be read: {reason}; compare it with site.env.example")
    scripts, shared, count, *words = os.fsdecode(read.stdout).split("\0")[:-1]
    number = int(count)
    return Site(file, Path(scripts), Path(shared), tuple(words[:number]), tuple(words[number:]))


@dataclass(frozen=True)
class Request:
    """What is asked for.

    Attributes:
        kind: One of `KINDS`.
        name: Of the run, and of the folder of its results.
        words: What follows ``mpicoll bench``, ``train`` or ``search``; of ``run`` the program.
        nodes: Numbers of nodes; of a sweep any, else one.
        per_node: Numbers of ranks on each node; of a sweep any, else one.
        launches: Of each pair of these in a sweep.
        at_once: Most tasks of an array that run at a time; None leaves it to SLURM.
        chain: Jobs of a training or a search, one after the other.
        options: Further ones of ``sbatch``.

    Raises:
        UsageError: if it does not fit together.
    """

    kind: str
    name: str
    words: tuple[str, ...] = ()
    nodes: tuple[int, ...] = (1,)
    per_node: tuple[int, ...] = (1,)
    launches: int = 1
    at_once: int | None = None
    chain: int = 1
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"unknown kind of job {self.kind!r}; choose one of {', '.join(KINDS)}")
        if not re.fullmatch(r"\w[\w.-]*", self.name, re.ASCII):
            raise UsageError(
                f"--name {self.name!r} is no name of a folder; write letters, digits, . _ and -"
            )
        if self.is_sweep:
            if self.chain > 1:
                raise UsageError(
                    f"--chain {self.chain} is for a training or a search; a sweep has --launches"
                )
            if not self.words:
                raise UsageError("a sweep needs a collective; write it after --, as -- allreduce")
            return
        if self.kind.endswith("run"):
            if self.chain > 1:
                raise UsageError(
                    f"--chain {self.chain} is for a training or a search; leave it out"
                )
            if not self.words:
                raise UsageError("run needs a program; write it after --, as -- python app.py")
        if self.kind.endswith("search") and not self.words:
            raise UsageError("a search needs a space; write its file after --, as -- space.toml")
        for option, numbers in (("--nodes", self.nodes), ("--per-node", self.per_node)):
            if len(numbers) > 1:
                listed = ",".join(map(str, numbers))
                raise UsageError(f"{option} {listed} is for a sweep; give one number")
        if self.launches > 1 or self.at_once is not None:
            raise UsageError("--launches and --at-once are for a sweep; leave them out")

    @property
    def is_sweep(self) -> bool:
        """Whether it is an array of launches."""
        return self.kind.endswith("sweep")


def commands(request: Request, site: Site) -> Iterator[list[str]]:
    """The words of each ``sbatch`` that carries the request out, in the order to submit them."""
    folder = site.shared / request.name
    gpus = request.kind.startswith("gpu")
    common = [*site.options, *(site.gpu_options if gpus else ()), *request.options]
    script = [str(site.scripts / f"{request.kind}.sbatch"), str(site.file), request.name]
    begin = ["sbatch", "--parsable", f"--job-name=mpicoll-{request.name}"]
    if request.kind == "report":
        log = f"--output={folder / 'report-%j.out'}"
        yield [*begin, log, *common, *script, *request.words]
        return
    most = max(request.per_node)
    place = [f"--ntasks-per-node={most}", *([f"--gpus-per-node={most}"] if gpus else [])]
    if not request.is_sweep:
        log = f"--output={folder / 'job-%j.out'}"
        chain = ["--dependency=singleton", "--no-requeue"] if request.chain > 1 else []
        shape = [f"--nodes={request.nodes[0]}", *place, log, *chain]
        for _ in range(request.chain):
            yield [*begin, *shape, *common, *script, *request.words]
        return
    tasks = f"0-{len(request.per_node) * request.launches - 1}"
    array = tasks if request.at_once is None else f"{tasks}%{request.at_once}"
    ranks = ",".join(map(str, request.per_node))
    for nodes in request.nodes:
        log = f"--output={folder / f'nodes{nodes}-%a-%A.out'}"
        shape = [f"--nodes={nodes}", *place, f"--array={array}", log]
        yield [*begin, *shape, *common, *script, ranks, *request.words]


def scripts(jobs: Iterable[Sequence[str]]) -> dict[Path, str]:
    """The scripts of some jobs, and what they say.

    Raises:
        UsageError: one cannot be read.
    """
    found = {}
    for path in (Path(word) for command in jobs for word in command if word.endswith(".sbatch")):
        try:
            found[path] = path.read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"the batch script {path} cannot be read: {error.strerror}; write the scripts by "
                "`mpicoll slurm init`, and let SCRIPTS in the site's settings name their folder"
            ) from None
    return found


def write_scripts(folder: Path) -> Path:
    """Write the batch scripts, and settings of a site unless there are some.

    Args:
        folder: Where they go; it is made.

    Returns:
        The site's settings, which are to be edited.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for script in sorted(SCRIPTS.iterdir()):
        with replacing(folder / script.name) as draft:
            draft.write_bytes(script.read_bytes())
            if script.suffix == ".sh":
                mode = draft.stat().st_mode
                draft.chmod(mode | (mode & 0o444) >> 2)  # who may read it may run it
    site = folder / _SITE
    if not site.exists():
        example = (SCRIPTS / _EXAMPLE).read_text(encoding="utf-8")
        place = f"SCRIPTS={shlex.quote(str(folder.absolute()))}"
        write_atomically(site, re.sub(r"^SCRIPTS=.*", lambda _: place, example, flags=re.M))
    return site


def submit(command: list[str]) -> str:
    """Submit a job; its number.

    Raises:
        UsageError: if there is no ``sbatch``.
        RankError: if SLURM refuses it.
    """
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageError(
            "there is no sbatch here; submit where SLURM is, or see what would be by --dry-run"
        ) from None
    if done.returncode:
        reason = " ".join(os.fsdecode(done.stderr).split())
        raise RankError(f"SLURM refuses the job: {reason}")
    return os.fsdecode(done.stdout).strip().partition(";")[0]
