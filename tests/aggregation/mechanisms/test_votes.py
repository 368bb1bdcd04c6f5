"""Votes: a changed teacher moves the sum by exactly what is charged, and every class gets the noise that is charged."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Mechanism
from aggregation.mechanisms.votes import VotesMechanism, check_teachers, tally
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

CLASSES = 6
MECHANISM = VotesMechanism(classes=CLASSES, levels=8, noise=2.0, shares=4)
VOTES = (
    st.integers(1, 5)
    .flatmap(
        lambda teachers: st.lists(
            st.lists(st.integers(0, CLASSES - 1), min_size=4, max_size=4), min_size=teachers, max_size=teachers
        )
    )
    .map(np.array)
)


def dense(votes):
    return MECHANISM.contribute(votes).toarray()


@pytest.mark.slow
@settings(deadline=None)
@given(VOTES, st.lists(st.integers(0, CLASSES - 1), min_size=4, max_size=4))
def test_a_changed_teacher_never_moves_a_query_by_more_than_the_sensitivity(votes, other):
    neighbour = votes.copy()
    neighbour[0] = other
    change = dense(votes) - dense(neighbour)
    assert (np.square(change).sum(axis=1) <= 2 * MECHANISM.levels**2).all()
    assert 2 * MECHANISM.levels**2 == pytest.approx(MECHANISM.sensitivity**2, rel=1e-15)


def test_a_vote_that_moves_costs_root_two_and_not_the_paper_s_one():
    change = dense(np.array([[2]])) - dense(np.array([[3]]))
    moved = math.sqrt(np.square(change).sum())
    assert moved == pytest.approx(MECHANISM.sensitivity)
    held = math.sqrt(4) * MECHANISM.shared.share.sigma  # of all shares together, grid units
    assert MECHANISM.event().noise_multiplier <= held / moved * (1 + 1e-12)
    assert MECHANISM.event() == GaussianDpEvent(2.0 / math.sqrt(2))


def test_a_query_costs_a_over_noise_squared():
    orders = [2.0, 8.0, 32.0]
    spent = rdp.RdpAccountant(orders).compose(MECHANISM.event())
    for order, divergence in zip(orders, spent.rdp, strict=True):
        assert divergence == pytest.approx(order / MECHANISM.noise**2)


@pytest.mark.slow
@settings(deadline=None)
@given(VOTES)
def test_a_contribution_is_the_histogram_of_each_query_in_order(votes):
    part = MECHANISM.contribute(votes)
    assert isinstance(part, sparse.csr_array)
    assert part.dtype == np.int64
    assert part.has_sorted_indices
    expected = [np.bincount(votes[:, q], minlength=CLASSES) * 8 for q in range(votes.shape[1])]
    assert np.array_equal(part.toarray(), expected)


def test_parties_add_up_to_what_their_teachers_are_together():
    votes = np.random.default_rng(0).integers(0, CLASSES, (7, 30))
    assert np.array_equal(dense(votes), dense(votes[:3]) + dense(votes[3:]))


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_count_is_a_sum_of_zeros(shape):
    part = MECHANISM.contribute(np.zeros(shape, dtype=np.int64))
    assert part.shape == (shape[1], CLASSES)
    assert part.nnz == 0


@pytest.mark.parametrize(
    ("votes", "reason"),
    [
        (np.array([[6]]), "names class 6"),
        (np.array([[-1]]), "names class -1"),
        (np.array([[math.nan]]), "float64"),
        (np.array([1, 2]), "1 dimensions"),
        (np.array([[True]]), "bool"),
        ([[1]], "list"),
    ],
)
def test_what_cannot_be_votes_is_refused(votes, reason):
    with pytest.raises(IntegrityError, match=reason):
        MECHANISM.contribute(votes)


@pytest.mark.slow
@given(st.floats(0.5, 50), st.integers(64, 300), st.integers(1, 50))
def test_the_shares_together_hold_at_least_the_noise_that_is_charged(noise, levels, shares):
    if noise * levels / math.sqrt(shares) < 4.001:
        return
    mechanism = VotesMechanism(9, levels, noise, shares)
    charged = Fraction(mechanism.event().noise_multiplier) ** 2 * 2 * levels**2
    held = Fraction(mechanism.shared.share.sigma) ** 2 * shares
    assert charged <= held <= charged * (1 + Fraction(1, 10**14))


def test_every_class_gets_noise_and_the_release_says_how_much():
    shape = (1000, CLASSES)
    parts = [MECHANISM.noise_share(shape, NoiseStream.from_key(bytes(32)).child(party)) for party in range(4)]
    assert all((part != 0).mean(axis=0).min() > 0.5 for part in parts)
    votes = np.full((10, 1000), 3)
    released = MECHANISM.release(sum(parts) + MECHANISM.contribute(votes).toarray(), 4)
    assert released.sigma == pytest.approx(math.sqrt(4 * (64 + 1 / 12)) / 8)
    noise = released.values - np.where(np.arange(CLASSES) == 3, 10.0, 0.0)
    assert noise.std() == pytest.approx(released.sigma, rel=4 / math.sqrt(2 * noise.size))
    assert released.sigma == pytest.approx(2.0, rel=0.01)


def test_a_sum_with_fewer_shares_than_were_charged_is_not_released():
    with pytest.raises(IntegrityError, match="noise of 3 parties and the guarantee needs 4"):
        MECHANISM.release(np.zeros((1, CLASSES), dtype=np.int64), 3)
    with pytest.raises(IntegrityError, match="float64"):
        MECHANISM.release(np.zeros((1, CLASSES)), 4)


def test_slack_is_that_of_all_shares_over_all_cells():
    mechanism = VotesMechanism(9, 4, 2.0, 4)  # 4 grid units a share
    share = RoundedGaussian(4.0)
    distance = 4 * share.total_variation + share.sum_distance(4)
    assert mechanism.slack(10, 1, 0.0) == pytest.approx(2 * 10 * distance, rel=1e-6)
    assert mechanism.slack(10**6, 1, 8.0) == pytest.approx((1 + math.exp(8)) * 1e6 * distance, rel=1e-6)
    assert MECHANISM.slack(10**9, 1, 10.0) < 1e-20


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("classes", 1),
        ("classes", 2.0),
        ("classes", 1 << 31),
        ("levels", 0),
        ("levels", True),
        ("noise", 0.0),
        ("noise", math.nan),
        ("noise", math.inf),
        ("shares", 0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(setting, value):
    values = {"classes": 9, "levels": 64, "noise": 1.0, "shares": 2} | {setting: value}
    with pytest.raises(ConclaveError, match=setting):
        VotesMechanism(**values)


@pytest.mark.parametrize(("levels", "noise", "remedy"), [(1, 5.0, "more levels"), (1 << 20, 1000.0, "fewer levels")])
def test_a_share_of_noise_that_cannot_be_drawn_is_refused_with_a_remedy(levels, noise, remedy):
    with pytest.raises(ConclaveError, match=remedy):
        VotesMechanism(9, levels, noise, 4)


def test_one_teacher_hides_nobody():
    with pytest.raises(ConclaveError, match="one teacher"):
        check_teachers(1)
    with pytest.raises(ConclaveError, match="whole number"):
        check_teachers(0)
    check_teachers(2)


def test_a_threshold_that_no_query_can_reach_is_refused():
    check_teachers(5, 5.0)
    with pytest.raises(ConclaveError, match="threshold is 6 votes and there are 5 teachers"):
        check_teachers(5, 6.0)


@pytest.mark.slow
@settings(deadline=None)
@given(VOTES)
def test_a_tally_counts_the_classes_of_each_query(votes):
    for row, counted in zip(votes.T, tally(votes.T), strict=True):
        expected = sorted(np.unique(row, return_counts=True)[1].tolist(), reverse=True)
        assert counted.tolist() == expected + [0] * (row.size - len(expected))


def test_a_thousand_queries_cost_as_one_with_a_thousandth_of_the_variance():
    assert price([MECHANISM.event()] * 1000, 1e-5).epsilon == pytest.approx(
        price([GaussianDpEvent(MECHANISM.event().noise_multiplier / math.sqrt(1000))], 1e-5).epsilon, rel=1e-3
    )


def test_the_mechanism_has_every_part_of_the_protocol():
    for name, part in inspect.getmembers(Mechanism):
        if not name.startswith("_"):
            assert hasattr(MECHANISM, name)
            if inspect.isfunction(part):
                ours = inspect.signature(getattr(VotesMechanism, name)).parameters
                assert len(ours) == len(inspect.signature(part).parameters)
