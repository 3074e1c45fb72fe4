"""Memory that ranks map of each other: when it is mapped, unmapped and freed, without a GPU."""

from __future__ import annotations

import threading
import weakref

import pytest
from fake_ranks import Ranks, rank

from mpicoll.cuda import registered

#: Addresses of a rank's allocations and of its table; where it maps what others have.
LENGTH, TABLE, MAPPED = 1 << 16, 1 << 30, 1 << 40
STREAM = 9


class Cuda:
    """The driver of all ranks; ``told``: (rank, name, what) of what matters, in order."""

    def __init__(self):
        self.told, self.fails, self.before = [], {}, {}
        self._ids = {}  # of the allocations, by rank and base
        self._lock = threading.Lock()
        self._next = 0

    def _tell(self, name, what=0):
        self.before.get((rank(), name), lambda: None)()
        if (rank(), name) in self.fails:
            raise RuntimeError(self.fails[rank(), name])
        with self._lock:
            self.told.append((rank(), name, what))

    def names(self, *names, of=None):
        """What was told by these names, by one rank or all."""
        return [t for t in self.told if t[1] in names and of in (None, t[0])]

    def make(self):
        """A new allocation of this rank's."""
        with self._lock:
            self._next += 1
            base = self._next * LENGTH
            self._ids[rank(), base] = self._next
        return base

    def allocate_mappable(self, nbytes):
        base = self.make()
        self._tell("allocate", base)
        return base

    def free_mappable(self, base):
        self._tell("free", base)
        del self._ids[rank(), base]

    def exportable(self, address):
        return (rank(), "exportable") not in self.fails

    def address_range(self, address):
        return address // LENGTH * LENGTH, LENGTH

    def buffer_id(self, base):
        return self._ids[rank(), base]

    def export(self, base):
        return b"%d %d" % (rank(), base)

    def map(self, handle):
        self._tell("map", handle)
        owner, base = map(int, handle.split())
        assert (owner, base) in self._ids, "it has been freed"
        return MAPPED * (1 + owner) + base

    def unmap(self, address):
        owner, base = address // MAPPED - 1, address % MAPPED
        assert (owner, base) in self._ids, "it was freed while it was mapped"
        self._tell("unmap", b"%d %d" % (owner, base))

    def write(self, address, data, stream):
        assert stream == STREAM
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        self._tell("write", (address, words))


@pytest.fixture
def cuda(monkeypatch):
    made = Cuda()
    monkeypatch.setattr(registered, "_cuda", made)
    return made


class Launcher:
    """What a registry tells its launcher."""

    def __init__(self, cuda):
        self._cuda, self.regions = cuda, {}

    def register(self, start, length, index):
        self.regions[index] = start, length

    def unregister(self, index):
        self.regions.pop(index, None)

    def forget(self):
        pass

    def await_registered(self):
        self._cuda._tell("await")


def registry_of(comm):
    return registered.Registry(comm, Launcher(registered._cuda), TABLE, STREAM)


class Kept:
    """What keeps some memory."""


def patient(event):
    """Something to be done before a call: time for others to do what they must not."""
    return lambda: event.wait(0.2)


# --- where a rank cannot map ----------------------------------------------------------------------


def test_what_another_rank_has_mapped_is_kept_until_it_is_unmapped(cuda):
    """Where one rank fails, so that all go through the window."""
    gone = threading.Event()
    cuda.fails[1, "map"] = "too many peers"
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
    cuda.fails[1, "map"] = "too many peers"
    cuda.before[2, "unmap"] = patient(freed)
    cuda.before[0, "free"] = freed.set

    def work(comm):
        registry_of(comm).empty(64)

    Ranks(3).run(work)
    told = [(who, name) for who, name, _ in cuda.names("unmap", "free")]
    assert told.index((0, "free")) > max(i for i, t in enumerate(told) if t == (2, "unmap"))
    assert sorted(who for who, name in told if name == "free") == [0, 1, 2]


def test_nobody_waits_for_a_rank_that_cannot_unmap(cuda):
    cuda.fails[1, "unmap"] = "the GPU is lost"
    cuda.fails[2, "map"] = "too many peers"

    def work(comm):
        registry = registry_of(comm)
        if rank() != 1:
            return registry.register([(cuda.make(), 64)], None).direct
        with pytest.raises(RuntimeError, match="the GPU is lost"):
            registry.register([(cuda.make(), 64)], None)
        return False

    assert Ranks(3).run(work) == [False] * 3


def test_memory_that_a_user_gets_is_not_set(cuda):
    """That would happen later, and erase what is there; also where nothing can be registered."""
    cuda.fails[0, "exportable"] = "a pool's"

    def work(comm):
        address, token = registry_of(comm).empty(64)
        del token
        return address

    (address,) = Ranks(1).run(work)
    assert cuda.told == [(0, "allocate", address), (0, "free", address)]
