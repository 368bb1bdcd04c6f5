"""The audit by many runs: near the truth for a Gaussian, and hardly ever above it."""

import numpy as np
import pytest
from scipy.stats import beta

from aggregation.errors import ConclaveError
from learning.audits.many_runs import distinguished
from learning.audits.trade_offs import Gaussian


def _runs(mu, seed, runs):
    rng = np.random.default_rng(seed)
    return mu + rng.normal(0, 1, runs), rng.normal(0, 1, runs)


@pytest.mark.parametrize("mu", [pytest.param(0.27, marks=pytest.mark.slow), 1.65])
def test_the_bound_is_near_the_truth_and_above_it_in_no_more_than_the_stated_share(mu):
    """200 audits at 90%: more than 30 above the truth would be a chance of 1 in 100 at a share of a tenth."""
    found = [distinguished(*_runs(mu, seed, 20_000), delta=1e-5, confidence=0.9, by_mu=True) for seed in range(200)]
    assert sum(each.mu > mu for each in found) <= 30
    assert np.mean([each.mu for each in found]) > 0.7 * mu
    assert all(each.lower < Gaussian(mu).epsilon(1e-5) for each in found)


@pytest.mark.slow
def test_half_the_noise_is_caught_at_a_ten_thousandth_and_the_honest_is_not():
    """Power: at 100,000 runs of each kind the bound of mu is 0.5 of 0.54, and the claim is 0.27."""
    claim = Gaussian(0.27)
    for seed in range(20):
        assert not distinguished(*_runs(0.27, seed, 100_000), delta=1e-5, confidence=1 - 1e-4, by_mu=True).refutes(
            claim
        )
        caught = distinguished(*_runs(0.54, seed, 100_000), delta=1e-5, confidence=1 - 1e-4, by_mu=True)
        assert caught.refutes(claim)
        assert caught.mu > 0.27


def test_the_rates_are_clopper_pearson_bounds_of_the_second_half():
    present, absent = np.arange(40.0) + 100, np.arange(40.0)
    found = distinguished(present, absent, delta=0.0, confidence=0.9)
    assert (found.runs, found.hits, found.alarms) == ((20, 20), 20, 0)
    assert found.true_rate == pytest.approx(float(beta.ppf(0.05, 20, 1)))
    assert found.false_rate == pytest.approx(1 - 0.05 ** (1 / 20))
    assert found.lower == pytest.approx(np.log(found.true_rate / found.false_rate))


def test_a_unit_that_only_its_absence_betrays_is_found_too():
    """Present: never below 0. Absent: in a tenth of the runs below it. Only the second of the two ratios says so."""
    rng = np.random.default_rng(0)
    present, absent = rng.random(20_000), rng.random(20_000)
    absent[rng.random(20_000) < 0.1] = -1.0
    assert distinguished(present, absent, delta=1e-5).lower > 3.4


def test_without_a_difference_nothing_is_refuted():
    found = [distinguished(*_runs(0.0, seed, 2000), delta=0.0, confidence=1 - 1e-4) for seed in range(50)]
    assert all(each.lower == 0 and each.mu == 0 for each in found)
    same = distinguished(np.zeros(100), np.zeros(100), delta=0.0)
    assert same.lower == 0


def test_a_score_that_is_no_number_counts_as_least():
    rng = np.random.default_rng(1)
    present, absent = rng.normal(5, 1, 1000), rng.normal(0, 1, 1000)
    absent[::2] = np.nan
    found = distinguished(present, absent, delta=0.0)
    assert found.alarms < 50
    assert found.lower > 3


def test_what_is_no_audit_is_an_error_in_words():
    with pytest.raises(ConclaveError, match="at least 8 runs"):
        distinguished(np.zeros(7), np.zeros(100), delta=0.0)
    for delta, confidence in ((1.0, 0.95), (0.0, 1.0)):
        with pytest.raises(ConclaveError, match="make no sense"):
            distinguished(np.zeros(10), np.zeros(10), delta=delta, confidence=confidence)
