"""The algorithms, one module per family.

Importing this package fills the catalogue.
"""

from mpicoll.algorithms import (
    binomial,
    bruck,
    chain,
    combined,
    dissemination,
    double_tree,
    hierarchical,
    hierarchical_blocks,
    in_order_tree,
    linear,
    neighbor_exchange,
    pairwise,
    parameter_server,
    recursive,
    ring,
    scan,
    swing,
)
from mpicoll.registry import catalogue, find, names, of_a_user

__all__ = [
    "binomial",
    "bruck",
    "catalogue",
    "chain",
    "combined",
    "dissemination",
    "double_tree",
    "find",
    "hierarchical",
    "hierarchical_blocks",
    "in_order_tree",
    "linear",
    "names",
    "neighbor_exchange",
    "of_a_user",
    "pairwise",
    "parameter_server",
    "recursive",
    "ring",
    "scan",
    "swing",
]
