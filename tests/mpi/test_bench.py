"""The measuring itself, on whatever number of ranks there is."""

import random
import time
import tracemalloc
from itertools import repeat

import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.base.arrays import stopwatch
from mpicoll.base.clocks import GlobalClock, Reading, closest
from mpicoll.bench import environment, repetition, resume, stats, workload
from mpicoll.bench import sweep as engine
from mpicoll.bench.measurement import Skipped
from mpicoll.bench.pattern import Pattern
from mpicoll.bench.settings import STARTS, SweepSettings
from mpicoll.bench.start import Barrier, Window, next_window
from mpicoll.bench.watchdog import complaint, reporter
from mpicoll.schedule.methods import VARIANTS

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size


def sweep(comm, done=(), **options):
    """The outcomes of a short sweep, on all ranks."""
    defaults = {
        "algorithms": {"allreduce": ("ring", "native")},
        "sizes": (8, 8192),
        "dtypes": (np.dtype("f4"),),
        "warmup": 1,
        "iterations": 4,
        "point_seconds": 0.05,
        "timeout": 50.0,
    }
    outcomes = []
    settings = SweepSettings(**{**defaults, **options})
    engine.sweep(comm, settings, outcomes.append, run="r", done=frozenset(done))
    assert RANK == 0 or outcomes == []
    return comm.bcast(outcomes)


def test_no_rank_leaves_the_start_before_all_have_come():
    start = Barrier(MPI.COMM_WORLD.Dup())
    for turn in range(20):
        time.sleep(random.Random(31 * turn + RANK).random() / 500)
        came = time.monotonic()
        start()
        left = time.monotonic()
        # One clock for all: tests run on one host.
        assert MPI.COMM_WORLD.allreduce(came, op=MPI.MAX) <= left
    start.free()


def test_a_choice_has_parameters_of_its_own(comm):
    choices = ("chain segments=1", "chain segments=4 window=2", "native")
    points = sweep(comm, algorithms={"bcast": choices}, sizes=(8192,))
    assert {p.choice for p in points} == set(choices)
    assert {str(p.parameters) for p in points if p.algorithm == "chain"} == {
        "{'segments': 1}", "{'segments': 4, 'window': 2}",
    }  # fmt: skip
    assert all(p.wrong == 0 for p in points)
    left = sweep(
        comm, {resume.key(p) for p in points[:2]}, algorithms={"bcast": choices}, sizes=(8192,)
    )
    assert [p.choice for p in left] == [points[2].choice]


def test_every_point_is_measured_once(comm):
    points = sweep(comm)
    assert sorted((p.algorithm, p.size) for p in points) == [
        ("native", 8), ("native", 8192), ("ring", 8), ("ring", 8192),
    ]  # fmt: skip
    for point in points:
        assert (point.collective, point.ranks, point.type, point.redop) == (
            "allreduce", SIZE, "float32", "sum",
        )  # fmt: skip
        assert point.count * 4 == point.size
        assert (point.stop, len(point.times), len(point.slowest)) == ("iterations", 4, 4)
        assert min(point.times) > 0
        assert set(point.slowest) <= set(range(SIZE))
        assert point.first > 0
        assert (point.wrong, point.problem) == (0, None)


@pytest.mark.parametrize("manner", [{}, {"in_place": True}, {"skew": 1.0, "pool": 1}])
@pytest.mark.parametrize("collective", VARIANTS)
def test_every_collective_and_algorithm_is_right(comm, collective, manner):
    dtype, root = np.dtype("i2"), SIZE - 1
    for size in (8, 3000):
        count = workload.elements(collective, size, 2, SIZE)
        work = workload.prepare(comm, collective, count, dtype, root=root, **manner)
        assert work.places == 1 or "pool" in manner
        place = work.places - 1
        for name in (None, *workload.serving(collective, SIZE), "native"):
            target = comm if name != "native" else MPI.Intracomm(comm)
            call = work.bind(target, place, **({"algorithm": name} if target is comm else {}))
            work.poison(place)
            call()
            assert work.check(RANK, place) == (0, None), (name, size)


@pytest.mark.parametrize("pool", [0, 1 << 22])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("collective", VARIANTS)
def test_memory_is_known_before_it_is_taken(comm, collective, in_place, pool):
    dtype, root = np.dtype("f4"), SIZE - 1
    count = workload.elements(collective, 1 << 20, dtype.itemsize, SIZE)
    manner = {"in_place": in_place, "skew": 0.5, "pool": pool}
    said = sum(workload.footprint(RANK, SIZE, collective, count, dtype, root, **manner))
    tracemalloc.start()
    try:
        work = workload.prepare(comm, collective, count, dtype, root=root, **manner)
        work.poison()
        work.check(RANK)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    slack = 1 << 17
    assert taken <= said + slack
    assert said <= 2 * taken + slack


@pytest.mark.mpi(min_size=2)
def test_what_is_not_received_is_noticed(comm):
    """In place too, where a part is there from the beginning."""
    for collective in sorted({*VARIANTS} - {"barrier"}):
        for in_place in (False, True):
            count = workload.elements(collective, 600, 2, SIZE)
            work = workload.prepare(comm, collective, count, np.dtype("i2"), in_place=in_place)
            work.poison()
            wrong = work.check(RANK)[0]
            assert comm.allreduce(wrong) > 0, (collective, in_place)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_a_sweep_of_every_manner(comm, monkeypatch, start, cold):
    monkeypatch.setattr(environment, "last_level_cache", lambda: 4 << 20)
    points = sweep(
        comm,
        algorithms={"gatherv": ("linear", "native")},
        root=SIZE - 1,
        skew=0.5,
        start=start,
        cold=cold,
        in_place=cold,
        launch=3,
    )
    assert len(points) == 4
    for point in points:
        if isinstance(point, Skipped):  # too few cores to begin at a moment
            assert start == "window" and "take --start barrier" in point.reason
            continue
        assert (point.wrong, point.root) == (0, SIZE - 1)
        assert (point.start, point.cache) == (start, "cold" if cold else "warm")
        assert (point.in_place, point.skew, point.launch) == (cold, 0.5, 3)
        assert len(point.times) == 4 or point.late
        assert point.late == 0 or start == "window"


@pytest.mark.parametrize("iterations", [None, 4])
def test_a_machine_too_busy_for_moments(comm, monkeypatch, iterations):
    monkeypatch.setattr(Window, "__call__", lambda self: True)
    outcomes = sweep(comm, start="window", iterations=iterations, sizes=(8,))
    assert len(outcomes) == 2
    assert all("no repetition began in time" in outcome.reason for outcome in outcomes)


def test_part_of_the_ranks_types_and_what_is_left(comm):
    numbers = tuple(sorted({1, SIZE // 2 or 1, SIZE}))
    options = {
        "algorithms": {"allreduce": ("ring",), "barrier": ("native",)},
        "ranks": numbers,
        "dtypes": (np.dtype("f2"), np.dtype("i4")),
        "sizes": (64,),
    }
    points = sweep(comm, **options)
    found = {resume.key(point) for point in points}
    # A barrier has no type.
    assert len(points) == len(found) == 3 * len(numbers)
    assert {p.ranks for p in points} == set(numbers)
    assert all(p.wrong in (0, None) for p in points)
    done = sorted(found, key=repr)[1:]
    (point,) = sweep(comm, done=done, **options)
    assert resume.key(point) not in done
    assert sweep(comm, done=found, **options) == []


def test_clocks_are_one():
    clock = GlobalClock(MPI.COMM_WORLD.Dup())
    clock.synchronise()
    # One clock for all: tests run on one host.
    apart = abs(clock.local(1e3) - 1e3)
    assert apart < 0.05
    questions = [(1.0, 8.0, 1.5), (2.0, 9.0, 2.2), (3.0, 10.0, 3.9)]
    assert closest(questions) == pytest.approx(6.9)


def test_windows_grow_where_most_are_late():
    assert next_window(3.0, 1.0, 10.0, late=0.9) == 6.0
    assert next_window(6.0, 1.0, 10.0, late=1.0) == 10.0
    assert next_window(6.0, 1.0, 10.0, late=0.1) == 6.0
    assert next_window(6.0, 1.0, 10.0, late=0) == 3.0
    assert next_window(1.5, 1.0, 10.0, late=0) == 1.0
    # One repetition may be longer than what a point has time for.
    assert next_window(20.0, 20.0, 10.0, late=1.0) == 20.0


def test_clocks_may_run_at_different_speeds():
    """This one is 5 s behind when it shows 100, and gains 20 us a second."""
    clock = object.__new__(GlobalClock)
    clock._first = Reading(100.0, 5.0)
    clock._latest = Reading(110.0, 5.0 - 200e-6)
    assert clock.local(115.0 - 200e-6) == pytest.approx(110.0, abs=1e-8)
    assert clock.local(125.0 - 400e-6) == pytest.approx(120.0, abs=1e-8)


def test_starts_at_moments(comm):
    start = Window(MPI.COMM_WORLD)
    start.name_moments(5e-3)
    late, moments = [], []
    for turn in range(4):
        if turn == 2 and RANK == SIZE - 1:
            time.sleep(0.02)
        late.append(start())
        moments.append(time.perf_counter())
    # Who slept through a moment says so.
    assert late[2] or RANK < SIZE - 1
    assert moments == sorted(moments)
    start.free()


class Faulty(MPI.Intracomm):
    """A communicator with one rank that gets one number wrong."""

    def Allreduce(self, send, recv, op=MPI.SUM, algorithm=None):
        super().Allreduce(send, recv, op=op)
        if RANK == SIZE - 1 and algorithm == "bad":
            recv[3] += 1


class Forgetful(MPI.Intracomm):
    """A communicator with one rank that gets nothing."""

    def Bcast(self, buffer, root=0, algorithm=None):
        data = buffer.copy()
        super().Bcast(data, root=root)
        if RANK != 0:
            buffer[:] = data


def test_wrong_elements_are_counted_and_named():
    points = sweep(Faulty(MPI.COMM_WORLD), algorithms={"allreduce": ("good", "bad")}, sizes=(64,))
    good, bad = sorted(points, key=lambda p: p.wrong)
    assert (good.algorithm, good.wrong) == ("good", 0)
    # Before and after the repetitions, on one rank.
    assert (bad.algorithm, bad.wrong) == ("bad", 2)
    want = int(Pattern(np.dtype("f4"), "sum", SIZE).reduced(0, SIZE - 1, 4)[3])
    assert bad.problem == f"rank {SIZE - 1}, index 3: want {want}.0, got {want + 1}.0"
    unchecked = sweep(
        Faulty(MPI.COMM_WORLD), algorithms={"allreduce": ("bad",)}, sizes=(64,), check=False
    )
    assert unchecked[0].wrong is None


@pytest.mark.mpi(min_size=2)
def test_elements_never_written_are_wrong():
    (point,) = sweep(
        Forgetful(MPI.COMM_WORLD), algorithms={"bcast": ("a",)}, sizes=(64,), root=SIZE - 1
    )
    assert point.wrong == 2 * 16
    assert point.problem.startswith("rank 0, index 0: ")


class Picky(MPI.Intracomm):
    """A communicator that refuses an algorithm, on some of its ranks."""

    refusing = range(SIZE)

    def Allreduce(self, send, recv, op=MPI.SUM, algorithm=None):
        if algorithm == "picky" and RANK in self.refusing:
            raise ValueError("needs a power of two")
        if algorithm != "picky":
            super().Allreduce(send, recv, op=op)


def test_an_algorithm_that_refuses_is_skipped():
    outcomes = sweep(
        Picky(MPI.COMM_WORLD), algorithms={"allreduce": ("picky", "easy")}, sizes=(64,)
    )
    skipped = [o for o in outcomes if isinstance(o, Skipped)]
    assert skipped == [Skipped("allreduce", "picky", 64, "needs a power of two", SIZE)]
    assert len(outcomes) == 2


@pytest.mark.mpi(min_size=2)
def test_an_algorithm_that_refuses_on_one_rank_is_an_error_on_all(monkeypatch):
    monkeypatch.setattr(Picky, "refusing", (1,))
    with pytest.raises(RuntimeError, match="not on rank 1: needs a power of two"):
        sweep(Picky(MPI.COMM_WORLD), algorithms={"allreduce": ("picky",)}, sizes=(64,))


@pytest.mark.parametrize(
    ("collective", "size", "estimate", "batch"),
    [
        ("allreduce", 8, 1e-6, 1000),
        ("allgather", 4096, 1e-6, 1000),
        # Nine repetitions must fit into the time of a point.
        ("allreduce", 8, 1e-3, 111),
        ("allreduce", 8, 10.0, 1),
        ("allreduce", 4100, 1e-6, 1),
        ("bcast", 8, 1e-6, 1),
        ("reduce", 8, 1e-6, 1),
    ],
)
def test_only_short_symmetric_calls_are_batched(collective, size, estimate, batch):
    work = workload.Workload(collective, size, 1, "float32", "sum", -1, lambda: None)
    assert repetition.batch_calls(work, estimate, share=1.0, samples=9) == batch


def test_batches_come_one_at_a_time():
    """Few are made, and the algorithms must alternate."""
    assert repetition.visit_samples(1e-6, 1000) == 1
    assert repetition.visit_samples(1e-6, 1) == 10
    assert repetition.visit_samples(0.005, 1) == 4
    assert repetition.visit_samples(3.0, 1) == 1


def test_a_batch_is_divided_by_its_calls():
    calls = []

    def call():
        calls.append(time.sleep(0.002))

    own = repetition.repetitions(repeat(call), lambda: False, 5, 2, stopwatch("cpu"))
    assert len(calls) == 10
    assert all(seconds >= 0.002 and not late for seconds, late in own)
    assert sum(seconds for seconds, _ in own) * 5 >= 0.02


def test_it_stops_by_precision_or_by_time(comm):
    (point,) = sweep(
        comm,
        algorithms={"allreduce": ("native",)},
        sizes=(8192,),
        iterations=None,
        precision=1e6,
        point_seconds=20.0,
    )
    assert point.stop == "interval"
    assert repetition.LEAST_SAMPLES <= len(point.times) < 100
    (point,) = sweep(
        comm, algorithms={"allreduce": ("native",)}, sizes=(8192,), iterations=None, precision=1e-12
    )
    # On one rank the clock's steps may make most times equal, and the interval empty.
    assert point.stop == "time" or stats.summarise(point.times).half_width == 0


def test_a_budget_is_shared_among_the_points(comm):
    begin = time.monotonic()
    points = sweep(
        comm,
        sizes=(8, 64, 8192, 65536),
        iterations=None,
        precision=1e-12,
        point_seconds=60.0,
        budget=0.8,
    )
    assert len(points) == 8
    # Each point would take a minute by itself.
    assert time.monotonic() - begin < 40


def test_the_order_is_that_of_the_seed(comm):
    def order(seed):
        points = sweep(comm, sizes=(8, 16, 8192, 16384, 32768), iterations=1, seed=seed)
        return [p.size for p in points]

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert order(1) != sorted(order(1))


def test_the_facts_are_the_same_everywhere():
    facts = environment.gather(MPI.COMM_WORLD)
    assert MPI.COMM_WORLD.allgather(facts) == [facts] * SIZE
    assert facts["ranks"] == SIZE
    assert sorted(r for host in facts["hosts"].values() for r in host["ranks"]) == list(range(SIZE))
    (host,) = facts["hosts"]
    cores = len(facts["hosts"][host]["cores"])
    assert facts["oversubscribed"] == ([host] if cores < SIZE else [])
    assert facts["mpi"].split()[0] in ("Open", "MPICH", "Intel(R)", "MVAPICH", "HPE", "CRAY")


@pytest.mark.parametrize(
    ("stages", "speaker", "words"),
    [
        ({0: 5, 1: 5, 3: 5}, 0, "ranks that did not arrive: 2;"),
        ({0: 4, 1: 5, 2: 5, 3: 5}, 1, "ranks that did not arrive: 0;"),
        ({0: 4, 1: 5}, 1, "ranks that did not arrive: 0, 2, 3;"),
        ({0: 5, 1: 5, 2: 5, 3: 5}, 0, "all ranks are there, so the call itself does not end"),
    ],
)
def test_the_watchdog_names_the_missing(stages, speaker, words):
    assert reporter(stages) == speaker
    assert words in complaint("allreduce ring of 8", 60, stages, 4)
