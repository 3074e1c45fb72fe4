"""Plans of real models: profiles, shared layers, files, what does not fit, how long they take."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mpicoll import tuning
from mpicoll.base.files import parse_toml
from mpicoll.simulate.costs import INTER, INTRA, CostModel, Costs, Piece
from mpicoll.train import Config
from mpicoll.train.driver import config_file
from mpicoll.train.models import MLP, Sequential, transformer
from mpicoll.train.models.layers import Layer
from mpicoll.train.parallel.conjugate import Group
from mpicoll.train.parallel.sharded import collectives
from mpicoll.train.parallel.shards import SAMPLES, divided, ring
from mpicoll.train.planner import comparison, measured, modelled, needs, plan_file, profile
from mpicoll.train.planner.cluster import Cluster
from mpicoll.train.planner.flops import flops
from mpicoll.train.planner.layers import Layers
from mpicoll.train.planner.problem import Problem, require_short
from mpicoll.train.planner.profile import LayerProfile, Profile, Times
from mpicoll.train.planner.search import search
from mpicoll.train.planner.space import Candidate, candidates
from mpicoll.tuning import predict

DECODER = transformer(64, 16, width=16, blocks=3, heads=4)


def cluster(ranks: int, per_node: int) -> Cluster:
    links = {INTRA: (Piece(None, 1e-6, 1e-10),), INTER: (Piece(None, 46e-6, 3e-10),)}
    model = CostModel(Costs(links, gamma=1e-10, call=1e-6))
    return Cluster(model, [rank // per_node for rank in range(ranks)])


def problem(
    model: Sequential = DECODER, ranks: int = 4, memory: int | None = None, batch: int = 16
) -> Problem:
    where = cluster(ranks, 2)
    layers = modelled.layers_of(model, measured.from_rate(model, 1e9), where)
    return Problem(ranks, batch, where, layers, slots=1, memory=memory)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 64, (4, 17))
    found = measured.measure(DECODER, tokens[:, :-1], tokens[:, 1:], (1, 4))
    assert all(times.forward > 0 for layer in found.layers for times in layer.times)
    profile.write(tmp_path / "layers.json", found)
    assert profile.read(tmp_path / "layers.json") == found
    modelled.require_profile(DECODER, found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mpicoll": "layers 2"}, "mpicoll: Input should be 'layers 1'"),
        ({"layers": []}, "layers: List should have at least 1 item"),
        ({"about": {"ranks": True}}, "ranks"),
        ({"about": {"ranks": 0}}, "ranks"),
        ({"about": {"dtype": 7}}, "dtype"),
        ({"layers": [{"kind": "Dense", "inputs": [2], "parameters": 1, "times": []}]}, "times"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    path = tmp_path / "layers.json"
    profile.write(path, measured.from_rate(DECODER, 1e9))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=words) as caught:
        profile.read(path)
    assert "give a file that `mpicoll plan --measure` wrote" in str(caught.value)


def test_samples_of_a_profile_ascend(tmp_path: Path) -> None:
    times = (Times(4, 1.0, 1.0, 1.0), Times(1, 1.0, 1.0, 1.0))
    profile.write(tmp_path / "layers.json", Profile((LayerProfile("Dense", (2,), 1, times),)))
    with pytest.raises(ValueError, match="samples do not ascend"):
        profile.read(tmp_path / "layers.json")


def test_a_profile_of_another_model_is_refused() -> None:
    other = measured.from_rate(MLP((8, 4, 2)), 1e9)
    with pytest.raises(ValueError, match="has 3 layers and the model 10"):
        modelled.require_profile(DECODER, other)
    with pytest.raises(ValueError, match="layer 0 is Dense of inputs 9 with 40 parameters, and"):
        modelled.require_profile(MLP((9, 4, 2)), other)


def test_between_and_beyond_sizes_times_are_straight_lines() -> None:
    times = tuple(Times(n, float(n + 1), 0.0, 2.0 * n) for n in (2, 4))
    layer = LayerProfile("Dense", (1,), 1, times)
    assert layer.at(3) == Times(3, 4.0, 0.0, 6.0)
    assert layer.at(10) == Times(10, 11.0, 0.0, 20.0)
    assert layer.at(1).forward == 3.0
    assert replace(layer, times=times[:1]).at(4).forward == 6.0


def test_operations_of_layers() -> None:
    mlp = MLP((8, 4, 2))
    assert [flops(*pair) for pair in zip(mlp.layers, mlp.shapes, strict=False)] == [64, 16, 16]
    tokens, width = 16, 16
    block = DECODER.layers[2]
    norm, attention, added = 4 * tokens * width, 8 * tokens * width**2, tokens * width
    assert flops(block, (tokens, width)) == norm + attention + 4 * tokens**2 * width + added


@pytest.mark.parametrize("tensor", [2, 3, 4])
def test_shared_layers_have_the_sizes_and_the_collectives_of_the_real_ones(tensor: int) -> None:
    given = problem(ranks=tensor)
    layers = given.layers_of(tensor, 1, False)
    assert layers is not None

    group = Group(None, tensor, 0)  # type: ignore[arg-type]
    parts: list[Layer]
    parts, _ = divided(DECODER.layers, DECODER.shapes, group, 4 * SAMPLES, ring(tensor))
    own = Sequential(parts, DECODER.shapes[0], "float32")
    assert [4 * count for _, _, count in measured.described(own)] == layers.weights.tolist()
    sent = sum((1 + (name == "allreduce")) * n for name, n in collectives(parts, 1))
    assert layers.total("forward_sent", 0, len(layers)) + layers.total(
        "backward_sent", 0, len(layers)
    ) == pytest.approx(4 * sent * (tensor - 1) / tensor, abs=2 * len(parts))
    # Between attention and dense layers, values are whole; behind the embedding they are a sum.
    assert layers.cuts.tolist() == [True, False, *[True] * 9]


def test_layers_with_less_to_divide_than_ranks_are_left_out() -> None:
    given = problem(ranks=8)
    assert given.layers_of(8, 1, False) is None  # four heads
    found = search(given, candidates(8, 16, len(DECODER.layers)))
    assert all(candidate.tensor < 8 for candidate in found.outcomes)


def test_what_is_sent_in_a_step() -> None:
    given = problem()
    layers = given.layers_of(1, 4, False)
    assert layers is not None
    pipe = Candidate(1, 4, 1, "allreduce", 4, False, "1f1b", (("ahead", 0),))
    # Stages in the middle send a message forward and one backward for each microbatch.
    assert given.outcome(pipe, (0, 3, 5, 7)).sent["pipe"] == 2 * 4 * 4 * (4 * 16 * 16)
    weights = int(layers.weights.sum())
    for strategy, times in (("allreduce", 2), ("zero1", 2), ("fsdp", 3)):
        sent = given.outcome(Candidate(4, 1, 1, strategy), (0,)).sent
        assert sent == {"data": times * 3 * weights // 4, "pipe": 0, "tensor": 0}


def test_stages_with_the_same_parameters_sum_their_gradients_at_the_end() -> None:
    given = problem()
    alone = replace(given, layers_of=lambda *what: untied(given.layers_of(*what)))
    candidate = Candidate(1, 4, 1, "allreduce", 4, False, "1f1b", (("ahead", 0),))
    cut = (0, 3, 5, 7)
    tied, other = given.outcome(candidate, cut), alone.outcome(candidate, cut)
    layers = given.layers(candidate)
    assert layers is not None and layers.weights[0] == layers.weights[-1] == 4 * 64 * 16
    spans = [[(0, 3)], [(3, 5)], [(5, 7)], [(7, 10)]]
    nbytes = 4 * 64 * 16
    assert list(layers.ties(spans)) == [{0: nbytes, 3: nbytes}]
    message = given.machine(candidate).message(0, 3, nbytes)
    once = given.agreement(candidate)
    assert given.agreement(candidate, ties=True) == 2 * once
    assert tied.picoseconds == other.picoseconds + message + once
    assert tied.exchange == other.exchange + message / 2 + once
    assert tied.sent["pipe"] == other.sent["pipe"]  # of a stage in the middle
    last = replace(given, layers_of=lambda *what: longer(given.layers_of(*what)))
    sent = last.outcome(candidate, cut).sent["pipe"]
    assert sent == 4 * 4 * (4 * 16 * 16) + 1000 * nbytes


def untied(layers: Layers | None) -> Layers:
    assert layers is not None
    return replace(layers, first=np.arange(len(layers)))


def longer(layers: Layers | None) -> Layers:
    assert layers is not None
    return replace(layers, weights=1000 * layers.weights)


def test_a_stage_does_not_begin_where_a_message_would_be_too_long() -> None:
    given = problem()
    layers = given.layers_of(1, 1, False)
    assert layers is not None and layers.cuts.all()
    most = (2**31 - 1) // (4 * 16 * 16)
    long = given.layers_of(1, most + 1, False)
    assert long is not None and long.cuts.tolist() == [True, *[False] * 9, True]
    fits = given.layers_of(1, most, False)
    assert fits is not None and fits.cuts.all()


@pytest.mark.parametrize(("rate", "ranks"), [(1e-3, 2), (1e-300, 8)])
def test_layers_that_take_too_long_for_64_bits_are_refused(rate: float, ranks: int) -> None:
    where = cluster(ranks, 2)
    layers_of = modelled.layers_of(DECODER, measured.from_rate(DECODER, rate), where)
    given, count = Problem(ranks, 16, where, layers_of), len(DECODER.layers)
    assert all(candidate.tensor == 8 for candidate in given.candidates(count, True))  # four heads
    with pytest.raises(ValueError, match=r"a step takes \S+ s or more, and plans are of less than"):
        needs.smallest_need(given, count, True)


def test_messages_that_take_too_long_for_64_bits_are_left_out_or_refused() -> None:
    where = Cluster(CostModel(Costs({INTRA: (Piece(None, 1e6, 1.0),)})), [0] * 2)
    layers_of = modelled.layers_of(DECODER, measured.from_rate(DECODER, 1e9), where)
    given, count = Problem(2, 16, where, layers_of), len(DECODER.layers)
    every = given.candidates(count, True)
    assert every and all((candidate.pipe, candidate.tensor) == (1, 1) for candidate in every)
    best = search(given, every).best
    assert best is not None
    with pytest.raises(ValueError, match="give shorter times by --profile, --rate, --costs or"):
        require_short(best.seconds)


def test_a_profile_of_another_type_is_refused() -> None:
    found = measured.from_rate(DECODER, 1e9)
    modelled.require_profile(DECODER, replace(found, about={"dtype": "float32"}))
    with pytest.raises(ValueError, match="of float64, and the model computes in float32: measure"):
        modelled.require_profile(DECODER, replace(found, about={"dtype": "float64"}))


@pytest.mark.parametrize(
    ("name", "algorithm"), [("allreduce", "swing"), ("allgather", "hierarchical")]
)
def test_of_many_ranks_some_stand_for_all(name: str, algorithm: str) -> None:
    """The same where blocks are equally long, and a little more where they are not."""
    links = {INTRA: (Piece(None, 1e-6, 1e-10),), INTER: (Piece(None, 46e-6, 3e-10),)}
    model = CostModel(Costs(links, gamma=1e-10, call=1e-6))
    choice, nodes = tuning.parse(name, algorithm, ""), tuple(rank // 8 for rank in range(64))
    for nbytes, more in ((1 << 20, 1.0), ((1 << 20) + 8, 1.001)):
        given = model, name, choice, 64, nbytes, nodes
        exact = predict.estimate(*given)
        assert exact <= predict.estimate(*given, largest=True) <= more * exact


@pytest.mark.long
@pytest.mark.timeout(600)
def test_128_nodes_with_8_ranks_each() -> None:
    """Few of thousands of candidates are simulated: their bounds rule out the others."""
    model = transformer(64, 128, width=256, blocks=48, heads=8)
    where = cluster(1024, 8)
    layers_of = modelled.layers_of(model, measured.from_rate(model, 5e10), where)
    given, count = Problem(1024, 2048, where, layers_of, memory=64 << 20), len(model.layers)
    found = search(given, given.candidates(count, True))
    assert found.best is not None and found.gap == 0
    assert found.candidates > 4000 and found.simulated < 100


def test_what_does_not_fit_says_what_is_needed_and_what_would_help() -> None:
    given = problem(memory=1 << 16)
    layers = len(DECODER.layers)
    assert search(given, candidates(4, 16, layers)).best is None
    need = needs.smallest_need(given, layers, True)
    assert need.nbytes > 1 << 16
    remedies = needs.remedies(given, need, layers, True)
    assert remedies[0] == f"--memory {-(-need.nbytes >> 10)}K"
    # With as much as is said to be needed there is a plan, and with less there is none.
    for memory, fits in ((need.nbytes, True), (need.nbytes * 99 // 100, False)):
        again = search(replace(given, memory=memory), candidates(4, 16, layers))
        assert (again.best is not None) is fits
    assert "stage" in needs.in_words(need) or "a rank" in needs.in_words(need)


def test_more_ranks_or_a_smaller_batch_are_said_only_where_they_help() -> None:
    given = problem(memory=40_000, batch=64)
    need = needs.smallest_need(given, len(DECODER.layers), True)
    for remedy in needs.remedies(given, need, len(DECODER.layers), True)[1:]:
        name, value = remedy.split()
        other = (
            replace(given, batch=int(value))
            if name == "--batch"
            else replace(given, ranks=int(value), cluster=given.cluster.times(int(value) // 4))
        )
        assert needs.smallest_need(other, len(DECODER.layers), True).nbytes <= 40_000


def test_a_plan_with_data_alone_is_a_configuration(tmp_path: Path) -> None:
    given = problem()
    outcome = given.outcome(Candidate(4, 1, 1, "zero1", 2), (0,))
    options = {"dataset": "text", "model": "transformer", "hidden": (8, 4), "lr": 1e-3}
    plan_file.write(tmp_path / "plan.toml", options, outcome, given)
    config = Config(**config_file.read(tmp_path / "plan.toml"))
    assert config == Config(**options, strategy="zero1", batch=8, accumulate=2)


def test_a_plan_with_a_mesh_says_all_of_it(tmp_path: Path) -> None:
    given = problem()
    candidate = Candidate(1, 2, 2, "allreduce", 4, True, "1f1b", (("ahead", 1),))
    plan_file.write(tmp_path / "plan.toml", {}, given.outcome(candidate, (0, 4)), given)
    text = (tmp_path / "plan.toml").read_text()
    assert "mpirun -n 4 mpicoll train --config plan.toml" in text
    assert parse_toml(text) == {
        "strategy": "allreduce",
        "batch": 16,
        "mesh": "data=1,pipe=2,tensor=2",
        "microbatches": 4,
        "pipeline_schedule": "1f1b",
        "ahead": 1,
        "cut": "0,4",
        "recompute": True,
    }


def test_others_lose_by_what_has_grown() -> None:
    given = problem(ranks=4)
    every = list(candidates(4, 16, len(DECODER.layers)))
    found = search(given, every)
    assert found.best is not None
    others = comparison.rivals(given, every, found, 8)
    times = [other.picoseconds for other in others]
    assert times == sorted(times) and times[0] >= found.best.picoseconds
    assert len({other.candidate.family for other in (found.best, *others)}) == len(others) + 1
    for other in others:
        if other.candidate.order:
            assert "wait for other stages" in comparison.why(other, found.best)
    assert any("The fullest rank" in s for s in comparison.explanation(found.best, given, found))


def test_a_search_that_ends_early_says_how_far_it_may_be_off() -> None:
    given = problem(ranks=4)
    every = [c for c in candidates(4, 16, len(DECODER.layers)) if c.pipe > 1]
    whole, part = search(given, every), search(given, every, most_tasks=1)
    assert whole.best is not None and part.best is not None
    assert part.simulated == 1
    assert part.best.picoseconds * (1 - part.gap) <= whole.best.picoseconds


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_layers_on_64_ranks() -> None:
    """In a minute and 2 GB, three times padded for a machine that others use."""
    count, where = 1000, cluster(64, 4)
    rng = np.random.default_rng(1)
    base = rng.integers(5, 15, count) * 10**8
    weights, edges = rng.integers(1, 10, count) * 10**6, np.full(count + 1, 10**5)

    @cache
    def layers_of(tensor: int, samples: int, sequence: bool) -> Layers:
        forward = base * samples // tensor
        wire = where.collective("allreduce", [range(tensor)], edges[1:] * samples)
        sent = edges[1:] * samples * 2 * (tensor - 1) // tensor
        return Layers(
            forward + wire,
            forward + wire,
            forward,
            *(wire, wire, sent, sent),
            edges * samples,
            edges[1:] * samples,
            np.zeros(count, int),
            edges[1:] * samples,
            edges[1:] * samples,
            weights // tensor,
            np.arange(count),
            np.ones(count + 1, bool),
        )

    for memory in (None, 1 << 30):
        given = Problem(64, 512, where, layers_of, slots=2, memory=memory)
        begin = time.process_time()
        found = search(given, candidates(64, 512, count))
        spent = time.process_time() - begin
        print(f"{spent:.0f} s, {found.simulated} steps, gap {found.gap:.3f}")
        assert found.best is not None
        assert found.gap < 0.05
        assert spent < 3 * 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e6
