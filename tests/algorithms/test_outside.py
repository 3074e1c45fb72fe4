"""Algorithms from outside mpicoll: what registering one takes, and how modules are found."""

from math import isqrt

import pytest
from outside import MODULE

from mpicoll import Recv, RecvReduce, Send, algorithms, registry
from mpicoll.base import extensions
from mpicoll.registry import POWER_OF_TWO, SizeNeed, register
from mpicoll.verify import verify

pytestmark = pytest.mark.usefixtures("nothing_from_outside")


def exchange(rank, size):
    """Partners twice as far apart in each round exchange all they have, and reduce it."""
    distance = 1
    while distance < size:
        yield Send(rank ^ distance, 0), RecvReduce(rank ^ distance, 0)
        distance *= 2


def test_a_name_and_a_schedule_are_enough():
    entry = register("allreduce", "exchange", exchange, needs=(POWER_OF_TWO,))
    assert entry.origin == __name__ and registry.of_a_user("allreduce", "exchange") is entry
    assert registry.of_a_user("allreduce", "ring") is None
    for size in (1, 2, 8):
        case = verify(entry, size)
        assert case.ok and not entry.declares("rounds")
        for name, counted in case.counts._asdict().items():
            assert entry.count_of(name, size) == counted
        known = algorithms.find("allreduce", "recursive_doubling")
        assert entry.count_of("messages", size) == known.count_of("messages", size)
        assert case.depth == known.count_of("depth", size)
    assert entry.textbook_time(8, 1.0, 1.0, 1.0, 1.0) is None


def test_declared_counts_are_checked():
    entry = register("allreduce", "exchange", exchange, rounds=lambda P: 1, messages=lambda P: 8)
    assert verify(entry, 2).problems == (
        "messages: 8 registered, 2 counted", "blocks_sent: 8 registered, 2 counted",
    )  # fmt: skip
    assert verify(entry, 4).problems[0] == "rounds: 1 registered, 2 counted"


def test_who_registers_decides_whose_it_is():
    """mpicoll's own schedule under another name may be given the wrong number of blocks."""
    ring = algorithms.find("allreduce", "ring")
    entry = register("allreduce", "my_ring", ring.schedule, kinds=ring.kinds)
    assert registry.of_a_user("allreduce", "my_ring") is entry
    assert not verify(entry, 4).ok  # one block


@pytest.mark.parametrize(
    ("need", "size", "message"),
    [
        (POWER_OF_TWO, 6, "it needs a power of two of ranks, not 6: take 8 ranks, or another alg"),
        ("even", 5, "it needs an even number of ranks, not 5: take 6 ranks, or another algorithm"),
        (
            SizeNeed("a square number of ranks", lambda P: isqrt(P) ** 2 == P),
            5,
            "it needs a square number of ranks, not 5: take 9 ranks, or another algorithm",
        ),
        (
            SizeNeed("at most 4 ranks", lambda P: P <= 4),
            5,
            "it needs at most 4 ranks, not 5: take another algorithm",
        ),
    ],
)
def test_needs_of_the_number_of_ranks(need, size, message):
    entry = register("allreduce", "exchange", exchange, needs=(need,))
    assert entry.runs_on(4) and not entry.runs_on(size)
    assert message in entry.misfit(size, {})
    assert "exchange" in algorithms.names("allreduce", 4)
    assert "exchange" not in algorithms.names("allreduce", size)
    with pytest.raises(ValueError, match=f"allreduce exchange: it needs .* not {size}"):
        entry.channels(0, size)


def test_an_unknown_need_is_refused():
    with pytest.raises(ValueError, match="unknown need 'odd': known are commutative, equal blocks"):
        register("allreduce", "exchange", exchange, needs=("odd",))
    assert registry.of_a_user("allreduce", "exchange") is None


@pytest.mark.parametrize("peer", [1.0, "1", True])
def test_a_peer_is_an_int(peer):
    def odd(rank, size, root):
        if rank == root:
            yield Send(peer, 0)
        else:
            yield Recv(root, 0)

    entry = register("bcast", "odd", odd)
    assert verify(entry, 2).problems[0].endswith("of rank 0: a peer is an int")


# --- modules --------------------------------------------------------------------------------------


def test_the_environment_names_modules_and_files(monkeypatch, tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "other.py").write_text(MODULE.replace("around", "on"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(extensions.VARIABLE, f"mine, {tmp_path / 'other.py'}")
    assert algorithms.find("bcast", "around").origin == "mine"
    assert algorithms.find("bcast", "on").origin == "other"
    assert {"around", "on"} <= set(algorithms.names("bcast"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone", None, "gone cannot be imported: No module named 'gone'; give a module that"),
        ("gone.py", None, "gone.py cannot be imported: there is no file gone.py; give a module"),
        ("json.py", "", "a module json is loaded already; give the file another name"),
        ("bad.py", "x = 1\n1 / 0\n", r"ZeroDivisionError: division by zero \(bad.py, line 2\)"),
        ("twice.py", MODULE + MODULE, "ValueError: bcast around is registered already"),
        ("torn.py", "def", "torn.py cannot be imported: SyntaxError: "),
    ],
)
def test_what_cannot_be_loaded_is_said(monkeypatch, tmp_path, name, text, message):
    import json  # noqa: F401 - loaded

    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    for _ in range(2):  # it is not taken for loaded
        with pytest.raises(ValueError, match=f"{name}.*"):
            extensions.load([name])
        monkeypatch.setenv(extensions.VARIABLE, name)
        with pytest.raises(ValueError, match=message):
            algorithms.catalogue()
        registry._CATALOGUE.pop(("bcast", "around"), None)


def installed(path, name, module):
    """A package as pip leaves it."""
    info = path / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mpicoll.algorithms]\n{name} = {module}\n")


def test_an_installed_package_names_its_own(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_package.py").write_text(MODULE)
    installed(tmp_path, "good", "of_a_package")
    installed(tmp_path, "broken", "nowhere")
    extensions._asked = False
    assert algorithms.find("bcast", "linear")  # asks nobody
    with pytest.warns(UserWarning, match=r"broken \(nowhere\), which are installed, can"):
        entry = algorithms.find("bcast", "around")
    assert entry.origin == "of_a_package" and verify(entry, 5, 2).ok
