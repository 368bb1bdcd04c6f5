"""When a claim falls: not by the chance that one honest audit in twenty has a bound above it."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant

from aggregation.accounting.divergences import profile
from aggregation.accounting.events import SkellamDpEvent
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from learning.audits.gate import MOST, falls, needed
from learning.audits.one_run import SHARES, chance, counted
from learning.audits.one_run_fdp import refuted
from learning.audits.trade_offs import Gaussian, Profile, Together, claimed

DELTA = 1e-6


def guessed(mu, seed, canaries):
    """What is counted of a Gaussian mechanism: each canary moves a number of its own by mu deviations."""
    rng = np.random.default_rng(seed)
    there = rng.random(canaries) < 0.5
    return counted(mu * there + rng.normal(0, 1, canaries), there)


def bound_above(counts, canaries, epsilon):
    """Whether the lower bound at 95% is above epsilon."""
    return any(chance(canaries, *one, epsilon, DELTA) <= 0.05 / len(SHARES) for one in counts)


@pytest.mark.slow
def test_an_honest_claim_stands_though_the_bound_at_95_is_above_it():
    """In 1,000 honest audits the bound is above a small epsilon several times, by chance; none of them falls."""
    mu = 0.02
    epsilon = Gaussian(mu).epsilon(DELTA)
    audits = [guessed(mu, seed, 100) for seed in range(1000)]
    above = [counts for counts in audits if bound_above(counts, 100, epsilon)]
    assert 3 <= len(above) <= 50
    assert not any(falls(Gaussian(mu), 100, counts, 1) for counts in above)


@pytest.mark.parametrize(("part", "canaries"), [(8, 500), (4, 2000), (3, 5000)])
def test_power_a_part_of_the_noise_is_refuted(part, canaries):
    """At epsilon 1, by four attacks; of the whole noise, nothing is."""
    mu = 1 / 4.22
    assert Gaussian(mu).epsilon(DELTA) == pytest.approx(1.0, abs=0.02)
    assert falls(Gaussian(mu), canaries, guessed(part * mu, 0, canaries), 4)
    assert not falls(Gaussian(mu), canaries, guessed(mu, 0, canaries), 4)


def test_each_attack_is_held_to_its_share():
    fewest = needed(Gaussian(0.5), 1)
    assert falls(Gaussian(0.5), fewest, [(fewest, fewest)], 1)
    assert not falls(Gaussian(0.5), fewest, [(fewest, fewest)], 64)
    assert needed(Gaussian(0.5), 64) > fewest
    each = 1e-4 / 64 / len(SHARES)
    more = needed(Gaussian(0.5), 64)
    assert refuted(Gaussian(0.5), more, more, more, 1 - each)


def test_fewer_canaries_than_are_needed_refute_nothing():
    for claim in (Gaussian(0.2), Gaussian(1.0), Profile(np.array([1.0]), np.array([DELTA]))):
        least = needed(claim, 2)
        assert falls(claim, least, [(least, least)], 2)
        assert not falls(claim, least - 1, [(least - 1, least - 1)], 2)
    assert needed(Gaussian(5.0), 1) is None
    assert needed(Gaussian(0.2), 1) < MOST


@pytest.mark.slow
def test_a_claim_takes_the_form_that_its_events_have():
    gaussian, sampled = GaussianDpEvent(2.0), PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    form, found = claimed([SelfComposedDpEvent(gaussian, 4)], 1.0, DELTA)
    assert (form, found) == ("gaussian", Gaussian(1.0))
    assert claimed([gaussian, sampled], 4.0, DELTA)[0] == "sampled"
    for other in (SkellamDpEvent(20.0, 4, 4), LaplaceDpEvent(1.0)):
        assert claimed([gaussian, other], 4.0, DELTA)[0] == "renyi"
    assert claimed([gaussian, sampled], 90.0, DELTA)[0] == "renyi"  # PLD would take minutes


def test_what_renyi_divergences_say_is_more_than_epsilon_and_never_less_than_is_true():
    """Skellam noise of a large variance is a Gaussian: its curve is above the true one, and refutes with less."""
    event = SkellamDpEvent(4.0e6, 2000, 4_000_000 // 4)
    mu = 1000 / 2000.0
    epsilon = price([event], DELTA).epsilon
    form, found = claimed([event], epsilon, DELTA)
    assert form == "renyi"
    true = Gaussian(mu)
    for probability in np.geomspace(1e-7, 1, 40):
        assert found.least(float(probability)) <= true.least(float(probability)) + 1e-9
    alone = Profile(np.array([epsilon]), np.array([DELTA]))
    assert needed(true, 2) <= needed(found, 2) < needed(alone, 2)


def test_a_profile_is_that_of_the_accountant():
    event = GaussianDpEvent(1.2)
    accountant = RdpAccountant()
    accountant.compose(event)
    epsilons = np.array([0.5, 2.0, 4.0, 8.0])
    expected = [accountant.get_delta(float(each)) for each in epsilons]
    assert profile([event], epsilons) == pytest.approx(expected, rel=0.2)
    assert (profile([event], epsilons) >= np.array(expected) * (1 - 1e-9)).all()
    assert profile([event], np.array([0.0]))[0] <= 1.0
    assert math.isclose(profile([event, event], np.array([3.0]))[0], profile([SelfComposedDpEvent(event, 2)], [3.0])[0])


def test_units_that_come_and_go_together_lose_each_as_much_as_one():
    """Of a Gaussian, two units are a Gaussian of twice the mu; guesses that refute one do not refute two."""
    one, two = Gaussian(0.25), Together(Gaussian(0.25), 2)
    for probability in (0.001, 0.2, 0.5, 0.9, 0.9999):
        assert two.least(probability) == pytest.approx(Gaussian(0.5).least(probability), rel=1e-9)
    assert Together(one, 1).least(0.3) == one.least(0.3)
    fewest = [next(right for right in range(201) if falls(each, 200, [(200, right)], 1)) for each in (one, two)]
    assert 100 < fewest[0] < fewest[1] <= 200
    with pytest.raises(ConclaveError, match="0 units are no group"):
        Together(one, 0)
