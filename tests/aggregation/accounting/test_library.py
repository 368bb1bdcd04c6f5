"""What importing the accountants costs, and that they find everything when they need it."""

import subprocess
import sys

import pytest

ALONE = """
import sys
from aggregation.accounting.library import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from aggregation.accounting.price import LifetimeFilter, price
heavy = {"scipy.stats", "scipy.signal", "scipy.optimize"}
assert LifetimeFilter(4.0, 1e-6).admits([], GaussianDpEvent(5.0))
print(sorted(heavy & sys.modules.keys()))
print(price([SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)], 1e-6).epsilon)
import scipy.stats, scipy.signal, scipy.optimize
print(scipy.stats.norm.cdf(0.0), scipy.signal.fftconvolve([1.0], [2.0])[0], scipy.optimize.brentq(lambda x: x, -1, 1))
"""
PLAIN = """
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, pld
accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
print(accountant.get_epsilon(1e-6))
"""


def said(code: str) -> list[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.slow
def test_a_filter_needs_no_statistics_and_a_price_finds_them() -> None:
    heavy, epsilon, known = said(ALONE)
    assert heavy == "[]"
    assert known == "0.5 2.0 0.0"
    assert [float(epsilon)] == pytest.approx([float(line) for line in said(PLAIN)], rel=1e-8)
