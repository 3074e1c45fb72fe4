"""What ``mpicoll plan`` prints: a plan and those that lose, or what does not fit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mpicoll.base.memory import megabytes
from mpicoll.base.wording import plural
from mpicoll.cli import output

if TYPE_CHECKING:
    from mpicoll.train.planner.needs import Need
    from mpicoll.train.planner.problem import Outcome, Problem
    from mpicoll.train.planner.search import Found


def refusal(problem: Problem, need: Need, remedies: Sequence[str], json: bool) -> None:
    """Say that nothing fits, what the smallest need is, and what would make it fit."""
    from mpicoll.train.planner import needs

    assert problem.memory is not None
    words = (
        f"no plan fits into {megabytes(problem.memory)} of each of "
        f"{plural(problem.ranks, 'rank')}; least is needed {needs.in_words(need)}"
    )
    if json:
        facts = {"candidate": need.candidate.words, "bytes": need.nbytes, "stages": need.stages}
        output.facts({"fits": False, "need": facts, "remedies": remedies})
    output.remark(f"mpicoll: error: {words}; give {', or '.join(remedies)}")


def facts(
    problem: Problem, found: Found, best: Outcome, others: Sequence[Outcome]
) -> dict[str, Any]:
    """All of it, for ``--json``."""
    from mpicoll.train.planner import comparison, plan_file, space

    return {
        "fits": True,
        "space": {"words": space.WORDS, "candidates": found.candidates},
        "simulated": found.simulated,
        "gap": found.gap,
        "config": plan_file.keys(best, problem.batch),
        "plan": _facts_of(best),
        "others": [{**_facts_of(o), "why": comparison.why(o, best)} for o in others],
    }


def _facts_of(outcome: Outcome) -> dict[str, Any]:
    whole = outcome.picoseconds
    shares = ("computing", "tensor", "exchange", "waiting")
    return {
        **outcome.candidate._asdict(),
        "parameters": dict(outcome.candidate.parameters),
        "cut": list(outcome.cut),
        "seconds": outcome.seconds,
        "shares": {name: getattr(outcome, name) / whole if whole else 0.0 for name in shares},
        "idle": outcome.idle,
        "memory": list(outcome.memory),
        "bytes_sent": outcome.sent,
    }


def report(
    problem: Problem, found: Found, best: Outcome, others: Sequence[Outcome], explain: bool
) -> None:
    """Print the plan, a table with the next best ones, the space, and the plan in sentences."""
    from mpicoll.train.planner import comparison

    cut = f", cut {','.join(map(str, best.cut))}" if best.cut[1:] else ""
    output.text(f"plan: {best.candidate.words}{cut}")
    nearest = f"within {100 * found.gap:.2g} % of " if found.gap else ""
    output.text(f"{1e3 * best.seconds:.4g} ms a step, {nearest}the shortest of the space")
    axes = ("data", "pipe", "tensor")
    sent = tuple(f"{axis} [MB]" for axis in axes)
    numbers = ("time [ms]", "idle [%]", "memory [MB]", *sent)
    output.table(
        ("plan", *numbers, "why not"),
        (
            (
                outcome.candidate.words,
                f"{1e3 * outcome.seconds:.4g}",
                f"{100 * outcome.idle:.1f}",
                _number(outcome.most_memory / 1e6),
                *(_number(outcome.sent[axis] / 1e6) for axis in axes),
                "" if outcome is best else comparison.why(outcome, best),
            )
            for outcome in (best, *others)
        ),
        right=numbers,
        fold=("plan", "why not"),
        drop=sent[::-1],
    )
    output.text("")
    for line in _space(found):
        output.text(line)
    if explain:
        output.text("")
        for sentence in comparison.explanation(best, problem, found):
            output.text(textwrap.fill(sentence, output.width()))


def _number(value: float) -> str:
    """With as many digits as it takes to see three of them."""
    if not value or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _space(found: Found) -> Iterator[str]:
    from mpicoll.train.planner import space

    yield f"space: {found.candidates} candidates and their cuts, {found.simulated} steps simulated"
    most = max(map(len, space.WORDS))
    for name, words in space.WORDS.items():
        first = f"  {name:{most}}  "
        yield textwrap.fill(
            words, output.width(), initial_indent=first, subsequent_indent=" " * len(first)
        )
