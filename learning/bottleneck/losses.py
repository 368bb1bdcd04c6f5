"""How far a text's sampler is from the prior: the two divergences that training adds to a task's loss.

Over the positions i of a text that are there, k of them, with a_0 the sum of their pseudo-counts:

    KL_G = 1/2 sum_i (a_i / a_0) sum_h [mu_ih^2 / p + r_ih - 1 - ln r_ih],   r = s^2 / p,  p = 1,
    KL_D = ln G(a_0) - ln G(a_p) + (a_0 - a_p) (psi(a_0 / k) - psi(a_0)) + k (ln G(a_p / k) - ln G(a_0 / k)).

Both are in nats and of a text: KL_G is summed over coordinates and is the counts' mean over positions. a_p is the
prior's total count, conditioned on the length: 1 for the prior's component and `per_token` for every other position.
KL_D compares symmetric Dirichlets of the totals a_0 and a_p: how counts are divided does not enter it. Either is 0 at
the prior and never below.

Source: Henderson & Fehr 2023, section 3.3; NVDP, section 2.2, equation 5.
"""

from typing import Final

import torch
from torch import Tensor

from aggregation.errors import ConclaveError
from learning.bottleneck.posterior import Posterior

PER_TOKEN: Final = 1.0
"""What a position adds to the prior's total count: as much as the prior's own component and a pad have."""


def kl_gaussian(posterior: Posterior) -> Tensor:
    """KL_G of every text, [texts], in nats; 0 of a text without positions.

    Without pseudo-counts it is the plain mean over positions: VIB token by token. Measured, it says nothing of two
    texts; see `learning.bottleneck.divergences`.
    """
    variance = torch.exp(posterior.log_variance)
    each = 0.5 * (posterior.mean.square() + variance - 1 - posterior.log_variance).sum(dim=2)
    return (each.masked_fill(~posterior.mask, 0.0) * _shares(posterior)).sum(dim=1)


def kl_dirichlet(posterior: Posterior, per_token: float = PER_TOKEN) -> Tensor:
    """KL_D of every text, [texts], in nats, computed in float64; 0 where weights are not drawn.

    per_token: above 0; else `ConclaveError` is raised.
    """
    if not per_token > 0:
        raise ConclaveError(f"A prior of {per_token:g} a token makes no sense. Give a number above 0.")
    if posterior.log_counts is None:
        return posterior.mean.new_zeros(len(posterior))
    mask = posterior.mask
    live = mask.sum(dim=1)
    k = live.clamp(min=1).double()
    total = torch.exp(posterior.log_counts.double()).masked_fill(~mask, 0.0).sum(dim=1)
    total = torch.where(live > 0, total, torch.ones_like(total))
    prior = 1 + per_token * (k - 1)
    found = (
        torch.lgamma(total)
        - torch.lgamma(prior)
        + (total - prior) * (torch.digamma(total / k) - torch.digamma(total))
        + k * (torch.lgamma(prior / k) - torch.lgamma(total / k))
    )
    return torch.where(live > 0, found, torch.zeros_like(found)).to(posterior.mean.dtype)


def _shares(posterior: Posterior) -> Tensor:
    """a_i / a_0 [texts, positions], or 1 / k without pseudo-counts; 0 where nothing is."""
    mask = posterior.mask
    if posterior.log_counts is None:
        live = mask.sum(dim=1, keepdim=True).clamp(min=1)
        return mask.to(posterior.mean.dtype) / live
    logs = posterior.log_counts.masked_fill(~mask, -torch.finfo(posterior.log_counts.dtype).max / 4)
    return torch.softmax(logs, dim=1).masked_fill(~mask, 0.0)
