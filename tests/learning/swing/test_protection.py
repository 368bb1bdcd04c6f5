"""Protected soft targets: what is promised, what is not, and what comes out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.noise.stream import NoiseStream
from learning.swing.protection import GRID, Protection, Protector, on_grid, protected

STREAM = NoiseStream.insecure(0)
SAID = torch.log_softmax(3 * torch.randn(40, 50, generator=torch.Generator().manual_seed(0)), dim=1)


def test_without_protection_nothing_changes_and_nothing_is_promised():
    assert torch.equal(protected(SAID, Protection(), STREAM), SAID)
    assert Protection().epsilon(10) is None


@pytest.mark.slow
def test_noise_on_the_likeliest_leaves_the_proportions_of_the_others():
    found = protected(SAID, Protection("top", 0.05, 3), STREAM.child("a")).exp()
    before = SAID.exp()
    for row in range(len(SAID)):
        best = before[row].topk(3).indices
        others = np.setdiff1d(np.arange(50), best.numpy())
        ratio = found[row, others] / before[row, others]
        assert torch.allclose(ratio, ratio[:1].expand_as(ratio), rtol=1e-3), "only the division by the sum is left"
    changed = (found - before).abs().gather(1, before.topk(3).indices)
    assert (changed > 1e-4).float().mean() > 0.9


@pytest.mark.slow
def test_noise_on_all_changes_all():
    found = protected(SAID, Protection("all", 0.01), STREAM.child("b")).exp()
    assert (found == 0).float().mean() > 0.2, "what noise made negative is 0"
    assert ((found - SAID.exp()).abs() > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["top", "all"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_what_comes_out_is_a_distribution_however_large_the_noise(kind, scale):
    found = protected(SAID, Protection(kind, scale, 50), STREAM.child(kind, str(scale))).double().exp()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(SAID), dtype=torch.float64), atol=1e-5, rtol=0)
    assert (found >= 0).all()


def test_little_noise_changes_little():
    for kind in ("top", "all"):
        found = protected(SAID, Protection(kind, 1e-6), STREAM.child("c")).exp()
        assert (found - SAID.exp()).abs().max() < 2e-4


@pytest.mark.slow
def test_noise_on_all_has_the_charged_scale():
    """Far from 0 nothing is cut: the standard deviation of what a half was changed by is sqrt(2) scale."""
    said = torch.full((20_000, 2), math.log(0.5))
    found = protected(said, Protection("all", 0.02), STREAM.child("d")).double().exp().numpy()
    # x = a / (a + b) of a, b = 1/2 + noise: to the first order (a - b) / 2.
    assert abs(2 * found[:, 0].std() / (math.sqrt(2) * 0.02 * math.sqrt(2)) - 1) < 0.03


@pytest.mark.slow
def test_the_price_is_two_over_the_scale_a_token():
    assert Protection("all", 4.0).epsilon(1) == 0.5
    assert Protection("all", 4.0).epsilon(1000) == 500.0
    assert Protection("top", 4.0).epsilon(1000) is None
    assert 0 < Protection("all", 4.0).slack(10, 50_000) < 1e-25
    assert Protection("top", 4.0).slack(10, 50_000) == 0


def _laplace_ratio(first, second, scale):
    """The largest log ratio of densities at any outcome: of every coordinate |difference| / scale."""
    return np.abs(first - second).sum() / (scale * GRID)


_ROWS = arrays(np.float64, (2, 7), elements=st.floats(0, 1)).filter(lambda each: (each.sum(axis=1) > 0.01).all())


@pytest.mark.slow
@given(_ROWS, st.floats(0.1, 10))
def test_any_two_distributions_differ_by_no_more_than_is_charged(rows, scale):
    rows = rows / rows.sum(axis=1, keepdims=True)
    steps = on_grid(rows)
    assert (steps >= 0).all()
    assert (steps.sum(axis=1) == GRID).all()
    assert np.abs(steps / GRID - rows).max() <= 7 / GRID
    assert _laplace_ratio(*steps, scale) <= Protection("all", scale).epsilon(1) * (1 + 1e-12)


def test_opposite_certainties_cost_all_that_is_charged():
    steps = on_grid(np.eye(2))
    assert _laplace_ratio(*steps, 0.5) == Protection("all", 0.5).epsilon(1) == 4.0


@pytest.mark.slow
def test_each_text_has_noise_of_its_own_and_the_same_again():
    protect = Protector(Protection("all", 0.1), NoiseStream.insecure(1))
    assert torch.equal(protect(SAID, "x/1"), protect(SAID, "x/1"))
    assert not torch.equal(protect(SAID, "x/1"), protect(SAID, "x/2"))
    assert repr(protect) == repr(Protector(Protection("all", 0.1), NoiseStream.insecure(2)))
    assert repr(protect) != repr(Protector(Protection("all", 0.2), NoiseStream.insecure(1)))


@pytest.mark.parametrize("numbers", [("some",), ("top", 0.0), ("all", float("nan")), ("all", 1e9), ("top", 1.0, 0)])
def test_what_protects_nothing_is_refused(numbers):
    with pytest.raises(ConclaveError):
        Protection(*numbers)


def test_more_noised_than_there_are_is_refused():
    with pytest.raises(ConclaveError, match="51 likeliest of 50"):
        protected(SAID, Protection("top", 1.0, 51), STREAM)


@pytest.mark.parametrize("wrong", [np.array([[np.nan, 1.0]]), np.array([[0.2, 0.2]]), np.array([[1.5, -0.5]])])
def test_what_is_no_distribution_is_refused(wrong):
    with pytest.raises(IntegrityError):
        on_grid(wrong)
