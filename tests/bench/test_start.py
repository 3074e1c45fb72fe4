"""Starts on synchronised clocks, with clocks and messages that are made up."""

from itertools import chain, repeat

import pytest

from mpicoll.bench import start


class Distant:
    """Two ranks, messages of 2 ms; this one comes last to every other barrier."""

    def __init__(self, everyone):
        self.now = 0.0
        self.everyone = everyone  # what the slowest rank has found
        self.waits = chain([0.1], chain.from_iterable(repeat((0.0, 4e-3))))

    def Dup(self):
        return self

    def Get_size(self):
        return 2

    def Barrier(self):
        self.now += next(self.waits)

    def allreduce(self, value, op):
        return max(value, self.everyone)


@pytest.mark.parametrize(("everyone", "reach"), [(0.0, 4e-3), (7e-3, 7e-3)])
def test_the_first_moment_leaves_time_for_its_name_to_come(monkeypatch, everyone, reach):
    comm = Distant(everyone)
    monkeypatch.setattr(start, "clock", lambda: comm.now)
    monkeypatch.setattr(start, "GlobalClock", lambda comm: None)
    assert start.Window(comm)._lead == pytest.approx(2 * reach + 3e-4)
