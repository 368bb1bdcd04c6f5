"""The Bayesian figure: what the theorem says of samplers whose divergences are known, infinite where they are."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from aggregation.errors import ConclaveError
from learning.bottleneck.bayesian import bayesian
from learning.bottleneck.divergences import divergences
from learning.bottleneck.posterior import Posterior


def on_a_line(*means: float, variances: tuple[float, ...] | None = None) -> Posterior:
    mean = torch.tensor(means).view(-1, 1, 1)
    logs = torch.zeros_like(mean) if variances is None else torch.tensor(variances).log().view(-1, 1, 1)
    return Posterior(mean, logs, None, torch.ones(mean.shape[:2], dtype=torch.bool))


def test_it_is_the_formula_of_the_texts_own_divergences():
    means, order, delta = np.array([0.0, 0.3, 1.0, 1.1]), 1.1, 1e-5
    found = bayesian(divergences(on_a_line(*means), order + 1), delta, confidence=0.9)
    apart = (order + 1) * (means[:, None] - means[None, :]) ** 2 / 2
    worst = []
    for text in range(4):
        moments = np.exp(order * np.delete(apart[text], text))
        wide = stats.t.ppf(0.9, 2) * moments.std() / math.sqrt(2)
        worst.append(math.log(moments.mean() + wide) / order)
    assert found.largest == pytest.approx(max(worst), rel=1e-5)
    assert found.mean == pytest.approx(np.mean(worst), rel=1e-5)
    assert found.constant == pytest.approx(math.log(1e5) / order)
    assert found.reported == pytest.approx(max(worst) + found.constant, rel=1e-5)


def test_equal_samplers_have_the_constant_alone():
    found = bayesian(divergences(on_a_line(0.5, 0.5, 0.5), 2.1), 1e-5)
    assert found.largest == pytest.approx(0, abs=1e-9)
    assert found.reported == pytest.approx(10.466, abs=1e-3)  # all that the paper's least figures are


def test_one_infinite_pair_makes_it_infinite():
    found = bayesian(divergences(on_a_line(0, 0, 0, variances=(1.0, 1.0, 9.0)), 2.1), 1e-5)
    assert math.isinf(found.largest)
    assert math.isfinite(found.constant)


def test_a_divergence_of_thousands_does_not_overflow():
    found = bayesian(divergences(on_a_line(0, 100, 200, 300), 2.1), 1e-5)
    assert 90_000 < found.largest < 100_000


@pytest.mark.parametrize(("delta", "confidence"), [(0.0, 0.9), (1.0, 0.9), (1e-5, 1.0), (1e-5, 0.0)])
def test_numbers_that_make_no_sense_are_refused(delta, confidence):
    with pytest.raises(ConclaveError, match="Give two"):
        bayesian(divergences(on_a_line(0, 1), 2.1), delta, confidence)
