"""Buckets: cut, started in one order whatever comes first; wire formats and what they lose."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mpicoll.train.exchange import buckets as exchange
from mpicoll.train.exchange import wire
from mpicoll.train.exchange.buckets import Exchange, default_bucket
from mpicoll.train.exchange.transfers import Narrow, Sparse, Sum
from mpicoll.train.models.flat import Flat
from mpicoll.train.ranks.workers import Workers

FLOATS = st.floats(-1e4, 1e4, width=32)


@given(st.integers(1, 500), st.integers(1, 600))
def test_buckets_cover_the_vector_from_its_end(length, elements):
    bounds = exchange.cut(length, elements)
    assert bounds[0][1] == length and bounds[-1][0] == 0
    assert all(start == end for (start, _), (_, end) in pairwise(bounds))
    assert all(end - start == elements for start, end in bounds[:-1])


def test_default_bucket():
    assert [default_bucket(n) for n in (10, 1 << 20, 10**9)] == [65536, 131072, 25_000_000]


class Recorded(Sum):
    """Notes which bucket is started when."""

    log: list

    def __init__(self, workers, view):
        super().__init__(workers, view)
        self._size = view.size

    def start(self):
        self.log.append(self._size)
        super().start()


def make_exchange(bucket, monkeypatch):
    log = []
    monkeypatch.setattr(Recorded, "log", log, raising=False)
    flat = Flat({"a": np.zeros(3), "b": np.zeros((2, 2)), "c": np.zeros(4)})  # 3, 4, 4 elements
    return Exchange(Workers(), flat, bucket, 1, Recorded), log


def test_a_bucket_starts_as_soon_as_it_is_complete(monkeypatch):
    buckets, log = make_exchange(5 * 8, monkeypatch)  # 6..11, 1..6, 0..1
    buckets.ready("c")
    assert log == []
    buckets.ready("b")
    assert log == [5]
    buckets.ready("a")
    assert log == [5, 5, 1]


def test_buckets_start_in_one_order_whatever_comes_first(monkeypatch):
    buckets, log = make_exchange(4 * 8, monkeypatch)  # c, b, a
    buckets.ready("a")
    buckets.ready("b")
    assert log == []
    buckets.ready("c")
    assert log == [4, 4, 3]


def test_what_was_not_ready_starts_at_the_end(monkeypatch):
    buckets, log = make_exchange(4 * 8, monkeypatch)
    buckets.ready("c")
    buckets.finish()
    assert log == [4, 4, 3]
    buckets.begin()
    buckets.finish()
    assert log == [4, 4, 3] * 2


def test_ownership_is_joined_and_ascending(monkeypatch):
    assert make_exchange(8, monkeypatch)[0].owned == [(0, 11)]


class Clock:
    """Time that passes where it is told to."""

    now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(exchange, "time", made)
    return made


def timed(clock, start, poll, wait, polls):
    """An exchange of three buckets whose transfers take so long, complete after so many polls."""

    class Slow(Recorded):
        log, asked = [], 0

        def start(self):
            clock.now += start

        def poll(self):
            clock.now += poll
            self.asked += 1
            return self.asked > polls

        def finish(self):
            clock.now += wait

    flat = Flat({name: np.zeros(4) for name in "abc"})
    return Exchange(Workers(), flat, 4 * 8, 1, Slow)


def computed(clock, buckets, seconds):
    """Compute all gradients, each for so long."""
    buckets.begin()
    for name in "cba":
        clock.now += seconds
        buckets.ready(name)


def test_all_time_is_computation_or_communication(clock):
    """A start that waits, as for what has to leave a GPU first, is time that nobody computes in."""
    buckets = timed(clock, start=5.0, poll=0.25, wait=2.0, polls=99)
    began = clock.now
    computed(clock, buckets, 10.0)
    buckets.finish()
    assert buckets.calls == 3 * 5.0 + (1 + 2 + 3) * 0.25
    assert buckets.exposed == buckets.calls + 3 * 2.0
    assert buckets.hidden == 2 * 10.0  # the second and the third gradient
    assert clock.now - began == 3 * 10.0 + buckets.exposed


def test_nothing_is_hidden_once_all_that_was_started_has_ended(clock):
    buckets = timed(clock, start=0.0, poll=0.0, wait=0.0, polls=0)
    computed(clock, buckets, 10.0)
    buckets.finish()
    assert (buckets.exposed, buckets.hidden) == (0.0, 0.0)


def test_what_starts_at_the_end_is_exposed(clock):
    buckets = timed(clock, start=5.0, poll=0.0, wait=2.0, polls=99)
    buckets.begin()
    clock.now += 10.0
    buckets.finish()
    assert (buckets.exposed, buckets.hidden) == (3 * 5.0 + 3 * 2.0, 0.0)
    assert buckets.reduced - buckets.computed == buckets.exposed


@pytest.mark.parametrize(
    ("name", "relative"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)], ids=["fp16", "bf16"]
)
@given(values=arrays(np.float32, st.integers(0, 40), elements=FLOATS))
def test_narrow_floats_are_rounded_to_nearest(name, relative, values):
    codec, out = wire.codec(name), np.empty_like(values)
    data = np.zeros(codec.length(values.size), np.uint8)
    codec.encode(values, data)
    codec.decode(data, out)
    assert (np.abs(out - values) <= np.abs(values) * relative + 2.0**-24).all()


def test_bf16_rounds_to_even_and_keeps_what_is_not_finite():
    codec = wire.codec("bf16")
    bits = np.array([0x3F808000, 0x3F818000, 0x7F800000, 0xFF800000, 0x7F800001], np.uint32)
    data, out = np.zeros(10, np.uint8), np.empty(5, np.float32)
    codec.encode(bits.view(np.float32), data)
    codec.decode(data, out)
    assert out[:2].view(np.uint32).tolist() == [0x3F800000, 0x3F820000]
    assert np.isposinf(out[2]) and np.isneginf(out[3]) and np.isnan(out[4])


@given(values=arrays(np.float32, st.integers(0, 40), elements=FLOATS))
def test_eight_bits_are_within_half_a_step(values):
    codec, out = wire.codec("int8"), np.empty_like(values)
    data = np.zeros(codec.length(values.size), np.uint8)
    codec.encode(values, data)
    codec.decode(data, out)
    step = np.abs(values).max(initial=0) / 127
    assert (np.abs(out - values) <= step * 0.5001 + 2.0**-140).all()  # below are few bits


def test_top_k_keeps_the_largest():
    codec, out = wire.codec("topk:0.3"), np.empty(10)
    values = np.array([0.5, -9, 3, 0, 4, -2, 1, 1, 1, 1])
    data = np.zeros(codec.length(10), np.uint8)
    codec.encode(values, data)
    codec.decode(data, out)
    assert out.tolist() == [0, -9, 3, 0, 4, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["fp16", "bf16", "int8", "topk:0.1"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(name, bad):
    codec, out = wire.codec(name), np.empty(20)
    values = np.ones(20)
    values[7] = bad
    data = np.zeros(codec.length(20), np.uint8)
    codec.encode(values, data)
    codec.decode(data, out)
    assert not np.isfinite(out).all()


class ThreeRanks(Workers):
    """Rank 0 of three; what the others send to it is given."""

    size = 3

    def __init__(self, codec, others):
        self._codec, self._others = codec, others

    def plan_exchange(self, rows, received):
        def start():
            received[0] = rows[0]
            for row, values in zip(received[1:], self._others, strict=True):
                self._codec.encode(values, row[: self._codec.length(values.size)])

        return Fake(start)

    def plan_collect(self, row, received):
        return Fake(lambda: received.__setitem__(slice(None), row))


class Fake:
    """A plan that is complete when it has been started."""

    def __init__(self, start):
        self.Start = start
        self.Test = self.Wait = self.Free = lambda: True


@pytest.mark.parametrize(("name", "bits"), [("fp16", 10), ("bf16", 7)])
def test_narrow_floats_are_added_in_a_wider_type(name, bits):
    """In the narrow one each of the small values would be rounded away."""
    codec, small = wire.codec(name), np.full(2, 2.0 ** -(bits + 1), np.float32)
    view = np.ones(6, np.float32)
    transfer = Narrow(ThreeRanks(codec, [small, small]), view, codec)
    transfer.start()
    transfer.finish()
    assert view[:2].tolist() == [1 + 2.0**-bits] * 2


@pytest.mark.parametrize("name", ["int8", "topk:0.2"])
def test_error_feedback_loses_nothing_for_good(name):
    """What was sent in all, and what is kept back, add up to what was given."""
    generator, codec = np.random.default_rng(0), wire.codec(name)
    view = np.zeros(50)
    transfer = (Sparse if name.startswith("topk") else Narrow)(Workers(), view, codec)
    given_, sent = np.zeros(50), np.zeros(50)
    for _ in range(20):
        view[...] = generator.standard_normal(50)
        given_ += view
        transfer.start()
        transfer.finish()
        transfer.commit()
        sent += view
    np.testing.assert_allclose(sent + transfer.residual(), given_, atol=1e-9)
    assert np.abs(transfer.residual()).max() > 0


def test_a_step_that_does_not_count_leaves_the_residual():
    view = np.array([1.0, 0.4])
    transfer = Sparse(Workers(), view, wire.codec("topk:0.5"))
    transfer.start()
    transfer.finish()
    assert transfer.residual().tolist() == [0, 0]
    transfer.commit()
    assert transfer.residual().tolist() == [0, 0.4]
