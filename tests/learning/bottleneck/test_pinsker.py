"""The most that an accuracy may be beside a divergence: a known figure, true laws within it, and what is above."""

import math

import pytest
from scipy import stats

from aggregation.errors import ConclaveError
from learning.bottleneck.pinsker import AboveBound, check_accuracy, most_accurate


def test_a_published_figure_is_above_what_its_divergence_admits() -> None:
    """Balanced classes of SST-2: an accuracy of 91.7% is published beside a largest divergence of 0.19."""
    assert most_accurate(0.19) == pytest.approx(0.5 + 0.5 * math.sqrt(0.19 / 2))
    assert f"{most_accurate(0.19):.1%}" == "65.4%"
    with pytest.raises(AboveBound, match=r"91\.7%.*65\.4%"):
        check_accuracy(0.917, 0.19)
    check_accuracy(0.654, 0.19)
    check_accuracy(0.66, 0.19, slack=0.01)


@pytest.mark.parametrize("apart", [0.01, 0.3, 1.0, 2.0, 5.0])
def test_the_best_that_can_be_done_between_two_gaussians_is_within_it(apart: float) -> None:
    best = float(stats.norm.cdf(apart / 2))
    for order in (1.0, 2.0, 8.0):
        check_accuracy(best, order * apart**2 / 2)
    assert most_accurate(apart**2 / 2) < 1


def test_nothing_apart_admits_a_guess_and_infinity_everything() -> None:
    assert most_accurate(0.0) == 0.5
    assert most_accurate(math.inf) == 1.0
    check_accuracy(1.0, math.inf)
    with pytest.raises(AboveBound):
        check_accuracy(0.51, 0.0)


@pytest.mark.parametrize(("accuracy", "divergence"), [(math.nan, 1.0), (1.1, 1.0), (0.5, math.nan), (0.5, -1.0)])
def test_numbers_that_make_no_sense_are_refused(accuracy: float, divergence: float) -> None:
    with pytest.raises(ConclaveError):
        check_accuracy(accuracy, divergence)
