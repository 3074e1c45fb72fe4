"""Reading what is written on the command line: numbers of ranks, roots, parameters, times."""

from __future__ import annotations

import re

from mpicoll.base import times
from mpicoll.base.sizes import parse_size
from mpicoll.cli.errors import UsageError, usage
from mpicoll.schedule.parameters import Value, read_value

_MOST_RANKS = 1 << 24
_MOST_NUMBERS = 1 << 16
_FEW_RANKS = 16  # up to here "auto" is more
_VALUE = re.compile(r"\s*\d+(,\d+)*,?\s*", re.ASCII)


def ranks(text: str, option: str = "-P") -> tuple[int, ...]:
    """Numbers of ranks, ascending and each once, from ``4``, ``1-33``, ``2,4,8`` or a mixture.

    Raises:
        UsageError: if the text is none of these, or a number is out of range.
    """
    return _numbers(option, text, 1, _MOST_RANKS, "1-33 or 2,4,8")


def size(text: str) -> int:
    """One size in bytes, such as ``64K``.

    Raises:
        UsageError: if the text is none.
    """
    with usage():
        return parse_size(text)


def roots(text: str) -> tuple[int | str, ...]:
    """Roots, from numbers, ranges, ``last``, ``all`` and ``auto``, separated by commas.

    Raises:
        UsageError: if the text is none of these.
    """
    found: dict[int | str, None] = {}
    for part in text.split(","):
        if part.strip() in ("last", "all", "auto"):
            found[part.strip()] = None
        else:
            numbers = _numbers("--roots", part, 0, _MOST_RANKS, "0,last, 0-3 or all")
            found.update(dict.fromkeys(numbers))
    return tuple(found)


def segments(text: str) -> tuple[int, ...]:
    """Numbers of segments, as ``1,2,5``; none for ``auto``.

    Raises:
        UsageError: if the text is no list of numbers.
    """
    if text.strip() == "auto":
        return ()
    return _numbers("--segments", text, 1, _MOST_RANKS, "auto, 1,2,5 or 1-4")


def strands(text: str) -> tuple[int, ...]:
    """Numbers of strands, as ``8,16``.

    Raises:
        UsageError: if the text is no list of numbers.
    """
    return _numbers("--trees", text, 1, 256, "8,16")


def segments_of(written: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    """The numbers of segments meant where the vector has so many blocks."""
    return written or ((1, 2, 5) if blocks <= _FEW_RANKS else (1, 2))


def roots_of(written: tuple[int | str, ...], size: int) -> tuple[int, ...]:
    """The roots meant among ``size`` ranks; those that are no rank there are left out."""
    found: set[int] = set()
    for root in written:
        if root == "all" or (root == "auto" and size <= _FEW_RANKS):
            found.update(range(size))
        elif root == "auto":
            found.update((0, 1, size - 1))
        else:
            found.add(size - 1 if root == "last" else int(root))
    return tuple(sorted(root for root in found if root < size))


def parameters(texts: list[str]) -> dict[str, Value]:
    """Parameters of an algorithm, from ``name=value`` each; ``order=2,0,1,3`` has several numbers.

    Raises:
        UsageError: if one has another form, or is given twice.
    """
    found: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not _VALUE.fullmatch(value):
            raise UsageError(
                f"--set {text!r} is no parameter; write a name and a whole number, as segments=4, "
                "or numbers, as order=2,0,1,3"
            )
        if name in found:
            raise UsageError(f"--set {name} is given twice; give it once")
        found[name] = read_value(value)
    return found


def attoseconds(option: str, text: str) -> int:
    """A time such as ``1e-6``, ``1.5us`` or ``80ps`` (seconds if no unit), in attoseconds.

    Raises:
        UsageError: if the text is no time.
    """
    try:
        return times.attoseconds(text)
    except ValueError as error:
        raise UsageError(f"{option} {error}") from None


def _numbers(option: str, text: str, least: int, most: int, example: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
        if match is None:
            raise UsageError(
                f"{option} {text!r}: {part!r} is neither a number nor a range; write {example}"
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if first > last:
            raise UsageError(
                f"{option} {text!r}: the range {first}-{last} is empty; write {last}-{first}"
            )
        for number in (first, last):
            if not least <= number <= most:
                raise UsageError(
                    f"{option} {text!r}: {number} is out of range; give {least} to {most}"
                )
        if len(found) + last - first >= _MOST_NUMBERS:
            raise UsageError(
                f"{option} {text!r} has more than {_MOST_NUMBERS:,} numbers; give fewer"
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))
