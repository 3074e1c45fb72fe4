"""What fully sharded training holds, by the system's own numbers."""

import re
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from clouds import clouds
from mpi4py import MPI

from mpicoll.train import Config, optimizers, run
from mpicoll.train.data import from_arrays
from mpicoll.train.models import Batch, Dense, Gelu, Residual, Sequential
from mpicoll.train.parallel import Drawn, FullySharded

P = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.long, pytest.mark.timeout(560)]


def held(*names):
    """Bytes, of some lines of the status of this process."""
    status = Path("/proc/self/status").read_text()
    return sum(1024 * int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in names)


def chain(width, count):
    layers = [Residual((Dense(width, gain=0.01), Gelu())) for _ in range(count)]
    return Sequential(layers, (width,), "float32")


@pytest.mark.skipif(P != 2, reason="2 ranks show it")
@pytest.mark.parametrize("gather", ["all", "broadcast"])
def test_anonymous_and_shared_memory_grow_by_the_formula(comm, gather):
    """Of 537 MB of parameters, within a tenth."""
    model = chain(1448, 64)
    samples = np.random.default_rng(1).standard_normal((4, 1448)).astype("f4"), np.arange(4)
    before = held("RssAnon", "RssShmem")
    sharded = FullySharded(Drawn(model, 1), comm, gather=gather)
    peak, over = [0], threading.Event()

    def watch():
        while not over.wait(0.002):
            peak[0] = max(peak[0], held("RssAnon", "RssShmem"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(2):
            sharded.compute(model, Batch(*samples, 4 * P))
            sharded.update(optimizers.make("sgd"), 0.01)
    finally:
        over.set()
        watcher.join()
    assert sum(a.nbytes for a in (sharded.weights, sharded.gradient)) >= 512e6 * 2 / P
    assert peak[0] - before == pytest.approx(sharded.nbytes, rel=0.1)


@pytest.mark.skipif(P != 8, reason="8 ranks show it")
def test_a_state_three_times_as_large_as_the_memory_of_a_rank(comm, folder):
    """Created, trained, saved and loaded under a limit of what a rank may add to its memory.

    The state is parameters, gradients and Adam's arrays; shared memory is counted, too.
    """
    model, samples = chain(640, 40), 64
    inputs = np.random.default_rng(1).standard_normal((samples, 640)).astype("f4")
    arrays = {"train_inputs": inputs, "train_labels": np.arange(samples) % 640}
    data = from_arrays("wide", arrays)
    state = 4 * 4 * 40 * 640 * 641
    common = {"strategy": "fsdp", "optimizer": "adam", "lr": 0.001, "batch": 32, "keep": 1}
    # What a run imports, and the threads that it starts once, is there before.
    run(Config(**common, checkpoint=str(folder / "0")), comm, dataset=clouds(), model=chain(12, 2))
    kept = resource.getrlimit(resource.RLIMIT_DATA)
    before = held("VmData", "RssShmem")
    comm.Barrier()
    resource.setrlimit(resource.RLIMIT_DATA, (held("VmData") + state // 3, kept[1]))
    most, losses = [0], []

    def look(step):
        most[0] = max(most[0], held("VmData", "RssShmem"))
        losses.append(step.loss)

    try:
        with pytest.raises(MemoryError):
            np.zeros(state // 2, np.uint8)
        for epochs in (2, 3):
            config = Config(**common, epochs=epochs, checkpoint=str(folder / "1"), resume="auto")
            result = run(config, comm, dataset=data, model=model, on_step=look)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, kept)
    assert (result.steps, result.beginning.step, len(losses)) == (6, 4, 6)
    assert losses[-1] < losses[0]
    assert most[0] - before <= state // 3
