"""Processes of this host that end, and of which the launcher may not tell MPI.

Open MPI's launcher tells of a process that a signal has ended, or that has ended with status 0; not
of one that has ended with another status, by ``os._exit(1)`` or in a library's code, nor of one
that a shell script runs.  The system knows of all of them: a file descriptor of a process (pidfd,
Linux 5.3) is readable once it has ended.  Who sees that tells MPI on all ranks, by the function of
the PMIx standard by which the launcher tells, too.
"""

from __future__ import annotations

import ctypes
import os
import select
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from mpicoll.base.libraries import loaded

#: Of the PMIx standard: PMIX_ERR_PROC_ABORTED, PMIX_RANGE_NAMESPACE, PMIX_PROC and
#: PMIX_EVENT_AFFECTED_PROC.
_ABORTED, _NAMESPACE, _PROC, _AFFECTED = -7, 3, 22, b"pmix.evproc"


class Peer(NamedTuple):
    """A process, as others on its host find it.

    Attributes:
        host: as of :func:`host`.
        pid: its number there.
        namespace, rank: its names for the launcher.
    """

    host: str
    pid: int
    namespace: str
    rank: int


class _Proc(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = (("namespace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Value(ctypes.Structure):
    """``pmix_value_t``, whose union has at most 24 bytes."""

    _fields_ = (
        ("type", ctypes.c_uint16),
        ("proc", ctypes.POINTER(_Proc)),
        ("rest", ctypes.c_uint64 * 2),
    )


class _Info(ctypes.Structure):
    """``pmix_info_t``."""

    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


_lock = threading.Lock()
#: Processes that are looked at, by their file descriptors; those of one host, each once.
_watched: dict[int, Peer] = {}
_known: set[Peer] = set()


def host() -> str:
    """A name of this operating system's run, and of the namespace of its processes; "" if there is
    none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def own() -> Peer | None:
    """This process; None where nobody could tell of its end."""
    namespace, rank = os.environ.get("PMIX_NAMESPACE", ""), os.environ.get("PMIX_RANK", "")
    where = host()
    if not (where and namespace and rank.isdecimal() and hasattr(os, "pidfd_open")):
        return None
    return Peer(where, os.getpid(), namespace, int(rank))


def watch(peers: Iterable[Peer | None]) -> None:
    """Look at the processes among these that are on this host, from now on."""
    mine = own()
    if mine is None:
        return
    with _lock:
        for peer in peers:
            if peer is None or peer.host != mine.host or peer == mine or peer in _known:
                continue
            _known.add(peer)
            try:
                descriptor = os.pidfd_open(peer.pid)
            except ProcessLookupError:
                _tell(peer)
            except OSError:  # not allowed here, as in some containers
                return
            else:
                _watched[descriptor] = peer
                _ends().register(descriptor, select.EPOLLIN)


def report() -> None:
    """Tell MPI of the processes that have ended since the last time."""
    if not _watched:
        return
    with _lock:
        for descriptor, _ in _ends().poll(0):
            _ends().unregister(descriptor)
            os.close(descriptor)
            _tell(_watched.pop(descriptor))


@cache
def _ends() -> select.epoll:
    return select.epoll()


@cache
def _library() -> ctypes.CDLL | None:
    """The PMIx library that MPI uses."""
    for path in loaded(r"libpmix\.so"):
        with suppress(OSError):
            return ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_LAZY)
    return None


def _tell(peer: Peer) -> None:
    """Tell MPI, on all ranks of the job, that a process has ended; more than one may do so."""
    library = _library()
    if library is None:
        return
    proc = _Proc(peer.namespace.encode(), peer.rank)
    about = _Info(_AFFECTED, 0, _Value(_PROC, ctypes.pointer(proc)))
    library.PMIx_Notify_event(
        ctypes.c_int(_ABORTED),
        ctypes.byref(proc),
        ctypes.c_uint8(_NAMESPACE),
        ctypes.byref(about),
        ctypes.c_size_t(1),
        None,
        None,
    )
