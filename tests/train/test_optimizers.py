"""Optimizers against their formulas, and schedules."""

import numpy as np
import pytest

from mpicoll import _kernels
from mpicoll.train import optimizers, schedules
from mpicoll.train.optimizers import OPTIMIZERS, empty_state, make


def steps(name, gradients, start, decay=0.0, lr=0.1):
    """The method written out plainly."""
    w, v, m, s = start.copy(), np.zeros(3), np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(gradients, 1):
        if name == "adamw":
            w, g = w - lr * decay * w, gradient
        else:
            g = gradient + decay * w
        if name in ("adam", "adamw"):
            m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
            w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
        elif name == "sgd":
            w = w - lr * g
        else:
            v = 0.8 * v + g
            w = w - lr * (g + 0.8 * v if name == "nesterov" else v)
    return w


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_are_those_of_the_formula(name, decay):
    generator = np.random.default_rng(3)
    start, gradients = generator.standard_normal(3), generator.standard_normal((6, 3))
    optimizer, weights = make(name, 0.8, decay), start.copy()
    state = empty_state(optimizer, weights)
    for t, gradient in enumerate(gradients, 1):
        optimizer.update(weights, gradient.copy(), state, 0.1, t)
    np.testing.assert_allclose(weights, steps(name, gradients, start, decay), rtol=1e-13)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parts_are_updated_as_the_whole(name):
    generator = np.random.default_rng(4)
    start, gradients = generator.standard_normal(9), generator.standard_normal((4, 9))
    results = []
    for cuts in ([slice(0, 9)], [slice(0, 2), slice(2, 9)]):
        optimizer, weights = make(name), start.copy()
        states = [empty_state(optimizer, weights[part]) for part in cuts]
        for t, gradient in enumerate(gradients, 1):
            for part, state in zip(cuts, states, strict=True):
                optimizer.update(weights[part], gradient[part].copy(), state, 0.1, t)
        results.append(weights)
    assert np.array_equal(*results)


def test_plain_sgd_keeps_no_state():
    assert optimizers.SGD().slots == optimizers.make("sgd").slots == ()


def test_warmup_grows_evenly_and_the_schedule_follows():
    rates = [schedules.rate(0.8, "cosine", step, 12, warmup=4) for step in range(1, 13)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 0.8
    assert rates[8] == pytest.approx(0.4)
    assert rates[4:] == sorted(rates[4:], reverse=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("constant", [1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25]), ("steps", [1, 1, 0.1, 0.01])],
)
def test_schedules(name, expected):
    assert [schedules.rate(1.0, name, step, 4) for step in (1, 2, 3, 4)] == pytest.approx(expected)


def test_scalings():
    assert [schedules.SCALINGS[name](4) for name in ("none", "linear", "sqrt")] == [1, 4, 2]


# --- compiled updates -----------------------------------------------------------------------------


@pytest.fixture(params=_kernels.levels())
def instructions(request):
    before = _kernels.level()
    _kernels.use_level(request.param)
    yield request.param
    _kernels.use_level(before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_updates_have_the_bits_of_numpy(instructions, name, decay, dtype):
    """What is not contiguous is updated by NumPy."""
    generator = np.random.default_rng(5)
    magnitudes = 10.0 ** generator.integers(-30, 8, (5, 101))
    values = (generator.standard_normal((5, 101)) * magnitudes).astype(dtype)
    optimizer, found = make(name, 0.8, decay), []
    for spread in (1, 2):
        weights = np.zeros(spread * 101, dtype)[::spread]
        weights[:] = values[0]
        state = {slot: np.zeros(spread * 101, dtype)[::spread] for slot in optimizer.slots}
        assert optimizers._compiled(weights, *state.values()) == (spread == 1)
        for step, gradient in enumerate(values[1:], 1):
            given = np.zeros(spread * 101, dtype)[::spread]
            given[:] = gradient
            optimizer.update(weights, given, state, 0.1, step)
        found.append([weights.tobytes(), *(state[slot].tobytes() for slot in optimizer.slots)])
    assert found[0] == found[1]


@pytest.mark.parametrize("shape", [(0,), (3, 5)])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_updates_take_any_shape(name, shape):
    optimizer, weights = make(name), np.ones(shape)
    state = empty_state(optimizer, weights)
    optimizer.update(weights, np.full(shape, 2.0), state, 0.5, 1)
    assert weights.shape == shape and (weights < 1).all()


def test_compiled_updates_want_arrays_of_one_length():
    short, long = np.zeros(3), np.zeros(4)
    with pytest.raises(ValueError, match="an array has 3 elements, the weights 4: give equally"):
        _kernels.update_sgd(long, short, None, 0.1, 0, 0, False)
    with pytest.raises(ValueError, match="an array has 4 elements, the weights 3"):
        _kernels.update_adam(short, short, short, long, *[1.0] * 7)
