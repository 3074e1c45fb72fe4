"""The table of networks that are known by name, with their sources."""

from __future__ import annotations

from tables import list_table

from mpicoll.simulate.known_networks import NETWORKS


def pages() -> dict[str, str]:
    """Text by name of the file that other pages include."""
    rows = [
        [f"``{name}``", f"{1e6 * n.alpha:.3g}", f"{1e12 * n.beta:.3g}", n.source]
        for name, n in NETWORKS.items()
    ]
    heads = ["name", "alpha [µs]", "beta [ps/byte]", "source"]
    return {"networks.inc": "\n".join(list_table(heads, rows))}
