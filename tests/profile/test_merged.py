"""Files of several ranks put together: clocks that differ, files that are torn or missing."""

import json

import pytest
from profile_lines import line

from mpicoll.base.sizes import about_size
from mpicoll.profile import merged, replay, words

HOSTS = ("h0", "h1")
#: Nanoseconds that the clock of a host is ahead of rank 0's.
AHEAD = (0, 7_000_000_000)


def records(rank, hosts=HOSTS, ended=True):
    """What a rank writes that calls an all-reduce three times; rank 0 is there first, by 1 ms."""
    start = 10**9 + AHEAD[rank]
    own = {"run": "r", "attempt": 1}
    facts = {"rank": rank, "ranks": 2, "host": hosts[rank], "command": ["a/app.py", "-x"]}
    facts |= {"start": start, "clock": [start, AHEAD[rank]], "cost": 1e-6, "mpi": "Some MPI"}
    yield {"record": "rank", **facts, "through_mpicoll": False, **own}
    about = {"number": 0, "kind": "COMM_WORLD", "ranks": "0-1", "alike": 0, "rank": rank}
    yield {"record": "communicator", **about, "inter": False, "matched": True, **own}
    late = 1_000_000 * rank
    times = [[n, 1, 10**7 * n + late, 10**7 * n + late, 10**7 * n + 1_500_000] for n in range(3)]
    yield {"record": "calls", "communicator": 0, "times": times, **own}
    what = {"communicator": 0, "method": "Allreduce", "collective": "allreduce", "size": 64}
    place = {"file": "/home/me/app.py", "line": 7, "function": "main", "root": -1, "op": "sum"}
    row = {**what, **place, "type": "float64", "algorithm": "native"}
    seconds = 0.0045 - 0.003 * rank
    for calls in (1, 3):
        counted = {"calls": calls, "seconds": seconds, "nbytes": 64 * calls}
        yield {"record": "row", "number": 1, **row, **counted, **own}
    sent = {"method": "point-to-point", "algorithm": "", "calls": 4, "seconds": 0.001}
    yield {"record": "row", "number": 0, **sent, "nbytes": 80, **own}
    yield {"record": "now", "seconds": 0.04, **own}
    if ended:
        end = {"seconds": 0.05, "clock": [start + 5 * 10**7, AHEAD[rank]], "unseen": ["libp.so"]}
        yield {"record": "end", **end, **own}


@pytest.fixture
def folder(tmp_path):
    """Writes the files of some ranks."""

    def write(ranks=(0, 1), tail="", **more):
        for rank in ranks:
            lines = map(json.dumps, records(rank, **more))
            (tmp_path / f"calls-{rank}.jsonl").write_text("\n".join(lines) + "\n" + tail)
        return tmp_path

    return write


@pytest.mark.parametrize("hosts", [HOSTS, ("h0", "h0")])
def test_waiting_is_told_by_one_clock(folder, hosts):
    profile = merged.read(folder(hosts=hosts))
    (line,) = profile.lines
    assert (line.calls, line.seconds, line.matched, line.communicator) == (
        3,
        pytest.approx(0.006),
        3,
        "world",
    )
    if hosts == HOSTS:  # else the same times are of one clock, seven seconds apart
        assert line.parts[0].waiting == pytest.approx(0.003)
        assert line.parts[1].waiting == 0
        assert line.transfer == pytest.approx(0.003)
    assert line.share == pytest.approx(0.06) and profile.messages[1].nbytes == 80
    assert profile.ended == {0, 1} and profile.unseen == ["libp.so"]
    assert profile.recorded == 14 and profile.overhead == pytest.approx(14e-6 / 0.1)


def test_a_run_that_was_killed(folder):
    with pytest.warns(UserWarning, match=r"calls-\d.jsonl, line 8 dropped: not complete JSON"):
        profile = merged.read(folder(ended=False, tail='{"record": "row", "num'))
    assert profile.ended == frozenset() and profile.seconds == {0: 0.04, 1: 0.04}
    assert "ranks 0-1 did not end normally" in " ".join(words.warnings(profile))


def test_a_rank_without_a_file_is_said_and_nobody_waited_that_is_known(folder):
    profile = merged.read(folder(ranks=(0,)))
    assert profile.lines[0].waiting is None and profile.lines[0].transfer == 0.0045
    assert "no file of rank 1: is the folder one that all nodes see?" in [*words.warnings(profile)]


def test_records_that_are_none_are_dropped(folder):
    with pytest.warns(UserWarning, match="a record 'now' without seconds"):
        assert len(merged.read(folder(tail='{"record": "now"}\n')).lines) == 1


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "calls-0.jsonl").write_text("")
    with pytest.raises(ValueError, match="does not begin as the file of a profile does"):
        merged.read(tmp_path)
    with pytest.raises(ValueError, match=r"has no calls-0\.jsonl; name the folder"):
        merged.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("about", "asked"),
    [
        ({}, ("allreduce", 4, 64, "float64", "max", 0)),
        ({"op": ""}, ("allreduce", 4, 64, "float64", "sum", 0)),
        ({"method": "Iallreduce"}, ("allreduce", 4, 64, "float64", "max", 0)),
        (
            {"method": "Bcast_init", "root": 2, "type": "cf16"},
            ("bcast", 4, 64, "uint8", "sum", 2),
        ),
        ({"method": "Gatherv", "size": -1, "root": 1}, ("gatherv", 4, 256, "float64", "sum", 1)),
        ({"method": "Alltoallw", "size": -1}, ("alltoallw", 4, 64, "float64", "sum", 0)),
        ({"method": "allreduce", "size": -1}, "objects, which are pickled: with arrays Allreduce"),
        (
            {"method": "Ineighbor_alltoall", "size": -1},
            "of neighbours: the MPI library's own alone",
        ),
        ({"ranks": 1}, "one rank alone"),
        ({"inter": True}, "of an intercommunicator: the library's own"),
        ({"size": 0}, "no bytes"),
        ({"op": "other"}, "an operator that is not measured"),
        ({"type": "complex128"}, "elements of type complex128, which are not measured"),
    ],
)
def test_what_is_measured_for_a_line(about, asked):
    found = replay.question(line(**about))
    assert found == asked if isinstance(asked, tuple) else found.startswith(asked)


def test_sizes_in_few_letters():
    assert (words.size(line(size=65536)), words.size(line(size=-1))) == ("64K", "~64")
    assert about_size(1234567) == "1.18M"
