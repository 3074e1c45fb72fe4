"""Which numbers of segments the built-in table may take on several nodes, by simulation.

    python benchmarks/built_in_segments.py

Costs within a node are those that come with mpicoll, and links between nodes those of the networks
known by name.  For each size and number of segments of the hierarchical all-reduce: its time over
that with one segment, at best and at worst of all networks and shapes.  The table takes the number
that gains most at worst; where none gains everywhere, one.
"""

from __future__ import annotations

from functools import cache
from itertools import product

from mpicoll.base.sizes import format_size
from mpicoll.simulate.costs import CostModel
from mpicoll.simulate.known_networks import NETWORKS
from mpicoll.tuning import Choice, check, cost_files, predict

SIZES = tuple(1 << k for k in range(16, 27, 2))
SEGMENTS = (1, 2, 4, 8, 16)
#: Ranks, and ranks of a node.
SHAPES = ((8, 4), (16, 4), (32, 8), (64, 8))
COLLECTIVE, ALGORITHM = "allreduce", "hierarchical"


@cache
def _costs() -> CostModel:
    return cost_files.built_in()


@cache
def seconds(network: str, shape: tuple[int, int], nbytes: int, segments: int) -> float:
    """Time of a call."""
    ranks, per_node = shape
    between = NETWORKS[network]
    model = _costs().between_nodes(between.alpha, between.beta)
    choice = Choice(ALGORITHM, check(COLLECTIVE, ALGORITHM, {"segments": segments}))
    nodes = tuple(rank // per_node for rank in range(ranks))
    return predict.estimate(model, COLLECTIVE, choice, ranks, nbytes, nodes)


def ratios(nbytes: int, segments: int) -> list[float]:
    """Times over those with one segment, of all networks and shapes."""
    cases = list(product(NETWORKS, SHAPES))
    return [seconds(*case, nbytes, segments) / seconds(*case, nbytes, 1) for case in cases]


def main() -> None:
    for nbytes in SIZES:
        found = {segments: ratios(nbytes, segments) for segments in SEGMENTS}
        best = min(found, key=lambda segments: max(found[segments]))
        told = "  ".join(f"{k}: {min(r):.2f} .. {max(r):.2f}" for k, r in found.items())
        print(f"{format_size(nbytes):>5}  {told}  takes {best}", flush=True)


if __name__ == "__main__":
    main()
