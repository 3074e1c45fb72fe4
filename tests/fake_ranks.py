"""Ranks without MPI, threads of this process: the communicator they need, and a GPU each."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

#: Seconds after which a rank gives up to wait for the others.
PATIENCE = 20
#: Bytes of a rank's allocations, whose addresses are multiples of it; where it maps others'.
LENGTH, MAPPED = 1 << 40, 1 << 50

_here = threading.local()


def rank():
    """The rank that this thread is, 0 for any other thread."""
    return getattr(_here, "rank", 0)


class Ranks:
    """So many ranks."""

    def __init__(self, size):
        self.size = size
        self._meeting = threading.Barrier(size)
        self._box = [None] * size

    def run(self, work):
        """Call ``work(comm)`` on all ranks at once: what it returns, or the first error."""
        with ThreadPoolExecutor(self.size) as pool:
            futures = [pool.submit(self._run, work, number) for number in range(self.size)]
        errors = [future.exception() for future in futures]
        others = (threading.BrokenBarrierError, type(None))
        for error in sorted(errors, key=lambda error: isinstance(error, others)):
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _run(self, work, number):
        _here.rank = number
        try:
            return work(_Comm(self, number))
        except BaseException:
            self._meeting.abort()  # nobody waits for this rank
            raise


class _Comm:
    """A rank's communicator."""

    def __init__(self, ranks, number):
        self._ranks, self._number = ranks, number

    def Get_rank(self):
        return self._number

    def Get_size(self):
        return self._ranks.size

    def Barrier(self):
        self._ranks._meeting.wait(PATIENCE)

    def allgather(self, own):
        self._ranks._box[self._number] = own
        self.Barrier()
        found = [*self._ranks._box]
        self.Barrier()
        return found

    def Ibarrier(self):
        return _Ibarrier(self)


class _Ibarrier:
    """It is complete when it is asked for."""

    def __init__(self, comm):
        self._comm = comm

    def Test(self):
        self._comm.Barrier()
        return True


class Cuda:
    """The compiled driver of all ranks, each of which uses the device of its number.

    Attributes:
        told: (rank, name, what) of the calls that matter, in order.
        fails: errors of calls, by rank and name.
        before: what is to be done before a call, by rank and name.
        links: answers of `linked`, by pairs of devices.
        hidden: devices that a rank does not see, by rank.
    """

    def __init__(self, devices=4):
        self.told, self.fails, self.before, self.links, self.hidden = [], {}, {}, {}, {}
        self._devices = devices
        self._ids = {}  # of the allocations, by rank and base
        self._made = {}  # how many, by rank
        self._memory = {}  # where it begins, by rank and base
        self._pinned = {}
        self._lock = threading.Lock()

    def _tell(self, name, what=0):
        self.before.get((rank(), name), lambda: None)()
        error = self.fails.get((rank(), name))
        if error is not None:
            raise type(error)(*error.args)  # a new one, which keeps no caller alive
        with self._lock:
            self.told.append((rank(), name, what))

    def names(self, *names, of=None):
        """What was told by these names, by one rank or all."""
        return [t for t in self.told if t[1] in names and of in (None, t[0])]

    def make(self):
        """A new allocation of this rank's."""
        with self._lock:
            number = self._made[rank()] = self._made.get(rank(), 0) + 1
            self._ids[rank(), number * LENGTH] = number
        return number * LENGTH

    def renew(self, base):
        """As if the memory had been freed, and new memory given at its address."""
        with self._lock:
            self._ids[rank(), base] += 1000

    # --- devices ---

    def load(self):
        self._tell("load")

    def count(self):
        return self._devices - len(self.hidden.get(rank(), ()))

    def uuid(self, device):
        seen = [d for d in range(self._devices) if d not in self.hidden.get(rank(), ())]
        return f"GPU-{seen[device]}"

    def on(self, device):
        return contextlib.nullcontext()

    def linked(self, one, other):
        self._tell("linked")
        return self.links.get((one, other), (True, True))

    def synchronize_device(self):
        self._tell("synchronize_device")

    # --- memory ---

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
        self._tell("export", base)
        return b"%d %d" % (rank(), base)

    def map(self, handle):
        self._tell("map", handle)
        owner, base = map(int, handle.split())
        assert (owner, base) in self._ids, "it has been freed"
        assert owner != rank(), "no process maps its own"
        return MAPPED * (1 + owner) + base

    def unmap(self, address):
        place = self._place(address)
        assert place in self._ids, "it was freed while it was mapped"
        self._tell("unmap", b"%d %d" % place)

    def _place(self, address):
        return (address // MAPPED - 1 if address >= MAPPED else rank()), address % MAPPED

    def clear(self, address, nbytes, stream):
        self._tell("clear", (address, stream))

    def write(self, address, data, stream):
        self._tell("write", (address, data, stream))
        self._memory[self._place(address)] = data

    def read(self, address, nbytes, stream):
        self._tell("read", (address, stream))
        return self._memory[self._place(address)][:nbytes]

    def pinned(self, nbytes):
        self._tell("pinned", nbytes)
        memory = ctypes.create_string_buffer(nbytes)
        self._pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free_pinned(self, address):
        self._tell("free_pinned")
        del self._pinned[address]

    # --- streams and kernels ---

    def stream(self):
        self._tell("stream")
        return 900 + rank()

    def free_stream(self, stream):
        assert stream == 900 + rank()
        self._tell("free_stream")

    def synchronize(self, stream):
        assert stream == 900 + rank()
        self._tell("synchronize")

    def make_ready(self, function):
        self._tell("make_ready", function)
