"""How long steps take: against a longest path, the shapes of the papers, and with slow messages."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import ORDERS

from mpicoll.simulate.machine import Machine
from mpicoll.train.step import Durations, picture, schedule, simulate
from mpicoll.train.step.timing import SLOTS


def idle(timing):
    return 1 - Fraction(sum(timing.busy), timing.makespan * len(timing.ranks))


# --- against another way to find it ---------------------------------------------------------------


def longest_path(whole, durations, delay):
    """The end of the last task, from what each one comes after: the task before it on its rank, and
    the tasks whose results it takes, plus a delay from another rank."""
    programs = [[t for t in program if not t.is_message] for program in whole.programs]
    before = {b: a for program in programs for a, b in zip([None, *program], program, strict=False)}
    by_name = {task[:3]: task for task in before}

    def gradient(chunk, m):
        return by_name.get(("B", chunk, m)) or by_name.get(("I", chunk, m))

    @cache
    def end(task):
        rank, (kind, chunk, m) = whole.place(task.chunk), task[:3]
        takes = []
        if kind == "F" and chunk:
            takes.append(by_name["F", chunk - 1, m])
        if kind in "BI" and chunk < whole.chunks - 1:
            takes.append(gradient(chunk + 1, m))
        arrive = [end(t) + delay * (whole.place(t.chunk) != rank) for t in takes]
        start = max([*arrive, end(before[task]) if before[task] else 0])
        return start + durations[chunk].of(kind)

    # In this order no recursion is deep.
    return max(end(task) for tasks in zip_longest(*programs) for task in tasks if task)


@given(
    st.sampled_from(ORDERS),
    st.integers(1, 5),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 30),
    st.data(),
)
@settings(deadline=None)
def test_the_clock_finds_the_longest_path(case, S, M, recompute, delay, data):
    name, parameters = case
    M *= S if name == "interleaved" else 1
    whole = schedule(name, S, M, recompute=recompute, **parameters)
    duration = st.builds(
        lambda f, i, w: Durations(f, i + w, w), *(st.integers(0, 20) for _ in range(3))
    )
    durations = data.draw(st.lists(duration, min_size=whole.chunks, max_size=whole.chunks))
    machine = Machine(alpha=delay, beta=0)
    found = simulate(whole, durations, machine).makespan
    assert found == longest_path(whole, durations, delay)


# --- the shapes of the papers ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "pipedream"])
def test_idle_of_a_pipeline(name):
    """GPipe, section 2: the bubble is (S-1)/(M+S-1); a fifth at most from M = 4S."""
    for S in (1, 2, 3, 5, 8):
        for factor in (1, 2, 3, 4, 8, 16):
            M = S * factor
            found = idle(simulate(schedule(name, S, M), SLOTS))
            assert found == Fraction(S - 1, M + S - 1)
            assert factor < 4 or found < Fraction(1, 5)


def test_idle_of_layer_parallelism():
    for S in range(1, 9):
        assert idle(simulate(schedule("naive", S, 6), SLOTS)) == 1 - Fraction(1, S)


def test_interleaving_divides_the_bubble_by_the_chunks():
    """Megatron-LM, section 2.2.2: the time of the bubble is that of 1F1B divided by v."""
    for S in range(2, 9):
        for v in (1, 2, 3):
            work = 3 * 4 * S * v
            bubble = simulate(schedule("interleaved", S, 4 * S, chunks=v), SLOTS).makespan - work
            assert bubble == 3 * (S - 1)  # in slots of a chunk, each of 1/v


def test_zb_h1_leaves_a_third_of_the_bubble():
    """Zero bubble, section 2.1: where all three parts take as long."""
    for S in range(2, 9):
        M = 2 * S
        plain, zero = (
            simulate(schedule(name, S, M), SLOTS).makespan - 3 * M for name in ("1f1b", "zb_h1")
        )
        assert plain == 3 * zero


def test_recomputation_takes_a_third_more_compute():
    """Chen et al. 2016: one more forward pass; with B = 2F it is 4/3, and the bubble stays."""
    for name in ("gpipe", "1f1b", "zb_h1"):
        plain, again = (
            simulate(schedule(name, 4, 16, recompute=recompute), SLOTS)
            for recompute in (False, True)
        )
        assert [3 * busy for busy in again.busy] == [4 * busy for busy in plain.busy]
        assert again.makespan == plain.makespan + 16


# --- messages that take time ----------------------------------------------------------------------


def period(name, S, delay, durations, **parameters):
    """Time a microbatch in the long run."""
    machine = Machine(alpha=delay, beta=0)
    few, many = (
        simulate(schedule(name, S, M, **parameters), durations, machine).makespan
        for M in (6 * S, 12 * S)
    )
    return Fraction(many - few, 6 * S)


@pytest.mark.parametrize("S", [2, 3, 4, 6, 8])
def test_what_a_delay_costs(S):
    """1F1B waits for a message forward and one backward in each round of S microbatches; GPipe
    does not, nor does 1F1B with forward passes further ahead, up to a delay of half its work."""
    F, B = 48 * S, 96 * S
    for delay in (0, S, 4 * S, 12 * S, 24 * S, 48 * S, (F + B) // 2):
        assert period("gpipe", S, delay, Durations(F, B)) == F + B
        assert period("1f1b", S, delay, Durations(F, B), ahead=1) == F + B
        assert period("1f1b", S, delay, Durations(F, B)) == F + B + Fraction(2 * delay * (S - 1), S)
    beyond = (F + B) // 2 + S
    assert period("1f1b", S, beyond, Durations(F, B), ahead=1) > F + B


def test_bytes_of_a_rank_leave_one_after_the_other():
    """On a link that is slower than the ranks, the link sets the pace."""
    machine = Machine(alpha=5, beta=2)
    whole = schedule("forward", 2, 10)
    timing = simulate(whole, Durations(1, 0), machine, nbytes=10)
    assert timing.makespan == 1 + 10 * 20 + 5 + 1
    assert len(timing.messages) == 10


def test_messages_within_a_node_cost_less():
    from mpicoll.simulate.costs import INTER, INTRA, Piece

    links = {INTRA: (Piece(None, 1, 0),), INTER: (Piece(None, 10, 0),)}
    machine = Machine(links=links, nodes=(0, 0, 1))
    timing = simulate(schedule("forward", 3, 1), Durations(7, 0), machine)
    assert timing.makespan == 7 + 1 + 7 + 10 + 7


def test_a_slow_rank_sets_the_pace():
    durations = [Durations(1, 2), Durations(2, 4), Durations(1, 2), Durations(3, 6)]
    few, many = (simulate(schedule("1f1b", 4, M), durations).makespan for M in (20, 40))
    assert many - few == 20 * 9


# --- pictures -------------------------------------------------------------------------------------


def test_a_picture_in_the_terminal():
    assert picture.text(schedule("1f1b", 2, 3)).splitlines() == [
        "slot    0",
        "rank 0  F0 F1 .  .  B0--- F2 B1--- .  B2---",
        "rank 1  .  F0 B0--- F1 B1--- F2 B2--- .  .",
    ]


def test_a_picture_is_cut_where_the_terminal_ends():
    text = picture.text(schedule("zb_v", 3, 12), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("rank 2") == text.count("slot") > 1
    for label in ("F0.0", "F11.1", "I0.1", "W11.0"):
        assert label in text


def test_a_gantt_chart(tmp_path):
    pytest.importorskip("matplotlib")
    picture.svg(tmp_path / "a.svg", schedule("interleaved", 2, 4, recompute=True))
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for words in ("forward again", "backward", "rank 1", "interleaved chunks=2, S=2, M=4"):
        assert f"<!-- {words}" in drawn
    assert [p.name for p in tmp_path.iterdir()] == ["a.svg"]
