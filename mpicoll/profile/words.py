"""A profile in words, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Any

from mpicoll.base.sizes import about_size, format_size
from mpicoll.base.wording import plural, ranges
from mpicoll.profile.merged import Line, Profile
from mpicoll.profile.replay import Answer
from mpicoll.tuning import NATIVE


def summary(profile: Profile) -> Iterator[str]:
    """What a reader wants first."""
    longest = max(profile.seconds.values(), default=0.0)
    total = profile.total or 1.0
    lines = sum(line.seconds for line in profile.lines) / total
    waiting = sum(line.waiting or 0.0 for line in profile.lines) / total
    messages = sum(part.seconds for part in profile.messages.values()) / total
    yield f"{command(profile)}: {plural(profile.ranks, 'rank')}, {seconds(longest)} s"
    yield (
        f"collectives {100 * lines:.1f} % of the run ({100 * waiting:.1f} % waiting for ranks), "
        f"messages {100 * messages:.1f} %"
    )
    yield (
        f"recording took {1e6 * profile.cost:.2f} us a call, {100 * profile.overhead:.2f} % of the "
        "run"
    )


def command(profile: Profile) -> str:
    """What was run, without its folders and arguments."""
    words = profile.facts["command"]
    if words[0] in ("-m", "-c"):
        return f"-m {words[1]}" if words[0] == "-m" else "a program in a word (-c)"
    return str(words[0]).rpartition("/")[2]


def warnings(profile: Profile) -> Iterator[str]:
    """What limits what the profile says."""
    missing = set(range(profile.ranks)) - set(profile.seconds)
    if missing:
        yield f"no file of {ranges(missing)}: is the folder one that all nodes see?"
    killed = set(profile.seconds) - profile.ended
    if killed:
        yield f"{ranges(killed)} did not end normally: the last second before may be missing"
    if profile.unseen:
        names = ", ".join(profile.unseen[:3]) + (", ..." if len(profile.unseen) > 3 else "")
        yield f"MPI calls that libraries make in C are not recorded: {names}"


def letters(names: Iterable[str], alphabet: str) -> dict[str, str]:
    """A letter, or a number once there are no more, for each name."""
    found = chain(alphabet, map(str, count(1)))
    return dict(zip(dict.fromkeys(names), found, strict=False))


def called(line: Line) -> str:
    """Method and algorithm."""
    return line.method if line.algorithm == NATIVE else f"{line.method} {line.algorithm}"


def size(line: Line) -> str:
    """Bytes of a call; of those that differ, about."""
    return format_size(line.size) if line.size >= 0 else f"~{about_size(line.nbytes)}"


def messages(profile: Profile) -> tuple[str, str, str, str] | None:
    """Of all point-to-point calls: bytes of one, calls, seconds of a rank, and % of the run.

    None where there are none.
    """
    parts = profile.messages.values()
    calls, spent = sum(part.calls for part in parts), sum(part.seconds for part in parts)
    if not calls:
        return None
    nbytes = sum(part.nbytes for part in parts) / calls
    share = 100 * spent / (profile.total or 1.0)
    most = max(part.calls for part in parts)
    size = f"~{about_size(nbytes)}" if nbytes else "-"  # who pickles by other means is not counted
    return size, str(most), seconds(spent / len(parts)), f"{share:.1f}"


def seconds(value: float) -> str:
    """Seconds, with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def asked(found: Answer) -> str:
    """Which calls an answer is for."""
    line = found.line
    return f"{line.method}, {size(line)} bytes, {plural(line.ranks, 'rank')}, {line.where}"


def verdict(found: Answer) -> str:
    """What was measured, in a sentence."""
    if found.now is None or found.best is None:
        return found.reason
    now = _measured(found.now.choice, found.now.summary.median)
    if found.now.choice == found.best.choice:
        return f"{now} is the fastest that was measured"
    best = _measured(found.best.choice, found.best.summary.median)
    gain = found.gain
    if gain is None:
        return f"{best}: no significant difference from {now}"
    least, expected, most = (100 * part for part in gain)
    return f"{best} instead of {now}: {expected:.1f} % of the run ({least:.1f} to {most:.1f})"


def _measured(choice: str, median: float) -> str:
    return f"{choice} ({1e6 * median:.3g} us)"


def remedy(profile: Profile, found: Sequence[Answer], lines: Sequence[str]) -> Iterator[str]:
    """What to write for what gains, and how sure that is."""
    if lines:
        yield "Set in the environment of rank 0 (mpirun -x NAME passes it on):"
        yield from (f"   {line}" for line in lines)
    uses = profile.facts["through_mpicoll"] or any(
        line.algorithm != NATIVE for line in profile.lines
    )
    if lines and not uses:
        yield "and add to the program: comm = mpicoll.Intracomm(MPI.COMM_WORLD). To try it without"
        yield "a change: python -m mpicoll.profile --through-mpicoll"
    points = [answer.now for answer in found if answer.now is not None]
    if points:
        yield "One launch was measured; launches differ by more than their intervals say."
    if any(point.oversubscribed for point in points):
        yield "Ranks shared cores: another algorithm may be the fastest with a core for each rank."


def plain(line: Line) -> dict[str, Any]:
    """A line as plain values."""
    what = {name: value for name, value in vars(line).items() if name not in ("parts", "total")}
    parts = {rank: part._asdict() for rank, part in line.parts.items()}
    numbers = {"calls": line.calls, "nbytes": line.nbytes, "seconds": line.seconds}
    return {**what, **numbers, "waiting": line.waiting, "share": line.share, "ranks_parts": parts}


def plain_answer(found: Answer) -> dict[str, Any]:
    """An answer as plain values."""
    return {
        "method": found.line.method,
        "where": found.line.where,
        "size": found.line.size,
        "verdict": verdict(found),
        "now": found.now and found.now.choice,
        "best": found.best and found.best.choice,
        "gain": found.gain,
    }
