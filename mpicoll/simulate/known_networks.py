"""Networks by name, for what cannot be measured yet: published latencies and rates, with sources.

They are examples, not promises: the latency of a network depends on the MPI library, the processors
and the distance, and these are of two hosts near each other.  Measure your own by ``mpicoll bench``
on two nodes, and fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class KnownNetwork(NamedTuple):
    """Links between nodes.

    Attributes:
        alpha: seconds of a short message, half of a round trip.
        beta: seconds a byte, of long messages.
        source: where the two numbers come from.
    """

    alpha: float
    beta: float
    source: str


def _gigabits(rate: float) -> float:
    return 8e-9 / rate


NETWORKS: Mapping[str, KnownNetwork] = {
    "10GbE": KnownNetwork(
        46e-6,
        _gigabits(9.5),
        "TCP between virtual machines (EC2 c3.8xlarge, enhanced networking): round trips of 92 us "
        "and more, over 95 % of 10 Gb/s; Scalable Logic blog, January 2014",
    ),
    "25GbE": KnownNetwork(
        46e-6,
        _gigabits(23.75),
        "latency of TCP as for 10GbE, since most of it is the hosts'; 95 % of the 25 Gb/s of "
        "IEEE Std 802.3by-2016",
    ),
    "40GbE-usNIC": KnownNetwork(
        1.93e-6,
        _gigabits(37.23),
        "NetPIPE with Open MPI 1.8.1 past the operating system (Cisco usNIC), back to back: "
        "1.93 us, 37.23 Gb/s; J. Squyres, Cisco blog, 2014",
    ),
    "56G-IB": KnownNetwork(
        1.60e-6,
        (48.82e-6 - 1.60e-6) / (1 << 18),
        "IMB PingPong with MVAPICH2, ConnectX-3: 1.60 us for 8 bytes, 48.82 us for 256 KiB; "
        "OpenHPC issue 207, April 2016",
    ),
    "100G-IB": KnownNetwork(
        1.0e-6,
        _gigabits(100),
        "EDR as vendors state it, below 1 us and 100 Gb/s; D. K. Panda, MVAPICH2 project, SC 2018",
    ),
    "200G-IB": KnownNetwork(
        1.61e-6,
        1 / 23477e6,
        "HDR, OSU benchmarks with HPC-X (Azure HBv2): 1.61 us for 8 bytes, 23,477 MB/s; Microsoft "
        "Tech Community, November 2019",
    ),
    "400G-IB": KnownNetwork(
        2.0e-6,
        _gigabits(400),
        "NDR (Azure HBv4): below 2 us for a byte, 400 Gb/s; Microsoft, HBv4-series performance, "
        "May 2023",
    ),
}


def find(name: str) -> KnownNetwork:
    """A network by its name, in capitals or not.

    Raises:
        ValueError: there is none; the message names those there are.
    """
    for known, network in NETWORKS.items():
        if known.lower() == name.lower():
            return network
    raise ValueError(f"unknown network {name!r}: known are {', '.join(NETWORKS)}")
