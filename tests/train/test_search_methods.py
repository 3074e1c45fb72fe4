"""Methods of search on a virtual clock, whatever the times and scores of trials are."""

import heapq
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.train.search import methods
from mpicoll.train.search.loop import groups_of
from mpicoll.train.search.methods import CHANGEABLE, Job, Rungs
from mpicoll.train.search.options import SearchOptions
from mpicoll.train.search.space import Space

SPACE = Space.of(
    {
        "run": {"dataset": "mnist5k", "epochs": 9},
        "space": {
            "lr": {"log": [1e-4, 10.0], "points": 3},
            "momentum": {"uniform": [0.0, 0.9], "points": 2},
            "batch": {"choice": [16, 32]},
            "seed": {"integer": [1, 1000], "points": 2},
        },
    }
)
#: What a file may say.
SAID = "[run]\nepochs = 2\n[space]\nlr = {log = [0.1, 1.0]}\n"


def simulated(method, groups, score, seconds):
    """What is asked and told on so many groups, in the order of a virtual clock.

    Yields:
        "asked" or "told", the job, and the score told.
    """
    clock, busy, number = 0.0, [], 0
    while True:
        while len(busy) < groups:
            job = method.ask()
            if job is None:
                break
            yield "asked", job, None
            number += 1
            heapq.heappush(busy, (clock + seconds(job), number, job))
        if not busy:
            return
        clock, _, job = heapq.heappop(busy)
        found = score(job)
        method.tell(job, found)
        yield "told", job, found


def chance(seed):
    """Scores, one in four failed, and times that depend on nothing but the seed and the job."""

    def score(job):
        draw = random.Random(f"{seed} {job.place} score")
        return None if draw.random() < 0.25 else round(draw.random(), 2)

    def seconds(job):
        return random.Random(f"{seed} {job.place} seconds").expovariate(1) * job.epochs

    return score, seconds


cases = given(
    seed=st.integers(0, 10**6),
    trials=st.integers(2, 30),
    groups=st.integers(1, 9),
    eta=st.integers(2, 4),
    least=st.integers(1, 9),
)


@settings(deadline=None, max_examples=60)
@cases
def test_asha_promotes_only_the_top_of_those_that_were_there(seed, trials, groups, eta, least):
    options = SearchOptions(method="asha", trials=trials, eta=eta, min_epochs=least)
    rungs = methods.rungs(least, 9, eta)
    told = {}
    asked = []
    for event, job, found in simulated(methods.make_method(SPACE, options), groups, *chance(seed)):
        if event == "told":
            told[job.place] = -math.inf if found is None else found
            continue
        asked.append(job)
        assert job.values == SPACE.drawn(0, job.trial)
        rung = rungs.index(job.epochs)
        if rung == 0:
            assert job.source is None
            continue
        assert job.source == (job.trial, rungs[rung - 1])
        there = [value for (_, epochs), value in told.items() if epochs == rungs[rung - 1]]
        mine = told[job.source]
        assert mine > -math.inf
        # With as many that are equally good, all of them are among the best.
        assert sum(value > mine for value in there) < len(there) // eta
        assert sum(other.source == job.source for other in asked) == 1
        promoted = [other for other in asked if other.epochs == job.epochs and other.source]
        assert len(promoted) <= len(there) // eta
    assert len({job.place for job in asked}) == len(asked)
    assert sorted(job.trial for job in asked if job.epochs == rungs[0]) == list(range(trials))
    assert told.keys() == {job.place for job in asked}
    spent = sum(job.epochs - (job.source[1] if job.source else 0) for job in asked)
    reached = {job.trial: job.epochs for job in asked}
    assert spent == sum(reached.values())


@settings(deadline=None, max_examples=50)
@cases
def test_members_of_a_population_copy_better_ones_and_never_go_back(
    seed, trials, groups, eta, least
):
    options = SearchOptions(method="pbt", trials=trials, min_epochs=least, seed=seed)
    score, seconds = chance(seed)
    told, last, asked = {}, {}, []
    for event, job, found in simulated(methods.make_method(SPACE, options), groups, score, seconds):
        if event == "told":
            told[job.place] = -math.inf if found is None else found
            continue
        asked.append(job)
        before = last.get(job.trial)
        last[job.trial] = job
        if before is None:
            assert job.source is None
            assert job.values == SPACE.drawn(seed, job.trial)
            continue
        assert before.epochs < job.epochs <= 9
        assert job.epochs == min(job.source[1] + least, 9)
        assert told[job.source] > -math.inf
        if job.source == before.place:
            assert job.values == before.values
            continue
        assert job.source[1] >= before.epochs
        assert told[job.source] >= told[before.place]
        (donor,) = [other for other in asked if other.place == job.source]
        for name, value in job.values.items():
            if name not in CHANGEABLE:
                assert value == donor.values[name]
        assert 1e-4 <= job.values["lr"] <= 10
    assert len({job.place for job in asked}) == len(asked)
    # A member ends before the end only where it has failed.
    for job in last.values():
        assert job.epochs == 9 or told[job.place] == -math.inf


def test_a_population_on_one_group_advances_together():
    """Each member is worse than those before it: the last one copies the first."""
    method, asked = make("pbt", 4, min_epochs=3), []
    while (job := method.ask()) is not None:
        asked.append((*job.place, job.source))
        method.tell(job, -job.trial)
    assert asked == [
        *((0, 3, None), (1, 3, None), (2, 3, None), (3, 3, None)),
        *((0, 6, (0, 3)), (1, 6, (1, 3)), (2, 6, (2, 3)), (3, 9, (0, 6))),
        *((0, 9, (0, 6)), (1, 9, (1, 6)), (2, 9, (2, 6))),
    ]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), method=st.sampled_from(["random", "grid", "asha", "pbt"]))
def test_the_same_arrivals_give_the_same_decisions(seed, method):
    trials = None if method == "grid" else 12
    options = SearchOptions(method=method, trials=trials, seed=seed)
    events = list(simulated(methods.make_method(SPACE, options), 4, *chance(seed)))
    again = methods.make_method(SPACE, options)
    for event, job, found in events:
        if event == "asked":
            assert again.ask() == job
        else:
            again.tell(job, found)
    assert again.ask() is None
    assert not again.waiting


def test_random_trains_each_trial_to_the_end_and_a_grid_has_every_point():
    score, seconds = chance(1)
    jobs = [j for e, j, _ in simulated(make("random", 5), 2, score, seconds) if e == "asked"]
    assert [(job.trial, job.epochs, job.source) for job in jobs] == [(t, 9, None) for t in range(5)]
    jobs = [j for e, j, _ in simulated(make("grid", None), 2, score, seconds) if e == "asked"]
    assert len(jobs) == 3 * 2 * 2 * 2
    assert len({tuple(job.values.items()) for job in jobs}) == len(jobs)
    assert [job.values["lr"] for job in jobs[:: len(jobs) // 3]] == pytest.approx(
        [1e-4, 0.0316, 10], rel=1e-3
    )


def make(method, trials, **more):
    return methods.make_method(SPACE, SearchOptions(method=method, trials=trials, **more))


def test_a_trial_is_drawn_from_seed_and_number_alone():
    assert SPACE.drawn(3, 7) == SPACE.drawn(3, 7)
    assert SPACE.drawn(3, 7) != SPACE.drawn(3, 8)
    assert SPACE.drawn(3, 7) != SPACE.drawn(4, 7)


def test_successive_halving_of_nine_trials_step_by_step():
    """One group, and each trial is worse than those before it."""
    method = Rungs(9, lambda trial: {"lr": trial}, (1, 3, 9), eta=3)
    asked = []
    while (job := method.ask()) is not None:
        asked.append(job.place)
        method.tell(job, -job.trial)
    assert asked == [
        *((0, 1), (1, 1), (2, 1), (0, 3)),
        *((3, 1), (4, 1), (5, 1), (1, 3)),
        *((6, 1), (7, 1), (8, 1), (2, 3), (0, 9)),
    ]


def test_what_was_not_asked_for_cannot_be_told():
    method = Rungs(2, lambda trial: {}, (1,))
    job = method.ask()
    method.tell(job, 0.5)
    with pytest.raises(KeyError):
        method.tell(job, 0.5)
    with pytest.raises(KeyError):
        method.tell(Job(1, {}, 1), 0.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "hyperband"}, "unknown method 'hyperband': known are random, grid, asha, pbt"),
        ({"trials": 0}, "trials is 0: give a whole number of at least 1"),
        ({"eta": 1}, "eta is 1: give a whole number of at least 2"),
        ({"method": "pbt", "trials": 1}, "trials is 1: give at least 2"),
        ({"method": "grid", "trials": 7}, "the grid has 24 points and trials is 7"),
        ({"method": "asha", "min_epochs": 10}, "min_epochs is 10 and a whole run has 9 epochs"),
    ],
)
def test_options_that_are_no_search_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        methods.make_method(SPACE, SearchOptions(**options))


def test_pbt_needs_something_to_change():
    space = Space.of({"run": {"model": "mlp"}, "space": {"hidden": {"choice": [[8], [16]]}}})
    with pytest.raises(ValueError, match=r"pbt changes lr, .* and the space has none of them"):
        methods.make_method(space, SearchOptions(method="pbt"))


@pytest.mark.parametrize(
    ("ranks", "each", "groups"), [(1, 1, 1), (2, 1, 1), (9, 2, 4), (5, 1, 4), (4, 3, 1)]
)
def test_ranks_are_one_and_groups(ranks, each, groups):
    assert SearchOptions(ranks_per_trial=each).groups(ranks) == groups


@pytest.mark.parametrize(
    ("ranks", "each", "words"),
    [
        (8, 2, "8 rank\\(s\\) are one that hands trials out and 7 in groups of 2: start 7 or 9"),
        (1, 2, "1 rank\\(s\\) are one that hands trials out and 0 in groups of 2: start 3 or 5"),
        (2, 4, "start 5 or 9 ranks"),
    ],
)
def test_ranks_that_do_not_divide_are_refused(ranks, each, words):
    with pytest.raises(ValueError, match=words):
        SearchOptions(ranks_per_trial=each).groups(ranks)


def test_a_run_that_a_group_cannot_carry_out_is_refused():
    run = {"model": "mlp", "mesh": "pipe=4"}
    space = Space.of({"run": run, "space": {"lr": {"log": [0.01, 1.0]}}})
    assert groups_of(space, SearchOptions(ranks_per_trial=4), 9) == 2
    words = "ranks_per_trial is 2, and the run is refused: mesh pipe=4 is for multiples of 4 ranks"
    with pytest.raises(ValueError, match=words):
        groups_of(space, SearchOptions(ranks_per_trial=2), 9)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"space": {}}, "there is nothing to search"),
        ({"lr": 1}, "unknown key 'lr': write two tables"),
        ({"space": {"lrr": {"log": [1, 2]}}}, "unknown key 'lrr'; the nearest known key is lr"),
        ({"space": {"lr": 0.1}}, "lr is 0.1: write one of uniform, log, integer, choice"),
        ({"space": {"lr": {"log": [0, 1]}}}, "log is \\[0.0, 1.0\\]: give two numbers above 0"),
        ({"space": {"lr": {"uniform": [2, 1]}}}, "give two numbers, the lower one first"),
        ({"space": {"lr": {"uniform": [0]}}}, "lr: uniform is"),
        ({"space": {"lr": {"uniform": [0, 1], "point": 3}}}, "lr: point is 3: Extra inputs"),
        ({"space": {"lr": {"uniform": [0, float("inf")]}}}, "lr: uniform"),
        ({"space": {"lr": {"choice": []}}}, "lr: choice is"),
        ({"space": {"lr": {"choice": ["high"]}}}, "\\[space\\]: lr is 'high'"),
        ({"space": {"lr": {"choice": [0.1, float("nan")]}}}, "lr: nan is among choice: give fin"),
        ({"space": {"lr": {"uniform": [-1.7e308, 1.7e308]}}}, "give two numbers closer together"),
        ({"space": {"lr": {"log": [1e-300, 1e300]}}}, "give two numbers closer together"),
        ({"space": {"lr": {"uniform": [0, 1], "points": 10**12}}}, "lr: points is 1000000000000"),
        ({"space": {"seed": {"integer": [0, 2**63]}}}, "give whole numbers from -2\\*\\*53 to 2"),
        ({"space": {"batch": {"uniform": [8, 16]}}}, "\\[space\\]: batch is 8.0"),
        ({"space": {"epochs": {"integer": [1, 2]}}}, "epochs is the same of all trials"),
        ({"space": {"checkpoint": {"choice": ["a"]}}}, "checkpoint is what the search itself"),
        ({"run": {"lr": 1.0}, "space": {"lr": {"log": [1, 2]}}}, "lr is in \\[run\\] and in"),
        ({"run": {"lr": -1.0}, "space": {"batch": {"choice": [8]}}}, "lr is -1.0: give a finite"),
    ],
)
def test_spaces_that_say_nothing_sensible_are_refused(file, words):
    with pytest.raises(ValueError, match=words):
        Space.of(file)


def test_a_file_is_named_where_it_is_wrong(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text("[space\n")
    with pytest.raises(ValueError, match=r"space\.toml is no TOML"):
        Space.read(path)
    path.write_text("[space]\nlr = 3\n")
    with pytest.raises(ValueError, match=r"space\.toml: lr is 3"):
        Space.read(path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("space.toml", SAID.encode("utf-16"), "byte 0 is 0xff, and no UTF-8: save it as UTF-8"),
        ("space.toml", SAID.encode() + b"#" * (1 << 20), "it has more than 1048576 bytes"),
        ("space.toml", b"a = " + b"[" * 5000, "is no TOML: brackets are too deep in each other"),
        ("space.yaml", b"a: " + b"[" * 1200, "is no YAML: brackets are too deep in each other"),
    ],
    ids=["utf-16", "long", "deep toml", "deep yaml"],
)
def test_a_file_that_is_no_text_of_a_run_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        Space.read(tmp_path / name)


def test_a_file_may_begin_with_the_mark_of_utf8(tmp_path):
    (tmp_path / "space.toml").write_text(SAID, encoding="utf-8-sig")
    assert [*Space.read(tmp_path / "space.toml").dimensions] == ["lr"]


def test_a_grid_of_all_of_very_many_whole_numbers_needs_points():
    space = Space.of({"space": {"seed": {"integer": [0, 10**12]}}})
    with pytest.raises(ValueError, match="method grid needs points of seed"):
        methods.make_method(space, SearchOptions(method="grid"))


def test_a_space_is_read_from_toml_and_from_yaml(tmp_path):
    (tmp_path / "space.toml").write_text("[run]\nepochs = 2\n[space]\nlr = {log = [0.1, 1.0]}\n")
    (tmp_path / "space.yaml").write_text("run: {epochs: 2}\nspace: {lr: {log: [0.1, 1.0]}}\n")
    found = Space.read(tmp_path / "space.toml")
    assert Space.read(tmp_path / "space.yaml") == found
    (tmp_path / "space.txt").write_text("")
    with pytest.raises(ValueError, match="give a file whose name ends with"):
        Space.read(tmp_path / "space.txt")
    (tmp_path / "space.toml").write_text("[run]\nepoch = 2\n[space]\nlr = {log = [0.1, 1.0]}\n")
    with pytest.raises(ValueError, match="unknown key 'epoch'; the nearest known key is epochs"):
        Space.read(tmp_path / "space.toml")
