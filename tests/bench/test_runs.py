"""Files of several runs: put together where they are of one machine, and counted once."""

from dataclasses import replace

import pytest
from points import POINT, write

from mpicoll.bench import records, runs

HERE = {"mpi": "Open MPI v5.0.8, of a day", "processor": "X", "cpus": 2}
HERE["hosts"] = {"node7.site": {}, "node8.site": {}}


def test_launches_of_one_machine_come_together(tmp_path):
    write(tmp_path / "a", [POINT], facts=HERE)
    # Another node of the cluster, and a file of a version that knew less.
    other = {**HERE, "hosts": {"node12.site": {}}}
    write(tmp_path / "b", [replace(POINT, run="s", launch=1)], name="s", facts=other)
    write(tmp_path / "c", [replace(POINT, run="t")], name="t", facts={"mpi": HERE["mpi"]})
    found = runs.load([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    assert [run.name for run in found] == ["r", "s", "t"]
    assert [point.launch for run in found for point in run.points] == [0, 1, 0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"mpi": "MPICH 5.0, of a day"}, "MPI library 'Open MPI v5.0.8' and 'MPICH 5.0'"),
        ({"processor": "Y"}, "processor 'X' and 'Y'"),
        ({"cpus": 64}, "cores of a host '2' and '64'"),
        ({"hosts": {"desk": {}}}, "hosts 'node#.site' and 'desk'"),
        ({"hosts": {"node7.site": {}, "gpu1": {}}}, "hosts 'node#.site' and 'gpu#, node#.site'"),
    ],
)
def test_different_machines_must_be_wanted(tmp_path, changed, said):
    write(tmp_path / "a", [POINT], facts=HERE)
    write(tmp_path / "b", [replace(POINT, run="s")], name="s", facts={**HERE, **changed})
    with pytest.raises(ValueError, match=said):
        runs.load([tmp_path / "a", tmp_path / "b"])
    assert len(runs.load([tmp_path / "a", tmp_path / "b"], mix=True)) == 2


def test_containers_without_names_are_of_one_machine():
    one, other = ({"hosts": {name: {}}} for name in ("3f2a9c1b4d5e", "00bd77a31c2f"))
    assert runs.differences(one, other) == []


def test_a_run_is_counted_once(tmp_path):
    write(tmp_path / "a", [POINT])
    with pytest.raises(ValueError, match=r"run r is in .*; name each once"):
        runs.load([tmp_path / "a", tmp_path / "a"])


def test_points_of_an_unknown_machine_must_be_wanted(tmp_path):
    write(tmp_path / "a", [POINT], facts=HERE)
    lines = (tmp_path / "a").read_text().splitlines(keepends=True)
    (tmp_path / "torn").write_text("".join(line for line in lines if '"record":"run"' not in line))
    with pytest.raises(ValueError, match="torn has points of run r, and not the line before them"):
        runs.load([tmp_path / "torn"])
    assert len(runs.load([tmp_path / "torn"], mix=True)) == 1


def test_no_files():
    with pytest.raises(ValueError, match="no file is given"):
        runs.load([])


def test_a_point_of_an_earlier_version_is_read():
    line = POINT.as_dict()
    for name in records._ADDED:
        del line[name]
    assert records.Point.from_dict(line) == POINT
