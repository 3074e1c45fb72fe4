"""PyTorch's own tests of a torch.distributed backend, which its wheel has, on "mpicoll".

    mpirun -n 8 python tools/torch_suite.py [-k WORD] [--seconds 60] [--list]

Runs ``DistributedTest._DistTestBase`` of ``torch.testing._internal.distributed.distributed_test``
in one job: tests of groups skip themselves below 8 ranks.  Every test has a process group of its
own.  What fails must stand in torch_suite.txt beside this file, with its reason, and what stands
there must fail (may, where the reason begins with "if"); else the exit status is 1.  Tests that
skip themselves (those of NCCL, of GPUs) are counted.  Needs the package expecttest, which PyTorch's
tests import.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import traceback
import unittest
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from mpi4py import MPI

EXPECTED = Path(__file__).with_suffix(".txt")
WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()
BACKEND = "mpicoll"


def main() -> int:
    options = _parse()
    directory = WORLD.bcast(tempfile.mkdtemp(prefix="torch-suite") if RANK == 0 else None)
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    os.environ.update(BACKEND=BACKEND, TEMP_DIR=directory, WORLD_SIZE=str(SIZE), RANK=str(RANK))
    warnings.simplefilter("ignore")

    import torch

    from mpicoll.torch.rendezvous import serve

    store = serve(WORLD, timedelta(seconds=3 * options.seconds))
    # Tests that make the group of all again read these.
    os.environ.update(MASTER_ADDR=store.host, MASTER_PORT=str(store.port), INIT_METHOD="env://")
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    suite = Suite(store, options.seconds)
    names = [n for n in suite.names() if options.k in n]
    if options.list:
        print(*names if RANK == 0 else [], sep="\n")
        return 0
    expected = expected_failures(EXPECTED.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    wrong = []
    for number, name in enumerate(names):
        outcomes = suite.run(number, name)
        found = max(outcomes, key=["passed", "skipped", "failed"].index)
        counts[found] += 1
        if found == "skipped" or expected.get(name, "").startswith("if "):
            continue
        if (found == "failed") != (name in expected):
            wrong.append(f"{name}: {found}, {'' if name in expected else 'not '}expected to fail")
    if RANK == 0:
        print(f"torch {torch.__version__}, {SIZE} ranks, {len(names)} tests: {dict(counts)}")
        print(*wrong, sep="\n")
    return int(bool(wrong))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", default="", help="only tests whose name has this word")
    parser.add_argument("--seconds", type=float, default=60.0, help="that a test may take")
    parser.add_argument("--list", action="store_true", help="print names, and run nothing")
    return parser.parse_args()


def expected_failures(text: str) -> dict[str, str]:
    """The reasons of lines such as ``test_name: reason``, by the names of tests."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): reason.strip() for name, _, reason in (x.partition(":") for x in lines)}


class Suite:
    """The tests of the wheel, in this process as one rank of them."""

    def __init__(self, store: Any, seconds: float) -> None:
        from torch.testing._internal import common_utils
        from torch.testing._internal.distributed import distributed_test

        self._module, self._store, self._seconds = distributed_test, store, seconds
        self._common = common_utils
        for feature in ("ddp", "subgroup"):
            distributed_test.DistTestCases.backend_feature[feature].add(BACKEND)
        bases = distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
        self._class: Any = type("TestMpicoll", bases, {})
        distributed_test.Barrier.sync = staticmethod(self._sync)

    def names(self) -> list[str]:
        """Those that can run here: some that need a GPU a rank do not say so."""
        import torch

        names = unittest.TestLoader().getTestCaseNames(self._class)
        gpus = torch.cuda.device_count() >= SIZE
        return [name for name in names if gpus or not name.endswith(("_cuda", "_cuda_complex"))]

    def run(self, number: int, name: str) -> list[str]:
        """Run a test on all ranks; the outcome on each."""
        self._key, self._syncs = f"test{number}", 0
        begin = time.monotonic()
        outcome, text = self._outcome(name)
        self._store.set(f"{self._key}/{RANK}", json.dumps([outcome, text]))
        keys = [f"{self._key}/{rank}" for rank in range(SIZE)]
        try:
            self._store.wait(keys, timedelta(seconds=2 * self._seconds))
        except RuntimeError:
            print(f"rank {RANK}: others do not come back from {name} ({text})", flush=True)
            WORLD.Abort(1)
        found = [json.loads(self._store.get(key)) for key in keys]
        if RANK == 0:
            said = {text for outcome, text in found if outcome == "failed"}
            kinds = "/".join(sorted({outcome for outcome, _ in found}))
            print(f"{kinds:8} {time.monotonic() - begin:6.1f}s {name}", *said, sep="\n", flush=True)
        return [outcome for outcome, _ in found]

    def _outcome(self, name: str) -> tuple[str, str]:
        import torch.distributed as dist

        skips = self._module.TEST_SKIPS
        case = self._class(name)
        case.rank, case.file_name = RANK, os.path.join(os.environ["TEMP_DIR"], self._key)
        self._common.set_rng_seed(self._common.SEED)
        try:
            self._begin(name)
            getattr(case, name)()
            self._sync()
        except unittest.SkipTest as reason:
            return "skipped", str(reason)
        except SystemExit as end:
            reasons = {skip.exit_code: skip.message for skip in skips.values()}
            code = end.code if isinstance(end.code, int) else -1
            return ("skipped", reasons[code]) if code in reasons else ("failed", f"exit {end.code}")
        except Exception:
            self._store.set(f"{self._key}/failed", "")
            return "failed", traceback.format_exc()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        return "passed", ""

    def _begin(self, name: str) -> None:
        import torch.distributed as dist

        seconds = self._module.CUSTOM_PG_TIMEOUT.get(name, self._seconds / 2)
        dist.init_process_group(
            BACKEND,
            store=dist.PrefixStore(self._key, self._store),
            rank=RANK,
            world_size=SIZE,
            timeout=timedelta(seconds=seconds),
        )

    def _sync(self, wait_for: int | None = None, timeout: float = 0.0) -> None:
        """The barrier of the tests' own, by the store in the place of files."""
        self._syncs += 1
        key, ranks = f"{self._key}/sync{self._syncs}", wait_for or SIZE
        self._store.add(key, 1)
        end = time.monotonic() + self._seconds
        while self._store.add(key, 0) < ranks:
            if time.monotonic() > end or self._store.check([f"{self._key}/failed"]):
                raise RuntimeError("barrier timeout, or the test has failed on another rank")
            time.sleep(0.005)


if __name__ == "__main__":
    sys.exit(main())
