"""What the fits of this room share: nothing that an objective makes outlives it."""

import weakref

import pytest
import torch
from torch import Tensor

from learning.embeddings.optimising import minimise


@pytest.mark.parametrize("outside", [True, False])
def test_blocks_of_an_evaluation_are_gone_when_it_ends(outside: bool) -> None:
    made: list[weakref.ref[Tensor]] = []
    kept: list[bool] = []

    def objective(bias: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept.append(any(each() is not None for each in made) or torch.is_grad_enabled())
        block = vectors.exp()  # torch would keep it, for the slope of an exponential is the exponential
        made.append(weakref.ref(block))
        loss = (block - 2 * vectors).sum(dtype=torch.float64) + bias.double().square().sum()
        return loss, 2 * bias, block - 2

    with torch.set_grad_enabled(outside):
        bias, vectors = minimise(
            (torch.ones(3), torch.ones(3, 2)), (torch.ones(3), torch.ones(3, 1)), objective, 20, None
        )
    assert len(kept) > 3
    assert not any(kept)
    torch.testing.assert_close(vectors, torch.full((3, 2), 2.0).log(), rtol=0, atol=1e-4)
    torch.testing.assert_close(bias, torch.zeros(3), rtol=0, atol=1e-4)
