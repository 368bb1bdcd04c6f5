"""The bound over all texts: known figures, never exceeded by any parameters, and nearly reached."""

import math

import pytest
import torch

from aggregation.errors import ConclaveError
from learning.bottleneck.divergences import divergences
from learning.bottleneck.posterior import Posterior
from learning.bottleneck.supremum import Bounds, guarantee, held, supremum


@pytest.mark.parametrize(
    ("bounds", "epsilon"),
    [
        (Bounds(32, 384, (1.0, 1.0), norm=1.0), 116),  # counts and variances fixed
        (Bounds(32, 384, (0.81, 1.0), norm=1.0), 336),  # deviations in [0.9, 1]
        (Bounds(32, 384, (0.25, 1.0), mean=1.0, counts=(0.1, 10.0)), 117_308),  # a layer that is hardly held
    ],
)
def test_epsilons_of_known_bounds(bounds: Bounds, epsilon: float) -> None:
    assert guarantee(bounds, 1e-5).epsilon == pytest.approx(epsilon, abs=0.5)


def test_the_epsilon_is_the_least_of_all_orders() -> None:
    bounds = Bounds(2, 3, (0.5, 1.0), norm=0.5, counts=(0.8, 1.2))
    found = guarantee(bounds, 1e-5)

    def at(order: float) -> float:
        return supremum(bounds, order) + math.log1p(-1 / order) - math.log(1e-5 * order) / (order - 1)

    assert at(found.order) == pytest.approx(found.epsilon)
    assert all(at(1 + step / 1000) >= found.epsilon - 1e-9 for step in range(1, 2000))


@pytest.mark.slow
@pytest.mark.parametrize("norm", [None, 0.7])
def test_climbing_over_all_inputs_comes_near_the_bound_and_never_over_it(norm: float | None) -> None:
    order, width, positions = 1.5, 3, 2
    bounds = Bounds(
        positions, width, (0.6, 1.0), mean=1.0 if norm is None else None, norm=norm, counts=(0.9, 1.1)
    )  # fmt: skip
    most = supremum(bounds, order)
    generator = torch.Generator().manual_seed(2)
    raw = [torch.randn(2, positions, size, generator=generator, dtype=torch.float64) for size in (width, width, 1)]
    raw = [each.requires_grad_() for each in raw]
    climber = torch.optim.Adam(raw, lr=0.1)
    seen = []
    for _ in range(300):
        mean = raw[0]
        if norm is None:
            mean = torch.tanh(mean)
        else:
            mean = norm * mean / torch.linalg.vector_norm(mean, dim=2, keepdim=True).clamp(min=1.0)
        variance, count = 0.6 + 0.4 * torch.sigmoid(raw[1]), 0.9 + 0.2 * torch.sigmoid(raw[2]).squeeze(2)
        s = order * variance[1] - (order - 1) * variance[0]
        logs = torch.log(s) - (1 - order) * torch.log(variance[0]) - order * torch.log(variance[1])
        value = (order * (mean[0] - mean[1]).square() / (2 * s) - logs / (2 * (order - 1))).sum()
        a, b = count
        mixed = order * a + (1 - order) * b
        beta, own, other = (torch.lgamma(each).sum() - torch.lgamma(each.sum()) for each in (mixed, a, b))
        value = value + other - own + (beta - own) / (order - 1)
        seen.append(value.item())
        climber.zero_grad()
        (-value).backward()
        climber.step()
    assert max(seen) <= most
    assert max(seen) > 0.97 * most
    assert seen[0] < 0.9 * most


def test_whatever_is_held_is_within_the_bound() -> None:
    bounds = Bounds(4, 3, (0.7, 1.0), norm=0.5, counts=(0.9, 1.1))
    generator = torch.Generator().manual_seed(2)
    mean, logs = (5 * torch.randn(40, 5, 3, generator=generator) for _ in range(2))
    mean[3, 1, 1], logs[4, 2, 0] = math.nan, math.inf
    counts = 4 * torch.randn(40, 5, generator=generator)
    counts[:, 0] = 0.0
    mask = torch.rand(40, 5, generator=generator) < 0.7
    found = divergences(held(Posterior(mean, logs, counts, mask), bounds), 1.5)
    assert found.infinite == 0
    assert 0 < found.largest <= supremum(bounds, 1.5)


def test_variances_or_counts_that_may_vary_have_no_bound_at_high_orders() -> None:
    assert supremum(Bounds(1, 1, (0.5, 1.0), norm=1.0), 2.0) == math.inf
    assert supremum(Bounds(1, 1, (1.0, 1.0), norm=1.0, counts=(0.5, 1.0)), 2.0) == math.inf
    assert supremum(Bounds(1, 1, (1.0, 1.0), norm=1.0), 2.0) == pytest.approx(4.0)


def test_bounds_that_hold_nothing_are_refused() -> None:
    for given in ({}, {"mean": 1.0, "norm": 1.0}, {"mean": math.inf}, {"norm": math.nan}):
        with pytest.raises(ConclaveError):
            Bounds(1, 1, (1.0, 1.0), **given)
    for pair in ((0.0, 1.0), (1.0, 0.5), (0.5, math.inf), (math.nan, 1.0)):
        with pytest.raises(ConclaveError, match="variances"):
            Bounds(1, 1, pair, norm=1.0)
    with pytest.raises(ConclaveError, match="delta"):
        guarantee(Bounds(1, 1, (1.0, 1.0), norm=1.0), 0.0)
