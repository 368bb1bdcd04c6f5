"""The one-run audit: what is refuted was not private, and what is private is hardly ever refuted."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from aggregation.accounting.price import calibrate
from aggregation.errors import ConclaveError
from learning.audits.one_run import audited, canaries_for, chance, lower_bound


def test_all_right_guesses_refute_what_a_coin_of_that_bias_would_not_give():
    found = lower_bound(100, 100, 100, delta=0.0, confidence=0.95)
    each = 0.05 ** (1 / 100)
    assert found == pytest.approx(math.log(each / (1 - each)), abs=1e-6)
    assert lower_bound(100, 100, 50, delta=0.0, confidence=0.95) == 0.0
    assert lower_bound(100, 0, 0, delta=0.0, confidence=0.95) == 0.0


def test_the_chance_is_the_formulas():
    m, r, v, epsilon, delta = 50, 20, 17, 0.7, 1e-4
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = [float(binom.pmf(range(n, r + 1), r, q).sum()) for n in range(v + 1)]
    wanted = tail[v] + 2 * m * delta * max((tail[v - i] - tail[v]) / i for i in range(1, v + 1))
    assert chance(m, r, v, epsilon, delta) == pytest.approx(wanted, rel=1e-9)
    assert chance(m, r, v, epsilon, 0.0) == pytest.approx(tail[v])
    assert chance(m, r, 0, epsilon, delta) == 1.0


def test_more_right_guesses_refute_more_and_delta_costs():
    bounds = [lower_bound(1000, 200, right, delta=1e-6, confidence=0.95) for right in range(100, 201, 5)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0 < bounds[-1]
    costly = [lower_bound(1000, 200, 190, delta=delta, confidence=0.95) for delta in (0.0, 1e-6, 1e-5, 1e-4)]
    assert costly == sorted(costly, reverse=True)
    assert lower_bound(1000, 200, 190, delta=0.0, confidence=0.999) < costly[0]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_is_refuted_no_more_often_than_the_confidence_says(epsilon):
    """Its guesses are right as often as the bound says, so it is the worst case."""
    rng = np.random.default_rng(0)
    right = rng.binomial(400, 1 / (1 + math.exp(-epsilon)), 2000)
    bounds = {int(v): lower_bound(400, 400, int(v), delta=0.0, confidence=0.95) for v in np.unique(right)}
    over = np.mean([bounds[int(v)] > epsilon for v in right])
    assert 0.01 < over <= 0.065
    assert np.mean([bounds[int(v)] for v in right]) > 0.5 * epsilon


def _scores(sigma, seed, canaries=2000):
    """Each canary in a direction of its own under Gaussian noise: the worst case of a clipped sum."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return included + rng.normal(0, sigma, canaries), included


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [1.0, 8.0])
def test_an_honest_gaussian_stays_and_one_without_its_noise_is_caught(claimed):
    from dp_accounting import GaussianDpEvent

    delta = 1e-9
    sigma = calibrate(GaussianDpEvent, claimed, delta)
    honest = [audited(*_scores(sigma, seed), delta=delta, confidence=1 - 1e-4) for seed in range(20)]
    assert all(each.lower < claimed for each in honest)
    assert np.mean([audited(*_scores(sigma, seed), delta=delta).lower for seed in range(20)]) > 0.1 * claimed
    canaries = 2 * canaries_for(claimed, delta=delta, confidence=1 - 1e-5)
    for broken in (0.0, sigma / 16):
        assert audited(*_scores(broken, 0, canaries), delta=delta, confidence=1 - 1e-4).lower > claimed


def test_the_choice_of_how_many_to_guess_is_paid_for():
    scores, included = _scores(0.5, 3)  # a delta of 1e-5 over 2,000 canaries
    found = audited(scores, included, delta=1e-5)
    half = found.guesses // 2
    order = np.argsort(scores)
    assert found.right == (~included[order[:half]]).sum() + included[order[-half:]].sum()
    free = lower_bound(len(scores), found.guesses, found.right, delta=1e-5, confidence=0.95)
    assert found.lower < free
    alone = audited(scores, included, delta=1e-5, shares=(found.guesses / len(scores),))
    assert alone.lower == pytest.approx(free)
    assert (found.tried, alone.tried) == (7, 1)


def test_scores_that_are_not_finite_count_as_least():
    included = np.array([True, True, False, False])
    found = audited(np.array([np.inf, 2.0, np.nan, -np.inf]), included, delta=0.0, shares=(1.0,))
    assert found.right == 4


@pytest.mark.slow
def test_how_many_canaries_a_claim_takes_is_said():
    few = canaries_for(1.0, delta=1e-5, confidence=0.95)
    many = canaries_for(4.0, delta=1e-5, confidence=0.95)
    assert lower_bound(few, few, few, delta=1e-5, confidence=0.95) > 1.0
    assert lower_bound(few - 1, few - 1, few - 1, delta=1e-5, confidence=0.95) <= 1.0
    assert many > 10 * few
    with pytest.raises(ConclaveError, match="No number of canaries refutes epsilon 3"):
        canaries_for(3.0, delta=1e-1, confidence=0.95)


@pytest.mark.parametrize(
    "given",
    [(10, 11, 5, 1.0, 0.0), (10, 5, 6, 1.0, 0.0), (0, 0, 0, 1.0, 0.0), (10, 5, 5, -1.0, 0.0), (9, 5, 5, 1.0, 1.0)],
)
def test_numbers_that_cannot_be_are_an_error_in_words(given):
    with pytest.raises(ConclaveError, match="cannot be"):
        chance(*given)


def test_what_is_no_audit_is_an_error_in_words():
    with pytest.raises(ConclaveError, match="are no audit"):
        audited(np.zeros(3), np.zeros(4, bool), delta=0.0)
    with pytest.raises(ConclaveError, match="are no audit"):
        audited(np.zeros(1), np.zeros(1, bool), delta=0.0)
    with pytest.raises(ConclaveError, match="A confidence of 1"):
        lower_bound(10, 5, 5, delta=0.0, confidence=1.0)


def test_a_bound_of_one_unit_follows_from_canaries_of_several_by_group_privacy():
    """Theorem: (epsilon, delta) for one unit is (2 epsilon, (1 + e^epsilon) delta) for two."""
    alone = lower_bound(1000, 400, 390, delta=0.0, confidence=0.99)
    assert lower_bound(1000, 400, 390, delta=0.0, confidence=0.99, units=2) == pytest.approx(alone / 2)
    one = lower_bound(1000, 400, 390, delta=1e-6, confidence=0.99, units=2)
    worse = 1e-6 * (1 + math.exp(one))
    assert lower_bound(1000, 400, 390, delta=worse, confidence=0.99) == pytest.approx(2 * one, abs=1e-6)
    assert lower_bound(1000, 400, 390, delta=0.4, confidence=0.99, units=2) == 0
