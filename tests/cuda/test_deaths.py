"""Whoever watches other processes notices that one of them has died."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import threading
from types import SimpleNamespace

import pytest

from mpicoll.cuda import liveness
from mpicoll.cuda.liveness import Watchdog


def descriptors():
    return sorted(os.listdir("/proc/self/fd"))


def test_a_death_is_noticed():
    noticed = threading.Event()
    before = descriptors()
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        watchdog = Watchdog({1: first.pid, 3: second.pid}, noticed.set)
        assert not noticed.wait(0.1) and not watchdog.dead
        second.kill()
        assert noticed.wait(5) and watchdog.dead == [3]
        watchdog.close()
        first.kill()
    assert descriptors() == before


def test_one_that_has_died_before():
    with subprocess.Popen(["true"]) as gone:
        pass
    noticed = threading.Event()
    watchdog = Watchdog({2: gone.pid}, noticed.set)
    assert noticed.is_set() and watchdog.dead == [2]
    watchdog.close()


def test_nobody_to_watch():
    Watchdog({}, lambda: None).close()


def test_it_ends_at_once(monkeypatch):
    """Nothing but a death, or the end, wakes its thread: it waits without a limit."""
    limits = []

    class Poll:
        def __init__(self):
            poll = select.poll()
            self.register, self.unregister = poll.register, poll.unregister
            self.poll = lambda *limit: (limits.append(limit), poll.poll(*limit))[1]

    monkeypatch.setattr(liveness, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
    before = descriptors()
    with subprocess.Popen(["sleep", "60"]) as process:
        watchdog = Watchdog({1: process.pid}, lambda: None)
        watchdog.close()
        watchdog.close()  # nothing is closed twice
        process.kill()
    assert limits == [()] and not watchdog._thread.is_alive() and not watchdog.dead
    assert descriptors() == before


def test_what_cannot_be_watched_leaves_nothing_behind(monkeypatch):
    def pidfd_open(pid):
        if pid == 2:
            raise OSError(errno.EMFILE, "too many open files")
        return os.dup(0)

    before = descriptors()
    fake = SimpleNamespace(eventfd=os.eventfd, close=os.close, pidfd_open=pidfd_open)
    monkeypatch.setattr(liveness, "os", fake)
    with pytest.raises(OSError, match="too many open files"):
        Watchdog({0: 1, 1: 2}, lambda: None)
    assert descriptors() == before
