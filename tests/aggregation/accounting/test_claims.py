"""What the paper would have claimed is less than what the same noise costs, by the figures of the design."""

import math

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent, rdp

from aggregation.accounting.claims import paper_epsilon, paper_guarantee
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.votes import VotesMechanism

QUERIES, DELTA = 1000, 1e-5
NOISE = 40.0  # votes; the hidden states have the same in units of their clip
CLIP = 2.0
VOTES = VotesMechanism(classes=50, levels=4, noise=NOISE, shares=2)
HIDDEN = HiddenMechanism(layers=1, width=3, clip=CLIP, levels=8, noise=NOISE * CLIP, shares=2)


def true_epsilon(mechanism):
    return price([SelfComposedDpEvent(mechanism.event(), QUERIES)], DELTA).epsilon


@pytest.mark.slow
def test_what_the_paper_claims_and_what_votes_and_hidden_states_truly_cost():
    """The figures of the design, all by the tight accountant: 3.34, and truly 4.98 for votes and 7.51 for hidden."""
    claimed = paper_guarantee(QUERIES, NOISE, NOISE * CLIP, CLIP, DELTA).epsilon
    assert claimed == pytest.approx(3.34, abs=0.01)
    assert true_epsilon(VOTES) == pytest.approx(4.98, abs=0.01)
    assert true_epsilon(HIDDEN) == pytest.approx(7.51, abs=0.01)


@pytest.mark.slow
def test_the_pair_truly_costs_more_than_either_and_far_more_than_is_claimed():
    pair = true_epsilon(JointMechanism(VOTES, HIDDEN))
    assert pair > true_epsilon(HIDDEN) > true_epsilon(VOTES)
    assert pair > 2.7 * paper_guarantee(QUERIES, NOISE, NOISE * CLIP, CLIP, DELTA).epsilon
    exact = price([GaussianDpEvent(NOISE / math.sqrt(QUERIES * (2 + 4)))], DELTA).epsilon
    assert pair == pytest.approx(exact, rel=1e-3)


def test_one_sigma_at_half_epsilon_each_is_not_what_is_charged():
    """Appendix B.3: each part at half of epsilon under the sigma of that half. Its pair costs more than epsilon."""
    epsilon, delta = 0.5, 1e-5
    sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon  # theorem 1, used for both parts
    votes = VotesMechanism(50, 4, sigma, 2)
    hidden = HiddenMechanism(1, 3, CLIP, 8, sigma * CLIP, 2)
    pair = JointMechanism(votes, hidden).event()
    assert pair.noise_multiplier == pytest.approx(sigma / math.sqrt(6), rel=1e-12)
    claimed = paper_guarantee(1, sigma, sigma * CLIP, CLIP, delta).epsilon
    assert price([pair], delta).epsilon > 2 * claimed


def test_the_claim_is_that_of_a_moments_accountant_on_the_paper_s_sensitivities():
    moments = rdp.RdpAccountant().compose(GaussianDpEvent(40.0), QUERIES).get_epsilon(DELTA)
    assert paper_epsilon(QUERIES, NOISE, None, CLIP, DELTA) == pytest.approx(moments, rel=1e-9)
    assert paper_epsilon(QUERIES, None, NOISE * CLIP, CLIP, DELTA) == pytest.approx(moments, rel=1e-9)
    assert paper_epsilon(QUERIES, NOISE, NOISE * CLIP, CLIP, DELTA) == pytest.approx(moments, rel=1e-9)


def test_the_claim_charges_the_pair_as_the_weaker_of_both():
    weaker = paper_epsilon(100, 20.0, None, 1.0, DELTA)
    assert paper_epsilon(100, 20.0, 30.0, 1.0, DELTA) == paper_epsilon(100, 30.0, 20.0, 1.0, DELTA) == weaker


def test_the_claim_takes_abstained_queries_for_free():
    assert paper_epsilon(0, NOISE, NOISE, 1.0, DELTA) == 0.0
    assert paper_epsilon(10, NOISE, None, 1.0, DELTA) < paper_epsilon(1000, NOISE, None, 1.0, DELTA)


@pytest.mark.parametrize(
    ("answered", "votes", "hidden", "clip"),
    [
        (10, None, None, 1.0),
        (-1, 1.0, None, 1.0),
        (10, 0.0, None, 1.0),
        (10, None, 1.0, 0.0),
        (10, math.nan, None, 1.0),
    ],
)
def test_a_claim_about_nothing_is_refused(answered, votes, hidden, clip):
    with pytest.raises(ConclaveError):
        paper_epsilon(answered, votes, hidden, clip, DELTA)
