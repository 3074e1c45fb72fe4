"""Parameter servers without messages: consistency models, shards, and a checker of traces."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import staleness
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.base.json_lines import Attempt
from mpicoll.train import Config, optimizers
from mpicoll.train.ranks import waiting
from mpicoll.train.servers import consistency, messages
from mpicoll.train.servers.consistency import Adaptive, parse
from mpicoll.train.servers.server import Server
from mpicoll.train.servers.shard import Event, Push, Shard, write_trace


def make(model, workers=3, optimizer="sgd", push_rate="share", rate=lambda step: 1.0):
    shard = Shard(
        np.zeros(2), optimizers.make(optimizer), workers, parse(model), rate, push_rate, record=True
    )
    shard.begin(0)
    return shard


def push(shard, worker, clock, value=1.0, samples=1, total=3, finite=True, seconds=1.0, used=1.0):
    facts = Push(clock, samples, total, finite, seconds, used, version=0)
    shard.push(worker, facts, np.full(2, value))


def asdicts(trace):
    return [asdict(event) for event in trace]


@pytest.mark.parametrize(
    ("text", "kind", "low", "high"),
    [
        ("bsp", "bsp", 0, 0),
        ("ssp:0", "bsp", 0, 0),
        ("ssp:3", "ssp", 3, 3),
        ("adaptive:1,4,2", "adaptive", 1, 4),
        ("async", "async", math.inf, math.inf),
    ],
)
def test_consistency_models_are_read(text, kind, low, high):
    model = parse(text)
    assert (model.kind, model.low, model.high) == (kind, low, high)


@pytest.mark.parametrize(
    "text", ["", "ssp", "ssp:-1", "ssp:x", "adaptive:3", "adaptive:4,2", "adaptive:1,2,0", "bsp:1"]
)
def test_other_consistency_models_are_refused(text):
    with pytest.raises(ValueError, match=r"unknown consistency.*known are bsp, ssp:S"):
        parse(text)
    with pytest.raises(ValueError, match="unknown consistency"):
        Config(strategy="parameter_server", consistency=text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"servers": "0"}, "servers is '0': give a number"),
        ({"servers": "some"}, "servers is 'some'"),
        ({"clip": 1.0}, "does not take clip"),
        ({"checkpoint_every": 5}, "does not take checkpoint_every"),
        ({"wire": "bf16"}, "strategy parameter_server sends gradients as they are"),
        ({"push_rate": "half"}, "unknown push_rate 'half'"),
        ({"send_every": 0}, "send_every is 0: give a whole number of at least 1"),
        ({"apply_at_once": True}, "apply_at_once is of parameters that servers send unasked"),
        (
            {"send_every": 1, "apply_at_once": True, "dtype": "bfloat16"},
            "apply_at_once takes over parameters within a step, whose copy in bfloat16 is made",
        ),
    ],
)
def test_what_servers_cannot_do_is_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(strategy="parameter_server", **changes)


def test_a_wait_ends_late_by_an_eighth_at_most(monkeypatch):
    now, pauses = [0.0], []

    def sleep(seconds):
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(waiting.time, "sleep", sleep)
    for wait in 1e-4, 1e-3, 5e-3, 1.0:
        now[0] = 0.0
        pauses.clear()
        waiting.wait_until(lambda end=wait: now[0] >= end, lambda: False)
        assert pauses[:21] == [0] * 20 + [2e-5]
        assert now[0] - wait <= max(wait / 8, 2e-5)
        assert max(pauses) <= 1e-3
        assert len(pauses) < 100 + 1000 * wait


def test_what_moves_is_awaited_eagerly(monkeypatch):
    pauses, moved = [], iter([False] * 22 + [True])
    monkeypatch.setattr(waiting.time, "sleep", pauses.append)
    waiting.wait_until(lambda: len(pauses) == 25, lambda: next(moved, False))
    assert pauses == [0] * 20 + [2e-5] * 2 + [0] * 3


def test_who_waits_keeps_the_time_limit(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(waiting.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(waiting.time, "sleep", lambda _: None)
    with pytest.raises(TimeoutError, match="no message has come within MPICOLL_TIMEOUT=7 s"):
        waiting.wait_until(lambda: False, lambda: False, 7)
    assert next(clock) == 9


class Nobody:
    """A communicator on which nothing arrives and all that is sent has."""

    def Irecv(self, *_):
        return self

    Isend = Irecv

    def Test(self):
        return False


def test_workers_that_are_told_by_shards_of_their_own_stop_at_one_clock():
    """Whatever each shard has granted, and whichever worker's wish it hears first."""

    def told(granted, wishes):
        shard = make("ssp:3", workers=2)
        for clock in range(10):
            push(shard, 0, clock)
        for clock in range(12):
            push(shard, 1, clock)
        shard.granted = granted
        server = Server(Nobody(), shard, 0, range(2), [0], False, None, last=3)
        for worker, clock in wishes:
            message = messages.ServerMessage(2, np.dtype(float))
            message.head[:9] = (messages.PUSH, clock, messages.STOP, 0, 1, 3, 1.0, 1.0, 0)
            server._change(worker, message)
        return server._stop_clock

    assert told(12, [(0, 10)]) == told(13, [(0, 10)]) == 14
    assert told(12, [(0, 10), (1, 12)]) == told(13, [(1, 12), (0, 10)]) == 14


def test_bsp_makes_one_update_of_all_gradients():
    shard = make("bsp")
    for worker in (2, 0, 1):
        shard.pull(worker)
    assert shard.answers() == [0, 1, 2]
    push(shard, 1, 0, 0.5)
    push(shard, 0, 0, 0.25)
    shard.pull(1)
    assert shard.answers() == [] and not shard.weights.any()
    push(shard, 2, 0, 0.125)
    assert shard.weights.tolist() == [-0.875, -0.875] and shard.updates == 1
    assert shard.answers() == [1]


def test_bsp_leaves_a_step_out_if_one_gradient_is_not_finite():
    shard = make("bsp", 2)
    push(shard, 0, 0, np.nan, finite=False)
    push(shard, 1, 0)
    assert (shard.skipped, shard.updates, shard.weights.tolist()) == (1, 0, [0, 0])
    push(shard, 0, 1)
    push(shard, 1, 1)
    assert (shard.skipped, shard.updates) == (1, 1)


def test_bsp_keeps_apart_what_is_a_step_ahead():
    """A worker that pulls from another shard may push again before the others have."""
    shard = make("bsp", 2)
    push(shard, 0, 0, 1.0)
    push(shard, 0, 1, 10.0)
    assert shard.updates == 0
    push(shard, 1, 0, 2.0)
    assert (shard.updates, shard.weights[0]) == (1, -3)
    shard.leave(0)
    push(shard, 1, 1, 20.0)
    assert (shard.updates, shard.weights[0]) == (2, -33)


def test_ssp_holds_back_who_is_too_far_ahead():
    shard = make("ssp:2")
    for clock in range(3):
        shard.pull(0)
        assert shard.answers() == [0]
        push(shard, 0, clock)
    shard.pull(0)
    assert shard.answers() == []
    push(shard, 1, 0)
    assert shard.answers() == []
    push(shard, 2, 0)
    assert shard.answers() == [0]


def test_who_has_left_is_not_waited_for():
    shard = make("ssp:1", 2)
    for clock in range(2):
        push(shard, 0, clock)
    shard.pull(0)
    assert shard.answers() == []
    shard.leave(1)
    assert shard.answers() == [0]
    shard.leave(0)
    assert shard.idle


def test_bsp_goes_on_without_who_has_left():
    shard = make("bsp", 2)
    push(shard, 0, 0)
    shard.leave(1)
    assert shard.updates == 1


def test_a_push_that_is_not_finite_is_counted_and_ticks():
    shard = make("async")
    push(shard, 0, 0, np.nan, finite=False)
    push(shard, 0, 1)
    assert (shard.skipped, shard.updates) == (1, 1)
    assert np.isfinite(shard.weights).all()


def test_a_push_of_no_samples_ticks_alone():
    shard = make("async")
    push(shard, 0, 0, 0.0, samples=0)
    assert (shard.updates, shard.least()) == (0, 0)
    push(shard, 0, 1)
    assert shard.updates == 1


@pytest.mark.parametrize(
    ("push_rate", "expected"), [("share", [-0.5, -1]), ("full", [-2, -4]), ("staleness", [-2, -3])]
)
def test_the_rate_of_a_push(push_rate, expected):
    """A push of a quarter of the samples whose mean gradient is 2; the second is one update old."""
    shard, seen = make("async", push_rate=push_rate), []
    for worker in (0, 1):
        shard.pull(worker)
    shard.answers()
    for worker in (0, 1):
        push(shard, worker, 0, 0.5, samples=1, total=4)
        seen.append(shard.weights[0])
    assert seen == expected


def test_the_schedule_follows_the_clock_of_the_push():
    shard = make("async", rate=lambda step: float(step))
    push(shard, 0, 0, samples=3)
    push(shard, 0, 1, samples=3)
    push(shard, 1, 0, samples=3)
    assert shard.weights[0] == -1 - 2 - 1


def test_a_push_of_another_clock_is_a_fault():
    with pytest.raises(RuntimeError, match="worker 1 pushes clock 2, awaited is 0"):
        push(make("ssp:3"), 1, 2)


MODELS = ["bsp", "ssp:1", "ssp:3", "adaptive:1,4", "adaptive:2,3,2", "async"]


def play(shard, workers, choices, steps=12):
    """Workers that step in an order drawn at random, as far as the shard lets them."""
    clocks, asked, granted = [0] * workers, [False] * workers, [False] * workers
    for choice in choices:
        ready = [w for w in range(workers) if clocks[w] < steps and (granted[w] or not asked[w])]
        if not ready:
            break
        worker = ready[choice % len(ready)]
        if granted[worker]:
            slow = 1.0 + 2 * (worker == 0)
            push(shard, worker, clocks[worker], seconds=slow, used=slow * (choice % 2))
            clocks[worker] += 1
            granted[worker] = asked[worker] = False
            if clocks[worker] == steps:
                shard.leave(worker)
        else:
            shard.pull(worker)
            asked[worker] = True
        for answered in shard.answers():
            granted[answered] = True


@pytest.mark.parametrize("text", MODELS)
@given(choices=st.lists(st.integers(0, 11), max_size=120), workers=st.integers(1, 4))
def test_every_order_of_events_keeps_the_bound(text, choices, workers):
    shard, model = make(text, workers), parse(text)
    play(shard, workers, choices)
    high = None if text == "async" else model.high
    found = asdicts(shard.trace)
    for event in found if high is None else ():
        event["bound"] = None
    assert list(staleness.violations(found, workers, high, model.low)) == []
    if text != "async":
        assert list(staleness.starved(found, int(model.high), model.at_least)) == []


def test_the_checker_sees_a_pull_that_is_one_step_too_far():
    class Lax(Shard):
        def _may_get(self, worker):
            return worker.clock - self.least() <= self.bound + 1

    shard = Lax(np.zeros(2), optimizers.SGD(), 2, parse("ssp:2"), lambda s: 1.0, "share", True)
    shard.begin(0)
    for clock in range(3):
        push(shard, 0, clock)
    shard.pull(0)
    with pytest.raises(RuntimeError, match=r"worker 0 would be 3 steps ahead, 2 are allowed"):
        shard.answers()
    planted = [*shard.trace, Event("pull", 0, 3, 2)]
    (found,) = staleness.violations(asdicts(planted), 2, 2)
    assert "pull of worker 0 at clock 3 misses [1] by 2" in found


def test_the_checker_sees_a_worker_that_starves():
    trace = [{"kind": "push", "worker": 0, "clock": clock} for clock in range(4)]
    trace.insert(0, {"kind": "push", "worker": 1, "clock": 0})
    assert list(staleness.starved(trace, 2, 1)) == []  # worker 1 is ahead at first
    assert list(staleness.starved([*trace[1:], trace[0]], 2, 1)) == [(0, 1, 0)]


def noted(model, seconds, processor, clocks=10):
    adaptive = Adaptive(parse(model), len(seconds))
    for clock in range(1, clocks + 1):
        for worker, (time, used) in enumerate(zip(seconds, processor, strict=True)):
            adaptive.note(worker, time, used)
        adaptive.advance(clock)
    return adaptive


def test_who_is_held_up_is_given_room():
    adaptive = noted("adaptive:1,5", [0.1, 0.1, 0.29], [0.1, 0.1, 0.1])
    assert adaptive.bound == 3
    (change,) = adaptive.changes
    assert (change.clock, change.bound) == (10, 3)
    assert "worker 2 takes 2.90 of the fastest's time, occupancy 0.34" in change.reason


def test_changes_of_a_bound_are_written_with_the_trace(tmp_path):
    shard = make("adaptive:1,5", 2)
    for clock in range(10):
        for worker, seconds in ((0, 0.1), (1, 0.29)):
            push(shard, worker, clock, seconds=seconds, used=0.1)
    write_trace(tmp_path / "shard-2.jsonl", shard, Attempt("r"))
    lines = [json.loads(line) for line in (tmp_path / "shard-2.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["push"] * 20 + ["change"]
    assert lines[-1]["bound"] == 3 and "worker 1 takes 2.90" in lines[-1]["reason"]


def test_who_is_slow_for_good_is_not():
    adaptive = noted("adaptive:2,5", [0.1, 0.1, 0.3], [0.1, 0.1, 0.3])
    assert (adaptive.bound, adaptive.changes) == (2, [])


def test_the_bound_stays_in_its_range_and_is_chosen_now_and_then_only():
    assert noted("adaptive:1,3", [0.1, 9.0], [0.1, 0.1]).bound == 3
    assert noted("adaptive:2,3", [0.1, 0.1], [0.1, 0.1]).bound == 2
    assert noted("adaptive:1,3", [0.1, 9.0], [0.1, 0.1], clocks=9).changes == []


def test_more_servers_than_ranks():
    config = Config(strategy="parameter_server", servers="3")
    assert config.worker_count(5) == 2
    with pytest.raises(ValueError, match=r"3 server\(s\) on 3 rank\(s\) leave no worker"):
        config.worker_count(3)
    assert Config(strategy="parameter_server").worker_count(3) == 3


def test_other_workers_than_there_are():
    assert Config(strategy="parameter_server", servers="2", workers=3).worker_count(5) == 3
    config = Config(strategy="parameter_server", servers="2", workers=4)
    with pytest.raises(ValueError, match=r"4 worker\(s\) and 2 rank\(s\) that only serve"):
        config.worker_count(5)


def test_what_is_sent_unasked_is_good_for_as_long_as_the_bound_allows():
    shard = make("ssp:2", 2)
    assert shard.due(3, [0, 1]) == [(0, 2), (1, 2)]
    for clock in range(3):
        push(shard, 0, clock, total=1)
    assert shard.due(3, [1]) == [(1, 2)]  # three updates that it has not seen
    assert shard.due(9, [0]) == []  # too far ahead
    push(shard, 1, 0, total=1)
    assert shard.due(9, [0]) == [(0, 3)]


def test_without_a_bound_it_is_good_for_as_many_steps_as_updates_make_a_message():
    shard = make("async", 2)
    assert shard.due(2, [0, 1]) == [(0, 1), (1, 1)]
    push(shard, 0, 0)
    assert shard.due(2, [0, 1]) == []
    push(shard, 0, 1)
    assert shard.due(2, [0, 1]) == [(0, 3), (1, 1)]


def test_the_checker_sees_a_step_with_parameters_that_were_good_no_more():
    sent = {"kind": "send", "worker": 0, "clock": 0, "bound": 0}
    trace = [sent, *({"kind": "push", "worker": 0, "clock": clock} for clock in range(2))]
    assert list(staleness.violations(trace[:2], 1, 0)) == []
    (found,) = staleness.violations(trace, 1, 0)
    assert "push of worker 0 at clock 1, good was 0" in found


def test_the_window_of_an_adaptive_bound():
    assert consistency.parse("adaptive:1,4,2").window == 7
