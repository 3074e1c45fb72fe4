"""The tables of a sweep: right numbers."""

import csv
import io
from dataclasses import replace

import pytest

from mpicoll.bench import osu, table
from mpicoll.bench.records import Point

POINT = Point(
    run="r",
    collective="allreduce",
    algorithm="ring",
    size=1 << 20,
    count=1 << 18,
    type="float32",
    redop="sum",
    root=-1,
    ranks=4,
    batch=1,
    times=tuple(i * 1e-4 for i in range(1, 10)),
    slowest=(0,) * 9,
    first=1e-3,
    wrong=0,
    problem=None,
    stop="interval",
    oversubscribed=False,
)
FACTS = {
    "ranks": 4,
    "hosts": {"node<1>": {"ranks": [0, 1, 2, 3], "cores": [0, 1]}},
    "binding": [[0, 1]] * 4,
    "oversubscribed": ["node<1>"],
    "mpi": "Some MPI 1.0, of today",
    "settings": {"seed": 7},
    "environment": {"OMP_NUM_THREADS": "1"},
}


def cells(point):
    return dict(zip([column.name for column in table.COLUMNS], table.row(point), strict=True))


def test_the_columns_of_nccl_tests_come_first():
    names = " ".join(column.name for column in table.COLUMNS)
    assert names == "size count type redop root algo P time algbw busbw #wrong ci_lo ci_hi n"


def test_a_row():
    assert cells(POINT) == {
        "size": "1M",
        "count": "262144",
        "type": "float32",
        "redop": "sum",
        "root": "-1",
        "algo": "ring",
        "P": "4",
        "time": "500.0",
        "algbw": "2.097",
        "busbw": "3.146",
        "#wrong": "0",
        "ci_lo": "100.0",
        "ci_hi": "900.0",
        "n": "9",
    }


def test_bandwidth_comes_from_the_median_time():
    algbw, busbw = table.bandwidths(POINT, POINT.summary)
    assert algbw == pytest.approx((1 << 20) / 500e-6 / 1e9)
    assert busbw == pytest.approx(algbw * 2 * 3 / 4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (1.234e-6, "1.23"), (99.994e-6, "99.99"), (1e-4, "100.0"), (1.5, "1500000")],
)
def test_microseconds(seconds, text):
    assert table.microseconds(seconds) == text


def test_small_bandwidths_keep_their_digits():
    assert cells(replace(POINT, size=8))["algbw"] == "0.0000160"


def test_batches_unchecked_and_lonely_points_are_marked():
    marked = cells(replace(POINT, batch=1000, wrong=None, times=(1e-6,)))
    assert (marked["n"], marked["#wrong"], marked["ci_lo"]) == ("1*", "N/A", "-")
    assert "batch of 1000 calls" in " ".join(table.notes([replace(POINT, batch=1000)]))
    assert "1 of 2 points ended by time" in table.notes([POINT, replace(POINT, stop="time")])[0]


def test_order_of_the_report():
    points = [
        replace(POINT, algorithm=a, size=s, ranks=r)
        for a in ("native", "ring", "linear")
        for s in (64, 8)
        for r in (4, 2)
    ]
    ordered = table.ordered(points)
    assert [p.ranks for p in ordered] == [2] * 6 + [4] * 6
    assert [p.size for p in ordered[:6]] == [8] * 3 + [64] * 3
    assert [p.algorithm for p in ordered[:3]] == ["linear", "ring", "native"]


def test_warnings_name_host_and_count():
    crowded = replace(POINT, oversubscribed=True)
    (warning,) = table.warnings(FACTS, [POINT, crowded])
    assert warning.startswith("4 ranks ran on 2 cores of node<1>")
    # What ranks that wait for a core reach is no bandwidth.
    assert (cells(crowded)["P"], cells(crowded)["algbw"], cells(crowded)["busbw"]) == (
        "4!",
        "-",
        "-",
    )
    assert next(csv.DictReader(io.StringIO(table.as_csv([crowded]))))["busbw_GBps"] == ""
    assert "not how fast the algorithms are" in warning
    assert "3 wrong elements" in table.warnings({}, [replace(POINT, wrong=3)])[0]
    assert table.warnings({}, [POINT]) == []


def test_csv_has_the_numbers_in_full():
    (line,) = csv.DictReader(io.StringIO(table.as_csv([POINT])))
    assert float(line["time_s"]) == 5e-4
    assert line["size_bytes"] == "1048576"
    assert line["algo"] == "ring"
    assert table.as_csv([]) == ""


def test_the_full_table_has_more():
    names = [column.name for column in table.MORE_COLUMNS]
    found = dict(
        zip(names, table.row(replace(POINT, slowest=(0, 2, 2)), table.MORE_COLUMNS), strict=True)
    )
    assert found == {
        "p95": "900.0",
        "p99": "900.0",
        "first": "1000.0",
        "batch": "1",
        "late": "0",
        "slowest": "2 (66 %)",
        "stop": "interval",
    }


def test_the_manner_is_said():
    assert table.manner(POINT).endswith("warm buffers")
    said = table.manner(replace(POINT, cache="cold", in_place=True, start="window", skew=0.5))
    assert (
        "cold buffers; in place; starts on synchronised clocks; block lengths of 1 -+ 0.5" in said
    )
    assert "2 repetitions began late" in table.notes([replace(POINT, late=2)])[-1]


def test_tables_of_osu_have_its_sizes_and_means():
    gathered = replace(POINT, collective="allgather", size=4096, batch=10)
    text = osu.tables([gathered, replace(POINT, size=8), replace(POINT, size=64)], full=True)
    rows = [line.split() for line in text.splitlines() if line and line[0].isdigit()]
    # Of four blocks one; means over repetitions.
    assert rows[0] == ["1024", *["500.00", "100.00", "900.00"], *["500.00"], *["900.00"] * 2, "90"]
    assert [row[0] for row in rows] == ["1024", "8", "64"]
    assert text.count("# OSU MPI ") == 2
    assert "# Size         Avg Latency(us)\n" in osu.tables([POINT])
