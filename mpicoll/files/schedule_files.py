"""Schedule files: a schedule as data, used like an algorithm of the catalogue.

A file is JSON::

    {"mpicoll": "schedule 1", "collective": "allreduce", "ranks": 2, "root": null, "blocks": 1,
     "strands": 1, "segments": 4, "window": 8, "hosts": [0, 1], "needs": ["commutative"],
     "order": ["same bits on all ranks"], "about": {},
     "programs": [[[[[["+", 1, 0]], [["s", 1, 0]]]]], [[[[["s", 0, 0]], [["r", 0, 0]]]]]]}

``programs`` is a nested list of ranks, strands (:func:`mpicoll.strands`), channels, rounds, steps.
A step is ``s`` (send blocks to a peer), ``r`` (receive), ``+`` (receive and reduce) or ``c`` (copy
blocks).  Blocks are one or several numbers, in the output's layout.  ``segments`` and ``window``
are the defaults of these parameters.

A file contains no code.  It is always verified before it is used, and refused if that fails.  The
name of an algorithm from a file is ``file:`` with its path and the beginning of its content's
SHA-256, so a changed file is another algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from mpicoll import algorithms
from mpicoll.base.files import checked_json, naming, write_atomically
from mpicoll.registry import FILE_PREFIX, NUMBER, SAME_BITS, Algorithm, is_path, keep, path_of
from mpicoll.schedule import Copy, Recv, RecvReduce, Round, Schedule, Send, channels, strands
from mpicoll.schedule.collectives import COLLECTIVES
from mpicoll.schedule.counts import count
from mpicoll.schedule.steps import MAX_OPEN_CHANNELS, MAX_SEGMENTS, as_channels

FORMAT = "schedule 1"
#: What a file can be of.
KINDS = ("allreduce", "reduce_scatter", "allgather", "bcast", "reduce")

_MOST_BYTES, _MOST_STEPS, _MOST_RANKS, _MOST_BLOCKS = 16 << 20, 1 << 22, 4096, 1 << 16
_LETTERS: Mapping[str, type[Send | Recv | RecvReduce]] = {"s": Send, "r": Recv, "+": RecvReduce}
_OF_STEP = {kind: letter for letter, kind in _LETTERS.items()}

#: Of a rank: of each strand the channels, of each the rounds.
Programs = Sequence[Sequence[Sequence[Sequence[Round]]]]


@dataclass(frozen=True)
class Content:
    """What a file says of its schedule; see the module."""

    collective: str
    programs: Programs
    root: int | None = None
    blocks: int = 1
    segments: int = 1
    window: int = 8
    hosts: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    about: Mapping[str, Any] | None = None


def render(content: Content) -> bytes:
    """A file's bytes."""
    plain = {
        "mpicoll": FORMAT,
        "collective": content.collective,
        "ranks": len(content.programs),
        "root": content.root,
        "blocks": content.blocks,
        "strands": len(content.programs[0]),
        "segments": content.segments,
        "window": content.window,
        "hosts": list(content.hosts),
        "needs": list(content.needs),
        "order": list(content.order),
        "about": dict(content.about or {}),
        "programs": [
            [
                [[[_written(step) for step in steps] for steps in rounds] for rounds in strand]
                for strand in program
            ]
            for program in content.programs
        ],
    }
    return (json.dumps(plain, separators=(",", ":")) + "\n").encode()


def write(path: str | Path, content: bytes) -> None:
    """Write a file; whoever reads at the same time finds the old file or the new one.

    Raises:
        OSError: it cannot be written.
    """
    write_atomically(path, content.decode())


def find(collective: str, name: str) -> Algorithm:
    """An algorithm of the catalogue, or one from a file by ``file:PATH``, which is loaded.

    Raises:
        ValueError: see :func:`mpicoll.registry.find` and :func:`load`; or the file is of another
            collective.
    """
    if not is_path(name):
        return algorithms.find(collective, name)
    return load(path_of(name), collective)


def load(path: str, collective: str | None = None) -> Algorithm:
    """Read a file, verify it, and let :func:`mpicoll.registry.find` find it.

    Raises:
        ValueError: it cannot be read, is none, is of another collective, or its schedule is wrong.
        ModuleNotFoundError: pydantic is missing.
    """
    algorithm = read(path)
    if collective not in (None, algorithm.collective):
        raise ValueError(f"schedule {path!r} is of {algorithm.collective}, not of {collective}")
    problem = refusal(algorithm)
    if problem:
        raise ValueError(f"schedule {path!r} is wrong: {problem}")
    keep(algorithm)
    return algorithm


def refusal(algorithm: Algorithm) -> str:
    """What is wrong with the schedule of a file; "" if nothing."""
    from mpicoll.verify import verify  # every program imports this file, few load one

    assert algorithm.only is not None
    if algorithm.collective == "allreduce" and SAME_BITS not in algorithm.order:
        return f"an all-reduce must promise {SAME_BITS!r} in its order"
    case = verify(algorithm, algorithm.only, algorithm.root or 0, {"segments": 1, "window": 1})
    return case.problems[0] if case.problems else ""


def read(path: str) -> Algorithm:
    """Read a file, without a look at whether its schedule is right.

    Raises:
        ValueError: it cannot be read, or is none; the message names the file and the place.
        ModuleNotFoundError: pydantic is missing.
    """
    with naming(f"schedule {path!r}"):
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES + 1)
        return parse(path, content)


def adopt(path: str, content: bytes) -> Algorithm:
    """Keep what another rank has read and verified."""
    algorithm = parse(path, content)
    keep(algorithm)
    return algorithm


def parse(path: str, content: bytes) -> Algorithm:
    """The algorithm that the bytes of a file describe.

    Raises:
        ValueError: they describe none; the message names the place.
        ModuleNotFoundError: pydantic is missing.
    """
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    file = checked_json(content, _form())
    ranks, programs = file["ranks"], file["programs"]
    definition = COLLECTIVES[file["collective"]]
    _check_shape(file, programs)
    if definition.rooted != (file["root"] is not None):
        wanted = "needs a root" if definition.rooted else "has no root"
        raise ValueError(f"root: {definition.name} {wanted}, and root is {file['root']}")
    if definition.rooted and file["root"] >= ranks:
        raise ValueError(f"root: {file['root']} is not among the ranks 0 .. {ranks - 1}")
    if definition.block_per_rank and file["blocks"] != ranks:
        raise ValueError(f"blocks: {definition.name} has one of each rank, not {file['blocks']}")
    if file["hosts"] and len(file["hosts"]) != ranks:
        raise ValueError(f"hosts: {len(file['hosts'])} labels for {ranks} ranks")
    import hashlib

    named = hashlib.sha256(content).hexdigest()[:12]
    return _algorithm(f"{FILE_PREFIX}{path}#{named}", file, _steps(programs), content)


def _check_shape(file: Mapping[str, Any], programs: Any) -> None:
    ranks, count = file["ranks"], file["strands"]
    if len(programs) != ranks:
        raise ValueError(f"programs: {len(programs)} for {ranks} ranks")
    each = {len(strand) for program in programs for strand in program}
    if any(len(program) != count for program in programs) or len(each) != 1:
        raise ValueError(f"programs: each rank must have {count} strands of as many channels")
    open_channels = count * each.pop() * file["window"]
    if open_channels > MAX_OPEN_CHANNELS:
        raise ValueError(
            f"window: {open_channels} channels are open at a time, more than {MAX_OPEN_CHANNELS}"
        )
    if file["segments"] * count > MAX_SEGMENTS:
        raise ValueError(
            f"segments: {file['segments']} of each of {count} strands are more than {MAX_SEGMENTS}"
        )
    steps = sum(
        len(round_)
        for program in programs
        for strand in program
        for rounds in strand
        for round_ in rounds
    )
    if steps > _MOST_STEPS:
        raise ValueError(f"programs: {steps} steps are more than {_MOST_STEPS}")


def _form() -> Any:
    try:
        import pydantic
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "schedule files need pydantic: pip install mpicoll[config]"
        ) from None

    Natural = Annotated[int, pydantic.Field(ge=0, lt=_MOST_BLOCKS)]
    Positive = Annotated[int, pydantic.Field(ge=1, le=MAX_SEGMENTS)]
    Blocks = Natural | Annotated[list[Natural], pydantic.Field(min_length=1)]
    Step = tuple[Literal["s", "r", "+"], Natural, Blocks] | tuple[Literal["c"], Blocks, Blocks]

    class File(pydantic.BaseModel, extra="forbid", strict=True):
        mpicoll: Literal["schedule 1"]
        collective: Literal["allreduce", "reduce_scatter", "allgather", "bcast", "reduce"]
        ranks: int = pydantic.Field(ge=1, le=_MOST_RANKS)
        root: Natural | None
        blocks: Positive
        strands: int = pydantic.Field(ge=1, le=MAX_OPEN_CHANNELS)
        segments: Positive
        window: int = pydantic.Field(ge=1, le=MAX_OPEN_CHANNELS)
        hosts: list[Natural]
        needs: list[Literal["commutative", "even", "power of two"]]
        order: list[Literal["same bits on all ranks", "rank order"]]
        about: dict[str, Any]
        programs: list[list[list[list[list[Step]]]]]

    return File


def _written(step: Any) -> list[Any]:
    if isinstance(step, Copy):
        return ["c", _plain(step.src), _plain(step.dst)]
    return [_OF_STEP[type(step)], step.peer, _plain(step.block)]


def _plain(block: Any) -> Any:
    return block if isinstance(block, int) else list(block)


def _block(plain: Any) -> Any:
    return plain if isinstance(plain, int) else tuple(plain)


def _step(plain: Sequence[Any]) -> Any:
    letter, first, second = plain
    if letter == "c":
        return Copy(_block(first), _block(second))
    return _LETTERS[letter](first, _block(second))


def _steps(programs: Any) -> Programs:
    return [
        [
            [[tuple(map(_step, steps)) for steps in rounds] for rounds in strand]
            for strand in program
        ]
        for program in programs
    ]


def _algorithm(name: str, file: Mapping[str, Any], programs: Programs, content: bytes) -> Algorithm:
    """The algorithm of a file; its counts are counted."""
    ranks, nblocks, root = file["ranks"], file["blocks"], file["root"]

    def schedule(rank: int, size: int, segments: int, window: int) -> Schedule:
        """A schedule from a file."""
        made = [channels(*strand) for strand in programs[rank]]
        return strands(*made, segments=segments, window=window)

    once = [as_channels(schedule(rank, ranks, 1, 1)) for rank in range(ranks)]
    counted = count(
        [[c._replace(rounds=tuple(c.rounds)) for c in program] for program in once], nblocks, 0
    )
    return _template(file["collective"])._replace(
        name=name,
        origin="file",
        schedule=schedule,
        parameters={"segments": file["segments"], "window": file["window"]},
        kinds={"segments": NUMBER, "window": NUMBER},
        rounds=lambda P, segments: counted.rounds * segments,
        # No step of the clock passes without a message.
        depth=lambda P, segments: counted.messages * segments,
        messages=lambda P, segments: counted.messages * segments,
        blocks_sent=lambda P, segments: counted.blocks_sent * segments,
        blocks_sent_max=lambda P, segments: counted.blocks_sent_max * segments,
        fan_in=lambda P: counted.fan_in,
        textbook=lambda P, n, a, b, g: (
            counted.messages * a + counted.blocks_sent * n / nblocks * (b + g)
        ),
        blocks=lambda P: nblocks,
        scratch=lambda P: 0,
        needs=tuple(file["needs"]),
        order=tuple(file["order"]),
        symmetric=False,
        depth_bound=True,
        reference="a schedule file",
        parts=(),
        only=ranks,
        root=root,
        hosts=tuple(file["hosts"]),
        content=content,
    )


def _template(collective: str) -> Algorithm:
    """Any algorithm of a collective, all of which is replaced."""
    return algorithms.find(collective, algorithms.names(collective)[0])


def misplaced(algorithm: Algorithm, nodes: Sequence[int]) -> bool:
    """Whether a schedule was made for ranks on other hosts; by the node of each rank."""
    return bool(algorithm.hosts) and _numbered(algorithm.hosts) != _numbered(nodes)


def _numbered(labels: Sequence[int]) -> list[int]:
    """Labels as numbers, in the order in which they come first."""
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return [numbers[label] for label in labels]
