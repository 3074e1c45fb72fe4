"""Orders of computation: every one is right, and its numbers are those that are registered."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import ORDERS, every_order

from mpicoll.train.step import (
    DeadlockError,
    Durations,
    Task,
    check,
    find,
    names,
    register,
    schedule,
    simulate,
)
from mpicoll.train.step.core import run
from mpicoll.train.step.timing import SLOTS

SIZES, BATCHES = range(1, 9), range(1, 33)


def test_every_order_is_tried():
    assert {name for name, _ in ORDERS} == set(names())


# --- right, and as registered ---------------------------------------------------------------------


def right(name, parameters, sizes, batches, **options):
    """Check all of them; interleaved where it promises something."""
    for S in sizes:
        for M in batches:
            if name == "interleaved" and M % S:
                continue
            verdict = check(schedule(name, S, M, **parameters, **options))
            assert verdict.ok, (verdict.schedule.words, verdict.problems)


@every_order
def test_every_order_is_right(name, parameters):
    right(name, parameters, (1, 2, 3, 4, 7, 8), (1, 2, 3, 5, 8, 15, 16, 32))


@pytest.mark.long
@every_order
def test_every_order_is_right_everywhere(name, parameters):
    right(name, parameters, SIZES, BATCHES)


@every_order
def test_every_order_is_right_with_recomputation(name, parameters):
    right(name, parameters, (1, 2, 5, 8), (1, 4, 15, 16, 32), recompute=True)


@every_order
def test_what_waits_between_both_parts_of_a_backward_pass(name, parameters):
    for S, M in ((1, 3), (2, 5), (4, 4), (4, 12), (5, 20)):
        found = schedule(name, S, M, **parameters)
        for rank in range(S):
            kinds = [task.kind for task in found.program(rank)]
            at_a_time = accumulate((kind == "I") - (kind == "W") for kind in kinds)
            most = max(at_a_time, default=0)
            assert most == found.waiting(rank) or (most < found.waiting(rank) and name == "zb_v")


@pytest.mark.long
@every_order
def test_every_order_is_right_with_recomputation_everywhere(name, parameters):
    right(name, parameters, SIZES, BATCHES, recompute=True)


def deadlocks(whole):
    try:
        for _ in run(whole.programs):
            pass
    except DeadlockError:
        return True
    return False


def test_interleaved_can_deadlock_where_ranks_do_not_divide_microbatches():
    """However much room there is for messages. Most do not: the check decides."""
    (problem,) = check(schedule("interleaved", 5, 7, chunks=2)).problems
    assert problem.startswith("deadlock: rank 0 at RECV_F of edge 5, microbatch 6; rank 1")
    shapes = [(S, M) for S in range(2, 9) for M in range(1, 25) if M % S]
    wrong = [shape for shape in shapes if deadlocks(schedule("interleaved", *shape, chunks=2))]
    assert (5, 7) in wrong and len(wrong) < len(shapes) / 4
    assert check(schedule("interleaved", 5, 8, chunks=2)).ok and (5, 8) not in wrong


@pytest.mark.parametrize("ahead", range(6))
def test_running_ahead_needs_room(ahead):
    """Where senders wait; with less than is registered it deadlocks."""
    programs = schedule("1f1b", 4, 24, ahead=ahead).programs
    slots = find("1f1b").slots(4, 24, ahead=ahead)
    assert len(list(run(programs, slots=slots))) == sum(map(len, programs))
    if slots > 1:
        with pytest.raises(DeadlockError):
            list(run(programs, slots=slots - 1))


def test_zb_v_needs_little_more_than_its_work():
    """Found greedily, it is no formula; but it is near the best, and within 1F1B's memory."""
    for S in SIZES:
        for M in (2 * S, 2 * S + 1, 25, 32):
            timing = simulate(schedule("zb_v", S, M), SLOTS)
            work = 6 * M
            assert work <= timing.makespan <= work + S + 2
            assert max(timing.gaps(rank) for rank in range(S)) <= S + 2


def test_zb_h2_is_never_idle_between_its_first_task_and_its_last():
    for S in SIZES:
        for M in (2 * S, 2 * S + 1, 25, 32):
            timing = simulate(schedule("zb_h2", S, M), SLOTS)
            assert not any(timing.gaps(rank) for rank in range(S)), (S, M)


@pytest.mark.parametrize("name", [name for name in names() if find(name).makespan])
@given(st.integers(1, 6), st.integers(1, 12), st.tuples(*[st.integers(1, 9)] * 3), st.data())
@settings(deadline=None, max_examples=60)
def test_makespans_hold_for_any_durations(name, S, M, times, data):
    """Where they say that they do; of the zero bubbles there are conditions."""
    values = [parameters for order, parameters in ORDERS if order == name]
    parameters = data.draw(st.sampled_from(values))
    v = parameters.get("chunks", 1)
    F, B, W = times[0], times[1] + times[2], times[2]
    whole = schedule(name, S, M * S if v > 1 else M, **parameters)
    formula = whole.makespan(Durations(F * v, B * v, W * v))
    if formula is not None:
        assert simulate(whole, Durations(F, B, W)).makespan == formula


def test_the_formulas_of_zero_bubbles_need_their_conditions():
    for name, wrong in (
        ("zb_h1", Durations(1, 4, 3)),
        ("zb_h1", Durations(2, 7, 3)),
        ("zb_h2", Durations(3, 4, 1)),
    ):
        whole = schedule(name, 4, 16)
        assert whole.makespan(wrong) is None
        assert simulate(whole, wrong).makespan > find(name).makespan(4, 16, wrong)


# --- planted faults -------------------------------------------------------------------------------


def planted(name, change, S=4, M=6, **parameters):
    """What a check says of programs that somebody has changed."""
    whole = schedule(name, S, M, **parameters)
    programs = [list(program) for program in whole.programs]
    assert check(whole, programs).ok
    change(programs)
    return check(whole, programs).problems


def swap(program, first, second):
    a, b = program.index(first), program.index(second)
    program[a], program[b] = program[b], program[a]


@given(st.sampled_from(ORDERS), st.data())
@settings(deadline=None, max_examples=60)
def test_whatever_is_left_out_or_made_twice_or_of_another_microbatch_is_found(case, data):
    name, parameters = case
    whole = schedule(name, 3, 6, **parameters)
    programs = [list(program) for program in whole.programs]
    program = programs[data.draw(st.integers(0, 2))]
    at = data.draw(st.integers(0, len(program) - 1))
    match data.draw(st.integers(0, 2)):
        case 0:
            del program[at]
        case 1:
            program.insert(data.draw(st.integers(0, len(program))), program[at])
        case 2:
            program[at] = program[at]._replace(microbatch=(program[at].microbatch + 1) % 6)
    assert not check(whole, programs).ok


def test_a_swapped_backward_pass_is_found():
    problems = planted("1f1b", lambda p: swap(p[1], Task("B", 1, 2), Task("B", 1, 3)))
    assert "rank 1 runs B of chunk 1, microbatch 2 after microbatch 3" in problems
    assert any("rank 1 runs B of chunk 1, microbatch 3 before it has" in p for p in problems)


def test_a_swapped_message_is_found():
    problems = planted("gpipe", lambda p: swap(p[1], Task("SEND_B", 1, 2), Task("SEND_B", 1, 3)))
    assert "message 2 over edge 1, backward: microbatch 3 is sent and 2 is awaited" in problems
    assert any(p.startswith("deadlock: rank 0 at RECV_B of edge 1, micro") for p in problems)


def test_a_missing_gradient_of_weights_is_found():
    problems = planted("zb_h1", lambda p: p[2].remove(Task("W", 2, 5)))
    assert problems[0] == "rank 2 runs W of chunk 2, microbatch 5 0 times, not once"


def test_a_task_that_is_made_twice_or_elsewhere_is_found():
    problems = planted("gpipe", lambda p: p[0].append(Task("B", 0, 5)))
    assert "rank 0 runs B of chunk 0, microbatch 5 2 times, not once" in problems
    problems = planted("gpipe", lambda p: p[0].append(Task("B", 3, 5)))
    assert "rank 0 runs B of chunk 3, microbatch 5, which is not its own" in problems


def test_a_version_that_is_off_by_one_is_found():
    def newer(programs):
        at = programs[0].index(Task("B", 0, 4, 1))
        programs[0][at] = Task("B", 0, 4, 2)

    problems = planted("pipedream", newer)
    assert any(
        "B of chunk 0, microbatch 4 with weights of update 2, and F with" in p for p in problems
    )

    def too_new(programs):
        at = programs[0].index(Task("F", 0, 4, 1))
        programs[0][at] = Task("F", 0, 4, 2)

    assert any(
        "F of chunk 0, microbatch 4 with weights of" in p for p in planted("pipedream", too_new)
    )


def test_an_update_too_early_is_found():
    def early(programs):
        program = programs[0]
        at = program.index(Task("U", 0, 2))
        del program[at]
        program.insert(program.index(Task("F", 0, 5, 2)), Task("U", 0, 2))

    problems = planted("pipedream", early)
    assert any("U of chunk 0, microbatch 2 before it has B" in p for p in problems)


def test_activations_that_are_held_too_long_are_found():
    def late(programs):
        programs[3][:] = schedule("gpipe", 4, 6).programs[3]

    assert "rank 3: held 6, registered 1" in planted("1f1b", late)


def test_a_receive_that_comes_too_late_is_found():
    problems = planted("gpipe", lambda p: swap(p[1], Task("RECV_F", 1, 0), Task("F", 1, 0)))
    assert any("runs F of chunk 1, microbatch 0 before it has F of chunk 0" in p for p in problems)


def test_an_end_of_a_message_on_another_rank_is_found():
    def elsewhere(programs):
        programs[0].remove(Task("SEND_F", 1, 0))
        programs[2].insert(0, Task("SEND_F", 1, 0))

    problems = planted("gpipe", elsewhere)
    assert "rank 2 has SEND_F of edge 1, microbatch 0, which is rank 0's" in problems


def test_numbers_that_are_registered_wrongly_are_found(monkeypatch):
    whole = schedule("gpipe", 3, 4)
    for change, problem in (
        ({"held": lambda r, S, M: M + 1}, "rank 0: held 4, registered 5"),
        ({"messages": lambda S, M: 3}, "16 messages, registered 3"),
        ({"makespan": lambda S, M, t: 17}, "the step takes 18 slots, registered 17"),
        ({"versions": lambda r, S, M: 2}, "rank 0: versions 1, registered 2"),
    ):
        assert problem in check(replace(whole, order=replace(whole.order, **change))).problems


def test_a_deadlock_names_what_each_rank_waits_for():
    programs = [[Task("RECV_B", 1, 0)], [Task("RECV_F", 1, 0)], []]
    with pytest.raises(DeadlockError, match="rank 0 at RECV_B of edge 1, microbatch 0; rank 1 at"):
        list(run(programs))
    with pytest.raises(DeadlockError, match="rank 7 at RECV_B of edge 8, microbatch 0; and 1 more"):
        list(run([[Task("RECV_B", rank + 1, 0)] for rank in range(9)]))


# --- PipeDream ------------------------------------------------------------------------------------


def test_pipedream_sees_weights_of_its_papers_age():
    for vertical in (False, True):
        for S in SIZES:
            for r, program in enumerate(schedule("pipedream", S, 24, vertical=vertical).programs):
                lag = S - 1 if vertical else S - 1 - r
                seen = {t.microbatch: t.version for t in program if t.kind == "F"}
                assert seen == {m: max(m - lag, 0) for m in range(24)}


def test_pipedream_keeps_as_many_versions_as_microbatches_in_flight():
    for S in SIZES:
        assert check(schedule("pipedream", S, 32)).versions == tuple(range(S, 0, -1))
        assert check(schedule("pipedream", S, 32, vertical=True)).versions == (S,) * S


# --- what is refused ------------------------------------------------------------------------------


def test_refusals():
    for words, message in (
        (("gpip", 4, 8), "unknown order 'gpip': known are forward, naive, gpipe"),
        (("gpipe", 0, 8), "stages=0 is too small: give at least 1"),
        (("gpipe", 4, 0), "microbatches=0 is too small: give at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            schedule(*words)
    with pytest.raises(ValueError, match="gpipe has no parameter 'ahead': known are none"):
        schedule("gpipe", 4, 8, ahead=1)
    with pytest.raises(ValueError, match="1f1b: ahead=-1 is too small: give at least 0"):
        schedule("1f1b", 4, 8, ahead=-1)
    with pytest.raises(ValueError, match="interleaved: chunks=0 is too small: give at least 1"):
        schedule("interleaved", 4, 8, chunks=0)
    with pytest.raises(ValueError, match="pipedream: vertical=2 is neither 0 nor 1"):
        schedule("pipedream", 4, 8, vertical=2)
    with pytest.raises(ValueError, match="the order gpipe is registered already"):
        register("gpipe", find("gpipe").tasks)
    with pytest.raises(ValueError, match=r"durations of 3 chunks: gpipe, S=4, M=8 has 4"):
        simulate(schedule("gpipe", 4, 8), [Durations(1, 2)] * 3)
