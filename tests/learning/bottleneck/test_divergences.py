"""Divergences of all pairs: those of a loop over pairs, summed over all coordinates, and infinite where they are."""

import math

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from aggregation.errors import ConclaveError
from learning.bottleneck import gaussian_pairs
from learning.bottleneck.divergences import blocks, divergences
from learning.bottleneck.gaussian_pairs import GaussianPairs
from learning.bottleneck.layer import TokenBottleneck
from learning.bottleneck.posterior import Posterior
from learning.errors import DataError


def texts(count: int, spread: float, counts: float | None = 0.2, positions: int = 5, width: int = 6) -> Posterior:
    """Samplers whose logarithms of variances lie within `spread` of 0, and of pseudo-counts within `counts`."""
    rng = np.random.default_rng(3)
    shape = (count, positions, width)
    lengths = rng.integers(1, positions + 1, count)
    logs = None if counts is None else torch.from_numpy(rng.uniform(-counts, counts, shape[:2])).float()
    return Posterior(
        torch.from_numpy(rng.normal(size=shape)).float(),
        torch.from_numpy(rng.uniform(-spread, spread, shape)).float(),
        logs,
        torch.from_numpy(np.arange(positions) < lengths[:, None]),
    )


def pair(one: Posterior, i: int, j: int, order: float) -> float:
    """The divergence of text i from text j, written out."""
    full = one.filled()
    m1, m2 = (full.mean[k].double().numpy() for k in (i, j))
    v1, v2 = (np.exp(full.log_variance[k].double().numpy()) for k in (i, j))
    s = (1 - order) * v1 + order * v2
    if (s <= 0).any():
        return math.inf
    total = float((order * (m1 - m2) ** 2 / (2 * s)).sum())
    total += float((np.log(np.sqrt(s) / (np.sqrt(v1) ** (1 - order) * np.sqrt(v2) ** order)) / (1 - order)).sum())
    if full.log_counts is None:
        return total
    a, b = (np.exp(full.log_counts[k].double().numpy()) for k in (i, j))
    mixed = order * a + (1 - order) * b
    if (mixed <= 0).any():
        return math.inf

    def beta(x):
        return gammaln(x).sum() - gammaln(x.sum())

    return total + beta(b) - beta(a) + (beta(mixed) - beta(a)) / (order - 1)


def loop(one: Posterior, order: float) -> np.ndarray:
    return np.array([[pair(one, i, j, order) for j in range(len(one))] for i in range(len(one))])


def table(one: Posterior, order: float, block: int) -> np.ndarray:
    found = np.full((len(one), len(one)), np.nan)
    for each in blocks(one, order, block=block):
        found[each.rows, each.columns] = each.values.numpy()
    np.fill_diagonal(found, 0.0)
    return found


@pytest.mark.parametrize("order", [1.1, 2.0, 5.0, 32.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("block", [7, 64])
def test_they_are_those_of_a_loop_over_pairs(order: float, share: float, block: int) -> None:
    """share: of the range of variances beyond which divergences are infinite. It decides how coordinates are summed."""
    limit = math.log(order / (order - 1))
    one = texts(20, share * limit / 2, counts=share * limit / 2)
    wanted, found = loop(one, order), table(one, order, block)
    assert np.isfinite(wanted).all()
    assert found == pytest.approx(wanted, rel=2e-5, abs=1e-4)


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.34])
def test_how_wide_variances_range_decides_the_way_and_not_the_answer(spread: float) -> None:
    one = texts(12, spread, counts=None)
    full = one.filled()
    ways = GaussianPairs.of(full.mean.flatten(1), full.log_variance.flatten(1), 2.0, 1e-6).ways
    assert any(way.expansion is None for way in ways) == (spread > 0.3)
    assert table(one, 2.0, 5) == pytest.approx(loop(one, 2.0), rel=2e-5, abs=1e-4)


@pytest.mark.slow
def test_infinite_pairs_are_infinite_and_counted_and_the_others_are_right() -> None:
    for one in (texts(20, 0.6, counts=None), texts(20, 0.1, counts=0.8)):
        wanted, found = loop(one, 2.0), table(one, 2.0, 8)
        assert not np.isnan(found).any()
        assert (np.isinf(wanted) == np.isinf(found)).all()
        held = np.isfinite(wanted)
        assert 20 < held.sum() < 400
        assert found[held] == pytest.approx(wanted[held], rel=1e-3, abs=1e-4)
        summary = divergences(one, 2.0, block=8)
        assert summary.infinite == (~held).sum()
        assert summary.largest == summary.mean == math.inf
        assert summary.largest_finite == pytest.approx(wanted[held].max(), rel=1e-3)
        assert summary.mean_finite == pytest.approx(wanted[held].sum() / (held.sum() - 20), rel=1e-3)
        assert summary.quantiles[0.99] == math.inf


@pytest.mark.parametrize("block", [6, 9, 64])
@pytest.mark.parametrize("counts", [None, 0.8])
def test_what_is_left_out_once_it_is_infinite_changes_nothing(
    block: int, counts: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the texts are infinitely far from all others in the first coordinates, some only in the last ones."""
    monkeypatch.setattr(gaussian_pairs, "TILE", 3)
    monkeypatch.setattr(gaussian_pairs, "CHUNK", 4)
    monkeypatch.setattr(gaussian_pairs, "_FIRST", (2, 2))
    one = texts(24, 0.1, counts=counts, positions=3, width=8)
    logs, places = one.log_variance.clone(), torch.arange(24)
    logs[:12, :, 0] += (1.5 * places[:12]).clamp(-9, 9)[:, None]
    logs[:12, :, 1] -= (1.5 * places[:12]).clamp(-9, 9)[:, None]
    logs[20:, :, 7] += 0.65
    logs[12:, 0, 5] += 0.02 * places[12:]
    one = Posterior(one.mean, logs, one.log_counts, torch.ones_like(one.mask))
    wanted, found = loop(one, 2.0), table(one, 2.0, block)
    assert 100 < np.isinf(wanted).sum() < 24 * 23
    assert (np.isinf(wanted) == np.isinf(found)).all()
    held = np.isfinite(wanted)
    assert found[held] == pytest.approx(wanted[held], rel=1e-3, abs=1e-4)


def test_pairs_that_are_all_infinite_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked, tile = [], gaussian_pairs._tile
    monkeypatch.setattr(gaussian_pairs, "_tile", lambda *given: looked.append(len(given[0].mean)) or tile(*given))
    one = texts(20, 3.0, positions=40, width=40)
    full = Posterior(one.mean, one.log_variance, one.log_counts, torch.ones_like(one.mask))
    assert divergences(full, 2.0).infinite == 380
    assert looked == [32]


@pytest.mark.slow
@pytest.mark.parametrize("block", [3, 7, 100])
def test_what_is_kept_of_all_pairs_is_what_they_are(block: int) -> None:
    one = texts(30, 0.2)
    wanted = loop(one, 2.0)
    other = wanted[~np.eye(30, dtype=bool)]
    found = divergences(one, 2.0, block=block)
    assert (found.texts, found.pairs, found.infinite) == (30, 870, 0)
    assert found.largest == found.largest_finite == pytest.approx(other.max(), rel=2e-5)
    assert found.mean == found.mean_finite == pytest.approx(other.mean(), rel=2e-5)
    for share, value in found.quantiles.items():
        exact = np.sort(other)[math.ceil(share * 870) - 1]
        assert exact * 0.9999 <= value <= exact * 1.012
    grown = np.where(np.eye(30, dtype=bool), 0.0, np.exp(wanted))
    assert found.log_moments[0] == pytest.approx(np.log(grown.sum(axis=1) / 29), rel=1e-4)
    assert found.log_moments[1] == pytest.approx(np.log(grown.sum(axis=0) / 29), rel=1e-4)
    assert found.log_squares[0] == pytest.approx(np.log((grown**2).sum(axis=1) / 29), rel=1e-4)


def test_divergences_add_up_over_positions_and_dimensions() -> None:
    one = texts(6, 0.2, counts=None)
    twice = Posterior(one.mean.repeat(1, 2, 1), one.log_variance.repeat(1, 2, 1), None, one.mask.repeat(1, 2))
    assert divergences(twice, 2.0).mean == pytest.approx(2 * divergences(one, 2.0).mean, rel=1e-5)


def test_texts_that_are_alike_are_no_distance_apart() -> None:
    one = texts(1, 0.5)
    same = one.of(torch.zeros(5, dtype=torch.long))
    found = divergences(same, 2.0)
    assert found.largest == found.mean == found.quantiles[0.99] == 0.0


def test_a_text_of_no_tokens_is_as_far_as_its_pads() -> None:
    layer = TokenBottleneck(4, 3, counted=True, seed=1)
    vectors = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1))
    one = layer(vectors, torch.tensor([[False] * 3, [True] * 3])).detached()
    found = table(one, 1.05, 8)
    assert found == pytest.approx(loop(one, 1.05), rel=1e-4)


@pytest.mark.parametrize("order", [1.0, 0.5, math.inf, math.nan])
def test_an_order_without_such_a_divergence_is_refused(order: float) -> None:
    with pytest.raises(ConclaveError, match="order"):
        divergences(texts(3, 0.1), order)


def test_bad_samplers_are_refused() -> None:
    one = texts(3, 0.1, positions=2)
    one.mean[1, 0, 2] = math.nan
    with pytest.raises(DataError, match="mean"):
        divergences(one, 2.0)
    with pytest.raises(DataError, match="two"):
        divergences(one.of(slice(1)), 2.0)
    with pytest.raises(ConclaveError, match="Blocks"):
        divergences(texts(3, 0.1), 2.0, block=0)
