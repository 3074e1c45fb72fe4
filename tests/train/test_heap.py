"""Freed memory is kept for the next step: it causes no page faults again."""

import os
import platform
import subprocess
import sys

import pytest

from mpicoll.train import heap

#: Prints the page faults of a step whose layers make arrays of a megabyte each.
PROGRAM = """
import resource
import numpy as np
from mpicoll.train.models import Dense
from mpicoll.train.parallel import Mesh, Pipeline

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

pipeline = Pipeline([Dense(512)] * 4, Mesh(), "gpipe", microbatches=4, inputs=(512,))
batch = np.ones((4 * 512, 512), np.float32), np.zeros(4 * 512, int)
for _ in range(4):
    before = faults()
    pipeline.step(*batch)
print(faults() - before)
"""


def faults(**chosen):
    environ = {k: v for k, v in os.environ.items() if k not in heap.VARIABLES}
    words = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(words, capture_output=True, text=True, env={**environ, **chosen})
    assert found.returncode == 0, found.stderr
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_step_takes_again_what_the_step_before_has_freed():
    returned = faults(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072")
    assert faults() < returned / 20


@pytest.mark.parametrize("name", heap.VARIABLES)
def test_a_user_who_has_chosen_is_left_alone(name):
    assert not heap.keep_freed({name: "glibc.malloc.trim_threshold=131072"})
