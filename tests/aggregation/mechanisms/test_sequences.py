"""Sequences on their grid: what leaves is what was drawn, in places that tell nothing, and nothing is promised."""

import math

import numpy as np
import pytest
from dp_accounting import NonPrivateDpEvent

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.sequences import LAYERS, SequencesMechanism
from aggregation.noise.stream import NoiseStream

NVIB = SequencesMechanism(rows=6, layer="nvib", tokens=3, width=2, sigma=0.0, levels=1024, classes=2)


def drawn(mechanism, seed=0):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(mechanism.rows, mechanism.positions, mechanism.width))
    logs = np.log(rng.dirichlet(np.ones(mechanism.positions), mechanism.rows))
    labels = rng.integers(0, mechanism.classes, mechanism.rows)
    matrix = np.hstack([mechanism.contribute(mechanism.flat(vectors, logs)), labels[:, None]])
    return vectors, logs, labels, matrix


@pytest.mark.parametrize("layer", LAYERS)
def test_what_was_drawn_comes_back_to_a_grid_step(layer):
    mechanism = SequencesMechanism(6, layer, 3, 2, 0.5 if layer == "vib-fixed" else 0.0, 1024, 2)
    vectors, logs, labels, matrix = drawn(mechanism)
    assert matrix.shape == (6, mechanism.columns)
    found = mechanism.released(matrix)
    assert np.abs(found.vectors - vectors).max() <= 0.51 / 1024
    assert np.array_equal(found.labels, labels)
    if layer == "nvib":
        assert np.abs(found.log_weights - logs).max() <= 0.51 / 1024
    else:
        assert found.log_weights == pytest.approx(-math.log(mechanism.positions))


def test_a_number_that_is_not_finite_becomes_0_and_a_huge_one_fits_32_bits():
    numbers = np.zeros((4, NVIB.columns - 1))
    numbers[0, 0], numbers[1, 0], numbers[2, 0], numbers[3, 0] = np.nan, np.inf, -np.inf, 1e300
    found = NVIB.contribute(numbers)
    assert found[:3, 0].tolist() == [0, 0, 0]
    assert found[3, 0] == 1 << 30


def test_texts_take_random_places():
    seen = {tuple(NVIB.places(2, NoiseStream.insecure(seed, "places")).tolist()) for seed in range(200)}
    assert len(seen) == 30  # ordered pairs of six places
    assert all(len(set(each)) == 2 for each in seen)
    with pytest.raises(IntegrityError, match="do not fit"):
        NVIB.places(7, NoiseStream.insecure(0, "places"))


def test_nothing_is_promised():
    assert isinstance(NVIB.event(), NonPrivateDpEvent)
    assert not NVIB.guaranteed
    assert NVIB.noise_multiplier_charged() == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:-1], "were asked"),
        (lambda rows: rows[:, 1:], "were asked"),
        (lambda rows: np.where(np.arange(rows.shape[1]) == rows.shape[1] - 1, 2, rows), "no class"),
        (lambda rows: np.where(np.arange(rows.shape[1]) == rows.shape[1] - 2, 5, rows), "above 0"),
    ],
)
def test_rows_that_are_none_are_not_taken(change, said):
    with pytest.raises(IntegrityError, match=said):
        NVIB.released(change(drawn(NVIB)[3]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": "plain"}, "no layer"), ({"rows": 0}, "rows is 0"), ({"tokens": 129}, "tokens is 129"),
        ({"width": True}, "width is True"), ({"classes": 1}, "classes is 1"), ({"sigma": 0.5}, "sigma is 0.5"),
        ({"layer": "vib-fixed"}, "sigma is 0"), ({"layer": "vib-fixed", "sigma": 9.0}, "sigma is 9"),
        ({"layer": "vib-fixed", "sigma": math.nan}, "sigma is nan"),
        ({"rows": 1 << 20, "tokens": 128, "width": 768}, "more than"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(change, said):
    settings = {"rows": 6, "layer": "nvib", "tokens": 3, "width": 2, "sigma": 0.0, "levels": 1024, "classes": 2}
    with pytest.raises(ConclaveError, match=said):
        SequencesMechanism(**settings | change)
