"""The two divergences from the prior: true to their formulas, differentiable, 0 at the prior."""

import math

import pytest
import torch
from torch.distributions import Dirichlet, Normal, kl_divergence

from aggregation.errors import ConclaveError
from learning.bottleneck.losses import kl_dirichlet, kl_gaussian
from learning.bottleneck.posterior import Posterior


def random_posterior(counted: bool = True) -> Posterior:
    generator = torch.Generator().manual_seed(4)
    shape = (3, 4, 2)

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    mask = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
    return Posterior(numbers(*shape), numbers(*shape), numbers(*shape[:2]) if counted else None, mask)


def test_both_are_zero_at_the_prior_and_above_it_elsewhere() -> None:
    mask = random_posterior().mask
    nothing = torch.zeros(3, 4, 2, dtype=torch.float64)
    prior = Posterior(nothing, nothing, nothing[:, :, 0], mask)
    assert kl_gaussian(prior).abs().max() == 0
    assert kl_dirichlet(prior).abs().max() < 1e-12
    other = random_posterior()
    assert (kl_gaussian(other) > 0).all()
    for shift in (-3.0, -0.1, 0.1, 3.0):
        moved = Posterior(nothing, nothing, nothing[:, :, 0] + shift, mask)
        assert (kl_dirichlet(moved)[:2] > 0).all()  # of a single component all Dirichlets are one


def test_the_dirichlet_part_is_the_divergence_of_symmetric_dirichlets() -> None:
    posterior = random_posterior()
    found = kl_dirichlet(posterior, per_token=0.5)
    for text, k in ((0, 4), (1, 2)):
        total = float(posterior.log_counts[text][posterior.mask[text]].exp().sum())
        prior = 1 + 0.5 * (k - 1)
        ones = torch.ones(k, dtype=torch.float64)
        wanted = kl_divergence(Dirichlet(ones * total / k), Dirichlet(ones * prior / k))
        assert float(found[text]) == pytest.approx(float(wanted))


def test_the_gaussian_part_is_weighed_by_the_counts_or_even_without() -> None:
    for counted in (True, False):
        posterior = random_posterior(counted)
        found = kl_gaussian(posterior)
        for text in range(3):
            live = posterior.mask[text]
            own = Normal(posterior.mean[text][live], (0.5 * posterior.log_variance[text][live]).exp())
            each = kl_divergence(own, Normal(torch.zeros(()).double(), torch.ones(()).double())).sum(dim=1)
            counts = posterior.log_counts[text][live].exp() if counted else torch.ones_like(each)
            assert float(found[text]) == pytest.approx(float((each * counts).sum() / counts.sum()))


def test_gradients_are_those_of_small_steps() -> None:
    posterior = random_posterior()
    inputs = [posterior.mean, posterior.log_variance, posterior.log_counts]
    inputs = [each.clone().requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(lambda *given: kl_gaussian(Posterior(*given, posterior.mask)), inputs)
    assert torch.autograd.gradcheck(
        lambda counts: kl_dirichlet(Posterior(posterior.mean, posterior.log_variance, counts, posterior.mask), 0.7),
        inputs[2:],
    )


def test_texts_without_positions_cost_nothing_and_have_gradients() -> None:
    posterior = random_posterior()
    counts = posterior.log_counts.clone().requires_grad_()
    empty = Posterior(posterior.mean, posterior.log_variance, counts, torch.zeros_like(posterior.mask))
    both = kl_dirichlet(empty).sum() + kl_gaussian(empty).sum()
    assert float(both) == 0
    (gradient,) = torch.autograd.grad(both, counts)
    assert (gradient == 0).all()
    assert kl_dirichlet(random_posterior(counted=False)).abs().sum() == 0


@pytest.mark.parametrize("per_token", [0.0, -1.0, math.nan])
def test_a_prior_of_nothing_is_refused(per_token) -> None:
    with pytest.raises(ConclaveError, match="a token"):
        kl_dirichlet(random_posterior(), per_token)
