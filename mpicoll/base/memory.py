"""How much memory there is, so that what cannot fit is refused before it is begun."""

from __future__ import annotations

import os
import re
import resource
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from mpicoll.base.wording import plural

_MEMINFO = Path("/proc/meminfo")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
#: Of each version of control groups: the folder of memory's, the files of limit and use, and the
#: line of memory.stat with what the kernel takes back from files when it must.
_VERSIONS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
#: Limits of a process, and the field of /proc/self/statm with the pages that count against each.
_LIMITS = ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5))

#: Where memory is short that `left` counts, in words.
OWN_LIMIT = "this process (see ulimit -v, -d)"


def available() -> int | None:
    """Bytes that this node can still give, None where the system does not say.

    The least of what Linux calls available and what is left of the limits of this process's control
    groups.
    """
    found = [*_left_of_groups()]
    with suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB", _MEMINFO.read_text(encoding="utf-8"), re.M)
        if match:
            found.append(1024 * int(match[1]))
    return min(found, default=None)


def left() -> int | None:
    """Bytes that this process can still take by its own limits (ulimit -v and -d), None: any."""
    found = []
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text(encoding="utf-8").split()
        for limit, field in _LIMITS:
            most, _ = resource.getrlimit(limit)
            if most != resource.RLIM_INFINITY:
                used = int(pages[field]) * os.sysconf("SC_PAGE_SIZE")
                found.append(max(0, most - used))
    return min(found, default=None)


def _left_of_groups() -> Iterator[int]:
    """What each control group with a limit has left; a group's limit holds for those in it."""
    with suppress(OSError):
        for line in _OWN_CGROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            for name in _VERSIONS.keys() & {*controllers.split(",")}:
                top = _CGROUPS / _VERSIONS[name][0]
                group = top / path.strip("/")
                for folder in (group, *group.parents):
                    yield from _left_of_group(folder, *_VERSIONS[name][1:])
                    if folder == top:
                        break


def _left_of_group(folder: Path, limit: str, use: str, reclaimed: str) -> Iterator[int]:
    with suppress(OSError, ValueError):  # there is no limit, or the group cannot be seen from here
        most = int((folder / limit).read_text(encoding="utf-8"))
        used = int((folder / use).read_text(encoding="utf-8"))
        with suppress(OSError):
            statistics = (folder / "memory.stat").read_text(encoding="utf-8")
            if match := re.search(rf"^{reclaimed} (\d+)$", statistics, re.M):
                used -= int(match[1])
        yield max(0, most - used)


def require(
    needed: Sequence[Mapping[str, int]],
    room: int | None,
    held: Sequence[Mapping[str, int]] = (),
    *,
    where: str,
    remedy: str,
) -> None:
    """Refuse what cannot fit.

    Args:
        needed: Bytes that each rank of a place needs more, by what for.
        room: Bytes that are left there, None where that is not known.
        held: What the ranks have taken, for the message.
        where: The place in words, as "this node".
        remedy: What can be done.

    Raises:
        MemoryError: With the numbers.
    """
    more, has = _added(needed), _added(held)
    total = sum(more.values())
    if room is None or total <= room:
        return
    beside = f", beside {listed(has)}" if has else ""
    raise MemoryError(
        f"the {len(needed)} rank(s) of {where} need {megabytes(total)} more ({listed(more)}"
        f"{beside}), {megabytes(room)} are available: {remedy}"
    )


def _added(each: Sequence[Mapping[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sizes in each:
        found.update(sizes)
    return found


def listed(sizes: Mapping[str, int]) -> str:
    """Bytes by what for, in words; nothing is said of what needs none."""
    return ", ".join(f"{what} {megabytes(size)}" for what, size in sizes.items() if size)


def megabytes(size: int) -> str:
    """A number of bytes in words: in MB, or where these are few, in kB or bytes."""
    if size >= 50_000:
        return f"{size / 1e6:,.1f} MB"
    return f"{size / 1e3:.1f} kB" if size >= 1000 else plural(size, "byte")
