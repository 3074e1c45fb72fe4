"""Machines on which schedules are made, as machine files."""

from __future__ import annotations

from mpicoll.files import machine_files

HEAD = 'mpicoll = "machine 1"\nranks = {}\nports = {}\n'
INSIDE = 'inside = { latency = "1us", beta = "100ps" }'


def links(ends, beta, latency="0.7us"):
    return "".join(
        f'[[link]]\nbetween = [{a}, {b}]\nlatency = "{latency}"\nbeta = "{beta}ps"\n'
        for a, b in ends
    )


def hosts(lengths, betas, intos=None):
    """Hosts of so many ranks, with adapters of so many picoseconds a byte."""
    text, first = HEAD.format(sum(lengths), 1), 0
    for number, length in enumerate(lengths):
        into = f', into = "{intos[number]}ps"' if intos else ""
        text += f'[[host]]\nranks = "{first}-{first + length - 1}"\n{INSIDE}\n'
        text += f'nic = {{ latency = "2.5us", beta = "{betas[number]}ps"{into}, to = "core" }}\n'
        first += length
    return text


def cube_mesh():
    """Eight GPUs of six links each in a hybrid cube mesh, double and single; all else by PCIe."""
    double = [(0, 3), (1, 2), (4, 7), (5, 6), (0, 4), (1, 5), (2, 3), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (4, 5), (4, 6), (5, 7), (2, 6), (3, 7)]
    bus = [(rank, f'"pcie {rank // 4}"') for rank in range(8)] + [('"pcie 0"', '"pcie 1"')]
    return HEAD.format(8, 6) + links(double, 20) + links(single, 40) + links(bus, 80, "1us")


def broken_ring():
    """Eight ranks in a ring of double links, of which one is missing and one is single."""
    double = [(r, r + 1) for r in range(7) if r != 3]
    return HEAD.format(8, 4) + links(double, 20) + links([(3, 4)], 40)


def wide_area():
    """Six sites, every link with other costs each way."""
    text = HEAD.format(6, 8)
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4)]
    for number, (a, b) in enumerate(pairs):
        for turn, (s, r) in enumerate(((a, b), (b, a))):
            beta = 60 + 70 * ((3 * number + 5 * turn) % 5)
            latency = 8 + 3 * ((number + turn) % 4)
            text += f'[[link]]\nfrom = {s}\nto = {r}\nlatency = "{latency}us"\nbeta = "{beta}ps"\n'
    return text


def leaves():
    """Sixteen ranks below four leaf switches, whose uplinks carry what one rank sends."""
    text = HEAD.format(16, 1)
    for leaf in range(4):
        members = range(4 * leaf, 4 * leaf + 4)
        text += links([(r, f'"leaf {leaf}"') for r in members], 100, "0.5us")
        text += links([(f'"leaf {leaf}"', '"core"')], 100, "0.5us")
    return text


TEXTS = {
    "uniform": HEAD.format(8, 1) + f'[[host]]\nranks = "0-7"\n{INSIDE}\n',
    "slow host": hosts([4] * 4, [100, 100, 100, 400]),
    "4 + 2 + 1": hosts([4, 2, 1], [400] * 3),
    "slow adapter": hosts([4, 4], [100, 400]),
    "slow down-link": hosts([4, 4], [100, 100], [100, 400]),
    "fat tree": leaves(),
    "cube mesh": cube_mesh(),
    "broken ring": broken_ring(),
    "wide area": wide_area(),
}

#: By name, in attoseconds.
MACHINES = {name: machine_files.parse(text) for name, text in TEXTS.items()}
