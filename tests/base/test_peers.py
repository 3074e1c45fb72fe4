"""Processes of this host that end: MPI is told of each, once."""

import subprocess
import sys

import pytest

from mpicoll.base import peers


@pytest.fixture
def told(monkeypatch):
    """Of which processes MPI has been told; this process is one that a launcher has started."""
    monkeypatch.setenv("PMIX_NAMESPACE", "job@1")
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setattr(peers, "_watched", {})
    monkeypatch.setattr(peers, "_known", set())
    found = []
    monkeypatch.setattr(peers, "_tell", found.append)
    return found


def start(code):
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    return process, peers.own()._replace(pid=process.pid, rank=1)


def test_an_end_is_told_once_whatever_the_status(told):
    process, peer = start("import os; input(); os._exit(3)")
    peers.watch([peers.own(), peer, None])
    peers.watch([peer])
    peers.report()
    assert told == []
    process.communicate(b"\n")
    peers.report()
    peers.report()
    assert told == [peer] and not peers._watched


def test_who_has_ended_before_is_told_of_at_once(told):
    process, peer = start("")
    process.communicate()
    peers.watch([peer])
    assert told == [peer]


def test_processes_of_other_hosts_are_not_looked_at(told):
    process, peer = start("input()")
    peers.watch([peer._replace(host="another")])
    process.communicate(b"\n")
    peers.report()
    assert told == []


def test_nobody_is_looked_at_where_the_launcher_has_no_pmix(told, monkeypatch):
    monkeypatch.delenv("PMIX_NAMESPACE")
    assert peers.own() is None
    peers.watch([peers.Peer(peers.host(), 1, "job@1", 1)])
    assert not peers._watched
