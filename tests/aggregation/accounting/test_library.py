"""What importing the accountants costs, and that they find everything when they need it."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from aggregation.accounting.library import _Normal

ALONE = """
import sys
from aggregation.accounting.library import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from aggregation.accounting.price import LifetimeFilter, price
heavy = {"scipy.stats", "scipy.signal", "scipy.optimize"}
assert LifetimeFilter(4.0, 1e-6).admits([], GaussianDpEvent(5.0))
print(sorted(heavy & sys.modules.keys()))
print(price([SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)], 1e-6).epsilon)
print(price([GaussianDpEvent(1.0)], 1e-6).epsilon)
print(sorted({"scipy.stats", "scipy.signal"} & sys.modules.keys()))
import scipy.stats, scipy.signal, scipy.optimize
print(scipy.stats.norm.cdf(0.0), scipy.signal.fftconvolve([1.0], [2.0])[0], scipy.optimize.brentq(lambda x: x, -1, 1))
"""
PLAIN = """
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, get_epsilon_gaussian, pld
accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
print(accountant.get_epsilon(1e-6))
print(get_epsilon_gaussian(1.0, 1e-6))
"""


def said(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_neither_a_filter_nor_a_price_needs_statistics_and_others_find_them() -> None:
    heavy, *epsilons, priced, known = said(ALONE)
    assert heavy == priced == "[]"
    assert known == "0.5 2.0 0.0"
    assert [float(each) for each in epsilons] == pytest.approx([float(line) for line in said(PLAIN)], rel=1e-8)


def test_what_stands_in_for_the_normal_distribution_has_its_bits_and_the_rest_of_its_names() -> None:
    places = np.concatenate([np.linspace(-40, 40, 2001), [0.0, -np.inf, np.inf, np.nan, 1e-300, 5e5]])
    chances = np.concatenate([np.linspace(0, 1, 1001), [1e-300, 1e-17, np.nan]])
    for scale in (1.0, 0.3, 1234.5):
        ours, plain = _Normal()(scale=scale), norm(scale=scale)
        assert np.array_equal(ours.cdf(places), plain.cdf(places), equal_nan=True)
        assert np.array_equal(ours.logcdf(places), plain.logcdf(places), equal_nan=True)
        assert np.array_equal(ours.ppf(chances), plain.ppf(chances), equal_nan=True)
        assert float(ours.cdf(0.7)) == float(plain.cdf(0.7))
        assert ours.std() == scale
    assert copy.deepcopy(ours).cdf(1.0) == ours.cdf(1.0)
