"""`cut="auto"`: stages cut by the times of the layers, the same on all ranks."""

import time
import warnings

import pytest
from clouds import clouds, write_samples
from float64 import Config
from mpi4py import MPI

from mpicoll.train import TrainingError, main, run
from mpicoll.train.driver import checkpoints
from mpicoll.train.models import Dense, ReLU, Sequential

P = MPI.COMM_WORLD.size
pytestmark = [pytest.mark.mpi, pytest.mark.skipif(P != 2, reason="2 ranks show it")]


class Slow(ReLU):
    """Sleeps so many milliseconds in each forward pass."""

    def __init__(self, milliseconds):
        self.milliseconds = milliseconds

    def forward(self, parameters, inputs, batch):
        time.sleep(self.milliseconds / 1000)
        return super().forward(parameters, inputs, batch)


def slow(*milliseconds):
    layers = [layer for each in milliseconds for layer in (Dense(6), Slow(each))]
    return Sequential([*layers, Dense(4)], (12,), "float64")


def cut_of(comm, model, folder, **options):
    config = Config(cut="auto", batch=8, checkpoint=str(folder), **options)
    run(config, comm, dataset=clouds(60), model=model)
    return checkpoints.read(checkpoints.find(folder))[1]["config"]["cut"]


def test_the_slowest_stage_takes_least(comm, folder):
    options = {"mesh": "pipe=2", "microbatches": 2, "pause_after": 1}
    cut = cut_of(comm, slow(10, 10, 10, 30), folder, steps=1, **options)
    assert cut in ("0,6", "0,7")  # the Dense before the slow layer takes next to nothing
    # Other layers are slow now, and the checkpoint's cut stays.
    assert cut_of(comm, slow(20, 0, 0, 0), folder, steps=2, resume="auto", **options) == cut
    options |= {"pipeline_schedule": "interleaved", "chunks": 2, "steps": 3, "resume": "auto"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cut_of(comm, slow(5, 5, 5, 5), folder, **options)
    assert found.count(",") == 3 and found.startswith("0,")
    told = [str(w.message) for w in caught if "measured again" in str(w.message)]
    assert len(told) == (comm.rank == 0)
    assert all("cut 0,6 is of 2 chunks, and there are 4" in t.replace("0,7", "0,6") for t in told)


def test_what_fails_while_layers_are_measured_fails_on_all(comm):
    class Breaks(Slow):
        def forward(self, parameters, inputs, batch):
            raise OSError(f"rank {comm.rank} is on fire") if comm.rank else OSError("0 is, too")

    model = Sequential([Dense(6), Breaks(0), Dense(4)], (12,), "float64")
    config = Config(mesh="pipe=2", cut="auto")
    with pytest.raises(TrainingError, match=r"measuring the layers .* on rank 0: OSError: 0 is"):
        run(config, comm, dataset=clouds(60), model=model)
    with pytest.raises(TrainingError, match="pipe=2 needs 2 layers, the model has 1"):
        run(config, comm, dataset=clouds(60), model=Sequential([Dense(4)], (12,), "float64"))


def test_what_a_step_sends_is_printed_once(comm, folder, capsys):
    if comm.rank == 0:
        write_samples(folder / "samples.npz")
    comm.Barrier()
    config = Config(dataset=str(folder / "samples.npz"), mesh="pipe=2", cut="auto", model="mlp")
    assert main(config, comm, explain=True) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("A step of 64 samples sends" if comm.rank == 0 else "")
    assert comm.rank or " 16 message" in printed
    assert main(Config(mesh="pipe=3"), comm, explain=True) == 1
    assert main(Config(strategy="parameter_server", data_servers=1), comm, explain=True) == 1
