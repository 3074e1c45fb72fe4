"""How programs come to the backend "mpicoll", each in processes of its own."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import launch
import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 300
pytestmark = pytest.mark.timeout(LIMIT)


def run(*command, **variables):
    path = [str(ROOT), *variables.pop("PYTHONPATH", []), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    environment |= {"OMP_NUM_THREADS": "1", "MPICOLL_SHARE_CORES": "1", **variables}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, env=environment, cwd=ROOT
    )


def on_ranks(count, *arguments, **variables):
    return run(*launch.mpirun(), "-n", str(count), sys.executable, *arguments, **variables)


IMPORTED = """
import sys, time, warnings
import torch
from torch import distributed as dist
assert dist.Backend("mpicoll") == "mpicoll" and dist.is_backend_available("mpicoll")
late = {"mpi4py", "mpicoll.comm", "mpicoll.torch.group", "mpicoll.runtime"} & {*sys.modules}
assert not late, late
import mpicoll.torch
mpicoll.torch.register()

# What goes wrong when PyTorch loads it is a warning, and no exception even where warnings are.
from mpicoll.torch import registration
def broken(): raise KeyError("planted")
registration.register = broken
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    mpicoll.torch.autoload()
assert "not available: 'planted'" in str(seen[0].message)
warnings.simplefilter("error")
mpicoll.torch.autoload()

# What torchrun starts is alone in MPI.
for kind, error, text, ranks in [
    ("env://", RuntimeError, "torchrun starts processes that MPI does not know", {}),
    ("mpi://", RuntimeError, "mpirun -n 2 python -m mpicoll.torch", {"rank": 0, "world_size": 2}),
    ("mpi://", ValueError, "rank 1 of 1 is rank 0 of 1 of MPI_COMM_WORLD",
     {"rank": 1, "world_size": 1}),
]:
    store = dist.HashStore() if kind == "env://" else None
    how = {"store": store, "rank": 0, "world_size": 2} if store else {"init_method": kind, **ranks}
    try:
        dist.init_process_group("mpicoll", **how)
    except error as found:
        assert text in str(found), found
    else:
        raise AssertionError(kind)
dist.init_process_group("mpicoll", init_method="mpi://")  # one rank is a job, too
dist.barrier()
dist.destroy_process_group()
print("done")
"""


def test_pytorch_loads_it_and_torchrun_is_told(tmp_path):
    entry = re.search(
        r'entry-points\."torch.backends"\]\n(\w+) = "(\S+)"', (ROOT / "pyproject.toml").read_text()
    )
    installed = tmp_path / "mpicoll_torch_entry-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: mpicoll-torch-entry\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[torch.backends]\n{entry[1]} = {entry[2]}\n")
    done = run(
        sys.executable, "-c", IMPORTED, PYTHONPATH=[str(tmp_path)], TORCHELASTIC_RUN_ID="none"
    )
    assert done.stdout == "done\n", done.stderr


SCRIPT = """
import os, signal, sys
import torch
from torch import distributed as dist
assert sys.argv[1:] == ["one", "two"] and __name__ == "__main__"
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert [os.environ[n] for n in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")] == [
    str(rank), "2", "0"]
assert torch.get_num_threads() == 1
for backend in ("mpicoll", "gloo"):
    dist.init_process_group(backend)  # env://, as torchrun's scripts do
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [2.0] * 3
    if backend == "mpicoll":
        dist.destroy_process_group()
# Below MPI_THREAD_MULTIPLE what does not block does.
other = dist.new_group(backend="mpicoll")
work = dist.all_reduce(ones, group=other, async_op=True)
assert work.is_completed() and ones.tolist() == [4.0] * 3
work = dist.irecv(ones, 1 - rank, group=other)
dist.send(torch.full((3,), 1.0 + rank), 1 - rank, group=other)
assert work.get_future().wait()[0].tolist() == [2.0 - rank] * 3
print("rank", rank, "done", flush=True)
dist.barrier()
if rank == 1:
    raise KeyError("planted")
dist.all_reduce(ones, group=other)  # never ends
"""


def test_a_script_under_mpirun(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = ["-m", "mpicoll.torch", str(script), "one", "two"]
    done = on_ranks(2, *arguments, MPI4PY_RC_THREAD_LEVEL="serialized", OMP_NUM_THREADS="")
    assert sorted(re.findall(r"rank \d done", done.stdout)) == ["rank 0 done", "rank 1 done"], done
    assert done.returncode == 1 and done.stderr.count("[rank 1] KeyError: 'planted'") == 1
    assert done.stderr.count("async_op=True blocks") == 1, done.stderr


DYING = """
import os, signal
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(tensor)
"""


def test_the_program_of_the_page_and_a_rank_that_dies():
    page = (ROOT / "docs" / "torch.rst").read_text()
    shown = re.search(r":caption: sum.py\n\n((?:   .*\n|\n)+)", page)[1]
    program = re.sub(r"(?m)^   ", "", shown).replace("dist.destroy_process_group()", DYING)
    done = on_ranks(2, "-c", f"import mpicoll.torch\n{program}")
    assert "tensor([2., 2., 2., 2.])" in done.stdout, done
    said = done.stdout + done.stderr  # MPICH's mpirun says it on stdout
    assert done.returncode != 0 and re.search(r"(?i)signal 9|killed|bad termination", said)


@pytest.mark.long
@pytest.mark.parametrize("how", ["fsdp", "ddp"])
def test_the_example_learns(how):
    example = ["examples/torch_transformer.py", "--parallel", how]
    options = ["--steps", "12", "--width", "32", "--report", "11", "--files", "9", "--sample", "9"]
    done = on_ranks(2, "-m", "mpicoll.torch", *example, *options)
    losses = [float(x) for x in re.findall(r"loss (\S+)", done.stdout)]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.3, done
