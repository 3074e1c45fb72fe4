"""Whoever watches other processes notices that one of them has died."""

from __future__ import annotations

import subprocess
import threading

from mpicoll.cuda.deaths import Watchdog


def test_a_death_is_noticed():
    noticed = threading.Event()
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        watchdog = Watchdog({1: first.pid, 3: second.pid}, noticed.set)
        assert not noticed.wait(0.1) and not watchdog.dead
        second.kill()
        assert noticed.wait(5) and watchdog.dead == [3]
        watchdog.close()
        first.kill()


def test_one_that_has_died_before():
    with subprocess.Popen(["true"]) as gone:
        pass
    noticed = threading.Event()
    watchdog = Watchdog({2: gone.pid}, noticed.set)
    assert noticed.is_set() and watchdog.dead == [2]
    watchdog.close()


def test_nobody_to_watch():
    Watchdog({}, lambda: None).close()
