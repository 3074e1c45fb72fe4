"""Memory that ranks map of each other: when it is mapped, unmapped and freed, without a GPU."""

from __future__ import annotations

import threading
import weakref
from types import SimpleNamespace

import pytest
from fake_ranks import LENGTH, MAPPED, Cuda, Ranks, rank

from mpicoll.cuda import registered

TABLE, STREAM = 1 << 30, 9


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(registered, "_driver", made)
    monkeypatch.setattr(registered, "_mapped", registered._Mapped())
    # What makes a process of a rank: its number; and what it maps, it maps on a device of its own.
    monkeypatch.setattr(registered, "os", SimpleNamespace(getpid=lambda: 100 + rank()))
    yield made
    assert not registered._mapped._found, "something is still mapped"


class Launcher:
    """What a registry tells its launcher."""

    def __init__(self, cuda):
        self._cuda, self.regions = cuda, {}
        self.captured = set()

    def register(self, start, length, index):
        self.regions[index] = start, length

    def unregister(self, index):
        self.regions.pop(index, None)

    def forget(self):
        pass

    def await_registered(self):
        self._cuda._tell("await")


def close(registry, comm):
    """The end of a communicator, as `Peers.close` has it."""
    registry.unmap_all()
    comm.Barrier()
    registry.let_all_go()


def registry_of(comm):
    return registered.Registry(comm, rank(), Launcher(registered._driver), TABLE, STREAM)


def written(cuda):
    """Where this rank has written to its table last, and the numbers."""
    address, data, stream = cuda.names("write", of=rank())[-1][2]
    assert stream == STREAM
    return address, [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


class Kept:
    """What keeps some memory."""


def patient(event):
    """Something to be done before a call: time for others to do what they must not."""
    return lambda: event.wait(0.2)


# --- where a rank cannot map ----------------------------------------------------------------------


def test_what_another_rank_has_mapped_is_kept_until_it_is_unmapped(cuda):
    """Where one rank fails, so that all go through the window."""
    gone = threading.Event()
    cuda.fails[1, "map"] = RuntimeError("too many peers")
    cuda.before[2, "unmap"] = patient(gone)

    def work(comm):
        base, kept = cuda.make(), Kept()
        if rank() == 0:
            end = weakref.finalize(kept, lambda: (gone.set(), cuda._tell("gone")))
            end.atexit = False
        registry = registry_of(comm)
        held = registry.register([(base, 64)], kept)
        del kept
        assert not held.direct and not registry.any

    Ranks(3).run(work)
    told = [(who, name) for who, name, _ in cuda.names("unmap", "gone")]
    assert told[-1] == (0, "gone") and told.count((2, "unmap")) == 2
    assert len(cuda.names("map")) == len(cuda.names("unmap"))


def test_memory_of_its_own_is_kept_until_it_is_unmapped(cuda):
    """The same where it was made for a user, who drops it at once."""
    freed = threading.Event()
    cuda.fails[1, "map"] = RuntimeError("too many peers")
    cuda.before[2, "unmap"] = patient(freed)
    cuda.before[0, "free"] = freed.set

    def work(comm):
        registry_of(comm).empty(64)

    Ranks(3).run(work)
    told = [(who, name) for who, name, _ in cuda.names("unmap", "free")]
    assert told.index((0, "free")) > max(i for i, t in enumerate(told) if t == (2, "unmap"))
    assert sorted(who for who, name in told if name == "free") == [0, 1, 2]


def test_nobody_waits_for_a_rank_that_cannot_unmap(cuda):
    cuda.fails[1, "unmap"] = RuntimeError("the GPU is lost")
    cuda.fails[2, "map"] = RuntimeError("too many peers")

    def work(comm):
        registry = registry_of(comm)
        with pytest.raises(RuntimeError, match="rank 1: the GPU is lost"):
            registry.register([(cuda.make(), 64)], None)

    Ranks(3).run(work)
    assert {device for device, _, _ in registered._mapped._found} == {1}
    registered._mapped._found.clear()  # with the process


def test_memory_that_a_user_gets_is_not_set(cuda):
    """That would happen later, and erase what is there; also where nothing can be registered."""
    cuda.fails[0, "exportable"] = RuntimeError("a pool's")

    def work(comm):
        address, token = registry_of(comm).empty(64)
        del token
        return address

    (address,) = Ranks(1).run(work)
    assert cuda.told == [(0, "allocate", address), (0, "free", address)]


# --- what is mapped once --------------------------------------------------------------------------


def test_an_allocation_is_mapped_once_in_a_process(cuda):
    """However many parts of it are registered, in however many communicators."""

    def work(comm):
        one, other = registry_of(comm), registry_of(comm)
        base = cuda.make()
        held = [
            one.register([(base, 64), (base + 64, 64)], None),
            other.register([(base + 4096, 64)], None),
        ]
        assert all(each.direct for each in held)
        assert len(cuda.names("map", of=rank())) == 2  # those of two peers
        _, row = written(cuda)
        assert row == [
            base + 4096 if peer == rank() else MAPPED * (1 + peer) + LENGTH + 4096
            for peer in range(3)
        ]
        held[0].close()
        one.register([(0, 0)], None)
        close(one, comm)
        assert not cuda.names("unmap")
        comm.Barrier()
        held[1].close()
        other.register([(0, 0)], None)
        assert len(cuda.names("unmap", of=rank())) == 2
        assert not other.any

    Ranks(3).run(work)


def test_what_is_registered_in_another_communicator_stays_mapped_and_kept(cuda):
    """Also where the one that has mapped it is freed; peers unmap before the owner lets go."""
    gone = threading.Event()
    cuda.before[1, "unmap"] = patient(gone)

    def work(comm):
        one, other = registry_of(comm), registry_of(comm)
        kept = Kept()
        if rank() == 0:
            weakref.finalize(kept, lambda: (gone.set(), cuda._tell("gone"))).atexit = False
        base = cuda.make()
        one.register([(base, 64)], kept)
        other.register([(base, 64)], kept)
        del kept
        close(one, comm)
        assert not cuda.names("unmap", "gone")
        comm.Barrier()
        close(other, comm)

    Ranks(2).run(work)
    told = [(who, name) for who, name, _ in cuda.names("unmap", "gone")]
    assert sorted(told[:2]) == [(0, "unmap"), (1, "unmap")] and told[2:] == [(0, "gone")]


def test_a_new_allocation_at_the_same_address_is_another_one(cuda):
    def work(comm):
        registry = registry_of(comm)
        base = cuda.make()
        registry.register([(base, 64)], None).close()
        cuda.renew(base)
        registry.register([(base, 64)], None)
        close(registry, comm)

    Ranks(2).run(work)
    assert len(cuda.names("map")) == len(cuda.names("unmap")) == 4


def test_what_all_have_let_go_is_unmapped_and_then_freed(cuda):
    """Once what uses it is done; the first registration after that does it."""

    def work(comm):
        registry = registry_of(comm)
        base, token = registry.empty(64)
        peer = 1 - rank()
        if rank():
            del token
        registry.register([(0, 0)], None)
        assert not cuda.names("unmap", "free")
        comm.Barrier()
        if not rank():
            del token
        registry.register([(0, 0)], None)
        told = [(name, what) for _, name, what in cuda.names("await", "unmap", "free", of=rank())]
        assert told == [("await", 0), ("unmap", b"%d %d" % (peer, base)), ("free", base)]

    Ranks(2).run(work)
    names = [name for _, name, _ in cuda.names("unmap", "free")]
    assert names == ["unmap", "unmap", "free", "free"]


def test_numbers_are_used_again_and_equal_on_all_ranks(cuda):
    def work(comm):
        registry = registry_of(comm)
        base = cuda.make()
        held = [registry.register([(base + 64 * k, 64)], None) for k in range(3)]
        assert sorted(registry._launcher.regions) == [0, 1, 2]
        for each in held[:2][:: 1 if rank() else -1]:
            each.close()
        registry.register([(base + 4096, 64)], None)
        regions = dict(registry._launcher.regions)
        row, _ = written(cuda)
        close(registry, comm)
        return regions, row

    (one, row), (other, _) = Ranks(2).run(work)
    assert one == other == {0: (LENGTH + 4096, 64), 2: (LENGTH + 128, 64)}
    assert row == TABLE  # of number 0


def test_what_a_graph_names_stays(cuda):
    """On all ranks, if one has made a graph of it."""

    def work(comm):
        registry = registry_of(comm)
        base = cuda.make()
        registry.register([(base, 64)], None).close()
        if rank():
            registry._launcher.captured.add(0)
        registry.register([(base + 64, 64)], None)
        assert sorted(registry._launcher.regions) == [0, 1]
        close(registry, comm)

    Ranks(2).run(work)


def test_more_than_there_are_numbers_for_go_through_the_window(cuda):
    def work(comm):
        registry = registry_of(comm)
        base = cuda.make()
        spans = [(base + 64 * k, 64) for k in range(registered.MOST + 1)]
        first = registry.register(spans[:1], None)
        assert registry.register(spans[1:-1], None).direct
        assert not registry.register(spans[-1:], None).direct
        assert len(registry._launcher.regions) == registered.MOST
        first.close()
        assert registry.register(spans[-1:], None).direct
        close(registry, comm)

    Ranks(2).run(work)
    assert len(cuda.names("map")) == len(cuda.names("unmap")) == 2


def test_ranks_that_have_nothing_to_give(cuda):
    def work(comm):
        registry = registry_of(comm)
        base = cuda.make()
        held = registry.register([(base, 64 if rank() == 1 else 0)], None)
        assert held.direct and [*registry._launcher.regions] == [0] * (rank() == 1)
        assert written(cuda)[1] == [
            0, base if rank() == 1 else 2 * MAPPED + LENGTH, 0
        ]  # fmt: skip
        assert not registry.register([(0, 0)], None).direct
        close(registry, comm)

    Ranks(3).run(work)
