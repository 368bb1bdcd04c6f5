"""The one-run audit against a trade-off: valid for every mechanism that has it, and tighter than epsilon at a delta."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NoOpDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.stats import binom

from aggregation.accounting.events import SkellamDpEvent
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from learning.audits.one_run import SHARES, audited, counted
from learning.audits.one_run_fdp import audited_family, audited_gaussian, refuted
from learning.audits.trade_offs import Gaussian, Profile, louder, trade_off


def _scores(mu, seed, canaries):
    """A Gaussian mechanism's scores: each canary has a direction of its own and moves it by mu deviations."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return mu * included + rng.normal(0, 1, canaries), included


@pytest.mark.parametrize(("guesses", "right"), [(20, 17), (100, 70), (100, 99), (400, 300)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_randomised_response_has_the_chances_that_the_bound_allows_it_and_hardly_more(guesses, right, epsilon):
    """Its guesses are independent and each is right as often as epsilon allows, so its tail is known exactly."""
    pure = Profile(np.array([epsilon]), np.array([0.0]))
    tail = min(1 - 1e-12, float(binom.sf(right - 1, guesses, 1 / (1 + math.exp(-epsilon)))))
    if tail < 1e-12:  # no confidence is so near to 1
        assert refuted(pure, guesses, guesses, right, 1 - 1e-9)
        return
    assert not refuted(pure, guesses, guesses, right, 1 - tail)
    if tail < 0.1:
        assert refuted(pure, guesses, guesses, right, 1 - 3 * tail)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_what_two_gaussians_really_reach_is_never_refuted(mu):
    """All canaries are guessed by the sign: the number of right guesses is binomial, and its tails are exact."""
    from scipy.special import ndtr

    for right in range(100, 201, 4):
        tail = float(binom.sf(right - 1, 200, ndtr(mu / 2)))
        if 1e-12 < tail < 1:
            assert not refuted(Gaussian(mu), 200, 200, right, 1 - tail)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.27, 1.65])
def test_the_true_mu_is_refuted_in_no_more_than_the_stated_share_of_audits(mu):
    """500 audits of 1,000 canaries at 90%: more than 66 refutations would be a chance of 1 in 100 at a share of a
    tenth.
    """
    each = 1 - 0.1 / len(SHARES)
    audits = [_scores(mu, seed, 1000) for seed in range(500)]
    over = [any(refuted(Gaussian(mu), 1000, *one, each) for one in counted(*scores)) for scores in audits]
    assert sum(over) <= 66
    bounds = [audited_gaussian(*scores, confidence=0.9).lower for scores in audits[:50]]
    assert [bound > mu for bound in bounds] == over[:50]
    assert np.mean(bounds) > 0.25 * mu


@pytest.mark.slow
def test_power_twice_the_noise_that_is_claimed_passes_and_a_tenth_of_it_is_refuted_at_a_ten_thousandth():
    for seed in range(10):
        assert audited_gaussian(*_scores(0.5, seed, 4000), confidence=1 - 1e-4).lower < 1.0
        assert audited_gaussian(*_scores(10.0, seed, 4000), confidence=1 - 1e-4).lower > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.65, 3.0])
def test_for_gaussian_mechanisms_it_is_tighter_than_epsilon_at_a_delta(mu):
    delta = 1e-5
    ours, plain = [], []
    for seed in range(10):
        scores, included = _scores(mu, seed, 10_000)
        ours.append(Gaussian(audited_gaussian(scores, included).lower).epsilon(delta))
        plain.append(audited(scores, included, delta=delta).lower)
    assert np.mean(ours) > 1.15 * np.mean(plain)


def test_the_choice_of_how_many_to_guess_is_paid_for():
    scores, included = _scores(1.0, 3, 2000)
    found = audited_gaussian(scores, included)
    alone = audited_gaussian(scores, included, shares=(found.guesses / len(scores),))
    assert 0 < found.lower < alone.lower
    assert (found.tried, alone.tried) == (7, 1)
    assert (found.guesses, found.right) == (alone.guesses, alone.right)
    assert refuted(Gaussian(found.lower), 2000, found.guesses, found.right, 1 - 0.05 / 7)
    assert not refuted(Gaussian(found.lower + 1e-6), 2000, found.guesses, found.right, 1 - 0.05 / 7)


def test_more_right_guesses_refute_more():
    refuting = [refuted(Gaussian(1.0), 1000, 200, right, 0.95) for right in range(100, 201)]
    assert refuting == sorted(refuting)
    assert refuting[-1]
    assert not refuting[0]
    assert not refuted(Gaussian(0.0), 100, 0, 0, 0.95)


@pytest.mark.slow
def test_a_gaussian_has_the_trade_off_of_its_definition_and_the_exact_epsilon():
    from scipy.special import ndtr

    one = Gaussian(1.3)
    for place in (-3.0, -1.0, 0.5):
        assert one.least(float(ndtr(place + 1.3))) == pytest.approx(float(ndtr(place)))
    assert (one.least(0.0), one.least(1.0)) == (0.0, 1.0)
    assert one.epsilon(1e-5) == pytest.approx(price([GaussianDpEvent(1 / 1.3)], 1e-5).epsilon, rel=1e-3)
    assert Gaussian(0.0).epsilon(1e-5) == 0.0


@pytest.mark.slow
def test_events_are_turned_into_the_trade_off_that_they_claim():
    events = [GaussianDpEvent(2.0), SelfComposedDpEvent(GaussianDpEvent(4.0), 4), NoOpDpEvent()]
    found = trade_off(events)
    assert isinstance(found, Gaussian)
    assert found.mu == pytest.approx(math.sqrt(0.5))
    assert trade_off([SkellamDpEvent(100.0, 10, 10)]) is None
    assert trade_off([PoissonSampledDpEvent(1.0, GaussianDpEvent(2.0))]) == Gaussian(0.5)
    full = trade_off([PoissonSampledDpEvent(1 - 1e-9, GaussianDpEvent(1.0))])
    assert isinstance(full, Profile)
    for probability in (0.01, 0.1, 0.5, 0.9):
        assert full.least(probability) == pytest.approx(Gaussian(1.0).least(probability), rel=0.02)
        assert full.least(probability) <= Gaussian(1.0).least(probability) + 1e-9  # it claims no more
    sampled = trade_off([SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.0)), 3)])
    assert sampled.least(0.5) > full.least(0.5)


def test_a_sampled_gaussians_profile_holds_for_it_and_not_for_one_that_is_not_sampled():
    """Five steps of noise 1; the sample is a tenth, or all, under the same claim. Scores are log-likelihood ratios."""
    claim = trade_off([SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 5)])
    rng = np.random.default_rng(0)
    included = rng.random(4000) < 0.5
    caught = {}
    for name, taken in (("sampled", rng.random((5, 4000)) < 0.1), ("not sampled", np.ones((5, 4000), bool))):
        seen = included * taken + rng.normal(0, 1, (5, 4000))
        found = audited_family(
            np.log(0.9 + 0.1 * np.exp(seen - 0.5)).sum(axis=0),
            included,
            lambda scale: claim if scale > 0.5 else Gaussian(0.0),
            largest=1.0,
            confidence=1 - 1e-4,
            steps=2,
        )
        caught[name] = found.lower == 1.0
    assert caught == {"sampled": False, "not sampled": True}


def test_events_get_less_noise_by_a_factor():
    sampled = PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0))
    first, second = louder([GaussianDpEvent(3.0), SelfComposedDpEvent(sampled, 7)], 2.0)
    assert first == SelfComposedDpEvent(GaussianDpEvent(1.5), 1)
    assert second == SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 7)
    with pytest.raises(ConclaveError, match="cannot be scaled"):
        louder([SkellamDpEvent(100.0, 10, 10)], 2.0)


@pytest.mark.parametrize("given", [(10, 11, 5), (10, 5, 6), (0, 0, 0), (10, 5, -1)])
def test_numbers_that_cannot_be_are_an_error_in_words(given):
    with pytest.raises(ConclaveError, match="cannot be"):
        refuted(Gaussian(1.0), *given, 0.95)


def test_a_confidence_or_a_mu_that_makes_no_sense_is_an_error_in_words():
    with pytest.raises(ConclaveError, match="A confidence of 1"):
        refuted(Gaussian(1.0), 10, 5, 5, 1.0)
    for mu in (-1.0, math.nan, math.inf):
        with pytest.raises(ConclaveError, match="makes no sense"):
            Gaussian(mu)
    with pytest.raises(ConclaveError, match="are no audit"):
        audited_gaussian(np.zeros(3), np.zeros(4, bool))
