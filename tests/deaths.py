"""Launches in which ranks are killed, and the others go on: for tests that start them."""

import json
from pathlib import Path

import launch
import pytest

PROGRAM = Path(__file__).parent / "comm" / "surviving.py"
#: A launcher that goes on when a rank dies.
FAULT_TOLERANT = ("--with-ft", "ulfm")
#: One that does not end all when a second process has ended with a status other than 0, either.
EXITS = (*FAULT_TOLERANT, "--rtos", "error-nonzero-status=0")
#: Options with which it also notices ranks of which it hears nothing for so many seconds.
STOPPED_FOR = 4
HEARTBEATS = (
    *("--mca", "mpi_ft_detector", "true", "--mca", "mpi_ft_detector_period", "0.5"),
    *("--mca", "mpi_ft_detector_timeout", str(STOPPED_FOR)),
    *("--mca", "mpi_ft_propagator_with_rbcast", "true"),
)

ulfm = pytest.mark.skipif(
    "Open MPI v5" not in launch._library(), reason="all ranks end with one, by this library"
)


def survive(
    mpirun, rounds, transport="auto", elements=1000, after=None, limit=40, ranks=None, exits=False
):
    """Run rounds in which a rank dies; what the ranks that are left have found in each.

    There are `ranks`, one more than rounds if that is not given; `exits`: they die by ``os._exit``.
    """
    job = {"rounds": rounds, "elements": elements, "after": after, "exits": exits}
    done = mpirun(
        ranks or len(rounds) + 1,
        PROGRAM,
        json.dumps(job),
        options=EXITS if exits else FAULT_TOLERANT,
        environment={"MPICOLL_TRANSPORT": transport},
        limit=limit,
    )
    *found, last = done.out.splitlines() or [""]
    assert last == "done", done.err
    assert len(found) == len(rounds)
    mpirun.check_tidy()
    return [json.loads(line) for line in found]


# --- trainings (train/surviving.py) ---

STEPS = 44  # of clouds: 101 samples in batches of 10, four epochs


def results(done):
    found = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert found, done.err
    return {each["rank"]: each for each in found}, done.err


def check(found, err, dead, ranks=4, exact=False, strategy="allreduce", epochs=4, asleep=()):
    """All others are there, and have what one process has; some may have slept for a time."""
    assert set(found) == set(range(ranks)) - set(dead), err
    first, total = found[min(found)], STEPS * epochs // 4
    assert {rank for lost, *_ in first["lost"] for rank in lost} <= set(dead), err
    assert {each["steps"] for each in found.values()} == {total}
    assert len({each["bits"] for each in found.values()}) == 1
    if strategy in ("allreduce", "zero1", "fsdp"):
        assert first["difference"] <= 1e-12
    # Where a rank and its buddy have died at once, from a checkpoint.
    again = zip(first["lost"], first["from"], strict=True)
    assert all(kept or repeated <= 1 for (_, _, repeated, _), kept in again)
    if exact:
        assert [first["bits"], first["loss"]] == first["expected"]
    # Callbacks see every step and epoch once; but those that are made again.
    for rank, each in found.items():
        steps, seen = each["seen"]
        if rank in asleep:
            continue
        again = sum(repeated for _, _, repeated, _ in each["lost"])
        assert sorted(set(steps)) == list(range(1, total + 1))
        assert len(steps) <= total + again
        assert seen == list(range(1, epochs + 1))
