"""Jobs of their own on GPUs: what commands say, and a rank that dies while another waits for it.

To be run without mpirun: python -m pytest tests/gpu/test_jobs_on_gpus.py
"""

import json
from pathlib import Path

import deaths
import pytest
import sharing

from mpicoll.base.launcher import launch as launched
from mpicoll.bench import records

pytestmark = pytest.mark.skipif(
    launched().name != "none", reason="starts jobs, which a job's rank cannot"
)


@pytest.mark.timeout(60)
def test_doctor_names_devices_and_transport(mpirun):
    done = mpirun(2, "-m", "mpicoll", "doctor")
    assert done.status == 0, done.err
    assert "GPU 0 of " in done.out and "(GPU-" in done.out
    (line,) = (line for line in done.out.splitlines() if "GPU transport" in line)
    assert "cuda_ipc" in line or "staged (" in line or "aware (" in line


@pytest.mark.timeout(60)
def test_bench(mpirun, tmp_path):
    words = ("allreduce", "-a", "auto,ring", "-s", "8,1M", "-n", "3", "-w", "1", "--device", "gpu")
    done = mpirun(2, "-m", "mpicoll", "bench", *words, "-J", tmp_path / "a.jsonl")
    assert done.status == 0, done.err
    (run,) = records.read(tmp_path / "a.jsonl")
    assert sorted((p.algorithm, p.size, p.device, p.wrong) for p in run.points) == [
        (algorithm, size, "gpu", 0) for algorithm in ("auto", "ring") for size in (8, 1 << 20)
    ]


DEATH = """
import json, os, signal, sys, time
import cupy
from mpi4py import MPI
sys.path[:0] = json.loads(sys.argv[1])
import mpicoll, sharing

world = MPI.COMM_WORLD
cupy.cuda.Device(world.rank % cupy.cuda.runtime.getDeviceCount()).use()
with sharing.allowed():
    comm = mpicoll.Intracomm(world)
x = cupy.ones(1000, "f4")
comm.Allreduce(MPI.IN_PLACE, x)
cupy.cuda.Device().synchronize()
print("by", comm.gpu_transport(), flush=True)
world.Barrier()
if world.rank == 1:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
request = comm.Iallreduce(MPI.IN_PLACE, x)
for _ in range(2):
    try:
        request.Wait()
    except RuntimeError as error:
        print("told:", error, flush=True)
cupy.cuda.Device().synchronize()
print("idle", flush=True)
os._exit(0)
"""


@deaths.ulfm
@pytest.mark.timeout(60)
def test_a_rank_that_is_killed_while_another_waits_on_its_gpu(mpirun, tmp_path):
    """The limit is 600 s: it is the death that ends the wait, and the GPU is not left spinning."""
    (tmp_path / "death.py").write_text(DEATH)
    paths = json.dumps([str(Path(sharing.__file__).parent)])
    done = mpirun(2, tmp_path / "death.py", paths, options=("--enable-recovery",))
    lines = done.out.splitlines()
    if "by cuda_ipc" not in lines:
        pytest.skip(lines[0] if lines else done.err)
    told = [line for line in lines if line.startswith("told:")]
    assert len(told) == 2 and all("the process of rank 1 has died" in line for line in told)
    assert lines[-1] == "idle"


SURVIVAL = """
import json, os, signal, sys, time
from pathlib import Path
import cupy
from mpi4py import MPI
sys.path[:0] = json.loads(sys.argv[1])
import mpicoll, sharing

how, folder = sys.argv[2], Path(sys.argv[3])
world = MPI.COMM_WORLD
others = [folder / f"calling-{rank}" for rank in range(world.size) if rank != 1]
cupy.cuda.Device(world.rank % cupy.cuda.runtime.getDeviceCount()).use()
with sharing.allowed():
    comm = mpicoll.Intracomm(world, survive=True)
    x, y = cupy.ones(1000, "f4"), cupy.empty(1000, "f4")
    persistent = comm.Allreduce_init(x, y)
    comm.Allreduce(x, y)
    cupy.cuda.Device().synchronize()
    transport = comm.gpu_transport()
    print("by", transport, flush=True)
    world.Barrier()
    if world.rank == 1:
        while not all(marker.exists() for marker in others):
            time.sleep(0.01)
        time.sleep(0.5)  # from there to the wait on the GPU
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {
        "blocking": lambda: comm.Allreduce(x, y),
        "non-blocking": lambda: comm.Iallreduce(x, y).Wait(),
        "persistent": lambda: persistent.Start() or persistent.Wait(),
        "register": lambda: mpicoll.cuda.register(x, comm),
        "init": lambda: comm.Allreduce_init(x, y),
    }
    (folder / f"calling-{world.rank}").touch()
    try:
        while True:
            calls[how]()
            cupy.cuda.Device().synchronize()
    except mpicoll.RankLost as error:
        began = time.monotonic()
        left = comm.survivors()
        assert error.ranks == (1,), error
        assert left.gpu_transport() == transport
        left.Allreduce(x, y)
        cupy.cuda.Device().synchronize()
        assert float(y.min()) == float(y.max()) == left.size == world.size - 1
        print("on", round(time.monotonic() - began, 2), flush=True)
left.leave()
"""


@deaths.ulfm
@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["blocking", "non-blocking", "persistent", "register", "init"])
def test_the_others_go_on_when_a_rank_dies_while_they_wait_on_their_gpus(mpirun, tmp_path, how):
    (tmp_path / "survival.py").write_text(SURVIVAL)
    paths = json.dumps([str(Path(sharing.__file__).parent)])
    given = (paths, how, tmp_path)
    done = mpirun(3, tmp_path / "survival.py", *given, options=deaths.FAULT_TOLERANT)
    lines = done.out.splitlines()
    if "by cuda_ipc" not in lines:
        pytest.skip(lines[0] if lines else done.err)
    assert sum(line.startswith("on ") for line in lines) == 2, done.out + done.err
    mpirun.check_tidy()
