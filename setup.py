"""The compiled extensions; everything else about the package is in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = [
    Extension(
        "mpicoll._kernels",
        ["mpicoll/_kernels.pyx"],
        depends=[
            "mpicoll/_kernels.pxd",
            "mpicoll/_kernels.h",
            "mpicoll/_kernels_body.h",
            "mpicoll/_exact.h",
        ],
        # No contraction: a fused multiply-add rounds differently from NumPy, and only where the
        # compiler chooses to use one.
        extra_compile_args=["-O3", "-ffp-contract=off"],
    ),
]

setup(ext_modules=cythonize(extensions, language_level=3))
