"""Reads a shard's trace again, and says where it breaks the consistency model.

Independent of mpicoll.train.servers.shard: it knows the rules and the trace alone.
"""

from collections import defaultdict


def violations(events, workers, high, low=0):
    """What is wrong with a trace.

    Args:
        events: Entries with kind, worker, clock and bound (None for no bound), in order.
        workers: Number of workers.
        high: Largest bound allowed, None for none.
        low: Least bound allowed.
    """
    clocks = dict.fromkeys(range(workers), 0)
    active = set(clocks)
    good = {}  # last clock for which what a worker was sent unasked is good
    for place, event in enumerate(events):
        kind, worker, clock = event["kind"], event["worker"], event["clock"]
        if kind == "leave":
            active.discard(worker)
            if not active:  # the end of an epoch: all start again
                active = set(clocks)
            continue
        if kind == "send":
            good[worker] = max(good.get(worker, clock), clock)
        elif clock != clocks[worker]:
            yield f"{place}: {kind} of worker {worker} at clock {clock}, it is at {clocks[worker]}"
        if kind == "push":
            clocks[worker] += 1
            if clock > good.get(worker, clock):
                yield f"{place}: push of worker {worker} at clock {clock}, good was {good[worker]}"
            continue
        bound = event["bound"]
        if high is not None and not low <= bound <= high:
            yield f"{place}: bound {bound} is not in {low} .. {high}"
        behind = [other for other in active if clock - clocks[other] > (bound or 0)]
        if bound is not None and behind:
            yield f"{place}: pull of worker {worker} at clock {clock} misses {behind} by {bound}"


def starved(events, high, at_least):
    """Windows of high + at_least + 1 steps of a worker in which one not ahead made too few."""
    window = high + at_least + 1
    pushes = [event for event in events if event["kind"] == "push"]
    places = defaultdict(list)
    for place, event in enumerate(pushes):
        places[event["worker"]].append(place)
    for fast, own in places.items():
        for first, last in zip(own, own[window - 1 :], strict=False):
            for slow, theirs in places.items():
                before = sum(place < first for place in theirs)
                made = sum(first < place < last for place in theirs)
                if slow != fast and before <= pushes[first]["clock"] and made < at_least:
                    yield fast, slow, pushes[first]["clock"]
