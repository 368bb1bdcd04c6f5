"""Counts: no unit moves the sum by more than is charged, and the noise in a release is at least what is charged."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.mechanism import Mechanism
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

CELLS = 12
MECHANISM = CountsMechanism(clip=4.0, levels=16, noise_multiplier=1.0, shares=2)
COUNTS = st.one_of(st.integers(0, 9), st.floats(0, 1e308), st.floats(0, 20))
ROWS = st.lists(st.lists(COUNTS, min_size=CELLS, max_size=CELLS), min_size=1, max_size=5)
MECHANISMS = st.builds(
    lambda clip, levels: CountsMechanism(clip, levels, noise_multiplier=8.0 / levels, shares=1),
    st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1.0, 5.0, 16.0])),
    st.one_of(st.integers(1, 300), st.integers(1 << 19, 1 << 20)),
)


def rows(*values):
    return sparse.csr_array(np.array(values, dtype=np.float64))


def dense(contribution):
    return contribution.toarray()[0]


def integers(row):
    return [int(value) for value in row]


@pytest.mark.slow
@settings(deadline=None)
@given(MECHANISMS, ROWS)
def test_a_unit_never_moves_the_sum_by_more_than_the_sensitivity(mechanism, units):
    total = dense(mechanism.contribute(rows(*units)))
    without = dense(mechanism.contribute(rows(*units)[1:]))
    change = integers(total - without)
    assert sum(step * step for step in change) <= mechanism.levels**2 == Fraction(mechanism.sensitivity) ** 2


@pytest.mark.slow
@settings(deadline=None)
@given(MECHANISMS, ROWS)
def test_a_unit_counts_the_same_whoever_it_is_summed_with(mechanism, units):
    together = dense(mechanism.contribute(rows(*units)))
    alone = sum(dense(mechanism.contribute(rows(unit))) for unit in units)
    assert np.array_equal(together, alone)


def test_on_a_fine_grid_too_a_unit_counts_the_same_whoever_it_is_summed_with():
    mechanism = CountsMechanism(clip=1.0, levels=1 << 20, noise_multiplier=8.0 / (1 << 20), shares=1)
    units = np.random.default_rng(5).integers(1, 50, (40, 30)).astype(float)
    alone = sum(dense(mechanism.contribute(rows(unit))) for unit in units)
    assert np.array_equal(dense(mechanism.contribute(rows(*units))), alone)


def test_a_row_that_would_round_past_the_bound_is_truncated():
    mechanism = CountsMechanism(clip=1.0, levels=5, noise_multiplier=2.0, shares=1)
    row = [9.0, 9.0, 9.0]  # 5/sqrt(3) = 2.89 each: rounded to 3, the norm^2 would be 27 > 25
    assert integers(dense(mechanism.contribute(rows(row)))) == [2, 2, 2]


def test_a_row_that_rounds_within_the_bound_is_rounded():
    mechanism = CountsMechanism(clip=5.0, levels=5, noise_multiplier=2.0, shares=1)
    assert integers(dense(mechanism.contribute(rows([2.6, 1.4, 0.5001])))) == [3, 1, 1]


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(1, 1 << 20), st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.floats(0.1, 1e6))
def test_clipped_rows_of_any_grid_stay_within_the_bound_and_lose_little(levels, counts, stretch):
    mechanism = CountsMechanism(clip=1.0, levels=levels, noise_multiplier=8.0 / levels, shares=1)
    row = np.array(counts) * stretch
    steps = integers(dense(mechanism.contribute(rows(row))))
    assert sum(step * step for step in steps) <= levels**2
    norm = max(float(np.linalg.norm(row)), 1.0)
    assert np.abs(np.array(steps) - row / norm * levels).max() <= 1 + 1e-6


def test_even_a_norm_that_comes_out_wrong_cannot_break_the_bound(monkeypatch):
    true_sqrt = np.sqrt
    monkeypatch.setattr(np, "sqrt", lambda values: np.maximum(true_sqrt(values) * 0.5, 1.0))
    mechanism = CountsMechanism(clip=1.0, levels=50, noise_multiplier=1.0, shares=1)
    assert np.square(dense(mechanism.contribute(rows([3.0, 3.0, 3.0, 3.0])))).sum() <= 2500


def test_whole_counts_of_an_unclipped_unit_stay_exact():
    mechanism = CountsMechanism(clip=16.0, levels=256, noise_multiplier=1.0, shares=4)
    counts = np.array([[3, 0, 1, 7, 2], [0, 5, 5, 5, 1]])
    total = dense(mechanism.contribute(sparse.csr_array(counts)))
    assert np.array_equal(total * mechanism.granularity, counts.sum(axis=0))


def test_a_cell_given_twice_is_one_cell_even_if_the_array_claims_otherwise():
    mechanism = CountsMechanism(clip=5.0, levels=5, noise_multiplier=2.0, shares=1)
    twice = sparse.csr_array((np.full(8, 2.0), np.zeros(8, dtype=int), np.array([0, 8])), shape=(1, 3))
    twice.has_sorted_indices = twice.has_canonical_format = True
    assert integers(dense(mechanism.contribute(twice))) == [5, 0, 0]
    assert twice.nnz == 8  # the caller's array is left alone


def test_contributions_are_one_sparse_row_of_integers_in_order():
    units = sparse.csr_array(np.array([[0, 2, 0, 1], [1, 0, 0, 1], [0, 0, 0, 0]]))
    part = MECHANISM.contribute(units)
    assert isinstance(part, sparse.csr_array)
    assert part.shape == (1, 4)
    assert part.dtype == np.int64
    assert part.indices.tolist() == [0, 1, 3]
    assert part.data.tolist() == [4, 8, 8]


@pytest.mark.parametrize("units", [sparse.csr_array((0, 5)), sparse.csr_array((3, 5)), rows([0.0] * 5)])
def test_nothing_to_count_is_a_sum_of_zeros(units):
    part = MECHANISM.contribute(units)
    assert part.shape == (1, 5)
    assert part.nnz == 0


def test_cells_beyond_32_bits_are_kept_apart():
    far = 3_000_000_000
    part = MECHANISM.contribute(
        sparse.csr_array((np.array([1.0, 2.0]), np.array([7, far]), np.array([0, 2])), shape=(1, far + 1))
    )
    assert part.indices.tolist() == [7, far]


@pytest.mark.parametrize(
    ("units", "reason"),
    [
        (rows([1.0, math.nan]), "NaN"),
        (rows([1.0, math.inf]), "infinity"),
        (rows([1.0, -1.0]), "negative"),
        (sparse.csr_array((np.full(2, 1e308), np.zeros(2, dtype=int), np.array([0, 2])), shape=(1, 1)), "infinity"),
        (np.ones((2, 3)), "ndarray of 2 dimensions"),
        (sparse.csr_array(np.ones(3)), "csr_array of 1 dimensions"),
        (sparse.coo_array(np.ones((2, 2))), "coo_array"),
        (sparse.csr_array(np.ones((2, 2), dtype=bool)), "bool"),
        (sparse.csr_array(np.ones((2, 2), dtype=complex)), "complex"),
    ],
)
def test_a_contribution_that_cannot_be_counts_is_refused(units, reason):
    with pytest.raises(IntegrityError, match=reason):
        MECHANISM.contribute(units)


def test_an_array_whose_rows_overlap_is_refused():
    units = rows([1.0, 2.0], [3.0, 4.0])
    units.indptr = np.array([0, 4, 2])
    with pytest.raises(IntegrityError, match="well-formed"):
        MECHANISM.contribute(units)


@given(st.floats(0.1, 50), st.integers(64, 300), st.integers(1, 50))
def test_the_shares_together_hold_at_least_the_noise_that_is_charged(multiplier, levels, shares):
    if multiplier * levels / math.sqrt(shares) < 4.001:
        return
    mechanism = CountsMechanism(1.0, levels, multiplier, shares)
    charged = (Fraction(mechanism.event().noise_multiplier) * Fraction(mechanism.sensitivity)) ** 2
    held = Fraction(mechanism.shared.share.sigma) ** 2 * shares
    assert charged <= held <= charged * (1 + Fraction(1, 10**14))


def test_a_noise_share_is_drawn_with_a_share_of_the_variance():
    mechanism = CountsMechanism(clip=4.0, levels=64, noise_multiplier=1.5, shares=4)
    drawn = mechanism.noise_share((600, 500), NoiseStream.from_key(bytes(32)))
    assert drawn.dtype == np.int64
    assert drawn.std() == pytest.approx(1.5 * 64 / 2, rel=0.01)  # about 8 standard errors
    assert np.array_equal(drawn, RoundedGaussian(48.0).sample((600, 500), NoiseStream.from_key(bytes(32))))


@pytest.mark.parametrize("present", [4, 7])
def test_the_sigma_of_a_release_is_that_of_the_shares_that_are_present(present):
    mechanism = CountsMechanism(clip=2.0, levels=8, noise_multiplier=1.0, shares=4)  # 4 grid units a share
    total = sum(
        mechanism.noise_share((400_000,), NoiseStream.from_key(bytes(32)).child(party)) for party in range(present)
    )
    released = mechanism.release(total, present)
    assert released.sigma == pytest.approx(math.sqrt(present * (16 + 1 / 12)) * 0.25, rel=1e-12)
    assert released.values.std() == pytest.approx(released.sigma, rel=4 / math.sqrt(2 * 400_000))
    assert np.array_equal(released.values, total * 0.25)


def test_a_sum_with_fewer_shares_than_were_charged_is_not_released():
    mechanism = CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=4)
    total = np.zeros(3, dtype=np.int64)
    assert mechanism.release(total, 4).sigma > 0
    with pytest.raises(IntegrityError, match="noise of 3 parties and the guarantee needs 4"):
        mechanism.release(total, 3)


def test_a_total_that_is_not_integers_is_not_released():
    with pytest.raises(IntegrityError, match="float64"):
        MECHANISM.release(np.zeros(3), 2)


def test_the_event_is_one_gaussian_whatever_the_number_of_shares():
    assert CountsMechanism(4.0, 256, 0.7, 1).event() == GaussianDpEvent(0.7)
    assert CountsMechanism(4.0, 256, 0.7, 8).event() == GaussianDpEvent(0.7)


def test_slack_is_the_distance_of_all_shares_over_all_values_in_both_directions():
    mechanism = CountsMechanism(clip=16.0, levels=16, noise_multiplier=0.5, shares=4)  # 4 grid units a share
    share = RoundedGaussian(4.0)
    distance = 4 * share.total_variation + share.sum_distance(4)
    assert mechanism.slack(10, 1, 0.0) == pytest.approx(2 * 10 * distance, rel=1e-6)
    assert mechanism.slack(10**6, 1, 8.0) == pytest.approx((1 + math.exp(8)) * 1e6 * distance, rel=1e-6)
    assert mechanism.slack(10**6, 1, 8.0) >= (1 + math.exp(8)) * 1e6 * distance
    assert mechanism.slack(0, 1, 8.0) == 0
    assert mechanism.slack(1, 1, math.inf) == mechanism.slack(1, 1, 5000.0) == 1.0


def test_slack_counts_the_distance_of_the_sum_once_whatever_its_size(monkeypatch):
    mechanism = CountsMechanism(clip=16.0, levels=16, noise_multiplier=0.5, shares=4)
    monkeypatch.setattr(RoundedGaussian, "sum_distance", lambda self, shares: 1e-9 * shares)
    assert mechanism.slack(10, 1, 0.0) == pytest.approx(2 * 10 * 4e-9, rel=1e-6)


def test_slack_is_far_below_any_delta_for_a_real_matrix():
    mechanism = CountsMechanism(clip=16.0, levels=256, noise_multiplier=0.66, shares=4)
    assert 0 < mechanism.slack(4_000_000, 1, 10.0) < 1e-20


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clip", 0.0),
        ("clip", math.nan),
        ("clip", math.inf),
        ("clip", 5e-324),
        ("levels", 0),
        ("levels", 2.5),
        ("levels", True),
        ("levels", 1 << 21),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", math.nan),
        ("shares", 0),
        ("shares", 2.0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting, value):
    settings = {"clip": 4.0, "levels": 256, "noise_multiplier": 1.0, "shares": 2} | {setting: value}
    with pytest.raises(ConclaveError, match=setting):
        CountsMechanism(**settings)


@pytest.mark.parametrize(("levels", "multiplier", "remedy"), [(16, 0.5, "more levels"), (256, 1e308, "fewer levels")])
def test_a_share_of_noise_that_cannot_be_drawn_is_refused_with_a_remedy(levels, multiplier, remedy):
    with pytest.raises(ConclaveError, match=remedy):
        CountsMechanism(4.0, levels, multiplier, 5)


def test_the_mechanism_has_every_part_of_the_protocol():
    for name, part in inspect.getmembers(Mechanism):
        if not name.startswith("_"):
            assert hasattr(MECHANISM, name)
            if inspect.isfunction(part):
                ours = inspect.signature(getattr(CountsMechanism, name)).parameters
                assert len(ours) == len(inspect.signature(part).parameters)
