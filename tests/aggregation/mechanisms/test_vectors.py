"""Vectors: no unit moves the sum by more than is charged, and a release holds the noise that is charged."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.clipping import to_grid
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms import vectors as module
from aggregation.mechanisms.mechanism import Mechanism
from aggregation.mechanisms.vectors import VectorMechanism
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

MECHANISM = VectorMechanism(clip=4.0, levels=16, noise_multiplier=1.0, shares=2)
VALUES = st.one_of(st.integers(-9, 9).map(float), st.floats(-1e308, 1e308), st.floats(-20, 20))
ROWS = st.lists(st.lists(VALUES, min_size=7, max_size=7), min_size=1, max_size=5)
MECHANISMS = st.builds(
    lambda clip, levels: VectorMechanism(clip, levels, noise_multiplier=8.0 / levels, shares=1),
    st.floats(1e-3, 1e3),
    st.one_of(st.integers(1, 300), st.integers(1 << 19, 1 << 20)),
)


@pytest.mark.slow
@settings(deadline=None)
@given(MECHANISMS, ROWS)
def test_a_unit_never_moves_the_sum_by_more_than_the_sensitivity(mechanism, units):
    vectors = np.array(units)
    change = mechanism.contribute(vectors) - mechanism.contribute(vectors[1:])
    assert sum(int(step) ** 2 for step in change) <= Fraction(mechanism.sensitivity) ** 2


def test_the_bound_is_reached_so_the_sensitivity_is_not_too_large():
    assert MECHANISM.contribute(np.array([[0.0, -9.0]])).tolist() == [0, -MECHANISM.sensitivity]


def test_slices_do_not_change_the_sum(monkeypatch):
    vectors = np.random.default_rng(0).normal(0, 2, (50, 9))
    whole = MECHANISM.contribute(vectors)
    assert np.array_equal(whole, to_grid(vectors, 4.0, 16).sum(axis=0))
    monkeypatch.setattr(module, "_SLICE", 31)
    assert np.array_equal(MECHANISM.contribute(vectors), whole)


def test_no_units_contribute_zeros():
    assert MECHANISM.contribute(np.zeros((0, 3))).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "vectors", [np.array([[1.0, math.nan]]), np.array([[math.inf]]), np.ones(3), np.ones((2, 2, 2))]
)
def test_what_is_no_matrix_of_finite_numbers_is_refused(vectors):
    with pytest.raises(IntegrityError):
        MECHANISM.contribute(vectors)


@pytest.mark.slow
@given(st.floats(0.1, 50), st.integers(64, 300), st.integers(1, 50))
def test_the_shares_together_hold_at_least_the_noise_that_is_charged(multiplier, levels, shares):
    if multiplier * levels / math.sqrt(shares) < 4.001:
        return
    mechanism = VectorMechanism(1.0, levels, multiplier, shares)
    charged = (Fraction(mechanism.event().noise_multiplier) * Fraction(mechanism.sensitivity)) ** 2
    held = Fraction(mechanism.shared.share.sigma) ** 2 * shares
    assert charged <= held <= charged * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize("present", [4, 7])
def test_a_release_is_the_sum_in_its_own_units_under_the_noise_that_it_states(present):
    mechanism = VectorMechanism(clip=2.0, levels=8, noise_multiplier=1.0, shares=4)  # 4 grid units a share
    root = NoiseStream.from_key(bytes(32))
    noise = sum(mechanism.noise_share((400_000,), root.child(party)) for party in range(present))
    vectors = np.tile([1.0, -1.0], (3, 1))  # 5.66 steps each when clipped to 2, rounded to 6 is too long: truncated
    total = noise.reshape(-1, 2) + mechanism.contribute(vectors)
    released = mechanism.release(total, present)
    assert released.sigma == pytest.approx(math.sqrt(present * (16 + 1 / 12)) * 0.25, rel=1e-12)
    assert released.values.std(axis=0) == pytest.approx([released.sigma] * 2, rel=0.01)
    assert released.values.mean(axis=0) == pytest.approx([3.0, -3.0], abs=6 * released.sigma / math.sqrt(200_000))


def test_a_sum_with_fewer_shares_than_were_charged_is_not_released():
    with pytest.raises(IntegrityError, match="noise of 1 parties and the guarantee needs 2"):
        MECHANISM.release(np.zeros(3, dtype=np.int64), 1)


def test_the_event_is_one_gaussian_whatever_the_number_of_shares():
    assert VectorMechanism(4.0, 256, 0.7, 1).event() == GaussianDpEvent(0.7)
    assert VectorMechanism(4.0, 256, 0.7, 8).event() == GaussianDpEvent(0.7)


def test_slack_is_the_distance_of_all_shares_over_all_coordinates_in_both_directions():
    mechanism = VectorMechanism(clip=16.0, levels=16, noise_multiplier=0.5, shares=4)  # 4 grid units a share
    share = RoundedGaussian(4.0)
    distance = 4 * share.total_variation + share.sum_distance(4)
    assert mechanism.slack(10, 1, 0.0) == pytest.approx(2 * 10 * distance, rel=1e-6)
    assert mechanism.slack(10**6, 1, 8.0) >= (1 + math.exp(8)) * 1e6 * distance


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clip", 0.0),
        ("clip", math.inf),
        ("clip", 5e-324),
        ("levels", 0),
        ("levels", 2.5),
        ("levels", 1 << 21),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", math.nan),
        ("shares", 0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting, value):
    settings = {"clip": 4.0, "levels": 256, "noise_multiplier": 1.0, "shares": 2} | {setting: value}
    with pytest.raises(ConclaveError, match=setting):
        VectorMechanism(**settings)


def test_the_mechanism_has_every_part_of_the_protocol():
    for name, part in inspect.getmembers(Mechanism):
        if not name.startswith("_"):
            assert hasattr(MECHANISM, name)
            if inspect.isfunction(part):
                ours = inspect.signature(getattr(VectorMechanism, name)).parameters
                assert len(ours) == len(inspect.signature(part).parameters)
