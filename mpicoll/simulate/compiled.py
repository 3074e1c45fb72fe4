"""Schedules as arrays, for the compiled clock: millions of messages, each followed by itself.

Which send meets which receive does not depend on time: between two ranks, messages of a channel go
in the order posted.  So they are paired here, all at once, and what is left to the clock is when.
Segments that repeat the same rounds are alike but for the lengths of their blocks, so one is held
for all: one segment of a pipelined schedule, one of each of several strands.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from mpicoll.base.wording import plural
from mpicoll.schedule import Channel, Copy, RecvReduce, Round, Send, period
from mpicoll.schedule.memory import ScheduleError
from mpicoll.simulate.clock import Result
from mpicoll.simulate.costs import INTER, INTRA
from mpicoll.simulate.machine import Machine, Sizes
from mpicoll.simulate.network import Network

try:
    from mpicoll.simulate import _clock
except ImportError:  # not built: clock.py is there always
    _clock = None  # type: ignore[assignment]

#: Costs below this, and slowdowns, are multiplied in 128 bits.
_LARGEST_COST, _LARGEST_SLOWDOWN = 1 << 62, 1 << 31
_NO_END = (1 << 63) - 1

Array = Any


def available(machine: Machine) -> bool:
    """Whether the compiled clock is there, and takes a machine's numbers."""
    if _clock is None:
        return False
    pieces = [piece for kind in (INTRA, INTER) for piece in machine.pieces(kind)]
    costs = [machine.gamma, machine.step, *(int(max(p.alpha, p.beta)) for p in pieces)]
    if machine.network:
        routes = filter(None, chain.from_iterable(machine.network.routes))
        costs += [machine.network.overhead, *(max(r.latency, r.beta) for r in routes)]
    slowdown = machine.unit * max(machine.slow.values(), default=Fraction(1))
    return max(costs) < _LARGEST_COST and slowdown < _LARGEST_SLOWDOWN


def run(
    programs: Sequence[Sequence[Channel]],
    ranks: int,
    sizes: Sizes,
    machine: Machine,
    repeats: int = 1,
) -> Result:
    """What :func:`mpicoll.simulate.clock.clock` finds, many times as fast.

    Args:
        programs: of all ranks, or of those that represent all ``ranks`` (see :mod:`.matching`).
        ranks: number of ranks.
        sizes: how long blocks are.
        machine: the machine, see :func:`available`.
        repeats: how often the segments of the programs are repeated, each time on later segments
            of the vector; ``sizes`` has all of them.

    Raises:
        ScheduleError: something is left over (deadlock, unmatched messages).
    """
    first = programs[0][0] if programs[0] else Channel(())
    segments = first.segments * repeats
    strands, channels = period(*programs), len(programs[0]) // first.segments
    sides = _Sides(sizes)
    for rank, program in enumerate(programs):
        for number, channel in enumerate(program[: channels * strands]):
            sides.add(rank, number, channel.rounds, ranks)
    if not sides.rounds:
        return Result((0,) * len(programs), (0,) * len(programs), 0)
    arrays = {**sides.arrays(len(programs), channels * strands, ranks), **_costs(machine)}
    arrays |= {"shorter": sizes.lengths[0], "more": sizes.lengths[1]}
    arrays["channel"] = arrays["channel"] % channels
    senders, receivers = arrays["sender"], (arrays["sender"] + arrays["distance"]) % ranks
    slowdown = np.array(machine.slowdowns(ranks), "i8")
    arrays |= {
        "rank_slowdown": slowdown,
        "slowdown": np.maximum(slowdown[senders], slowdown[receivers]),
    }
    nodes = np.asarray(machine.nodes) if machine.nodes else np.zeros(ranks, "i8")
    arrays["link"] = nodes[senders] != nodes[receivers]
    if machine.network:
        arrays |= _routes(machine.network, senders, receivers, arrays["pair"])
    numbers = {
        **{"ranks": len(programs), "channels": channels, "ports": machine.ports},
        **{"strands": strands, "links": len(machine.network.links) if machine.network else 0},
        **{"overhead": machine.network.overhead if machine.network else 0},
        **{"segments": segments, "window": first.window, "unit_slowdown": machine.unit},
        **{"step": machine.step, "gamma": machine.gamma, "messages": len(senders)},
        "pairs": int(arrays["pair"].max()) + 1,
    }
    typed = {name: np.ascontiguousarray(values, _TYPES[name]) for name, values in arrays.items()}
    finish, sent, messages, through = _clock.run(numbers, typed)
    left = len(programs) * segments - through
    if left > 0:
        raise ScheduleError(f"{plural(left, 'segment')} never complete")
    return Result(tuple(finish), tuple(sent), messages)


_TYPES = {
    **dict.fromkeys(("first_round", "first_side", "reduced", "reduced_longer"), "i8"),
    **dict.fromkeys(("blocks", "longer", "slowdown", "shorter", "more", "rank_slowdown"), "i8"),
    **dict.fromkeys(("first_piece", "upto", "alpha", "beta"), "i8"),
    **dict.fromkeys(("sides", "sender", "receiver", "position", "distance"), "i4"),
    **dict.fromkeys(("channel", "pair", "link"), "i4"),
    **dict.fromkeys(("latency", "out_beta", "into_beta", "beta_of_pair", "link_beta"), "i8"),
    **dict.fromkeys(("first_link", "link_of_pair", "first_user", "user"), "i4"),
    "receives": "u1",
}


def _costs(machine: Machine) -> dict[str, Array]:
    kinds = [machine.pieces(kind) for kind in (INTRA, INTER)]
    pieces = [piece for kind in kinds for piece in kind]
    return {
        "first_piece": [0, len(kinds[0]), len(pieces)],
        "upto": [_NO_END if piece.upto is None else piece.upto for piece in pieces],
        "alpha": [int(piece.alpha) for piece in pieces],
        "beta": [int(piece.beta) for piece in pieces],
    }


def _routes(network: Network, senders: Array, receivers: Array, pairs: Array) -> dict[str, Array]:
    """The route between each pair of ranks that has messages; who uses each link."""
    first = np.unique(pairs, return_index=True)[1]
    routes = [network.route(int(senders[i]), int(receivers[i])) for i in first]
    links = [link for route in routes for link in route.links]
    users = network.senders
    return {
        "latency": [route.latency for route in routes],
        "out_beta": [route.out for route in routes],
        "into_beta": [route.into for route in routes],
        "beta_of_pair": [route.beta for route in routes],
        "first_link": np.cumsum([0, *(len(route.links) for route in routes)]),
        # One more, as an array without an entry has no address.
        "link_of_pair": [*(number for number, _ in links), 0],
        "link_beta": [*(beta for _, beta in links), 0],
        "first_user": np.cumsum([0, *map(len, users)]),
        "user": [*chain.from_iterable(users), 0],
    }


class _Sides:
    """Both sides of all messages, as they are read.

    Args:
        sizes: how long blocks are.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.counts = sizes.counts
        self.rounds = 0
        #: Of each channel of each rank, so many rounds.
        self.lengths = array("q")
        # Of each side: sender, distance, channel; its round, place in it, blocks, those longer.
        self.sent, self.received = array("q"), array("q")
        self.reduces = array("b")

    def add(self, rank: int, channel: int, rounds: Any, ranks: int) -> None:
        """Read the rounds of a channel."""
        before = self.rounds
        for steps in rounds:
            self.rounds += self._read(rank, channel, steps, ranks)
        self.lengths.append(self.rounds - before)

    def _read(self, rank: int, channel: int, steps: Round, ranks: int) -> bool:
        found = False
        for position, step in enumerate(steps):
            if isinstance(step, Copy):
                continue
            found, peer = True, step.peer
            if peer == rank or not 0 <= peer < ranks:
                raise ScheduleError(f"{step} of rank {rank} has no such peer among {ranks}")
            blocks, longer = self.counts(step.block)
            place = (self.rounds, position, blocks, longer)
            if isinstance(step, Send):
                self.sent.extend((rank, (peer - rank) % ranks, channel, *place))
            else:
                self.received.extend((peer, (rank - peer) % ranks, channel, *place))
                self.reduces.append(isinstance(step, RecvReduce))
        return found

    def arrays(self, count: int, channels: int, ranks: int) -> dict[str, Array]:
        """Messages, and the rounds that they are in.

        Raises:
            ScheduleError: a message has one side only, or its sides differ in length.
        """
        sent = np.frombuffer(self.sent, "i8").reshape(-1, 7)
        received = np.frombuffer(self.received, "i8").reshape(-1, 7)
        # Of the ranks that one represents, the number does not matter, and neither does the order.
        keys = [
            ((side[:, 0] % count) * ranks + side[:, 1]) * channels + side[:, 2]
            for side in (sent, received)
        ]
        orders = [np.argsort(key, kind="stable") for key in keys]
        if len(sent) != len(received) or np.any(keys[0][orders[0]] != keys[1][orders[1]]):
            raise ScheduleError("some messages are sent and not received, or the reverse")
        send, receive = (side[order] for side, order in zip((sent, received), orders, strict=True))
        if np.any(send[:, 5] != receive[:, 5]):
            raise ScheduleError("a rank sends other blocks than its peer expects")
        receiver = (send[:, 0] + send[:, 1]) % count
        rounds = np.concatenate([send[:, 3], receive[:, 3]])
        order = np.argsort(rounds, kind="stable")
        reduces = np.frombuffer(self.reduces, "b")[orders[1]].astype(bool)
        folded = receive[reduces]
        return {
            "first_round": np.concatenate([[0], np.cumsum(self.lengths)]),
            "first_side": np.searchsorted(rounds[order], np.arange(self.rounds + 1)),
            "sides": order % len(send),
            "receives": np.bincount(receive[:, 3], minlength=self.rounds) > 0,
            "reduced": np.bincount(folded[:, 3], folded[:, 5], self.rounds),
            "reduced_longer": np.bincount(folded[:, 3], folded[:, 6], self.rounds),
            "sender": send[:, 0],
            "receiver": receiver,
            "distance": send[:, 1],
            "channel": send[:, 2],
            "position": send[:, 4],
            "blocks": send[:, 5],
            "longer": send[:, 6],
            "pair": np.unique(send[:, 0] * count + receiver, return_inverse=True)[1],
        }
