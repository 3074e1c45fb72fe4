"""Trainings on a mesh in which ranks die: the others learn what all would have learnt."""

import json
import random

import pytest
from deaths import HEARTBEATS, STEPS, check, results

PUT, LAYERS = "parallel.wires.Wires.put", "parallel.conjugate.Group.sum"
LOSSES = "parallel.agreement.Group.losses"
STEP, UPDATE = (f"strategies.stage_trainer.StageTrainer.{name}" for name in ("step", "_update"))
END = "strategies.stage_trainer.StageTrainer._agreed"
KEPT = "strategies.copies.Copies.keep"
SHARED = "strategies.stage_trainer.StageTrainer._recorded"
FORMING = "parallel.mesh.Mesh.__init__"
GATHERED = "parallel.pipeline.gathered"
EVALUATION = "driver.measuring.Measuring.measure"
SAVE = "driver.array_files.write"
RECOVERY, SEATS = "driver.recovery.recover", "driver.seating.chosen"
PIPE, TENSOR = "data=2,pipe=2", "data=2,tensor=2"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def learn(train, tmp_path):
    """Train on a mesh, with deaths; what the ranks that are left have found."""

    def start(ranks, mesh, deaths, options=(), after=None, **changes):
        known = {"microbatches": 2, "model": "mlp", "hidden": [9, 8], "check_every": 5}
        changes = {**known, "mesh": mesh, "checkpoint": str(tmp_path / "c"), **changes}
        return results(train(ranks, deaths, changes, options=options, after=after))

    return start


SHARDED = ("zero1", "fsdp")


def dead(deaths):
    return [rank for rank, *_ in deaths]


@pytest.mark.parametrize(
    ("mesh", "deaths", "asleep", "changes"),
    [
        (PIPE, [[1, "kill", PUT, 41]], [3], {"invariant": 4, "cut": "auto"}),
        (TENSOR, [[2, "exit", LAYERS, 40]], [3], {"optimizer": "adam", "clip": 0.1}),
    ],
    ids=["pipe", "tensor"],
)
def test_a_replica_is_dissolved_and_the_others_go_on(learn, mesh, deaths, asleep, changes):
    found, err = learn(4, mesh, deaths, **changes)
    check(found, err, dead(deaths), 4, "invariant" in changes, asleep=asleep)
    ((_, _, repeated, left),) = found[0]["lost"]
    assert (repeated, left, found[0]["spare"]) == (0, 2, [1])


@pytest.mark.parametrize("strategy", SHARDED)
def test_what_one_replica_alone_owned_is_with_the_next_one(learn, strategy):
    deaths = [[2, "kill", UPDATE, 9]]
    found, err = learn(4, PIPE, deaths, strategy=strategy, optimizer="adam", clip=0.1)
    check(found, err, [2], 4, asleep=[0], strategy=strategy)
    assert (found[0]["lost"][0][3], found[0]["spare"], found[0]["from"]) == (2, [1], [None])


def test_a_spare_takes_the_place_in_the_only_replica(learn):
    """What the dead had is gone: the others go on from the checkpoint of the last epoch."""
    found, err = learn(3, "data=1,pipe=2", [[0, "kill", STEP, 15]], spares=1, cut="auto")
    assert set(found) == {1, 2}, err
    assert found[1]["lost"] == [[[0], 11, 3, 2]] and found[1]["spare"] == [0]
    assert found[1]["from"][0].endswith("step-00000011")
    assert found[1]["steps"] == found[2]["steps"] == 44 and found[1]["difference"] <= 1e-12


def test_too_few_are_left_for_a_replica(train, tmp_path):
    changes = {"mesh": "pipe=2", "model": "mlp", "checkpoint": str(tmp_path / "c")}
    done = train(2, [[1, "kill", STEP, 15]], changes)
    words = "a replica of mesh data=1,pipe=2,tensor=1 needs 2 ranks, and 1 is left: start again"
    assert f"{words} with resume={tmp_path / 'c'}, or give spares" in done.err
    assert not done.out


def test_memory_is_estimated_anew_for_fewer_replicas(train, tmp_path):
    """Of four microbatches each holds all, and has twice as many of them; the run ends unlocked."""
    metrics, checkpoint = tmp_path / "m", str(tmp_path / "c")
    changes = {"mesh": PIPE, "model": "mlp", "metrics": str(metrics), "checkpoint": checkpoint}
    deaths = [[2, "kill", STEP, 15], *([rank, "fill", SEATS, 1] for rank in (0, 1, 3))]
    locks = [str(metrics / "rank-0.jsonl"), checkpoint]
    done = train(4, deaths, {**changes, "pipeline_schedule": "gpipe"}, room=1000, locks=locks)
    assert "stage 0 of 2 (rank 0) needs" in done.err and "this node has" in done.err
    assert "held microbatches" in done.err
    found, _ = results(done)
    assert set(found) == {0, 1, 3} and found[0]["held"] == []  # rank 0 has held them


# --- long ---

#: What a rank is about to do when it dies, by how it does, and how often it has done so then.
WAYS = {"kill": (None, 33), "exit": (LOSSES, 9), "exception": (UPDATE, 9), "stop": (END, 9)}


@pytest.mark.long
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("strategy", ["allreduce", *SHARDED])
@pytest.mark.parametrize(("mesh", "within"), [(PIPE, PUT), (TENSOR, LAYERS)], ids=[PIPE, TENSOR])
def test_every_rank_and_way_to_die(learn, mesh, within, strategy, victim, how):
    where, times = WAYS[how]
    deaths = [[victim, how, where or within, times]]
    options = HEARTBEATS if how == "stop" else ()
    exact = mesh == PIPE and strategy == "allreduce"
    changes = {"strategy": strategy, "invariant": 4 if exact else None}
    found, err = learn(4, mesh, deaths, options, **changes)
    partner = victim ^ (2 if mesh == PIPE else 1)
    check(found, err, [victim], 4, exact, asleep=[partner], strategy=strategy)


@pytest.mark.long
@pytest.mark.parametrize("strategy", SHARDED)
def test_ranks_that_are_to_sleep_give_what_they_alone_have(learn, strategy):
    """Of the second stage replica 1 is dead, and its copy with replica 2, which has no place."""
    deaths = [[rank, "kill", END, 9] for rank in (0, 2, 5)]
    found, err = learn(8, "data=4,pipe=2", deaths, strategy=strategy)
    check(found, err, [0, 2, 5], 8, asleep=found, strategy=strategy)
    assert found[1]["from"] == [None] * len(found[1]["from"])
    assert (found[1]["lost"][-1][3], found[1]["spare"][-1]) == (4, 1)


@pytest.mark.long
@pytest.mark.parametrize("strategy", SHARDED)
def test_a_rank_and_the_next_replica_of_its_stage_die_at_once(learn, strategy):
    """What they alone had is gone: the others go on from the checkpoint."""
    deaths = [[0, "kill", STEP, 15], [1, "kill", STEP, 15]]
    found, err = learn(6, "data=3,pipe=2", deaths, strategy=strategy)
    assert set(found) == {2, 3, 4, 5}, err
    assert found[2]["from"][-1].endswith("step-00000011")
    assert {each["steps"] for each in found.values()} == {44}
    assert found[2]["difference"] <= 1e-12


@pytest.mark.long
@pytest.mark.parametrize("strategy", SHARDED)
@pytest.mark.parametrize("mesh", ["data=1,pipe=2", PIPE, TENSOR])
def test_a_spare_rank_gets_pieces(learn, mesh, strategy):
    ranks = 3 if mesh == "data=1,pipe=2" else 5
    deaths = [[1, "kill", STEP, 15]]
    cut = "even" if mesh == TENSOR else "auto"
    found, err = learn(ranks, mesh, deaths, strategy=strategy, spares=1, cut=cut)
    assert set(found) == set(range(ranks)) - {1}, err
    first = found[0]
    # Of a single replica, what the dead rank had is gone.
    assert (first["from"][0] is None) == (ranks == 5)
    assert (first["lost"][0][3], first["spare"]) == (ranks - 1, [0])
    assert first["steps"] == 44 and first["difference"] <= 1e-12


@pytest.mark.long
@pytest.mark.parametrize("strategy", SHARDED)
@pytest.mark.parametrize("where", [UPDATE, KEPT, SHARED, EVALUATION, SAVE, RECOVERY, FORMING])
def test_pieces_outlive_deaths_in_a_row(learn, where, strategy):
    """The second one where it is said."""
    times = {UPDATE: 12, KEPT: 12, SHARED: 12, RECOVERY: 1}.get(where, 2)
    deaths = [[0, "kill", END, 9], [4, "kill", where, times]]
    found, err = learn(6, "data=3,pipe=2", deaths, strategy=strategy)
    check(found, err, [0, 4], 6, asleep=found, strategy=strategy)
    # One has died in each stage, and the one that slept between takes a place.
    assert found[1]["lost"][-1][3] == 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "mesh", "deaths", "left", "spare", "changes"),
    [
        (5, PIPE, [[0, "kill", STEP, 15], [1, "kill", STEP, 30]], [4, 2], [0, 1], {"spares": 1}),
        (4, PIPE, [[0, "kill", END, 9], [3, "kill", END, 9]], [2], [0], {}),
        (4, PIPE, [[0, "kill", END, 9], [2, "kill", END, 9]], [2], [0], {}),
        # Who sleeps since the first death still knows what the second one takes away.
        (4, TENSOR, [[0, "kill", END, 9], [3, "kill", STEP, 10]], [2, 2], [1, 0], {}),
        (5, PIPE, [[0, "kill", STEP, 15], [2, "kill", RECOVERY, 1]], [2], [1], {"spares": 1}),
        (5, PIPE, [[0, "kill", STEP, 15], [3, "kill", FORMING, 2]], [2], [1], {"spares": 1}),
        (4, PIPE, [[1, "kill", EVALUATION, 2]], [2], [1], {}),
        (4, PIPE, [[0, "exception", SAVE, 2]], [2], [1], {"pipeline_schedule": "zb_h1"}),
        (6, "data=3,pipe=2", [[0, "kill", STEP, 9], [1, "kill", STEP, 20]], [4, 4], [1, 0], {}),
    ],
    ids=str,
)
def test_several_deaths_and_places(learn, ranks, mesh, deaths, left, spare, changes):
    found, err = learn(ranks, mesh, deaths, **changes)
    check(found, err, dead(deaths), ranks, asleep=found)
    first = found[min(found)]
    pairs = [*zip([loss[-1] for loss in first["lost"]], first["spare"], strict=True)]
    # Deaths at nearly the same time are one, or two.
    assert pairs[-1] == (left[-1], spare[-1])
    assert all(pair in zip(left, spare, strict=True) for pair in pairs)
    assert first["from"] == [None] * len(pairs)


LAUNCHES = 60


@pytest.mark.long
@pytest.mark.parametrize("seed", range(LAUNCHES))
def test_deaths_at_random(learn, seed):
    """A rank is killed by a timer, in whatever it does, before its last step."""
    draw = random.Random(seed)
    strategy, mesh = draw.choice(["allreduce", *SHARDED]), draw.choice([PIPE, TENSOR])
    spares, victim, last = draw.choice([0, 1]), draw.randrange(4), 2 * STEPS - 1
    after = [victim, draw.randrange(1, last), draw.uniform(0, 0.02), last]
    job = {"after": after, "strategy": strategy, "spares": spares}
    found, err = learn(4 + spares, mesh, [], epochs=8, **job)
    check(found, err, [victim], 4 + spares, strategy=strategy, epochs=8, asleep=found)
    ((dead, *_, left),) = found[min(found)]["lost"]
    assert (dead, left) == ([victim], 4 if spares else 2)


@pytest.mark.long
@pytest.mark.parametrize("order", ["pipedream", "1f1b"])
@pytest.mark.parametrize("victim", [0, 1])
def test_the_only_replica_goes_on_from_the_checkpoint(learn, tmp_path, order, victim):
    deaths = [[victim, "kill", UPDATE, 15]]
    changes = {"pipeline_schedule": order, "checkpoint_every": 4}
    whole, err = learn(2, "data=1,pipe=2", [], **changes, checkpoint=str(tmp_path / "whole"))
    found, err = learn(3, "data=1,pipe=2", deaths, **changes, spares=1)
    first = found[1 - victim]
    assert set(found) == {1 - victim, 2}, err
    assert first["from"][0].endswith("step-00000012") and first["steps"] == 44
    assert (first["bits"], first["loss"]) == (whole[0]["bits"], whole[0]["loss"])


@pytest.mark.long
def test_steps_that_overflow_are_left_out_as_without_a_death(learn, tmp_path):
    """The factor of the loss is the same at all times: equal bits, in float16."""
    changes = {"dtype": "float16", "loss_scale": 2.0**135, "skip_limit": 50, "accumulate": 2}
    changes |= {"invariant": 4, "epochs": 6}
    whole, err = learn(4, PIPE, [], checkpoint=str(tmp_path / "whole"), **changes)
    deaths = [[3, "kill", STEP, 3], [0, "kill", PUT, 60]]
    found, err = learn(5, PIPE, deaths, spares=1, **changes)
    assert set(found) == {1, 2, 4}, err
    assert [found[1][fact] for fact in ("bits", "loss")] == [
        whole[0][fact] for fact in ("bits", "loss")
    ]
    assert whole[0]["skipped"] > 5 and found[1]["skipped"]  # before and after the first death


@pytest.mark.long
def test_a_stage_that_all_replicas_have_lost(learn):
    """The rank that sleeps since the first death takes a place, with what the checkpoint has."""
    found, err = learn(4, PIPE, [[0, "kill", STEP, 15], [1, "kill", STEP, 30]])
    assert set(found) == {2, 3}, err
    assert found[2]["lost"][-1] == [[1], 22, 6, 2] and found[2]["spare"] == [1, 0]
    assert found[2]["from"][-1].endswith("step-00000022")
    assert found[2]["steps"] == 44 and found[2]["difference"] <= 1e-12


@pytest.mark.parametrize(
    ("where", "times", "steps"),
    [
        (PUT, 41, 20),
        # Where ranks put it together: the others begin another one.
        pytest.param(GATHERED, 1, 20, marks=pytest.mark.long),
        # When it was written: another one is of the steps that are left.
        pytest.param(STEP, 40, 5, marks=pytest.mark.long),
    ],
    ids=["within", "gathering", "after"],
)
def test_a_timeline_begins_anew_with_the_ranks_that_are_left(learn, tmp_path, where, times, steps):
    path = tmp_path / "timeline.json"
    found, err = learn(4, PIPE, [[1, "kill", where, times]], timeline=str(path))
    check(found, err, [1], 4, asleep=[3])
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    starts = [event for event in events if event.get("cat") == "computing" and event["pid"] == 0]
    assert len(starts) == steps * 4 * 2  # four microbatches now, forward and backward


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "exit", "exception", "stop"])
@pytest.mark.parametrize("victim", range(4))
def test_every_rank_of_fsdp(train, tmp_path, victim, how):
    update = "strategies.lockstep.Trainer._update"
    where = update if how == "exception" else "exchange.buckets.Exchange.finish"
    changes = {"strategy": "fsdp", "checkpoint": str(tmp_path / "c")}
    options = HEARTBEATS if how == "stop" else ()
    found, err = results(train(4, [[victim, how, where, 9]], changes, options=options))
    check(found, err, [victim], 4, strategy="fsdp")


@pytest.mark.long
@pytest.mark.parametrize("where", ["tell_sleepers", "all_finished", "tell"])
def test_the_rank_that_prints_dies_at_the_end(train, where):
    """Before the spare rank knows of the end, before all agree on it, and before it prints."""
    changes = {"mesh": PIPE, "model": "mlp", "spares": 1}
    done = train(5, [[0, "kill", f"ranks.members.Members.{where}", 1]], changes, command=True)
    assert done.out.count("s of steps") == 1, done.err
    if where != "tell":
        assert "lost 1 rank: 0 after step 44; " in done.err


@pytest.mark.long
def test_the_end_of_a_run_says_what_was_lost(train, tmp_path):
    changes = {"mesh": PIPE, "model": "mlp", "checkpoint": str(tmp_path / "c"), "spares": 1}
    deaths = [[0, "kill", STEP, 15], [1, "kill", STEP, 30]]
    done = train(5, deaths, changes, command=True)
    assert "5 ranks, allreduce, mesh data=2,pipe=2" in done.out
    first, second = (line for line in done.err.splitlines() if line.startswith("lost"))
    assert "lost 1 rank: 0 after step 14; " in first and first.endswith("until 4 ranks went on")
    assert second.endswith("until 2 ranks went on, 1 rank spare")
    assert not [*(tmp_path / "c").glob(".*")], "a lock or a draft is left"
