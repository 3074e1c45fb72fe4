"""Lines of JSON are read back, whatever was torn and whatever was written twice."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpicoll.base.json_lines import Appender, Attempt, attempts, latest, new_run, read


def records(path):
    found = []
    read(path, found.append)
    return found


FIRST = Attempt("r")


def write(path, *numbers, attempt=FIRST):
    with Appender(path) as file:
        for number in numbers:
            file.append(attempt, {"number": number})


def test_records_carry_run_and_attempt(tmp_path):
    write(tmp_path / "a", 1, attempt=Attempt("r", 2))
    assert records(tmp_path / "a") == [{"run": "r", "attempt": 2, "number": 1}]


@given(data=st.data())
def test_a_file_cut_anywhere_goes_on(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "a"
    write(path, 1, 2, 3)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    write(path, 4)
    complete = [json.loads(line)["number"] for line in whole[: cut + 1].split(b"\n")[:-1]]
    if cut and whole[cut - 1] != 10 and whole[cut : cut + 1] != b"\n":
        with pytest.warns(UserWarning, match=f"line {len(complete) + 1} dropped: not complete"):
            found = records(path)
    else:
        found = records(path)
    assert [record["number"] for record in found] == [*complete, 4]


def test_lines_of_something_else_are_told_of_together(tmp_path):
    (tmp_path / "a").write_text('1\n[]\n\n{"number": 1}\n\xff')

    def take(record):
        return record["name"]

    with pytest.warns(UserWarning, match="dropped") as caught:
        read(tmp_path / "a", take)
    assert [str(w.message).partition(", ")[2] for w in caught] == [
        "line 1 and 1 line after it dropped: not a JSON object",
        "line 4 dropped: KeyError('name')",
        "line 5 dropped: not complete JSON",
    ]


def test_a_line_of_many_brackets_is_dropped(tmp_path):
    (tmp_path / "file").write_text('{"a":1}\n' + "[" * 100_000 + "\n")
    with pytest.warns(UserWarning, match="line 2 dropped: not complete JSON"):
        assert records(tmp_path / "file") == [{"a": 1}]


def test_what_is_not_finite_is_null(tmp_path):
    with Appender(tmp_path / "a") as file:
        file.append(Attempt("r"), {"loss": float("nan"), "spans": [(float("inf"), {"x": 1.5})]})
    assert (
        records(tmp_path / "a")[0] | {"loss": None, "spans": [[None, {"x": 1.5}]]}
        == (records(tmp_path / "a")[0])
    )


def test_what_a_later_attempt_repeats_replaces_the_earlier(tmp_path):
    path = tmp_path / "a"
    write(path, 1, 2, 3)
    write(path, 3, 4, attempt=Attempt("r", 2))
    write(path, 1, attempt=Attempt("s"))
    found = latest(records(path), lambda record: record["number"])
    assert [(r["run"], r["attempt"], r["number"]) for r in found] == [
        ("r", 1, 1), ("r", 1, 2), ("r", 2, 3), ("r", 2, 4), ("s", 1, 1),
    ]  # fmt: skip
    assert attempts(path) == {"r": 2, "s": 1}
    (tmp_path / "b").write_bytes(2 * path.read_bytes())
    assert latest(records(tmp_path / "b"), lambda record: record["number"]) == found


def test_a_file_that_is_not_there_has_no_runs(tmp_path):
    assert attempts(tmp_path / "a") == {}
    assert new_run() != new_run()


def test_a_full_disk_is_an_error():
    with Appender("/dev/full") as file, pytest.raises(OSError, match="No space left"):
        file.append(Attempt("r"), {})
