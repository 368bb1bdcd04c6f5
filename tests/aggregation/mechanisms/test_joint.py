"""Votes and hidden states of a query are one Gaussian release, priced as both together."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent
from hypothesis import given
from hypothesis import strategies as st

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.votes import VotesMechanism
from aggregation.noise.stream import NoiseStream

VOTES = VotesMechanism(classes=5, levels=16, noise=3.0, shares=2)
HIDDEN = HiddenMechanism(layers=2, width=3, clip=1.0, levels=32, noise=4.0, shares=2)
BOTH = JointMechanism(VOTES, HIDDEN)


def signal(teachers=3, queries=4):
    rng = np.random.default_rng(0)
    return TeacherSignal(rng.integers(0, 5, (teachers, queries)), rng.normal(size=(teachers, queries, 2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [1, 4])
def test_the_joint_price_is_that_of_composing_both_parts(queries):
    joint = price([SelfComposedDpEvent(BOTH.event(), queries)], 1e-5)
    apart = price([SelfComposedDpEvent(part.event(), queries) for part in (VOTES, HIDDEN)], 1e-5)
    assert joint.accountant == apart.accountant == "PLD"
    assert joint.epsilon == pytest.approx(apart.epsilon, rel=1e-3)
    assert joint.rdp_epsilon == pytest.approx(apart.rdp_epsilon, rel=1e-9)


def test_the_joint_precision_is_the_sum_of_both_in_the_plan_s_numbers():
    multiplier = BOTH.event().noise_multiplier
    assert 1 / multiplier**2 == pytest.approx(2 / 3.0**2 + 4 * 2 * 1.0**2 / 4.0**2, rel=1e-12)


@pytest.mark.slow
def test_the_pair_costs_more_than_either_part_alone_which_is_what_the_paper_charges():
    both = price([BOTH.event()] * 3, 1e-5).epsilon
    for part in (VOTES, HIDDEN):
        assert both > 1.2 * price([part.event()] * 3, 1e-5).epsilon


@pytest.mark.slow
@given(st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0.5, 4))
def test_rounding_never_charges_less_than_the_sum(noise_votes, noise_hidden, clip):
    votes = VotesMechanism(5, 64, noise_votes, 1)
    hidden = HiddenMechanism(2, 3, clip, 64, noise_hidden, 1)
    charged = 1 / Fraction(JointMechanism(votes, hidden).event().noise_multiplier) ** 2
    owed = sum(1 / Fraction(part.event().noise_multiplier) ** 2 for part in (votes, hidden))
    assert owed <= charged <= owed * (1 + Fraction(1, 10**14))


def test_a_single_part_costs_what_it_costs_alone():
    assert JointMechanism(VOTES, None).event().noise_multiplier == pytest.approx(3.0 / math.sqrt(2), rel=1e-15)
    assert JointMechanism(None, HIDDEN).event() == GaussianDpEvent(pytest.approx(4.0 / (2 * math.sqrt(2)), rel=1e-15))


def test_a_changed_teacher_moves_the_scaled_vector_by_no_more_than_the_event_says():
    ours = TeacherSignal(np.array([[1]]), np.tile([0.0, 9.0, 0.0], (1, 1, 2, 1)))
    theirs = TeacherSignal(np.array([[2]]), -ours.states)
    change = (BOTH.contribute(ours) - BOTH.contribute(theirs)).toarray()[0].astype(float)
    change[:5] /= VOTES.levels * VOTES.noise
    change[5:] /= HIDDEN.levels / HIDDEN.clip * HIDDEN.noise
    assert np.linalg.norm(change) == pytest.approx(1 / BOTH.event().noise_multiplier, rel=1e-12)


def test_the_joined_vector_has_the_votes_first_and_splits_again():
    given_ = signal()
    joined = BOTH.contribute(given_)
    assert joined.shape == (4, BOTH.columns) == (4, 11)
    assert joined.dtype == np.int64
    votes, hidden = BOTH.split(joined.toarray())
    assert np.array_equal(votes, VOTES.contribute(given_.votes).toarray())
    assert np.array_equal(hidden, HIDDEN.contribute(given_.states))
    alone = JointMechanism(None, HIDDEN).contribute(TeacherSignal(None, given_.states))
    assert np.array_equal(alone.toarray(), hidden)


def test_each_part_gets_its_own_noise_and_asking_again_gives_another():
    stream = NoiseStream.from_key(bytes(32))
    first, second = (BOTH.noise_share((3000, 11), stream) for _ in range(2))
    assert not np.array_equal(first[:, :5], second[:, :5])
    assert not np.array_equal(first[:, 5:], second[:, 5:])
    assert first[:, :5].std() == pytest.approx(3.0 * 16 / math.sqrt(2), rel=0.03)
    assert first[:, 5:].std() == pytest.approx(4.0 * 32 / math.sqrt(2), rel=0.03)
    again = BOTH.noise_share((3000, 11), NoiseStream.from_key(bytes(32)))
    assert np.array_equal(first, again)


def test_the_parts_noise_is_independent_even_where_it_is_of_one_size():
    same = JointMechanism(VotesMechanism(6, 32, 4.0, 2), HIDDEN)
    drawn = same.noise_share((4000, 12), NoiseStream.from_key(bytes(32)))
    correlation = np.corrcoef(drawn.T) - np.eye(12)
    assert np.abs(correlation).max() < 5 / math.sqrt(4000)


def test_a_release_gives_each_part_in_its_own_units():
    given_ = signal(queries=500)
    noise = sum(BOTH.noise_share((500, 11), NoiseStream.from_key(bytes(32)).child(party)) for party in range(2))
    released = BOTH.release(BOTH.contribute(given_).toarray() + noise, 2)
    assert released.votes.values.shape == (500, 5)
    assert released.hidden.values.shape == (500, 6)
    assert released.votes.sigma == pytest.approx(3.0, rel=1e-3)
    assert released.hidden.sigma == pytest.approx(4.0, rel=1e-3)
    assert JointMechanism(VOTES, None).release(np.zeros((1, 5), dtype=np.int64), 2).hidden is None
    assert JointMechanism(None, HIDDEN).release(np.zeros((1, 6), dtype=np.int64), 2).votes is None


def test_a_release_with_fewer_shares_or_other_columns_is_refused():
    with pytest.raises(IntegrityError, match="needs 2"):
        BOTH.release(np.zeros((4, 11), dtype=np.int64), 1)
    with pytest.raises(IntegrityError, match="11 columns"):
        BOTH.release(np.zeros((4, 12), dtype=np.int64), 2)
    with pytest.raises(IntegrityError, match="11 columns"):
        BOTH.noise_share((11,), NoiseStream.from_key(bytes(32)))


def test_slack_is_that_of_the_votes_cells_and_the_hidden_numbers():
    apart = VOTES.slack(4 * 5, 1, 3.0) + HIDDEN.slack(4 * 6, 1, 3.0)
    assert BOTH.slack(4 * 11, 1, 3.0) == pytest.approx(apart, rel=1e-6)
    assert BOTH.slack(4 * 11 - 10, 1, 3.0) == BOTH.slack(4 * 11, 1, 3.0)
    assert BOTH.slack(0, 1, 3.0) == 0


def test_a_signal_that_does_not_fit_is_refused():
    good = signal()
    with pytest.raises(IntegrityError, match="votes are asked and missing"):
        BOTH.contribute(TeacherSignal(None, good.states))
    with pytest.raises(IntegrityError, match="hidden states are given and not asked"):
        JointMechanism(VOTES, None).contribute(good)
    for votes in (good.votes[:2], good.votes[:, :3]):
        with pytest.raises(IntegrityError, match="same teachers and queries"):
            BOTH.contribute(TeacherSignal(votes, good.states))


def test_parts_must_be_there_and_count_on_the_same_shares():
    with pytest.raises(ConclaveError, match="votes, hidden states or both"):
        JointMechanism(None, None)
    with pytest.raises(ConclaveError, match="same number of shares"):
        JointMechanism(VOTES, HiddenMechanism(2, 3, 1.0, 32, 4.0, 3))
    assert BOTH.shares == 2
    assert BOTH.sensitivity == pytest.approx(math.hypot(math.sqrt(2) * 16, 2 * 32 * math.sqrt(2)))


@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_other_noise_costs_both_parts_events_and_hardly_more_than_a_gaussian_of_its_variance(kind):
    votes = VotesMechanism(classes=5, levels=40, noise=20.0, shares=3, distribution=kind)
    hidden = HiddenMechanism(layers=2, width=7, clip=1.5, levels=400, noise=31.0, shares=3, distribution=kind)
    mechanism = JointMechanism(votes, hidden)
    assert mechanism.event() == ComposedDpEvent([votes.event(), hidden.event()])
    gaussian = JointMechanism(replace(votes, distribution="gaussian"), replace(hidden, distribution="gaussian"))
    cost = price([SelfComposedDpEvent(mechanism.event(), 50)], 1e-6)
    best = price([SelfComposedDpEvent(gaussian.event(), 50)], 1e-6)
    assert cost.accountant == "RDP"
    assert best.rdp_epsilon <= cost.epsilon < 1.01 * best.rdp_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["skellam", "discrete-gaussian"])
def test_other_noise_is_drawn_with_the_variance_that_its_event_charges(kind):
    votes = VotesMechanism(classes=5, levels=40, noise=20.0, shares=3, distribution=kind)
    hidden = HiddenMechanism(layers=2, width=7, clip=1.5, levels=400, noise=31.0, shares=3, distribution=kind)
    drawn = sum(
        JointMechanism(votes, hidden).noise_share((20_000, 19), NoiseStream.from_key(bytes([party] * 32)))
        for party in range(3)
    )
    for part, cells in ((votes, drawn[:, :5]), (hidden, drawn[:, 5:])):
        event = part.event()
        charged = event.variance if kind == "skellam" else event.shares * event.sigma**2
        assert charged == pytest.approx((part.noise_multiplier * part.sensitivity) ** 2, rel=1e-12)
        assert part.shared.share.variance * 3 == pytest.approx(charged, rel=1e-12)
        assert cells.var() == pytest.approx(charged, rel=6 * math.sqrt(2 / cells.size))
        assert part.release(cells, 3).sigma * part.levels / (1 if part is votes else 1.5) == pytest.approx(
            math.sqrt(charged), rel=1e-9
        )


def test_parts_under_different_kinds_of_noise_are_refused():
    votes = VotesMechanism(classes=5, levels=40, noise=20.0, shares=3, distribution="skellam")
    with pytest.raises(ConclaveError, match="one kind of noise"):
        JointMechanism(votes, HiddenMechanism(layers=2, width=7, clip=1.5, levels=400, noise=31.0, shares=3))


def test_a_kind_of_noise_that_nobody_knows_is_refused():
    with pytest.raises(ConclaveError, match="gaussian, skellam, discrete-gaussian"):
        VotesMechanism(classes=5, levels=40, noise=20.0, shares=3, distribution="laplace")
