"""The compiled part of the GPU code on a CUDA driver without a GPU (fake_libcuda.c).

The driver's library stays in the process that has opened it, so this is for processes of their own:
see test_cuda_calls.py.
"""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace

from mpicoll.cuda import _driver, _launch

#: Contexts of two devices.
HERE, AWAY = 1, 2
#: The numbers of a launch.
NUMBERS = (
    "n", "send_stride", "recv_stride", "sends", "members", "targets", "total", "kind", "shift",
    "in_bulk", "registered", "source", "target", "length", "stride", "pulls", "gives",
    "turn", "left", "right", "place",
)  # fmt: skip


class Driver:
    """What the driver was asked.

    Args:
        library: path of the library.
    """

    def __init__(self, library):
        # The name in the library is the driver's: who opens that by its name finds this one.
        self._library = ctypes.CDLL(library)
        self._log = (ctypes.c_char * (1 << 16)).in_dll(self._library, "fake_log")
        self._hold = ctypes.c_int.in_dll(self._library, "fake_hold")
        _driver.load()
        self.be_in(HERE)

    def be_in(self, context):
        """Make a context the current one."""
        self._library.fake_set_context(ctypes.c_void_p(context))

    def calls(self):
        """(name, context) of the calls since the last time."""
        found = [entry.split("@") for entry in self._log.value.decode().split()]
        self._log.value = b""
        return [(name, int(context)) for name, context in found]

    def order(self):
        """What has been put on streams since the last time, see fake_libcuda.c."""
        order = (ctypes.c_char * (1 << 12)).in_dll(self._library, "fake_order")
        found, order.value = order.value.decode().split(), b""
        return found

    def capture(self, graph, *streams, blocking=False):
        """Streams are captured for a graph, 0 for none; `blocking` ones wait for the legacy one."""
        ctypes.c_int.in_dll(self._library, "fake_implicit").value = blocking
        for stream in streams:
            (ctypes.c_uint64 * 128).in_dll(self._library, "fake_graphs")[stream] = graph

    def arguments(self):
        """The arguments of the last launch, as numbers of 8 bytes."""
        return [*(ctypes.c_uint64 * 32).in_dll(self._library, "fake_args")]

    def keys(self):
        """What the last launch tells its peers of the send and the receive buffer."""
        return self.arguments()[17:19]

    def while_held(self, call):
        """Make a call that waits until another thread of this process has run."""
        self._hold.value = 1
        release = threading.Timer(0.02, lambda: setattr(self._hold, "value", 0))
        release.start()
        result = call()
        release.join()
        vain = ctypes.c_int.in_dll(self._library, "fake_waited_in_vain")
        vain.value, count = 0, vain.value
        assert not count, "no other thread could run"
        return result

    def launcher(self, array=None, current=None):
        """A launcher of rank 0 of 2, and the address of its alarm."""
        alarm = _driver.pinned(64)
        ctypes.memset(alarm, 0, 64)
        channels = ((0, 1, 512, 0, 0),) * 2
        made = _launch.Launcher(
            0, 0, [0, 0], alarm, 0, channels, 10**9, array or type(None), None, lambda: current
        )
        return made, alarm


def plan(**changes):
    """A `mpicoll.cuda.launches.Launch`."""
    plain = dict.fromkeys(NUMBERS, 0)
    return SimpleNamespace(
        **{**plain, "blocks": 1, "threads": 32, "needed": (0, 0), "order": (), **changes}
    )
