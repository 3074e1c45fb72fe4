"""The first process of an emulated cluster: it makes the hosts, and is the switch between them.

``switch.py HOSTS DELAY RATE [FOLDER...]`` runs as the first process of namespaces of its own
(processes, mounts, network), see ``hosts.py``.  Host k is a network and a host name, bound to
``/mnt/hk.net`` and ``/mnt/hk.uts``, with the address 10.77.0.k on ``eth0``, and the mounts of the
process whose number is in ``/mnt/hk.pid``.  All hosts share ``/mnt``; where folders are named, each
has a ``/tmp`` and a ``/dev/shm`` of its own, with those of the machine's ``/tmp`` to read.
All of it, files and processes too, ends with this process, however that ends.  RATE is that of
every host, or of each, separated by commas.

A frame of n bytes occupies the port that it leaves by and the port that it comes in by for n / RATE
seconds, both ways at the same time, and arrives DELAY seconds later; frames wait for busy ports in
the order they come.  So a link has the alpha and beta of the textbook, and TCP, whose windows are
opened wide, adds nothing of its own.  ``tc`` would not do: tbf lets bursts pass unshaped and does
not limit what a host receives from several others; netem, which delays, is not in every kernel.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import heapq
import os
import select
import shlex
import signal
import struct
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

MTU = 9000
_FRAME = MTU + 14  # bytes, with the Ethernet header
_PREAMBLE = 24  # bytes that a frame takes on the wire besides: preamble, check sum and gap
_CLONE_NEWNET, _TUNSETIFF = 0x40000000, 0x400454CA
_TAP = 0x0002 | 0x1000  # IFF_TAP, IFF_NO_PI
_BURST = 32  # frames read from a host before the others have their turn

#: Of each host: windows larger than what is under way, whether a connection is new or was silent.
SETTINGS = {
    "net.ipv4.tcp_rmem": "4096 6291456 6291456",
    "net.ipv4.tcp_wmem": "4096 4194304 4194304",
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
}
ROUTE = ("initcwnd", "500", "initrwnd", "500", "quickack", "1")


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def on(host: str, *words: str) -> None:
    """Run a command in the network of a host."""
    run("nsenter", f"--net=/mnt/{host}.net", f"--uts=/mnt/{host}.uts", *words)


def separate(host: str, kept: list[str]) -> None:
    """Give a host mounts of its own; with ``kept``, a /tmp with those folders alone, to read.

    A process that sleeps holds them: some kernels refuse now and then to bind them to a file.
    """
    own = ["true"]
    if kept:
        own = ["mount -t tmpfs -o mode=1777 host /dev/shm", "mount -t tmpfs -o mode=1777 host /srv"]
        for folder in kept:
            if Path(folder).is_relative_to("/tmp"):
                there = shlex.quote(f"/srv/{Path(folder).relative_to('/tmp')}")
                # Nothing that a host does to its /tmp may reach the machine's.
                own += [f"mkdir -p {there}", f"mount --bind -o ro {shlex.quote(folder)} {there}"]
        own += ["mount --rbind /srv /tmp", "umount -l /srv"]
    hold = f"{{ sleep infinity >/dev/null & echo $! >/mnt/{host}.pid; }}"
    run("unshare", "--mount", "sh", "-c", " && ".join([*own, hold]))


def mounts(hosts: list[str]) -> None:
    """What the cluster has of its own in the file system."""
    for folder in ("/mnt", "/dev/shm"):
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "cluster", folder)
    for folder in ("/mnt/tmp", "/mnt/shared"):
        Path(folder).mkdir()
    lines = ["127.0.0.1 localhost", *(f"{address(k)} {host}" for k, host in enumerate(hosts))]
    Path("/mnt/hosts").write_text("\n".join(lines) + "\n")
    run("mount", "--bind", "/mnt/hosts", "/etc/hosts")
    run(
        "cc", "-shared", "-fPIC", "-O2", "-o", "/mnt/nap.so", str(Path(__file__).with_name("nap.c"))
    )


def address(index: int) -> str:
    return f"10.77.0.{index + 1}"


def attach(host: str) -> int:
    """Make ``eth0`` of a host; the end of the cable that is in the switch."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/mnt/{host}.net", os.O_RDONLY)
    try:
        for namespace in (there, here):
            if libc.setns(namespace, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the network of {host}")
            if namespace == there:
                cable = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(cable, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _TAP))
    finally:
        os.close(here)
        os.close(there)
    return cable


def make(host: str, index: int) -> int:
    """Make a host; returns its cable."""
    for kind in ("net", "uts"):
        Path(f"/mnt/{host}.{kind}").touch()
    run("unshare", f"--net=/mnt/{host}.net", f"--uts=/mnt/{host}.uts", "hostname", host)
    cable = attach(host)
    on(host, "sysctl", "-qw", *(f"{name}={value}" for name, value in SETTINGS.items()))
    on(host, "ip", "addr", "add", f"{address(index)}/24", "dev", "eth0")
    on(host, "ip", "link", "set", "lo", "up")
    on(host, "ip", "link", "set", "eth0", "mtu", str(MTU), "txqueuelen", "10000", "up")
    on(host, "ip", "route", "change", "10.77.0.0/24", "dev", "eth0", *ROUTE)
    return cable


class Event(NamedTuple):
    """A frame that leaves a host, or that arrives at one."""

    moment: float
    order: int
    leaves: bool
    target: int
    frame: bytes


class Switch:
    """Forwards frames between cables.

    Args:
        cables: file descriptors.
        delay: seconds.
        rates: bit/s of the port of each, each way.
    """

    def __init__(self, cables: list[int], delay: float, rates: list[float]) -> None:
        self.cables = cables
        self.delay = delay
        self.per_byte = {cable: 8 / rate for cable, rate in zip(cables, rates, strict=True)}
        self.sends = dict.fromkeys(cables, 0.0)  # until when a host's port is busy
        self.receives = dict.fromkeys(cables, 0.0)
        self.known: dict[bytes, int] = {}  # cable by hardware address
        self.events: list[Event] = []
        self.order = count()

    def lasts(self, frame: bytes, cable: int) -> float:
        """Seconds that a frame occupies a port."""
        return (len(frame) + _PREAMBLE) * self.per_byte[cable]

    def put(self, moment: float, leaves: bool, target: int, frame: bytes) -> None:
        heapq.heappush(self.events, Event(moment, next(self.order), leaves, target, frame))

    def take(self, source: int, now: float) -> None:
        """Read what a host has sent and say when it leaves."""
        for _ in range(_BURST):
            try:
                frame = os.read(source, _FRAME)
            except OSError:  # nothing more
                return
            self.known[frame[6:12]] = source
            target = self.known.get(frame[:6])
            targets = [c for c in self.cables if c != source] if target is None else [target]
            start = max(self.sends[source], now)
            self.sends[source] = start + self.lasts(frame, source)
            for cable in targets:
                self.put(start, True, cable, frame)

    def deliver(self) -> float | None:
        """Do what is due; seconds until something is, None if nothing is under way.

        The port of a receiver serves frames in the order in which they leave, not in the order in
        which they were read.
        """
        while self.events:
            left = self.events[0].moment - time.monotonic()
            if left > 0:
                return left
            moment, _, leaves, target, frame = heapq.heappop(self.events)
            if leaves:
                begun = max(self.receives[target], moment)
                self.receives[target] = begun + self.lasts(frame, target)
                self.put(self.receives[target] + self.delay, False, target, frame)
                continue
            try:
                os.write(target, frame)
            except OSError as error:  # as if the wire had lost it
                if error.errno != errno.EIO:  # a link that was cut loses everything
                    print(f"switch: lost a frame: {error}", file=sys.stderr, flush=True)
        return None

    def forever(self) -> None:
        while True:
            ready, _, _ = select.select(self.cables, (), (), self.deliver())
            now = time.monotonic()
            for cable in ready:
                self.take(cable, now)


def main() -> None:
    number, delay, rates = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].split(",")
    hosts = [f"h{k + 1}" for k in range(number)]
    mounts(hosts)
    cables = [make(host, index) for index, host in enumerate(hosts)]
    for host in hosts:
        separate(host, sys.argv[4:])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the first process inherits orphans: forget them
    # A switch is never busy with something else.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    print("ready", flush=True)
    every = [float(rate) for rate in rates * (number if len(rates) == 1 else 1)]
    Switch(cables, delay, every).forever()


if __name__ == "__main__":
    main()
