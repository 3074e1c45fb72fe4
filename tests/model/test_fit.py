"""Fits: known parameters come back, those that are not told are refused, errors are honest."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import launched, point

from mpicoll import tuning
from mpicoll.bench.records import Run
from mpicoll.simulate.costs import INTER, INTRA, Costs, Piece
from mpicoll.tuning import cost_files

pytest.importorskip("scipy")

from mpicoll.model import equations
from mpicoll.model.cells import Resampled, gather, noise
from mpicoll.model.fit import NotIdentified, _between, fit, fit_set
from mpicoll.model.validate import ranks_left_out, sizes_left_out, summarise, validated
from mpicoll.tuning.predict import CURVE, GENERAL, OWN, predict, ranking

COSTS = Costs(
    {INTRA: (Piece(4096, 1e-6, 2e-10), Piece(None, 4e-6, 1e-10))},
    gamma=5e-11,
    call=2e-6,
    step=0.5e-6,
)
ENOUGH = {
    "allreduce": ["ring", "linear", "recursive_doubling", "native"],
    "allgather": ["ring", "linear"],
    "reduce_scatter": ["ring"],
}
SIZES = tuple(8 << i for i in range(0, 21, 2))


def cells_of(costs, measured, **more):
    return gather(launched(costs, measured, **{"sizes": SIZES, **more}))[0]


@pytest.fixture(scope="module")
def cells():
    return cells_of(COSTS, ENOUGH)


@pytest.fixture(scope="module")
def model(cells):
    return validated(fit(cells, replicates=40), cells)


def choice(collective, words):
    return tuning.parse(collective, words, "")


# --- what comes back ------------------------------------------------------------------------------


def test_known_parameters_come_back(model):
    found = model.general
    assert (found.call, found.step, found.gamma) == pytest.approx((2e-6, 5e-7, 5e-11), rel=0.05)
    short, long = found.links[INTRA]
    assert 2048 <= short.upto < 8192
    assert (short.alpha, short.beta) == pytest.approx((1e-6, 2e-10), rel=0.05)
    assert (long.alpha, long.beta) == pytest.approx((4e-6, 1e-10), rel=0.05)
    assert model.general_evidence.refused == {}
    assert 1 <= model.general_evidence.condition < 20


def test_intervals_hold_what_they_are_for(model):
    intervals = model.general_evidence.intervals(model.general)
    true = {**COSTS.numbers()}
    for name in ("call", "step", "gamma", "alpha intra", "beta intra"):
        low, high = intervals[name]
        slack = 0.02 * true[name]
        assert low - slack <= true[name] <= high + slack, name
        assert high / low < 1.3


def test_an_estimate_is_within_its_own_interval(model, tmp_path):
    """Resampled measurements can all lie to one side of what was fitted to the measurements."""
    general, evidence = model.general, model.general_evidence
    replicates = tuple(replace(each, gamma=general.gamma / 2) for each in evidence.replicates)
    skewed = replace(evidence, replicates=replicates)
    assert skewed.intervals(general)["gamma"] == (general.gamma / 2, general.gamma)
    cost_files.write(tmp_path / "m.json", replace(model, general_evidence=skewed))
    low, high = json.loads((tmp_path / "m.json").read_text())["general"]["intervals"]["gamma"]
    assert low < high == pytest.approx(general.gamma, rel=1e-5)


def test_what_one_algorithm_does_not_tell_is_as_all_together_tell_it(model):
    own, _ = model.costs("allreduce", "ring", 5)
    assert (own.gamma, own.step) == pytest.approx((5e-11, 5e-7), rel=0.05)
    assert own.links[INTRA][-1].alpha == pytest.approx(4e-6, rel=0.05)
    assert own.links[INTRA][-1].beta == pytest.approx(1e-10, rel=0.05)
    refused = model.evidence["allreduce"]["ring"].refused
    assert "measure allgather and reduce_scatter" in refused["gamma"]
    assert "several messages in a round" in refused["step"]


def test_what_one_algorithm_tells_is_its_own():
    """It is measured on a machine whose links are slower."""
    slow = Costs({INTRA: (Piece(None, 4e-6, 5e-10),)}, gamma=5e-11, call=2e-6, step=5e-7)
    found = cells_of(COSTS, {"allgather": ["ring", "linear"], "reduce_scatter": ["ring"]})
    found += cells_of(slow, {"alltoall": ["pairwise"]})
    own, _ = fit(found, replicates=0).costs("alltoall", "pairwise", 100)
    for cell in (cell for cell in found if cell.collective == "alltoall"):
        assert cell.path.seconds(own) == pytest.approx(cell.path.seconds(slow), rel=0.05)


def test_where_all_algorithms_together_tell_better_they_hold():
    """On odd numbers of ranks an algorithm is late, the more the shorter its messages are."""
    late = Costs({INTRA: (Piece(None, 4e-5, 1e-10),)}, gamma=5e-11, call=2e-6, step=5e-7)
    found = cells_of(COSTS, {"allgather": ["ring", "linear"], "reduce_scatter": ["ring"]})
    found += cells_of(COSTS, {"alltoall": ["pairwise"]}, ranks=(2, 4))
    found += cells_of(late, {"alltoall": ["pairwise"]}, ranks=(3, 5))
    model = fit(found, replicates=0)
    for ranks in (2, 4):
        assert model.costs("alltoall", "pairwise", ranks) == (model.general, False)
    for ranks in (3, 5, 7):
        assert model.costs("alltoall", "pairwise", ranks)[1]


def test_what_paths_do_not_know_of_a_number_of_ranks():
    """On four ranks all-gathers take a third longer than any path says, on others they do not."""
    measured = {"allgather": ["ring", "linear"], "reduce_scatter": ["ring"]}
    found = cells_of(COSTS, measured, ranks=(2, 3, 5, 8))
    late = Costs(COSTS.links, COSTS.gamma, COSTS.call, COSTS.step, {4: 4 / 3})
    found += cells_of(late, {"alltoall": ["pairwise"]}, ranks=(2, 4, 8))
    model = fit(found, replicates=0)
    own, _ = model.costs("alltoall", "pairwise", 100)
    assert own.factors[4] / own.factors[8] == pytest.approx(4 / 3, rel=0.1)
    for cell in (cell for cell in found if cell.collective == "alltoall"):
        assert cell.path.seconds(own) == pytest.approx(cell.path.seconds(late), rel=0.08)
    assert not model.general.factors


def test_two_links():
    costs = Costs(
        {INTRA: (Piece(None, 1e-6, 1e-10),), INTER: (Piece(None, 2e-5, 1e-9),)}, call=3e-6
    )
    found = cells_of(
        costs,
        {"allreduce": ["ring", "hierarchical"], "allgather": ["recursive_doubling", "ring"]},
        ranks=(2, 4, 8),
        nodes=(0, 0, 0, 0, 1, 1, 1, 1),
    )
    links = fit_set(found).costs.links
    for link, (true,) in costs.links.items():
        last = links[link][-1]
        assert (last.alpha, last.beta) == pytest.approx((true.alpha, true.beta), rel=0.1), link


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-7, 1e-3), st.floats(1e-11, 1e-8), st.floats(0.1, 10), st.integers(0, 1000))
def test_any_machine_comes_back(alpha, beta, overhead, seed):
    costs = Costs({INTRA: (Piece(None, alpha, beta),)}, call=overhead * alpha)
    found = cells_of(
        costs,
        {"allgather": ["ring", "linear"]},
        seed=seed,
        launches=2,
        repetitions=5,
        between=0.003,
        spread=0.003,
    )
    fitted = fit_set(found).costs
    for nbytes in (8, 1 << 20):
        for cell in (c for c in found if c.nbytes == nbytes):
            assert cell.path.seconds(fitted) == pytest.approx(cell.path.seconds(costs), rel=0.05)


def test_a_launch_far_off_does_not_pull_the_fit():
    runs = launched(COSTS, ENOUGH, sizes=SIZES, launches=3)
    far = [
        point(p.run, p.collective, p.algorithm, p.ranks, p.size, 7 * np.array(p.times))
        for p in runs[1].points
    ]
    runs[1] = Run(runs[1].name, runs[1].facts, far)
    found = fit_set([c for c in gather(runs)[0] if c.algorithm != "native"])
    assert found.costs.links[INTRA][-1].beta == pytest.approx(1e-10, rel=0.05)


@pytest.mark.parametrize(
    ("low", "high", "end"),
    [(53248, 102400, 65536), (4096, 8192, 5792), (0, 8, 0), (100, 5000, 512)],
)
def test_ends_are_powers_of_two_where_there_is_one(low, high, end):
    assert _between(low, high) == end


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "more", "name", "message"),
    [
        ({"allreduce": ["ring", "linear"]}, {}, "gamma", "measure allgather and reduce_scatter"),
        ({"allgather": ["ring"]}, {}, "gamma", "nothing measured reduces"),
        ({"allgather": ["ring"]}, {}, "step", "measure an algorithm with several messages"),
        ({"allgather": ["ring"]}, {"ranks": (4,)}, "call", "measure several numbers of ranks"),
    ],
)
def test_what_is_not_told_is_refused(measured, more, name, message):
    refused = fit_set(cells_of(COSTS, measured, **more)).refused
    assert message in refused[name]


def test_a_single_size_tells_nothing():
    with pytest.raises(NotIdentified, match=r"beta intra not identified.* at least two sizes"):
        fit(cells_of(COSTS, {"allgather": ["ring"]}, sizes=(1024,), ranks=(4,)))


def test_the_library_alone_tells_nothing():
    with pytest.raises(NotIdentified, match="no algorithm of mpicoll's was measured"):
        fit(cells_of(COSTS, {"allreduce": ["native"]}))


def test_a_barrier_has_no_beta_of_its_own(cells):
    more = cells_of(COSTS, {"barrier": ["dissemination"]}, sizes=(0,))
    fitted = fit([*cells, *more], replicates=0)
    own, mine = fitted.costs("barrier", "dissemination", 100)
    assert mine and own.step + own.links[INTRA][0].alpha == pytest.approx(1.5e-6, rel=0.05)


@given(st.lists(st.floats(0.01, 1), min_size=30, max_size=30), st.floats(0.1, 10))
def test_a_sum_of_columns_is_refused(values, factor):
    column = np.array(values)
    columns = {"alpha intra": column, "beta intra": np.arange(1.0, 31), "call": factor * column}
    columns["step"] = np.ones(30)
    assert equations.identified(columns, np.ones(30), False)[:1] == ("alpha intra",)
    assert "call" not in equations.identified(columns, np.ones(30), False)


# --- what is left out -----------------------------------------------------------------------------


def test_points_that_would_mix_what_is_not_alike_are_left_out():
    good = [point("r", "allreduce", "ring", 4, n, [1e-6]) for n in (8, 16, 32)]
    bad = [
        point("r", "allreduce", "ring", 4, 64, [1e-6], wrong=3),
        point("r", "allreduce", "ring", 4, 64, [1e-6], oversubscribed=True),
        point("r", "allreduce", "ring", 4, 64, [1e-6], cache="cold"),
        point("r", "allreduce", "ring", 4, 64, [1e-6], in_place=True),
        point("r", "allreduce", "ring", 4, 64, [1e-6], type="float16"),
        point("r", "allreduce", "rong", 4, 64, [1e-6]),
        point("r", "gatherv", "linear", 4, 64, [1e-6]),
    ]
    found, left = gather([Run("r", {}, good + bad)])
    assert [cell.nbytes for cell in found] == [8, 16, 32]
    assert sum(left.reasons.values()) == 7 and len(left.words()) == 7
    assert "unknown algorithm 'rong'" in " ".join(left.words())
    found, _ = gather([Run("r", {}, good + bad)], oversubscribed=True)
    assert [cell.nbytes for cell in found] == [8, 16, 32, 64]
    with pytest.raises(ValueError, match="no point can be used: 1 point left out: their results"):
        gather([Run("r", {}, bad[:1])])


def test_where_the_ranks_are_comes_from_the_facts():
    hosts = {"a": {"ranks": [0, 2]}, "b": {"ranks": [1, 3]}}
    points = [point("r", "allreduce", "ring", p, 64, [1e-6]) for p in (1, 4)]
    one, four = gather([Run("r", {"hosts": hosts}, points)])[0]
    assert (one.near, four.near, four.nodes) == (True, False, (0, 1, 0, 1))
    facts = {"environment": {"MPICOLL_TRANSPORT": "mpi"}}
    (cell,) = gather([Run("r", facts, points[1:])])[0]
    assert not cell.near and cell.nodes == (0, 0, 0, 0)


def test_launches_are_kept_apart():
    runs = [
        Run(name, {}, [point(name, "allreduce", "ring", 4, 8, times)])
        for name, times in (("a", [1.0, 2.0, 3.0]), ("b", [5.0]), ("c", [9.0]))
    ]
    (cell,) = gather(runs)[0]
    assert cell.medians == {"a": 2.0, "b": 5.0, "c": 9.0}
    assert cell.seconds == 5.0
    assert noise([cell]) == pytest.approx(7 / 5)
    assert cell.among(["b"]).seconds == 5.0 and cell.among(["d"]) is None
    medians = Resampled([cell], 200).seconds(cell)
    assert {2.0, 5.0, 9.0} <= set(medians) and medians.min() >= 1 and medians.max() <= 9


def test_a_resumed_run_is_of_the_launch_that_it_goes_on_with():
    runs = [
        Run(name, facts, [point(name, "allreduce", "ring", 4, nbytes, [1.0])])
        for name, facts, nbytes in (
            ("a", {}, 8), ("b", {"resumes": "a"}, 16), ("c", {"resumes": "b"}, 32), ("d", {}, 8),
        )
    ]  # fmt: skip
    found = gather(runs)[0]
    assert [list(cell.launches) for cell in found] == [["a", "d"], ["a"], ["a"]]


# --- how good it is -------------------------------------------------------------------------------


def test_errors_are_those_of_what_was_left_out(model, cells):
    general = model.general_evidence
    for errors in (general.sizes_left_out, general.ranks_left_out):
        assert errors.n > 30
        assert errors.median < 0.02 and errors.p90 < 0.05
        assert errors.median <= errors.p90 <= errors.largest
        assert abs(errors.bias) <= errors.largest
    assert model.about["sizes_left_out"]["n"] < general.sizes_left_out.n + 1


def test_errors_show_a_machine_that_the_model_does_not_fit():
    runs = launched(COSTS, {"allgather": ["ring"]}, sizes=SIZES)
    for run in runs:
        for number, p in enumerate(run.points):
            wave = 1.5 if number % 2 else 1.0
            times = tuple(wave * t for t in p.times)
            run.points[number] = point(p.run, p.collective, p.algorithm, p.ranks, p.size, times)
    found = gather(runs)[0]
    assert summarise(sizes_left_out(found)).median > 0.1
    assert summarise(ranks_left_out(found)).median > 0.1


def test_too_few_are_not_left_out():
    found = cells_of(COSTS, {"allgather": ["ring"]}, sizes=(8, 64), ranks=(2, 4))
    assert sizes_left_out(found) == ranks_left_out(found) == []
    assert summarise([]) is None


# --- predictions ----------------------------------------------------------------------------------


def test_predictions_say_by_what_they_are_made(model, cells):
    ring = predict(model, "allreduce", choice("allreduce", "ring"), 4, 1 << 16)
    (measured,) = [
        c for c in cells if (c.choice, c.collective, c.ranks) == ("ring", "allreduce", 4)
        and c.nbytes == 1 << 15
    ]  # fmt: skip
    near = predict(model, "allreduce", choice("allreduce", "ring"), 4, 1 << 15)
    assert near.seconds == pytest.approx(measured.seconds, rel=0.1)
    assert ring.source == OWN and ring.warnings == () and ring.low < ring.seconds < ring.high
    assert sum(dict(ring.parts).values()) == pytest.approx(ring.seconds)
    assert "6 messages, 98304 bytes and 6 rounds" in ring.reason
    other = predict(model, "bcast", choice("bcast", "binomial"), 4, 1 << 16)
    assert other.source == GENERAL
    native = predict(model, "allreduce", choice("allreduce", "native"), 4, 1 << 16)
    assert native.source == CURVE and "its schedule is unknown" in native.reason
    with pytest.raises(ValueError, match="bcast native was not measured"):
        predict(model, "bcast", choice("bcast", "native"), 4, 8)


def test_outside_of_what_was_measured_there_is_a_warning(model):
    ring = choice("allreduce", "ring")
    (ranks,) = predict(model, "allreduce", ring, 100, 1024).warnings
    assert "P = 100 is outside of what was measured, P = 2, 4, 8" in ranks
    (size,) = predict(model, "allreduce", ring, 4, 1 << 30).warnings
    assert "a size of 1073741824 bytes is outside" in size


def test_the_ranking_has_what_was_measured_fastest_first(model):
    found = ranking(model, "allreduce", 8, 1 << 20)
    assert {p.choice for p in found} == set(ENOUGH["allreduce"])
    times = [p.seconds for p in found]
    assert times == sorted(times)
    more = ranking(model, "allreduce", 8, 1 << 20, unmeasured=True)
    assert {p.source for p in more} == {OWN, GENERAL, CURVE} and len(more) > len(found)
    assert ranking(model, "bcast", 8, 64)[0].source == GENERAL
