"""Searches in which ranks die: what they trained is trained again, and the search goes on."""

import json
import os
from collections import Counter
from pathlib import Path

import launch
import pytest
from clouds import write_samples
from deaths import FAULT_TOLERANT, ulfm

from mpicoll.train import TrainingError
from mpicoll.train.search import methods, trials
from mpicoll.train.search.loop import search
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space

PROGRAM = Path(__file__).parent / "searching.py"
STEP, SAVE = "strategies.lockstep.Trainer.step", "driver.array_files.write"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def space(tmp_path):
    write_samples(tmp_path / "data.npz")
    run = {"dataset": str(tmp_path / "data.npz"), "model": "mlp", "hidden": [8], "epochs": 4}
    return {
        "run": {**run, "batch": 16, "check_every": 0},
        "space": {"lr": {"log": [0.001, 0.1]}, "momentum": {"uniform": [0.0, 0.9]}},
    }


@pytest.fixture
def killed(mpirun, tmp_path, space):
    """Search on so many ranks, of which some are killed; what is told at the end, and records."""

    def start(ranks, deaths, each=1, **changes):
        given = {"method": "asha", "trials": 8, "eta": 2, "ranks_per_trial": each, "survive": True}
        job = {
            "tests": str(launch.ROOT / "tests"),
            "space": space,
            "options": {**given, "out": str(tmp_path / "found"), **changes},
            "deaths": deaths,
        }
        done = mpirun(ranks, PROGRAM, json.dumps(job), options=FAULT_TOLERANT, limit=90)
        _, started = mpirun.running[-1]
        assert not [path for path in started.shared_memory if os.path.exists(path)]
        return done, trials.read(tmp_path / "found" / trials.FILE)

    return start


def require_whole(records, count):
    """Each job was asked for and told of once, and the method decides the same again."""
    asked = Counter((r["trial"], r["epochs"]) for r in records if r["event"] == "asked")
    told = Counter((r["trial"], r["epochs"]) for r in records if r["event"] == "told")
    assert asked == told
    assert set(told.values()) == {1}
    assert {trial for trial, _ in told} == set(range(count))
    method = methods.make_method(*trials.machine(records))
    assert trials.replay(Path("replayed"), records, method) == len(asked)
    assert not [r for r in records if r["event"] == "told" and r["failed"]]


def require_going_on(space, tmp_path):
    """The search that has ended goes on in one process, to its end."""
    options = SearchOptions(method="asha", trials=8, eta=2, out=str(tmp_path / "found"))
    assert search(Space.of(space), options, resume=True).complete
    require_whole(trials.read(tmp_path / "found" / trials.FILE), 8)


def require_scores(records, space, tmp_path):
    """What was trained again is what a search has found that nobody disturbed."""
    given = {"method": "random", "trials": 8, "out": str(tmp_path / "calm")}
    search(Space.of(space), SearchOptions(**given))
    calm = {
        (r["trial"], r["number"]): r["validation"]["accuracy"]
        for r in trials.read(tmp_path / "calm" / trials.FILE)
        if r["event"] == "epoch"
    }
    for record in records:
        if record["event"] == "told":
            place = record["trial"], record["epochs"]
            assert record["score"] == pytest.approx(calm[place], abs=1e-9)


@ulfm
@pytest.mark.parametrize(
    ("ranks", "each", "deaths", "lost"),
    [
        (3, 1, [[2, STEP, 12]], [1]),
        pytest.param(5, 2, [[4, STEP, 12]], [1], marks=pytest.mark.long),
        pytest.param(5, 2, [[3, STEP, 12]], [1], marks=pytest.mark.long),
        pytest.param(5, 2, [[1, STEP, 12], [2, STEP, 12]], [0], marks=pytest.mark.long),
        pytest.param(4, 1, [[1, STEP, 5], [3, SAVE, 2]], [0, 2], marks=pytest.mark.long),
    ],
    ids=["a group of one", "a member", "who leads", "a group of two", "two groups"],
)
def test_the_trial_of_a_killed_group_is_asked_again(
    killed, space, tmp_path, ranks, each, deaths, lost
):
    done, records = killed(ranks, deaths, each)
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["complete"]
    assert found["lost"] == sorted(rank for rank, *_ in deaths)
    require_whole(records, 8)
    require_scores(records, space, tmp_path)
    gone = [record for record in records if record["event"] == "lost"]
    assert sorted(record["group"] for record in gone) == lost
    again = {record["trial"] for record in gone} - {None}
    assert again
    # Those of the others went on.
    told = [r for r in records[records.index(gone[-1]) :] if r["event"] == "told"]
    assert again & {r["trial"] for r in told}
    assert not {r["group"] for r in told} & set(lost)


@ulfm
@pytest.mark.long
def test_when_no_group_is_left_the_search_ends_and_goes_on_later(killed, space, tmp_path):
    done, records = killed(3, [[1, STEP, 30], [2, STEP, 40]])
    assert "every group has lost a rank" in done.err, done
    assert done.out == ""
    assert not [record for record in records if record["event"] == "winner"]
    require_going_on(space, tmp_path)


@ulfm
@pytest.mark.long
def test_without_survive_the_death_of_a_rank_ends_all(killed, space, tmp_path):
    done, _ = killed(3, [[2, STEP, 12]], survive=False)
    assert done.err.count("rank 2, a worker, has died") == 1, done
    assert done.out == ""
    require_going_on(space, tmp_path)


@ulfm
@pytest.mark.long
def test_the_death_of_who_hands_trials_out_ends_the_search(killed, space, tmp_path):
    done, records = killed(4, [[0, "search.coordinator.Coordinator._tell", 3]])
    assert "rank 0, which hands trials out, has died: go on with resume" in done.err, done
    assert not [record for record in records if record["event"] == "winner"]
    require_going_on(space, tmp_path)


def test_where_all_ranks_end_with_one_it_is_refused(space, tmp_path):
    options = SearchOptions(survive=True, out=str(tmp_path / "found"))
    with pytest.raises(TrainingError, match="survive needs several processes"):
        search(Space.of(space), options)
    space["run"]["wire"] = "int8"
    with pytest.raises(ValueError, match="survive does not go together with wire int8"):
        search(Space.of(space), options)
    space["run"]["survive"] = True
    with pytest.raises(ValueError, match="survive is what the search itself decides"):
        Space.of(space)
