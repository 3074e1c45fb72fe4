"""Choices: rules, crossovers, regret, and what MPI libraries are told."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import launched, point

from mpicoll import tuning
from mpicoll.bench.records import Run
from mpicoll.simulate.costs import Costs, Piece

pytest.importorskip("scipy")

from mpicoll.model import build, choose, crossovers, export
from mpicoll.model.cells import Resampled, gather
from mpicoll.model.fit import fit

COSTS = Costs({"intra": (Piece(None, 2e-6, 1e-10),)}, gamma=5e-11, call=1e-6)
MEASURED = {
    "allreduce": ["ring", "recursive_doubling", "native"],
    "allgather": ["ring", "bruck"],
    "reduce_scatter": ["ring"],
}


@pytest.fixture(scope="module")
def runs():
    return launched(COSTS, MEASURED, launches=4, ranks=(2, 4, 8), repetitions=7)


@pytest.fixture(scope="module")
def cells(runs):
    return gather(runs)[0]


@pytest.fixture(scope="module")
def found(runs, cells):
    return build.build(runs, *gather(runs), replicates=20)


def crossover(ranks, collective="allreduce"):
    """Where recursive doubling and the ring take the same time."""
    # Rounds and bytes of each, as a share of the vector: log P rounds of all, 2 (P - 1) of 1 / P.
    rounds = np.log2(ranks)
    latency = (2 * (ranks - 1) - rounds) * 2e-6
    bandwidth = rounds * 1.5e-10 - (ranks - 1) / ranks * 2.5e-10
    return latency / bandwidth


# --- rules ----------------------------------------------------------------------------------------


def test_measured_rules_choose_what_is_fastest(cells):
    written = build.measured_rules(cells)
    table = tuning.for_layout(tuning.table_from(written, "file", tuning.FILE), True)

    def chosen(ranks, nbytes, *without):
        serves = lambda choice: choice.algorithm not in without  # noqa: E731
        return tuning.choose("allreduce", ranks, nbytes, table, serves).words

    at = crossover(8)
    assert chosen(8, int(at / 1.2), "native") == "recursive_doubling"
    assert chosen(8, int(at * 1.2), "native") == "ring"
    assert {rule["near"] for rules in written.values() for rule in rules} == {True}
    assert all("native" in rule["algorithms"] for rules in written.values() for rule in rules)
    assert all(rules[0]["nbytes"] == 0 for rules in written.values())


def test_rules_of_one_rank_are_none():
    (run,) = launched(COSTS, {"allreduce": ["ring"]}, launches=1, ranks=(2,))
    alone = [point("r", "allreduce", "ring", 1, n, [1e-7]) for n in (8, 64)]
    assert build.measured_rules(gather([Run("r", {}, alone)])[0]) == {}
    assert list(build.measured_rules(gather([run])[0])) == ["allreduce"]


@given(
    st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=1, max_size=9),
    st.floats(0, 0.5),
)
def test_a_choice_is_never_worse_than_the_best_by_more_than_the_gain(rows, gain):
    times = {"a": np.array([row[0] for row in rows]), "b": np.array([row[1] for row in rows])}
    for index, winner in enumerate(choose.winners(times, gain)):
        best = min(times[name][index] for name in times)
        assert times[winner][index] <= best * (1 + gain) * (1 + 1e-12)


@given(st.floats(-3, -0.01), st.floats(0.01, 3))
def test_a_crossing_lies_between_its_sizes(before, after):
    found = choose.crossing((64, 256), np.array([before, after]), 0)
    assert 64 <= found <= 256
    assert choose.crossing((64, 256), np.array([-1.0, 1.0]), 0) == pytest.approx(128)


# --- crossovers and regret ------------------------------------------------------------------------


def test_crossovers_are_where_they_are(cells):
    ours = [cell for cell in cells if cell.algorithm != "native"]
    model = fit(ours, replicates=20)
    made = crossovers.find_crossovers(choose.tables(ours), model, Resampled(ours, 20))
    (found,) = [c for c in made if c.place == ("allreduce", 8, True)]
    assert (found.before, found.after) == ("recursive_doubling", "ring")
    for value, low, high in (found.measured, found.predicted):
        assert low <= value <= high
        assert value == pytest.approx(crossover(8), rel=0.15)


def test_around_a_crossover_either_is_as_good(cells):
    ours = [cell for cell in cells if cell.algorithm != "native"]
    model = fit(ours, replicates=20)
    made = crossovers.find_crossovers(choose.tables(ours), model, Resampled(ours, 20), gain=0.05)
    (found,) = [c for c in made if c.place == ("allreduce", 8, True)]
    assert found.told and found.factor < 1.1 and found.factor_alike == 1
    for (low, high), (value, *_) in (
        (found.alike, found.measured),
        (found.predicted_alike, found.predicted),
    ):
        assert value / 1.5 < low < value < high < 1.5 * value


def test_two_names_of_the_same_times_do_not_cross():
    generator = np.random.default_rng(5)
    runs = [
        Run(
            f"r{launch}",
            {},
            [
                point(f"r{launch}", "allreduce", name, 2, nbytes, generator.lognormal(0, 0.1, 5))
                for name in ("ring", "recursive_doubling")
                for nbytes in (64, 256, 1024, 4096, 16384, 65536)
            ],
        )
        for launch in range(4)
    ]
    same = gather(runs)[0]
    model = fit(same, replicates=0)
    made = crossovers.find_crossovers(choose.tables(same), model, Resampled(same, 40), gain=0.01)
    assert made and not any(c.told for c in made)


@given(
    st.lists(st.floats(-1, 1), min_size=2, max_size=6),
    st.floats(1, 64),
    st.floats(0.001, 0.5),
)
def test_sizes_that_are_alike_are(ratios, near, gain):
    sizes = [1 << i for i in range(len(ratios))]
    found = crossovers._alike(sizes, np.array(ratios), near, gain)
    crosses = any(a * b <= 0 for a, b in pairwise(ratios))
    assert found is not None or not crosses
    if found:
        low, high = found
        assert 1 <= low <= high <= sizes[-1]
        for size in (low, (low * high) ** 0.5, high):
            assert abs(np.interp(np.log(size), np.log(sizes), ratios)) <= np.log1p(gain) + 1e-9


def test_regret_is_measured_on_other_launches(found):
    assert found.regrets["measurements"].mean < 0.02
    assert found.regrets["model"].mean < 0.02
    always = found.regrets["always native"]
    assert always.worst > 0.1 and "native instead of" in always.where
    assert set(found.regrets) == {"model", "measurements", "built-in table", "always native"}


def test_noise_does_not_make_regret():
    """Two names for the same times: who is best by luck in one half is not in the other."""
    generator = np.random.default_rng(3)
    runs = [
        Run(
            f"r{launch}",
            {},
            [
                point(f"r{launch}", "allreduce", name, 4, nbytes, [generator.lognormal(0, 0.2)])
                for name in ("ring", "swing", "linear", "recursive_doubling")
                for nbytes in range(8, 408, 8)
            ],
        )
        for launch in range(6)
    ]
    cells = gather(runs)[0]
    ways = {"best": lambda some: choose.by_times(lambda cell: cell.seconds)}
    assert choose.regrets(cells, ways)["best"].worst == 0  # pick and best are the same choice
    ways = {"fixed": lambda some: lambda table, index: "ring"}
    assert abs(choose.regrets(cells, ways)["fixed"].mean) < 0.06


def test_a_single_launch_has_no_regret():
    runs = launched(COSTS, MEASURED, launches=1, ranks=(2, 4), repetitions=7)
    result = build.build(runs, *gather(runs), replicates=5)
    assert result.regrets == {} and result.noise is None
    assert any("a single launch" in remark for remark in result.remarks)


def test_the_model_has_rules_and_says_how_good_it_is(found, runs):
    model = found.model
    assert tuning.table_from(model.rules, "model", tuning.MODEL)
    about = model.about
    machine = {"MPI library": "Some MPI 1.0", "processor": "some", "hosts": "h#"}
    assert about["machine"] == machine
    assert about["launches"] == 4 and len(about["runs"]) == 4
    assert about["sizes_left_out"]["median"] < 0.05
    assert 0 < found.noise < 0.1
    json.dumps(about)


# --- MPI libraries --------------------------------------------------------------------------------


def parsed(text):
    """A rules file, read as Open MPI reads it: numbers, comments to the end of a line."""
    numbers = iter(int(word) for line in text.splitlines() for word in line.split("#")[0].split())
    rules = {}
    for _ in range(next(numbers)):
        collective = next(numbers)
        for _ in range(next(numbers)):
            ranks = next(numbers)
            for _ in range(next(numbers)):
                nbytes, algorithm, fan, segment = (next(numbers) for _ in range(4))
                rules.setdefault((collective, ranks), []).append((nbytes, algorithm))
                assert fan == segment == 0
    assert next(numbers, None) is None
    return rules


def test_a_file_for_open_mpi(cells):
    ours = [cell for cell in cells if cell.algorithm != "native"]
    rules = parsed(export.ompi(ours))
    assert set(rules) == {(c, p) for c in (0, 2) for p in (2, 4, 8)}
    (zero, doubling), (at, ring) = rules[2, 8]
    assert (zero, doubling, ring) == (0, 3, 4)
    assert at == pytest.approx(crossover(8), rel=0.15)
    assert all(found[0][0] == 0 for found in rules.values())  # Open MPI refuses anything else
    with_library = parsed(export.ompi(cells))
    assert with_library[2, 2] == [(0, 0)]  # what it would do by itself


def test_nothing_to_tell_a_library():
    alone = gather(launched(COSTS, {"allreduce": ["swing"]}, launches=1, ranks=(2,)))[0]
    with pytest.raises(ValueError, match="nothing measured has a counterpart in Open MPI, which"):
        export.ompi(alone)
    with pytest.raises(ValueError, match="nothing measured has a counterpart in MPICH"):
        export.mpich(alone)


def test_a_file_for_mpich(cells):
    usual = {"comm_size=any": {"algorithm=MPIR_Allreduce_intra_smp": {}}}
    base = {
        "collective=allreduce": {"comm_type=intra": usual, "comm_type=inter": {"kept": {}}},
        "collective=bcast": {"kept": {}},
    }
    found = export.mpich(cells, base)
    assert found["collective=bcast"] == {"kept": {}}
    assert found["collective=allreduce"]["comm_type=inter"] == {"kept": {}}
    intra = found["collective=allreduce"]["comm_type=intra"]
    assert list(intra) == ["comm_size<4", "comm_size<8", "comm_size=any"]
    assert intra["comm_size<4"] == {"avg_msg_size=any": usual}
    gathering = found["collective=allgather"]["comm_type=intra"]["comm_size=any"]
    assert all(key.startswith("total_msg_size") for key in gathering)
    assert base["collective=allreduce"]["comm_type=intra"] == usual  # not changed itself


def test_what_mpich_needs_of_a_call_is_asked_for():
    used = export._use(export.MPICH["allreduce"], {}, "recursive_halving_doubling")
    doubling = {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}
    halving = {"algorithm=MPIR_Allreduce_intra_reduce_scatter_allgather": {}}
    assert used == {
        "is_commutative=yes": {
            "is_op_built_in=no": doubling,
            "is_op_built_in=yes": {"count<pow2": doubling, "count=any": halving},
        },
        "is_commutative=no": doubling,
    }
    assert "is_sendbuf_inplace=yes" in export._use(export.MPICH["alltoall"], {}, "bruck")
    assert "comm_size=pow2" in export._use(export.MPICH["allgather"], {}, "recursive_doubling")


def test_choices_that_libraries_know_exist():
    for collective, (_, known) in export.OMPI.items():
        for words in known:
            assert tuning.parse(collective, words, "").words == words
    for collective, entry in export.MPICH.items():
        for words in entry.algorithms:
            assert tuning.parse(collective, words, "").words == words
