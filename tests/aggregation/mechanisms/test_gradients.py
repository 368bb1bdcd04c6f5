"""Gradients: no unit moves a step's sum by more than is charged, batches are Poisson samples, the noise is what it is
said to be.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import MARGIN, GradientMechanism, fine_levels, gradient_norms
from aggregation.mechanisms.mechanism import Mechanism
from aggregation.mechanisms.shared_noise import LARGEST_NOISE
from aggregation.noise.bins import LARGEST_TABLE
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

PARAMETERS = 30


def mechanism(**changes):
    settings = {
        "clip": 0.5,
        "levels": 64,
        "noise_multiplier": 1.0,
        "sampling_probability": 0.1,
        "steps": 20,
        "parameters": PARAMETERS,
    }
    return GradientMechanism(**(settings | changes))


def test_it_is_a_mechanism():
    asked: Mechanism = mechanism()
    assert asked.shares == 1


GRADIENTS = st.lists(
    st.lists(st.one_of(st.floats(-2, 2), st.floats(-1e6, 1e6)), min_size=PARAMETERS, max_size=PARAMETERS),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(deadline=None)
@given(GRADIENTS, st.integers(1, 2000), st.floats(1e-3, 1e3))
def test_a_unit_never_moves_the_sum_by_more_than_the_sensitivity(gradients, levels, clip):
    asked = mechanism(levels=levels, clip=clip)
    gradients = np.array(gradients)
    clipped = asked.scales(np.linalg.norm(gradients, axis=1))[:, None] * gradients
    change = asked.contribute(clipped.sum(axis=0)) - asked.contribute(clipped[1:].sum(axis=0))
    assert sum(int(step) ** 2 for step in change) <= asked.sensitivity**2


@pytest.mark.slow
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=5), st.floats(1e-3, 1e3))
def test_a_clipped_norm_stays_under_the_clip_by_the_margin(norms, clip):
    asked, norms = mechanism(clip=clip), np.array(norms)
    scales = asked.scales(norms)
    assert (scales * norms <= clip * (1 - MARGIN) * (1 + 1e-15)).all()
    assert (scales[norms <= clip * (1 - MARGIN)] == 1).all()
    assert (scales <= 1).all()


def test_rounding_can_cost_what_the_sensitivity_counts_for_it():
    """Half a unit down for each parameter without the unit, half up with it: the root is no luxury."""
    asked = mechanism(levels=1)
    step = asked.granularity
    below, above = np.full(PARAMETERS, 0.4999), np.full(PARAMETERS, 0.5001)
    moved = asked.contribute(above * step) - asked.contribute(below * step)
    assert np.linalg.norm(moved) == pytest.approx(math.sqrt(PARAMETERS))
    assert asked.sensitivity == 1 + math.ceil(math.sqrt(PARAMETERS))


@pytest.mark.parametrize(("parameters", "root"), [(1, 1), (2, 2), (16, 4), (17, 5)])
def test_the_root_is_rounded_up(parameters, root):
    assert mechanism(parameters=parameters).sensitivity == 64 + root


def test_batches_are_poisson_samples():
    """Sizes have a binomial's mean and variance, units are taken equally often, and two units independently."""
    asked, stream, rounds, units = mechanism(sampling_probability=0.3), NoiseStream.insecure(1), 4000, 40
    taken = np.zeros((rounds, units))
    for row in taken:
        row[asked.batch(units, stream)] = 1
    sizes = taken.sum(axis=1)
    assert sizes.mean() == pytest.approx(12, abs=5 * math.sqrt(8.4 / rounds))
    assert sizes.var() == pytest.approx(8.4, rel=0.12)
    assert abs(taken.mean(axis=0) - 0.3).max() < 5 * math.sqrt(0.21 / rounds)
    correlation = np.corrcoef(taken.T) - np.eye(units)
    assert abs(correlation).max() < 5.5 / math.sqrt(rounds)


def test_small_probabilities_leave_batches_empty_and_one_takes_all():
    stream = NoiseStream.insecure(2)
    assert mechanism(sampling_probability=1e-12).batch(50, stream).size == 0
    assert mechanism(sampling_probability=1.0).batch(50, stream).tolist() == list(range(50))
    assert mechanism().batch(0, stream).size == 0


def test_no_unit_is_taken_with_more_than_its_probability():
    chance = 1e-12  # of 2^64 words so many, and a part of one more
    words = math.floor(Fraction(chance) * 2**64)

    class Given:
        def uint64(self, count):
            return np.array([words - 1, words], dtype=np.uint64)

    assert words < Fraction(chance) * 2**64
    assert mechanism(sampling_probability=chance).batch(2, Given()).tolist() == [0]


def test_the_batch_comes_from_the_stream_alone():
    first, again, other = (mechanism().batch(500, NoiseStream.insecure(s)) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "multiplier"), [(64, 1.0), (1 << 15, 1.5), (1 << 20, 70.0)])
def test_the_noise_has_the_deviation_that_is_charged(levels, multiplier):
    asked = mechanism(levels=levels, noise_multiplier=multiplier)
    noise = asked.noise_share((200_000,), NoiseStream.insecure(3))
    assert noise.dtype == np.int64
    charged = multiplier * asked.sensitivity
    assert noise.std() == pytest.approx(charged, rel=0.01)
    assert abs(noise.mean()) < 5 * charged / math.sqrt(noise.size)
    assert asked.release(noise).sigma == pytest.approx(charged * asked.granularity, rel=1e-3)


def test_a_release_gives_back_the_sum_in_its_own_units():
    asked = mechanism(levels=1 << 20)
    total = np.random.default_rng(0).normal(size=PARAMETERS)
    np.testing.assert_allclose(asked.release(asked.contribute(total)).values, total, atol=asked.granularity)


@pytest.mark.slow
def test_the_event_is_every_step():
    asked = mechanism(noise_multiplier=0.9, sampling_probability=0.02, steps=70)
    assert asked.event() == SelfComposedDpEvent(PoissonSampledDpEvent(0.02, GaussianDpEvent(0.9)), 70)
    longer = mechanism(noise_multiplier=0.9, sampling_probability=0.02, steps=140)
    assert 0 < price([asked.event()], 1e-5).epsilon < price([longer.event()], 1e-5).epsilon


@pytest.mark.slow
def test_slack_counts_every_value_and_every_draw():
    few, wide = mechanism(), mechanism(levels=1 << 17)
    assert few.shared.slack(0, 1.0) == 0
    assert few.shared.slack(10**9, 1.0) < 1e-20
    assert few.shared.slack(10**9, 1.0) > few.shared.slack(10**8, 1.0)
    assert 0 < wide.shared.slack(10**8, 1.0) < wide.shared.slack(10**9, 1.0) < 1e-20
    assert wide.shared.distance == wide.shared.share.total_variation
    together = mechanism(levels=1 << 17, shares=3).shared
    assert together.distance == 3 * together.share.total_variation + together.share.sum_distance(3)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [64, 1 << 20])
def test_a_party_draws_one_rounded_gaussian_for_a_number_however_fine_the_grid(levels):
    asked = mechanism(levels=levels, shares=4)
    drawn = RoundedGaussian(asked.shared.share.sigma).sample((5000,), NoiseStream.insecure(8))
    assert np.array_equal(asked.noise_share((5000,), NoiseStream.insecure(8)), drawn)


@pytest.mark.slow
def test_noise_that_a_sum_has_no_room_for_is_refused():
    """Half of 32 bits for 13.5 standard deviations: then no noise wraps, whoever's share it is."""
    largest = LARGEST_NOISE / mechanism(levels=1 << 20).sensitivity
    asked = mechanism(levels=1 << 20, noise_multiplier=largest * (1 - 1e-12))
    reach = asked.noise_share((100_000,), NoiseStream.insecure(9))
    assert np.abs(reach).max() < 2**30
    for shares in (1, 4, 9):
        with pytest.raises(ConclaveError, match=r"79,536,431.*Use fewer levels"):
            mechanism(levels=1 << 20, noise_multiplier=largest * 1.001, shares=shares)


@given(st.floats(0.01, 50), st.integers(1, 10**7))
def test_fine_levels_cost_a_sixteenth_at_most_and_a_sixty_fourth_past_a_table(multiplier, parameters):
    levels = fine_levels(multiplier, parameters)
    asked = mechanism(levels=levels, noise_multiplier=multiplier, parameters=parameters)
    assert asked.sensitivity <= levels * 1.0626 + 2
    if asked.shared.share.sigma > LARGEST_TABLE:
        assert asked.sensitivity <= levels * (1 + 1 / 64) + 2


def test_the_grid_of_few_parameters_is_as_fine_as_a_table_allows():
    assert fine_levels(1.5, 1122) == 10_888
    assert mechanism(levels=10_888, noise_multiplier=1.5, parameters=1122).shared.share.sigma <= LARGEST_TABLE


@given(st.floats(50, 10_000), st.integers(1, 5 * 10**7))
def test_a_grid_is_coarser_where_its_noise_would_leave_a_sum(multiplier, parameters):
    levels = fine_levels(multiplier, parameters)
    asked = mechanism(levels=levels, noise_multiplier=multiplier, parameters=parameters)
    assert multiplier * asked.sensitivity <= LARGEST_NOISE


def test_noise_that_no_grid_has_room_for_is_refused():
    with pytest.raises(ConclaveError, match="leave the range of a sum"):
        mechanism(levels=fine_levels(1e5, 10**6), noise_multiplier=1e5, parameters=10**6)


def test_a_norm_is_never_underestimated_where_terms_cancel():
    assert gradient_norms(np.array([-1e-12]), np.array([1.0]))[0] > 0
    assert gradient_norms(np.array([4.0]), np.array([4.0]))[0] == pytest.approx(2.0, rel=1e-8)


@pytest.mark.parametrize(
    "changes",
    [
        {"clip": 0.0},
        {"clip": math.nan},
        {"levels": 0},
        {"levels": 1.5},
        {"levels": (1 << 20) + 1},
        {"noise_multiplier": -1.0},
        {"noise_multiplier": math.inf},
        {"noise_multiplier": 1e-9},
        {"sampling_probability": 0.0},
        {"sampling_probability": 1.1},
        {"sampling_probability": math.nan},
        {"steps": 0},
        {"steps": True},
        {"parameters": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(changes):
    with pytest.raises(ConclaveError):
        mechanism(**changes)


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_a_gradient_without_a_finite_norm_is_left_out_and_changes_no_others_scale(norm):
    norms = np.array([0.1, norm, 3.0])
    scales = mechanism().scales(norms)
    assert scales[1] == 0
    assert np.array_equal(scales[[0, 2]], mechanism().scales(norms[[0, 2]]))


def test_a_negative_norm_is_refused():
    with pytest.raises(IntegrityError, match="norm"):
        mechanism().scales(np.array([0.1, -1.0]))


@pytest.mark.parametrize("clip", [1e-30, 1e30])
def test_a_clip_out_of_all_proportion_to_single_precision_is_refused(clip):
    with pytest.raises(ConclaveError, match="out of all proportion"):
        mechanism(clip=clip)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e18])
def test_a_sum_that_is_no_number_on_the_grid_is_refused(value):
    signal = np.zeros(PARAMETERS)
    signal[4] = value
    with pytest.raises(IntegrityError, match="NaN"):
        mechanism().contribute(signal)


def test_a_sum_of_another_shape_or_type_is_refused():
    with pytest.raises(IntegrityError, match="float64"):
        mechanism().contribute(np.zeros(PARAMETERS - 1))
    with pytest.raises(IntegrityError, match="float32"):
        mechanism().contribute(np.zeros(PARAMETERS, np.float32))


def test_a_sum_without_noise_or_of_floats_is_not_released():
    with pytest.raises(IntegrityError):
        mechanism().release(np.zeros(3, np.int64), 0)
    with pytest.raises(IntegrityError, match="integers"):
        mechanism().release(np.zeros(3))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.integers(200, 2**15), st.floats(0.3, 50))
def test_the_shares_of_all_parties_together_are_the_noise_that_is_charged(shares, levels, multiplier):
    asked = mechanism(shares=shares, levels=levels, noise_multiplier=multiplier)
    draw = asked.shared.share
    assert shares * draw.sigma**2 >= (multiplier * asked.sensitivity) ** 2 * (1 - 1e-12)
    assert asked.event() == mechanism(levels=64, noise_multiplier=multiplier).event()


def test_a_step_of_several_parties_has_their_noise_and_is_not_released_without_enough():
    asked = mechanism(shares=4, noise_multiplier=2.0)
    stream = NoiseStream.insecure(5, "shares")
    shares = [asked.noise_share((20_000,), stream.child(number)) for number in range(5)]
    total = sum(shares[:4])
    assert total.std() == pytest.approx(2.0 * asked.sensitivity, rel=0.03)
    assert asked.release(total, 4).sigma == pytest.approx(2.0 * asked.sensitivity * asked.granularity, rel=1e-3)
    assert 0 < asked.shared.slack(1000, 1.0) < 1e-9
    assert asked.release(total + shares[4], 5).sigma > asked.release(total, 4).sigma
    with pytest.raises(IntegrityError, match="the guarantee needs 4"):
        asked.release(sum(shares[:3]), 3)


@pytest.mark.parametrize("shares", [0, -1, 1.5, True])
def test_shares_are_a_number_of_parties(shares):
    with pytest.raises(ConclaveError, match="shares is"):
        mechanism(shares=shares)
