"""DP-SGD for the skip-gram: clipping without forming gradients is clipping, one unit moves little, and it learns."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import MARGIN, GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings import dp_sgd
from learning.embeddings.cooccurrence import unit_counts
from learning.embeddings.dp_sgd import clipped_sum, train_private
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity
from learning.embeddings.skipgram import SkipGram

SIZE, WIDTH = 12, 3
PARAMETERS = SIZE * (2 * WIDTH + 1)


def mechanism(size=SIZE, width=WIDTH, **changes):
    settings = {
        "clip": 0.3,
        "levels": 1 << 12,
        "noise_multiplier": 0.5,
        "sampling_probability": 0.5,
        "steps": 6,
        "parameters": size * (2 * width + 1),
    }
    return GradientMechanism(**(settings | changes))


def _sentences(count, size=SIZE, seed=0, words=8):
    """Sentences of one of three topics: a topic's words are every third one."""
    rng = np.random.default_rng(seed)
    frequency = 1 / (np.arange(size // 3) + 2.0)
    frequency /= frequency.sum()
    return [
        [(3 * rng.choice(size // 3, p=frequency, size=words) + rng.integers(3)).astype(np.int32)] for _ in range(count)
    ]


def _units(count=9, seed=0):
    return unit_counts(_sentences(count, seed=seed), SIZE, window=3)


def _parameters(seed=0, scale=0.7):
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, (SIZE, WIDTH)), rng.normal(0, scale, (SIZE, WIDTH)), rng.normal(0, scale, SIZE)


def _start(size=SIZE, width=WIDTH, seed=0):
    rng = np.random.default_rng(seed)
    inputs, outputs = (rng.normal(0, 0.1, (size, width)).astype(np.float32) for _ in "ab")
    return SkipGram(inputs, outputs, np.zeros(size, np.float32))


def _explicit(units, parameters):
    """Every unit's own gradient by automatic differentiation, [units, parameters]."""
    gradients = []
    for row in units.toarray():
        inputs, outputs, bias = (torch.tensor(part, requires_grad=True) for part in parameters)
        counts = torch.tensor(row.reshape(SIZE, SIZE))
        logarithms = torch.log_softmax(inputs @ outputs.T + bias, dim=1)
        loss = -(counts * logarithms).sum() / counts.sum().clamp(min=1)
        loss.backward()
        gradients.append(np.concatenate([part.grad.numpy().ravel() for part in (inputs, outputs, bias)]))
    return np.array(gradients)


@pytest.mark.parametrize("block", [1 << 22, SIZE * 10, 1])
@pytest.mark.parametrize("clip", [1e3, 0.5, 1e-3])
def test_the_clipped_sum_is_that_of_explicit_gradients(monkeypatch, block, clip):
    monkeypatch.setattr(dp_sgd, "BLOCK_CELLS", block)
    units, parameters = _units(), _parameters()
    units = sparse.csr_array(sparse.vstack([units[:4], sparse.csr_array((1, SIZE * SIZE)), units[4:]]))
    explicit = _explicit(units, parameters)
    norms = np.linalg.norm(explicit, axis=1)
    bound = clip * (1 - MARGIN)
    expected = (np.minimum(1, bound / np.maximum(norms, 1e-300))[:, None] * explicit).sum(axis=0)
    clipped = clipped_sum(units, *parameters, mechanism(clip=clip))
    np.testing.assert_allclose(clipped.norms, norms, rtol=1e-6)
    np.testing.assert_allclose(clipped.total, expected, rtol=1e-6, atol=1e-8 * clip)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_no_unit_passes_the_bound(scale):
    """Also where vectors are long, probabilities near 0 and 1, and a unit names one word a thousand times."""
    units = sparse.csr_array(_units(30) * np.where(np.arange(SIZE * SIZE) % 5, 1.0, 1000.0))
    parameters = _parameters(scale=scale)
    for index in range(units.shape[0]):
        alone = clipped_sum(units[[index]], *parameters, mechanism(clip=0.05)).total
        assert np.linalg.norm(alone) <= 0.05


def test_a_unit_more_moves_the_rounded_sum_by_no_more_than_the_sensitivity():
    units, asked = _units(20), mechanism(clip=0.05)
    parameters = _parameters()
    everyone = asked.contribute(clipped_sum(units, *parameters, asked).total)
    for index in range(units.shape[0]):
        others = np.delete(np.arange(units.shape[0]), index)
        without = asked.contribute(clipped_sum(units[others], *parameters, asked).total)
        assert np.linalg.norm(everyone - without) <= asked.sensitivity


def test_cells_that_stand_twice_are_counted_once_together():
    """In the norm and in the sum alike: were it otherwise, a unit could hide from clipping."""
    cells, counts = np.array([5, 17, 5]), np.array([1.0, 4.0, 2.0])
    twice = sparse.csr_array((counts, cells, np.array([0, 3])), shape=(1, SIZE * SIZE))
    twice.has_sorted_indices = twice.has_canonical_format = True
    once = sparse.csr_array((np.array([3.0, 4.0]), np.array([5, 17]), np.array([0, 2])), shape=(1, SIZE * SIZE))
    one, two = (clipped_sum(unit, *_parameters(), mechanism()) for unit in (once, twice))
    np.testing.assert_array_equal(one.total, two.total)
    np.testing.assert_array_equal(one.norms, two.norms)


def test_a_unit_told_twice_over_weighs_no_more():
    units = _units(1)
    once, twice = (clipped_sum(u, *_parameters(), mechanism()) for u in (units, sparse.csr_array(2 * units)))
    np.testing.assert_allclose(once.total, twice.total, rtol=1e-12)


def _train(units, stream=0, start=None, **changes):
    options = {"expected_batch": 4.0, "learning_rate": 0.1} | {
        key: changes.pop(key) for key in ("expected_batch", "learning_rate", "decay") if key in changes
    }
    return train_private(
        units, mechanism(**changes), start=start or _start(), stream=NoiseStream.insecure(stream), **options
    )


@pytest.mark.slow
def test_the_same_stream_trains_the_same_model_and_another_another():
    first, again, other = _train(_units()), _train(_units()), _train(_units(), stream=1)
    for name in ("inputs", "outputs", "bias"):
        assert getattr(first, name).tobytes() == getattr(again, name).tobytes()
    assert not np.array_equal(first.inputs, other.inputs)


def test_an_empty_batch_is_a_step_of_noise():
    """The noise on a shard without units is that of any other: its deviation is what the mechanism charges."""
    asked = mechanism(steps=1)
    nothing = sparse.csr_array((0, SIZE * SIZE))
    moves = []
    for stream in range(60):
        model, start = _train(nothing, stream=stream, steps=1), _start()
        moves += [(getattr(model, n) - getattr(start, n)).ravel() for n in ("inputs", "outputs", "bias")]
    charged = 0.5 * asked.sensitivity * asked.granularity / 4.0 * 0.1
    assert np.concatenate(moves).std() == pytest.approx(charged, rel=0.05)


def test_sums_are_divided_by_the_declared_batch_and_not_by_the_real_one():
    units = _units(1)
    quiet = {"noise_multiplier": 1e-3, "levels": 1 << 20, "sampling_probability": 1.0, "steps": 1}
    bias = [_train(units, expected_batch=batch, **quiet).bias for batch in (1.0, 10.0)]
    assert np.linalg.norm(bias[0]) == pytest.approx(10 * np.linalg.norm(bias[1]), rel=0.05)


@pytest.mark.slow
def test_decay_pulls_towards_the_start():
    nothing, start = sparse.csr_array((0, SIZE * SIZE)), _start()
    free, held = (_train(nothing, steps=200, decay=decay).inputs - start.inputs for decay in (0.0, 1.0))
    assert held.std() < free.std() / 2


@pytest.mark.slow
def test_with_a_large_budget_it_learns_the_topics():
    size, width = 30, 4
    units = unit_counts(_sentences(600, size, seed=1, words=12), size)
    heldout = sparse.csr_array(
        unit_counts(_sentences(300, size, seed=2, words=12), size).sum(axis=0).reshape(size, size)
    )
    unigram = np.asarray(heldout.sum(axis=0)) / heldout.sum()
    asked = mechanism(size, width, clip=1.0, noise_multiplier=0.01, levels=1 << 18, sampling_probability=0.2, steps=150)
    told = []
    model = train_private(
        units,
        asked,
        start=_start(size, width),
        expected_batch=120.0,
        learning_rate=1.0,
        stream=NoiseStream.insecure(0),
        on_step=told.append,
    )
    assert context_perplexity(model, heldout) < 0.6 * unigram_perplexity(unigram, heldout)
    assert told == [(step + 1) / 150 for step in range(150)]


def test_units_that_are_no_counts_are_refused():
    broken = _units()
    for value in (math.nan, math.inf, -1.0):
        broken.data[3] = value
        with pytest.raises(IntegrityError, match="negative number"):
            _train(broken)
    with pytest.raises(IntegrityError, match="cells"):
        _train(sparse.csr_array((3, SIZE)))


@pytest.mark.parametrize("changes", [{"expected_batch": 0.0}, {"learning_rate": math.nan}, {"parameters": 7}])
def test_settings_that_do_not_fit_are_refused(changes):
    with pytest.raises(ConclaveError):
        _train(_units(), **changes)


def test_a_step_to_infinity_is_not_taken_and_the_training_ends_where_it_was(caplog):
    found = _train(_units(), learning_rate=1e9)
    assert np.array_equal(found.inputs, _start().inputs)
    assert "steps would have gone to infinity and were not taken" in caplog.text


def test_a_start_that_is_not_finite_is_refused():
    start = _start()
    start.inputs[0, 0] = math.nan
    with pytest.raises(IntegrityError, match="NaN"):
        _train(_units(), start=start)
