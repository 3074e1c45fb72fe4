"""How ranks come to map each other's GPU memory, or agree not to, without a GPU."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest
from fake_ranks import Cuda, Ranks, rank

from mpicoll.cuda import ipc, links, registered, windows
from mpicoll.cuda.ipc import Peers
from mpicoll.cuda.links import Facts


@pytest.fixture
def cuda(monkeypatch):
    """The driver of all ranks, and what else they need of CuPy and the compiled part."""
    made = Cuda()
    for module in (ipc, links, registered, windows):
        monkeypatch.setattr(module, "_driver", made)
    monkeypatch.setattr(ipc, "_launch", SimpleNamespace(Launcher=Launcher))
    monkeypatch.setattr(ipc.kernels, "compiled", lambda size, limits: compiled(made))

    @contextlib.contextmanager
    def device(number):
        yield SimpleNamespace(attributes={"MultiProcessorCount": 8 + rank()})

    runtime = SimpleNamespace(free=lambda address: None)
    fake = SimpleNamespace(Device=device, runtime=runtime, get_current_stream=None)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(ndarray=None, cuda=fake))
    return made


def compiled(cuda):
    cuda._tell("compile")
    return {"kernel": SimpleNamespace(ptr=7)}


class Launcher:
    """What a `Peers` asks of it before the first call and at the end."""

    def __init__(self, device, number, windows, alarm, table, *more):
        self.windows, self.open = windows, True

    def serve(self):
        raise AssertionError("nothing is called")

    def close(self):
        self.open = False

    def stop(self):
        raise AssertionError("nobody dies")

    def alarmed(self):
        return None

    def drop_alarm(self):
        pass


def open_all(size=3, **more):
    """What all ranks get when they open, once all of them have closed what they got."""

    def work(comm):
        peers, why = Peers.open(comm, rank(), **more)
        if peers is not None:
            assert len(peers._launcher.windows) == size
            peers.check()
            peers.close()
            assert peers.failed is None
        return peers is not None, why

    return Ranks(size).run(work)


def pairs(cuda):
    """How often what must be given back was taken, and given back."""
    both = (
        ("allocate", "free"), ("map", "unmap"), ("stream", "free_stream"),
        ("pinned", "free_pinned"),
    )  # fmt: skip
    return {one: tuple(len(cuda.names(name)) for name in (one, other)) for one, other in both}


def test_all_is_given_back_in_order(cuda):
    assert open_all() == [(True, "")] * 3
    assert pairs(cuda) == {
        "allocate": (12, 12), "map": (6, 6), "stream": (3, 3), "pinned": (3, 3),
    }  # fmt: skip
    first = cuda.told.index(cuda.names("free")[0])
    assert not [name for _, name, _ in cuda.told[first:] if name == "unmap"]


def test_nothing_is_waited_for_but_the_own_stream(cuda):
    """On the device there may be what waits for a peer who comes here first."""

    def work(comm):
        peers, _ = Peers.open(comm, rank())
        assert not cuda.names("synchronize_device")
        comm.Barrier()
        peers.close()

    Ranks(2).run(work)
    streams = {what[-1] for _, _, what in cuda.names("clear", "write", "read")}
    assert streams == {900, 901}


FAULTS = {
    "load": RuntimeError("no driver"),
    "linked": RuntimeError("link of devices 0 and 1: an error"),
    "stream": RuntimeError("no stream"),
    "allocate": RuntimeError("85983232 bytes of device memory: out of memory (CUDA error 2)"),
    "clear": RuntimeError("memset: an error"),
    "export": RuntimeError("handle of device memory: not supported (CUDA error 801)"),
    "map": RuntimeError("mapping of another process's memory: invalid (CUDA error 1)"),
    "write": RuntimeError("copy: an error"),
    "read": RuntimeError("copy: an error"),
    "compile": ValueError("the compiler rejects it"),
    "pinned": MemoryError("no 64 bytes of pinned host memory"),
    "make_ready": RuntimeError("loading of a kernel: an error"),
    "synchronize": RuntimeError("synchronize: an error"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("who", [0, 2])
def test_any_ranks_fault_is_no_for_all_and_leaves_nothing(cuda, name, who):
    cuda.fails[who, name] = error = FAULTS[name]
    assert open_all() == [(False, f"rank {who}: {type(error).__name__}: {error}")] * 3
    assert all(taken == given for taken, given in pairs(cuda).values()), pairs(cuda)


def test_memory_that_is_not_what_it_was_said_to_be(cuda):
    """A mapping of something else is found out by what its owner has written there."""
    read = cuda.read
    cuda.read = lambda *call: b"else" if rank() == 1 else read(*call)
    assert (
        open_all()
        == [(False, "rank 1: RuntimeError: memory of rank 0 reads other than it was written")] * 3
    )
    assert all(taken == given for taken, given in pairs(cuda).values())


def test_what_one_rank_knows_is_told_to_all(cuda):
    cuda.hidden[1] = (2,)
    why = "rank 1: a rank's GPU is hidden from the others (CUDA_VISIBLE_DEVICES)"
    assert open_all() == [(False, why)] * 3
    assert not cuda.names("allocate")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((False, False), "rank 0: GPUs 1 and 2 cannot map each other's memory"),
        ((True, False), "rank 0: GPUs 1 and 2 are not linked by NVLink"),
    ],
)
def test_links(cuda, answer, why):
    cuda.links[1, 2] = answer
    assert open_all() == [(False, why)] * 3
    assert open_all(2) == [(True, "")] * 2  # which do not use that link
    before = len(cuda.names("map"))
    assert open_all(4) == [(True, links.IN_A_RING)] * 4  # 0, 1, 3, 2 do not either
    assert len(cuda.names("map")) - before == 4 * 2


# --- what is known before -------------------------------------------------------------------------


def facts(*devices, **changes):
    one = Facts("", "host", 100, "GPU-0", 132)
    return [one._replace(uuid=f"GPU-{device}", **changes) for device in devices]


def test_several_ranks_on_one_gpu(cuda):
    assert links.problem(facts(0, 1, 0), share=False) == "several ranks have the same GPU"
    assert links.problem(facts(0, 1, 0), share=True) == ""
    assert links.problem(facts(0, 0), share=True) == ""


def test_several_nodes(cuda):
    both = [*facts(0), *facts(1, host="another")]
    assert links.problem(both, share=False).startswith("the ranks are on several nodes")


def test_more_ranks_than_the_kernels_count(cuda):
    assert links.problem(facts(*[0] * 64), share=True) == ""
    assert links.problem(facts(*[0] * 65), share=True).startswith("65 ranks, and at most 64")


def test_a_rank_that_has_no_gpu(cuda):
    ranks = [*facts(0), *facts(1, problem="CudaError: no device")]
    assert links.problem(ranks, share=False) == "rank 1: CudaError: no device"
