"""What ``mpicoll doctor`` says of GPUs, without one."""

import sys

import pytest
from fake_cuda import FakeDriver
from fake_cupy import module
from mpi4py import MPI

from mpicoll.cli import gpus
from mpicoll.cuda import driver


@pytest.fixture
def use(monkeypatch):
    undo = []

    def use(**arguments):
        undo.append(driver.use(FakeDriver(**arguments)))

    yield use
    for each in undo:
        each()


def test_devices_links_and_transport(use, monkeypatch):
    use(devices=3, uuids=["GPU-a", "GPU-b", "GPU-b"])
    made = module()
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setattr(gpus.importlib.util, "find_spec", lambda name: name == "cupy")
    monkeypatch.setenv("MPICOLL_GPU", "staged")
    facts = gpus.examine(MPI.COMM_SELF)
    host = MPI.Get_processor_name()
    assert made.used == [0]
    assert gpus.lines(facts) == [
        (f"GPU 0 of {host}", "Fake 0 (GPU-a); peer access to 1, peer access to 2"),
        (f"GPU 1 of {host}", "Fake 1 (GPU-b); peer access to 0, no access to 2"),
        (f"GPU 2 of {host}", "Fake 2 (GPU-b); peer access to 0, no access to 1"),
        ("GPU transport", "staged (MPICOLL_GPU=staged asks for it)"),
    ]


def test_no_device(use):
    use(devices=0)
    facts = gpus.examine(MPI.COMM_SELF)
    assert facts["transport"] is None
    assert gpus.lines(facts) == [("GPUs", "none for every rank: no CUDA device")]
