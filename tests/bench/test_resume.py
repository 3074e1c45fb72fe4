"""Going on with a sweep: the same sweep, and only what is missing of it."""

from dataclasses import replace

import numpy as np
import pytest
from points import POINT, write

from mpicoll.bench.pattern import element_type
from mpicoll.bench.resume import Earlier, earlier, key
from mpicoll.bench.settings import SweepSettings, groups, shuffled

SETTINGS = SweepSettings(
    algorithms={"allreduce": ("ring segments=4", "native"), "barrier": ("tree",)},
    sizes=(1024, 2048, 1025),
    dtypes=(np.dtype("f4"), np.dtype("f8")),
    ranks=(2, 4),
    seed=9,
    launch=2,
)


def facts(settings=SETTINGS, **more):
    return {"mpi": "MPICH 5, of a day", "processor": "X", "settings": settings.plain(), **more}


def test_groups_hold_every_point_once():
    found = [group.key(name) for group in groups(SETTINGS, 4) for name in group.algorithms]
    # 1025 bytes are as many elements as 1024; a barrier has neither size nor type.
    assert len(found) == len(set(found)) == 2 * (2 * 2 * 2 + 1)
    assert [g.ranks for g in groups(replace(SETTINGS, ranks=()), 4)] == [4] * 5


def test_what_is_done_is_not_measured_again():
    done = frozenset({key(POINT)})
    left = groups(SETTINGS, 4, done)
    (group,) = [g for g in left if (g.count, g.ranks, g.dtype.name) == (256, 4, "float32")]
    assert group.algorithms == ("native",)
    everything = {g.key(a) for g in groups(SETTINGS, 4) for a in g.algorithms}
    assert groups(SETTINGS, 4, frozenset(everything)) == []


def test_the_seed_decides_the_order():
    todo = groups(SETTINGS, 4)
    assert shuffled(todo, 1) == shuffled(todo, 1) != shuffled(todo, 2)
    assert sorted(map(repr, shuffled(todo, 1))) == sorted(map(repr, todo))


def test_a_sweep_goes_on_where_it_ended(tmp_path):
    path = tmp_path / "a.jsonl"
    path.touch()
    assert earlier(path, facts(), None) == Earlier()
    other = replace(SETTINGS, launch=1, cold=True)
    write(path, [replace(POINT, run="o", launch=1)], name="o", facts=facts(other))
    assert earlier(path, facts(), None) == Earlier()
    write(path, [replace(POINT, algorithm="tree")], facts=facts())
    write(path, [], name="s", facts=facts(resumes="r"))
    write(path, [replace(POINT, run="t", size=2048)], name="t", facts=facts(resumes="s"))
    found = earlier(path, facts(replace(SETTINGS, budget=3.0, timeout=9.0, seed=0)), None)
    assert (found.names, found.seed) == (("r", "s", "t"), 9)
    assert [(p.run, p.algorithm) for p in found.points] == [("r", "tree"), ("t", "ring")]
    assert found.done == {key(p) for p in found.points}
    # Begun anew without --resume: what went before is another sweep.
    write(path, [], name="u", facts=facts())
    assert earlier(path, facts(), 9).names == ("u",)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cold": True}, "cold was False, is True;"),
        ({"sizes": (8,)}, "sizes was 1024,2048,1025, is 8;"),
        ({"dtypes": (element_type("half"),)}, "dtypes was float32,float64, is float16"),
        (
            {"algorithms": {"allreduce": ("ring",)}},
            "algorithms was allreduce=ring segments=4,native barrier=tree, is allreduce=ring;",
        ),
        ({"ranks": (2,), "root": 1}, "ranks was 2,4, is 2; root was 0, is 1;"),
    ],
)
def test_another_sweep_is_refused_by_name(tmp_path, changed, said):
    write(tmp_path / "a", [POINT], facts=facts())
    with pytest.raises(ValueError, match=r"--resume: .* has run r with other settings") as raised:
        earlier(tmp_path / "a", facts(replace(SETTINGS, **changed)), None)
    assert said in str(raised.value)


def test_another_machine_or_order_is_refused(tmp_path):
    write(tmp_path / "a", [POINT], facts=facts())
    with pytest.raises(ValueError, match="seed was 9, is 8;"):
        earlier(tmp_path / "a", facts(), 8)
    with pytest.raises(ValueError, match="processor 'X' and 'Y';"):
        earlier(tmp_path / "a", facts(processor="Y"), None)
