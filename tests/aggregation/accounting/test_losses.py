"""Losses of sampled Gaussian releases are the library's, place by place, whatever is sampled and added."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution, privacy_loss_mechanism

from aggregation.accounting.losses import _losses, sampled_gaussian

KINDS = privacy_loss_mechanism.AdjacencyType
SAMPLED = [(0.5, 1e-3), (0.7, 0.9), (1.0, 1e-6), (1.1, 0.05), (2.5, 0.5), (20.0, 0.9999), (80.0, 0.02)]


@pytest.mark.parametrize(("multiplier", "sampling"), SAMPLED)
@pytest.mark.parametrize("kind", [KINDS.ADD, KINDS.REMOVE])
def test_every_divergence_is_the_librarys(multiplier, sampling, kind):
    plain = privacy_loss_mechanism.GaussianPrivacyLoss(multiplier, sampling_prob=sampling, adjacency_type=kind)
    ours = _losses()(multiplier, sampling_prob=sampling, adjacency_type=kind)
    bounds = plain.connect_dots_bounds()
    asked = np.linspace(bounds.epsilon_lower - 0.01, bounds.epsilon_upper + 0.01, 1001)
    asked = np.append(asked, [0.0, -5.0, 5.0, np.log1p(-sampling), -np.log1p(-sampling)])
    assert ours.get_delta_for_epsilon(asked) == pytest.approx(plain.get_delta_for_epsilon(asked), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(("multiplier", "sampling"), SAMPLED)
def test_a_composition_costs_what_the_librarys_does(multiplier, sampling):
    plain = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, sampling_prob=sampling, value_discretization_interval=2e-3
    ).self_compose(30)
    ours = sampled_gaussian(multiplier, sampling, 2e-3).self_compose(30)
    for delta in (1e-3, 1e-5, 1e-7):
        expected = plain.get_epsilon_for_delta(delta)
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)
