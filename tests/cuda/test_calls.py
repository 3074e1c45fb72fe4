"""What the compiled part of the GPU code asks the CUDA driver for, without a GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The driver that fake_libcuda.c makes."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("driver") / "fake.so"
    words = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", made]
    subprocess.run([*words, HERE / "fake_libcuda.c"], check=True)
    return made


@pytest.fixture
def run(library):
    """Runs code with `driver`, `cuda` and `plan` in a process of its own."""
    if importlib.util.find_spec("mpicoll.cuda._driver") is None:
        pytest.skip("nothing is built")

    def run_(code):
        begin = f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from fake_libcuda import AWAY, HERE, Driver, plan
            from mpicoll.cuda import _driver as cuda
            driver = Driver({str(library)!r})
        """
        code = textwrap.dedent(begin) + textwrap.dedent(code)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return run_


@pytest.mark.parametrize("needed", [0, 1])
def test_all_fall_back_where_a_buffer_is_not_aligned(run, needed):
    """Also one that no peer needs is read, or written, by cells of 16 bytes where it lies."""
    run(f"""
        needed = {needed}
        launcher, alarm = driver.launcher()
        launcher.register(0x10000, 0x10000, 4)
        launch = plan(registered=True, needed=(not needed, needed))
        launcher.remember("collective", None, "f4", 0, 64, 64, launch, 1)

        def keys(free, shared):
            addresses = (free, shared) if needed else (shared, free)
            launcher.run("collective", None, "f4", 0, 64, 64, *addresses, 5)
            found = driver.keys()
            return found if needed else found[::-1]

        free, shared = 2**64 - 1, (5 << 48) + 0x40
        assert keys(0x900000, 0x10040) == [free, shared]
        assert keys(0x900004, 0x10040) == [0, shared]
        assert keys(0x900000, 0x10044) == [free, 0]
        assert keys(0x900000, 0x20000) == [free, 0]
    """)


def test_streams_are_those_of_the_launchers_device(run):
    """Also where the caller has made another device the current one: its stream 0 is another."""
    run("""
        launcher, alarm = driver.launcher()
        launcher.remember("collective", None, "f4", 0, 64, 64, plan(), 1)
        driver.calls()
        driver.be_in(AWAY)
        for stream in (0, 5, 0):
            launcher.run("collective", None, "f4", 0, 64, 64, 16, 16, stream)
        calls = driver.calls()
        assert {name for name, _ in calls} == {
            "cuStreamGetCaptureInfo", "cuStreamIsCapturing", "cuLaunchKernel", "cuEventRecord",
            "cuStreamWaitEvent",
        }
        assert {context for _, context in calls} == {HERE}
        cuda.synchronize_device()
        assert driver.calls() == [("cuCtxSynchronize", AWAY)]
    """)


#: A launcher, and calls on streams whose handles are given as numbers or by objects.
CALLS = """
    from types import SimpleNamespace
    launcher, alarm = driver.launcher()
    launcher.remember("collective", None, "f4", 0, 64, 64, plan(), 1)

    def call(stream):
        launcher.run("collective", None, "f4", 0, 64, 64, 16, 256, stream)

    def on(handle):
        call(SimpleNamespace(ptr=handle))
        return driver.order()

    def on_number(handle):
        call(handle)
        return driver.order()

"""


def test_streams_are_chained(run):
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        assert on(5) == ["k5"] and on(5) == ["k5"]
        assert on(6) == ["r77,5", "w6,77", "k6"]
        assert on_number(7) == ["r77,6", "w7,77", "k7", "r77,7"]
        assert on_number(7) == ["w7,77", "k7", "r77,7"]  # it may be another one of that number
        assert on(5) == ["w5,77", "k5"]
    """)
    )


def test_calls_in_a_graph_are_chained(run):
    """Also those on the stream that was used last before its capture; and what comes after it."""
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        assert on(5) == ["k5"]
        driver.capture(9, 5, 6, 7)
        assert on(5) == ["k5"]
        assert on(6) == ["r79,5", "w6,79", "k6", "r79,6"]
        assert on(6) == ["k6", "r79,6"]
        assert on(5) == ["w5,79", "k5", "r79,5"]
        assert on_number(7) == ["w7,79", "k7", "r79,7"]
        driver.capture(0, 5, 6, 7)
        driver.capture(10, 6)
        assert on(6) == ["k6", "r80,6"]  # another graph is ordered where it is launched
        driver.capture(0, 6)
        assert on(6) == ["r77,5", "w6,77", "k6"]
    """)
    )


def test_calls_in_a_graph_are_chained_where_streams_are_numbers(run):
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        assert on_number(5) == ["k5", "r77,5"]
        driver.capture(9, 5, 6)
        assert on_number(5) == ["k5", "r79,5"]
        assert on_number(6) == ["w6,79", "k6", "r79,6"]
        driver.capture(0, 5, 6)
        assert on_number(6) == ["w6,77", "k6", "r77,6"]
    """)
    )


def test_calls_in_several_graphs_and_between_them(run):
    """What comes between does not make a graph forget its own order."""
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        assert on(5) == ["k5"]
        driver.capture(9, 6, 7)
        driver.capture(10, 8, 9)
        assert on(6) == ["k6", "r79,6"]
        assert on(8) == ["k8", "r80,8"]
        assert on(11) == ["r77,5", "w11,77", "k11"]
        assert on(7) == ["w7,79", "k7", "r79,7"]
        assert on(9) == ["w9,80", "k9", "r80,9"]
        assert on(12) == ["r77,11", "w12,77", "k12"]
    """)
    )


def test_a_blocking_stream_is_captured_after_calls_on_the_default_one(run):
    """The driver refuses to say then whether the default one is captured; it never is."""
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        assert on(0) == ["k0"] and on(0) == ["k0"]
        driver.capture(9, 5, blocking=True)
        assert on(5) == ["k5", "r79,5"]
        driver.capture(0, 5)
        assert on(0) == ["k0"]
    """)
    )


def test_what_cannot_be_ordered_is_refused(run):
    """A stream that is being captured cannot say any more what was put there before."""
    run(
        textwrap.dedent(CALLS)
        + textwrap.dedent("""
        from mpicoll.errors import Unordered
        on(5)
        driver.capture(9, 5)
        try:
            on(6)
        except Unordered as error:
            assert "being captured" in str(error)
        else:
            raise AssertionError
        assert driver.order() == []
        driver.capture(0, 5)
        assert on(6) == ["r77,5", "w6,77", "k6"]
    """)
    )


def test_registered_buffers_of_graphs_are_known(run):
    """A graph may be launched again, so their numbers must not get another meaning."""
    run("""
        launcher, alarm = driver.launcher()
        launcher.register(0x10000, 0x10000, 4)
        launch = plan(registered=True, needed=(1, 0))
        launcher.remember("collective", None, "f4", 0, 64, 64, launch, 1)
        call = "collective", None, "f4", 0, 64, 64, 0x10040, 0x900000, 5
        launcher.run(*call)
        assert launcher.captured == set()
        driver.capture(9, 5)
        launcher.run(*call)
        assert launcher.captured == {4}
    """)


def test_the_fast_path_is_for_buffers_that_are_apart(run):
    """What MPI forbids goes the slow path, where that is said."""
    run("""
        from types import SimpleNamespace

        class Array:
            dtype, nbytes, _c_contiguous = "f4", 64, True

            def __init__(self, address):
                self.data = SimpleNamespace(ptr=address, device_id=0)

        launcher, alarm = driver.launcher(Array, SimpleNamespace(ptr=5))
        launcher.remember("collective", None, "f4", 0, 64, 64, plan(), 1)

        def serves(send, recv):
            return launcher.serve("collective", Array(send), Array(recv), None, 0)

        assert serves(64, 128) and serves(128, 64)
        assert not serves(64, 64) and not serves(64, 127) and not serves(127, 64)
    """)


def test_nothing_is_launched_when_the_communicator_has_gone(run):
    run("""
        launcher, alarm = driver.launcher()
        launcher.remember("collective", None, "f4", 0, 64, 64, plan(), 1)
        launcher.close()
        driver.calls()
        try:
            launcher.run("collective", None, "f4", 0, 64, 64, 16, 16, 5)
        except RuntimeError as error:
            assert "has been freed" in str(error)
        else:
            raise AssertionError("it was launched")
        assert driver.calls() == []
    """)


def test_nobody_looks_at_an_alarm_that_is_freed(run):
    run("""
        import ctypes
        launcher, alarm = driver.launcher()
        words = (ctypes.c_uint32 * 6).from_address(alarm)
        words[:] = [0, 2, 1, 0, 7, 0]
        assert launcher.alarmed() == (1, 7)
        launcher.stop()
        assert words[0] == 1
        words[0] = 0
        launcher.drop_alarm()
        launcher.stop()
        assert words[0] == 0 and launcher.alarmed() is None
        assert not launcher.serve("collective", None, None, None, 0)
        cuda.free_pinned(alarm)
    """)


def test_what_a_user_gets_is_not_erased_later(run):
    """Setting memory is not done when the driver returns, nor in the order of the user's stream."""
    run("""
        cuda.allocate_mappable(64)
        assert [name for name, _ in driver.calls()] == ["cuMemAlloc"]
    """)


def test_memory_is_set_and_read_without_a_wait_for_the_device(run):
    """There may be calls of other communicators that wait for peers who come here first."""
    run("""
        address = cuda.allocate_mappable(4)
        driver.calls()
        cuda.clear(address, 4, 88)
        cuda.write(address, b"abc", 88)
        assert cuda.read(address, 4, 88) == b"abc\\0"
        assert [name for name, _ in driver.calls()] == [
            "cuMemsetD8Async", *2 * ["cuMemcpyAsync", "cuStreamSynchronize"]
        ]
        cuda.free_stream(88)
    """)


def test_what_uses_registered_memory_can_be_waited_for(run):
    """And nothing else: not what is put on the stream later, nor what a graph is made of."""
    run("""
        class Stream:
            ptr = 5

        launcher, alarm = driver.launcher()
        launcher.remember("short", None, "f4", 0, 64, 64, plan(), 1)
        launcher.remember("long", None, "f4", 0, 64, 64, plan(registered=True), 1)

        def names(collective):
            driver.calls()
            launcher.run(collective, None, "f4", 0, 64, 64, 16, 16, Stream)
            return [name for name, _ in driver.calls() if "Captur" not in name]

        assert names("short") == ["cuLaunchKernel"]
        assert names("long") == ["cuLaunchKernel", "cuEventRecord"]
        driver.capture(9, 5)
        assert names("long") == ["cuLaunchKernel"]
        driver.capture(0, 5)
        driver.while_held(launcher.await_registered)
        assert driver.calls() == [("cuEventSynchronize", HERE)]
    """)


def test_who_waits_for_a_gpu_lets_others_run(run):
    """Such as the thread that ends the wait."""
    run("""
        address = driver.while_held(lambda: cuda.allocate_mappable(64))
        driver.while_held(lambda: cuda.clear(address, 64, 88))
        driver.while_held(lambda: cuda.write(address, b"abc", 88))
        assert driver.while_held(lambda: cuda.read(address, 3, 88)) == b"abc"
        mapped = driver.while_held(lambda: cuda.map(cuda.export(address)))
        assert mapped == address
        driver.while_held(lambda: cuda.unmap(mapped))
        driver.while_held(lambda: cuda.free_mappable(address))
        driver.while_held(cuda.synchronize_device)
        driver.while_held(lambda: cuda.free_pinned(cuda.pinned(64)))
        here = driver.while_held(lambda: cuda.allocate(64, 88))
        driver.while_held(lambda: cuda.copy(here, here, 64, 88))
        driver.while_held(lambda: cuda.free(here, 88))
        driver.while_held(lambda: cuda.register(4096, 64))
        driver.while_held(lambda: cuda.unregister(4096))
        driver.while_held(lambda: cuda.on(1))
        driver.while_held(lambda: cuda.synchronize(88))
        driver.while_held(lambda: cuda.record(77, 88))
        driver.while_held(lambda: cuda.wait(88, 77))
        driver.while_held(lambda: cuda.await_event(77))
        driver.while_held(lambda: cuda.launch(4, 2, 32, (1, 2, 3, 4), 88))
        launcher, alarm = driver.launcher()
        launcher.remember("collective", None, "f4", 0, 64, 64, plan(n=3), 1)
        call = "collective", None, "f4", 0, 64, 64, 16, 16, 5
        driver.while_held(lambda: launcher.run(*call))
        assert driver.arguments()[:3] == [16, 16, 3]
    """)


def test_devices_have_names_links_and_contexts(run):
    run("""
        assert (cuda.count(), cuda.current()) == (2, 0)
        assert cuda.uuid(1) == "GPU-01010101-0101-0101-0101-010101010101"
        assert cuda.name(1) == "Fake 1"
        assert (cuda.linked(0, 0), cuda.linked(0, 1)) == ((False, False), (True, True))
        driver.calls()
        with cuda.on(1):
            assert cuda.current() == 1
            with cuda.on(1), cuda.on(0):
                assert cuda.current() == 0
            cuda.synchronize(88)
        assert cuda.current() == 0
        assert driver.calls() == [
            ("cuDevicePrimaryCtxRetain", HERE),
            ("cuDevicePrimaryCtxRetain", AWAY),
            ("cuStreamSynchronize", AWAY),
        ]
        for ask in (cuda.uuid, cuda.name, cuda.on):
            try:
                ask(2)
            except cuda.CudaError as error:
                assert str(error) == "device 2: fake error (CUDA error 101)"
            else:
                raise AssertionError(ask)
    """)


def test_where_an_address_is(run):
    run("""
        assert [cuda.place(address) for address in (16, 1 << 20, 1 << 40)] == [None, 1, None]
        assert cuda.place(3 << 20) == 1  # managed, wherever it is now
    """)


def test_what_another_process_can_map(run):
    """Not what is from a stream-ordered pool, managed, or by virtual memory management."""
    run("""
        assert [cuda.exportable(number << 20) for number in (1, 2, 3, 4)] == [True, *[False] * 3]
        try:
            cuda.exportable(16)
        except cuda.CudaError as error:
            assert "kind of memory" in str(error)
        else:
            raise AssertionError
    """)


def test_bytes_travel_and_events_tell(run):
    run("""
        host, here = cuda.pinned(16), cuda.allocate(16, 88)
        cuda.write(here, b"0123456789abcdef", 88)
        cuda.copy(host, here, 16, 88)
        assert cuda.read(host, 16, 88) == b"0123456789abcdef"
        event = cuda.event()
        cuda.record(event, cuda.stream())
        assert cuda.happened(event)
        cuda.free_event(event)
        cuda.free(here, 88)
        cuda.free_pinned(host)
    """)


def test_too_much_memory_is_refused_by_name(run):
    run("""
        for ask in (cuda.pinned, lambda nbytes: cuda.allocate(nbytes, 88)):
            try:
                ask(1 << 40)
            except MemoryError as error:
                assert f"no {1 << 40} bytes of" in str(error)
            else:
                raise AssertionError(ask)
    """)


def test_errors_of_the_driver_have_its_words(run):
    run("""
        try:
            cuda.synchronize(5)
        except cuda.CudaError as error:
            assert str(error) == "synchronize: fake error (CUDA error 700)"
        else:
            raise AssertionError
    """)


def test_a_kernel_gets_its_numbers(run):
    run("""
        cuda.launch(4, 2, 32, (5, 1 << 40, 7, 8), 88)
        assert driver.arguments()[:4] == [5, 1 << 40, 7, 8]
        try:
            cuda.launch(4, 2, 32, (0,) * 9, 88)
        except ValueError as error:
            assert "9 arguments" in str(error)
        else:
            raise AssertionError
    """)


def test_the_driver_is_opened_when_it_is_asked_for(run):
    run("""
        from mpicoll.cuda import driver
        assert driver.problem() == "" and driver.driver() is cuda
    """)


def test_a_persistent_call_is_remembered(run):
    """It asks for a launch once, and again when the launcher has forgotten it."""
    run("""
        from types import SimpleNamespace
        from mpicoll.cuda.ipc import Bound, Peers

        class Known(Peers):
            def __init__(self):
                self._launcher, self._alarm = driver.launcher()
                self._watchdog, self.failed, self.asked = None, None, 0

            def _remembered(self, collective, send, recv, op, handle, root):
                self.asked += 1
                known = collective, op, recv.dtype, root, -1, recv.nbytes
                self._launcher.remember(*known, plan(), 1)
                return known

        peers, buffer = Known(), SimpleNamespace(ptr=256, nbytes=64, dtype="f4")
        bound = Bound(peers, None, ("allreduce", None, buffer, "sum", 0))
        for stream in (SimpleNamespace(ptr=5), SimpleNamespace(ptr=5), 5):
            bound.start(stream)
        assert driver.order()[:3] == ["k5", "k5", "k5"] and peers.asked == 1
        assert driver.arguments()[1] == 256
        peers._launcher.forget()
        bound.start(5)
        assert "k5" in driver.order() and peers.asked == 2
        peers._launcher.close()
        try:
            bound.start(5)
        except RuntimeError as error:
            assert "has been freed" in str(error)
        else:
            raise AssertionError("launched")
    """)
