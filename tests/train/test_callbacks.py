"""What a program gives a run to call: callbacks that see parameters, schedules."""

import numpy as np
import pytest
from clouds import clouds
from float64 import Config

from mpicoll.train import TrainingError, run
from mpicoll.train.driver.callbacks import seeing


def test_callbacks_of_two_arguments_see_the_parameters():
    steps, epochs = [], []

    def on_step(step, parameters):
        steps.append(parameters["layer1.weight"].copy())

    result = run(
        Config(batch=32, epochs=2),
        dataset=clouds(),
        on_step=on_step,
        on_epoch=lambda epoch, parameters: epochs.append(parameters["layer1.weight"].copy()),
    )
    assert len(steps) == 8 and len({array.tobytes() for array in steps}) == 8
    assert np.array_equal(epochs[0], steps[3]) and np.array_equal(epochs[1], steps[7])
    assert np.array_equal(epochs[1], result.parameters["layer1.weight"])


def test_parameters_cannot_be_written_to_by_callbacks():
    def on_step(step, parameters):
        parameters["layer1.weight"][0, 0] = 1.0

    with pytest.raises(TrainingError, match="ValueError: assignment destination is read-only"):
        run(Config(batch=32), dataset=clouds(), on_step=on_step)


def test_parameters_in_a_callback_are_those_that_are_kept():
    seen = []
    config = Config(dtype="float16", batch=64, epochs=1)
    run(config, dataset=clouds(), on_epoch=lambda _, given: seen.append(given["layer1.bias"].dtype))
    assert seen == [np.float32]


@pytest.mark.parametrize(
    "function",
    [
        [].append,
        print,
        lambda record: None,
        lambda record, more=None: None,
        lambda *records: None,
    ],
)
def test_other_callbacks_are_given_the_record_alone(function):
    assert seeing(function, {}) is function


def test_a_schedule_is_asked_once_for_each_step():
    asked, rates = [], []

    def schedule(step):
        asked.append(step)
        return 0.1 / step

    run(
        Config(batch=32, epochs=2, lr=7.0, warmup=3),
        dataset=clouds(),
        schedule=schedule,
        on_step=lambda step: rates.append(step.lr),
    )
    assert asked == list(range(1, 9))
    assert rates == [0.1 / step for step in asked]


@pytest.mark.parametrize("wrong", [-0.1, float("nan"), float("inf")])
def test_a_schedule_that_gives_no_rate_is_refused(wrong):
    def schedule(step):
        return wrong if step == 3 else 0.1

    message = "asking the schedule failed on rank 0: ValueError: the schedule gives step 3 the lea"
    with pytest.raises(TrainingError, match=message):
        run(Config(batch=32), dataset=clouds(), schedule=schedule)
