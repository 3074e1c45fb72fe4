"""What schedules do, counted: rounds, messages, blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mpicoll.schedule.steps import Channel, Copy, Send, blocks


class Counts(NamedTuple):
    """What a schedule does, counted; see :class:`mpicoll.registry.Algorithm`."""

    rounds: int
    messages: int
    blocks_sent: int
    blocks_sent_max: int
    fan_in: int


def count(programs: Sequence[Sequence[Channel]], nblocks: int, nscratch: int) -> Counts:
    """Count what the schedules of all ranks do (their rounds must be sequences)."""
    rounds, messages, sent, fans = [], [], [], [0]
    for program in programs:
        lists = [
            [step for step in steps if not isinstance(step, Copy)]
            for channel in program
            for steps in channel.rounds
        ]
        sends = [step for steps in lists for step in steps if isinstance(step, Send)]
        rounds.append(sum(1 for steps in lists if steps))
        messages.append(len(sends))
        sent.append(sum(len(blocks(step.block, nblocks, nscratch)) for step in sends))
        fans += [sum(1 for s in steps if not isinstance(s, Send)) for steps in lists]
    return Counts(max(rounds), sum(messages), sum(sent), max(sent), max(fans))
