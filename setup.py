"""The compiled extensions; everything else about the package is in pyproject.toml."""

import copy
import glob
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mpi4py
import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_PARTS = (
    "_transport",
    "_program",
    "_folding",
    "_execution",
    "_datatypes",
    "_signature",
    "_packing",
    "_library",
    "_flight",
    "_routes",
    "_fast_path",
    "_starter",
    "_messages",
    "_methods",
    "_attributes",
)
ENGINE = tuple(f"mpicoll.engine.{part}" for part in _PARTS)
#: Modules of Python that calls go through; compiled as they are, which saves 0.1 or 0.2
#: microseconds in each call, a fifth of a short one.
AS_THEY_ARE = (
    "mpicoll.comm.intracomm",
    "mpicoll.engine.lanes",
    "mpicoll.profile.calls",
    "mpicoll.profile.methods",
    "mpicoll.profile.recorder",
    "mpicoll.profile.requests",
    "mpicoll.requests.own",
    "mpicoll.runtime.first_calls",
)

# No contraction: a fused multiply-add rounds differently from NumPy, and only where the compiler
# chooses to use one.
FLAGS = ["-O3", "-ffp-contract=off"]

NUMPY_API = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]


def mpi_compiler() -> str | None:
    """The MPI compiler wrapper: that of `MPICC`, of this environment, or on PATH."""
    beside = Path(sys.executable).parent / "mpicc"
    return shutil.which(os.environ.get("MPICC") or (beside if beside.exists() else "mpicc"))


def library_directories(wrapper: str) -> list[str]:
    """Where a wrapper finds its libraries; it names them last, behind those of Python itself, where
    another MPI may lie."""
    shown = subprocess.run(
        [wrapper, "-show"], capture_output=True, encoding="utf-8", check=False
    ).stdout
    return [word[2:] for word in shlex.split(shown) if word.startswith("-L") and word != "-L"]


class Build(build_ext):
    """Builds the engine by the MPI compiler wrapper, and without one leaves it out."""

    def build_extension(self, extension: Extension) -> None:
        if extension.name not in ENGINE:
            super().build_extension(extension)
            return
        wrapper = mpi_compiler()
        if wrapper is None:
            print("no mpicc: the compiled engine is left out, and Python runs the plans")
            return
        plain: Any = vars(self)["compiler"]
        compiler = type(plain)(force=self.force)
        for name, value in vars(plain).items():
            setattr(compiler, name, value[:] if isinstance(value, list) else value)
        compiler.compiler_so = [wrapper, *plain.compiler_so[1:]]
        compiler.linker_so = [wrapper, *plain.linker_so[1:]]
        extension.library_dirs[:0] = library_directories(wrapper)
        # With -j other threads build other extensions meanwhile, by the compiler of this object.
        other: Any = copy.copy(self)
        other.compiler = compiler
        build_ext.build_extension(other, extension)


extensions = [
    Extension(
        "mpicoll.simulate._clock",
        ["mpicoll/simulate/_clock.pyx"],
        depends=sorted(glob.glob("mpicoll/simulate/*.h")),
        extra_compile_args=FLAGS,
    ),
    Extension(
        "mpicoll._kernels",
        ["mpicoll/_kernels.pyx"],
        depends=["mpicoll/_kernels.pxd", *sorted(glob.glob("mpicoll/ops/*.h"))],
        include_dirs=["mpicoll/ops", numpy.get_include()],
        define_macros=NUMPY_API,
        extra_compile_args=[*FLAGS, "-fno-math-errno"],
    ),
    *(
        Extension(
            f"mpicoll.cuda.{name}",
            [f"mpicoll/cuda/{name}.pyx"],
            depends=["mpicoll/cuda/_driver.pxd", "mpicoll/base/_call_cache.pxd"],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        )
        for name in ("_driver", "_launch")
    ),
    *(
        Extension(
            name,
            [f"{name.replace('.', '/')}.pyx"],
            depends=[
                *sorted(glob.glob("mpicoll/engine/*.pxd")),
                *sorted(glob.glob("mpicoll/engine/*.h")),
                "mpicoll/_kernels.pxd",
                "mpicoll/base/_call_cache.pxd",
            ],
            include_dirs=["mpicoll/engine", mpi4py.get_include(), numpy.get_include()],
            define_macros=NUMPY_API,
            extra_compile_args=FLAGS,
            optional=True,  # where the wrapper does not work, Python runs the plans
        )
        for name in ENGINE
    ),
]

as_they_are = [
    Extension(
        name,
        [f"{name.replace('.', '/')}.py"],
        depends=sorted(glob.glob(f"{os.path.dirname(name.replace('.', '/'))}/*.pxd")),
        extra_compile_args=FLAGS,
        optional=True,
    )
    for name in AS_THEY_ARE
]

setup(
    ext_modules=[
        *cythonize(extensions, language_level=3),
        *cythonize(as_they_are, language_level=3, compiler_directives={"annotation_typing": False}),
    ],
    cmdclass={"build_ext": Build},
)
