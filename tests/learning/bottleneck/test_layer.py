"""Samplers of texts, one draw of them, and rows: finite whatever happens, and true to their laws."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from learning.bottleneck.attention import DenoisingAttention, Reader
from learning.bottleneck.layer import LARGEST_PARAMETER, PooledBottleneck, TokenBottleneck, load_parameters
from learning.bottleneck.losses import kl_dirichlet, kl_gaussian
from learning.bottleneck.posterior import LOG_COUNTS, LOG_VARIANCES, NO_WEIGHT, Posterior, expected, sampled
from learning.bottleneck.rows import row_length, rows_of, sample_of
from learning.errors import DataError
from learning.models.checkpoints import ModelError

READ, WIDTH, TOKENS = 12, 8, 5


def texts(count: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.arange(count) % (TOKENS + 1)  # the first has no token
    mask = torch.arange(TOKENS) < lengths[:, None]
    return torch.randn(count, TOKENS, READ, generator=generator), mask


def layer(counted: bool = True) -> TokenBottleneck:
    return TokenBottleneck(READ, WIDTH, counted=counted, seed=3)


def source(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def law(counts: list[float], repeated: int, log_variance: float = 0.0) -> Posterior:
    shape = (repeated, len(counts))
    logs = torch.tensor(counts, dtype=torch.float64).log().expand(shape)
    return Posterior(
        torch.zeros(*shape, 1, dtype=torch.float64),
        torch.full((*shape, 1), log_variance, dtype=torch.float64),
        logs,
        torch.ones(shape, dtype=torch.bool),
    )


def test_the_prior_stands_first_and_a_text_of_no_tokens_has_nothing_else() -> None:
    posterior = layer()(*texts())
    assert posterior.mean.shape == (6, TOKENS + 1, WIDTH)
    assert posterior.mask[:, 0].all()
    assert posterior.mask[0].sum() == 1
    assert (posterior.mean[:, 0] == 0).all()
    assert (posterior.log_variance[:, 0] == 0).all()
    assert (posterior.log_counts[:, 0] == 0).all()
    sample = sampled(posterior, source())
    assert sample.log_weights[0, 0] == 0
    assert (sample.log_weights[0, 1:] == NO_WEIGHT).all()
    assert kl_gaussian(posterior)[0].item() == kl_dirichlet(posterior)[0].item() == 0


def test_padding_changes_no_text() -> None:
    vectors, mask = texts()
    short = layer()(vectors[:3, :2], mask[:3, :2])
    whole = layer()(vectors[:3], mask[:3])
    torch.testing.assert_close(short.mean, whole.mean[:, :3])
    torch.testing.assert_close(kl_dirichlet(short), kl_dirichlet(whole))
    torch.testing.assert_close(kl_gaussian(short), kl_gaussian(whole))
    reader = Reader(WIDTH, 2, heads=2, seed=1)
    torch.testing.assert_close(reader(expected(short)), reader(expected(whole)))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_text_with_a_number_that_is_none_is_a_text_of_no_tokens(bad) -> None:
    vectors, mask = texts()
    vectors[4, 1, 2] = bad
    vectors[1, 4, 2] = bad  # where that text has no token: nothing of it
    posterior = layer()(vectors, mask)
    assert posterior.mask[4].sum() == 1
    assert posterior.mask[1].sum() == 2
    sample = sampled(posterior, source())
    assert torch.isfinite(sample.vectors).all()
    pooled = PooledBottleneck(READ, WIDTH, sigma=1.0, seed=1)(vectors, mask)
    assert torch.isfinite(pooled.mean).all()


@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e4, 1e30])
@pytest.mark.parametrize("parameters", [0.0, 1.0, LARGEST_PARAMETER, -LARGEST_PARAMETER])
def test_everything_is_finite_whatever_the_vectors_and_the_parameters(size, parameters) -> None:
    vectors, mask = texts()
    bottleneck = layer()
    with torch.no_grad():
        for each in bottleneck.parameters():
            each.fill_(parameters)
    posterior = bottleneck(vectors * size, mask)
    low, high = LOG_COUNTS
    assert posterior.log_counts.min() >= low
    assert posterior.log_counts.max() <= high
    assert posterior.log_variance.min() >= LOG_VARIANCES[0]
    for drawn_from in (source(), NoiseStream.insecure(1)):
        sample = sampled(posterior, drawn_from)
        assert torch.isfinite(sample.vectors).all()
        assert torch.isfinite(sample.log_weights).all()
        said = Reader(WIDTH, 2, heads=2, seed=1)(sample).sum()
        loss = said + kl_dirichlet(posterior).sum() + kl_gaussian(posterior).sum()
        assert torch.isfinite(loss)
    for parameter in torch.autograd.grad(
        sampled(posterior, source()).log_weights.sum() + loss, bottleneck.parameters()
    ):
        assert torch.isfinite(parameter).all()


@pytest.mark.parametrize("count", [math.exp(LOG_COUNTS[0]), math.exp(LOG_COUNTS[1])])
def test_weights_of_tiny_and_of_huge_counts_add_up_to_one(count) -> None:
    sample = sampled(law([count] * 4, 500), source())
    torch.testing.assert_close(sample.log_weights.exp().sum(dim=1), torch.ones(500, dtype=torch.float64))
    largest = sample.log_weights.exp().max(dim=1).values
    assert (largest > 0.999).double().mean() > 0.9 if count < 1 else (largest < 0.3).all()


@pytest.mark.parametrize("drawn_from", [source(), NoiseStream.insecure(2, "weights")], ids=["generator", "stream"])
@pytest.mark.parametrize("counts", [[0.05, 0.3, 1.0], [1.0, 2.5, 9.0]])
def test_weights_are_dirichlet(counts, drawn_from) -> None:
    found = sampled(law(counts, 4000), drawn_from).log_weights.exp().numpy()
    total = sum(counts)
    for place, count in enumerate(counts):
        assert stats.kstest(found[:, place], stats.beta(count, total - count).cdf).pvalue > 1e-4


@pytest.mark.parametrize("drawn_from", [source(), NoiseStream.insecure(2, "vectors")], ids=["generator", "stream"])
def test_vectors_are_gaussian(drawn_from) -> None:
    found = sampled(law([1.0], 4000, math.log(4.0)), drawn_from).vectors.flatten().numpy()
    assert stats.kstest(found, stats.norm(0, 2).cdf).pvalue > 1e-4


def test_gradients_through_weights_are_those_of_their_mean() -> None:
    logs = torch.tensor([0.2, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    posterior = law([1.0] * 3, 60_000)
    drawn = Posterior(posterior.mean, posterior.log_variance, logs.expand(60_000, 3), posterior.mask)
    mean = sampled(drawn, source()).log_weights.exp().mean(dim=0)[0]
    (found,) = torch.autograd.grad(mean, logs)
    (wanted,) = torch.autograd.grad(torch.softmax(logs, 0)[0], logs)
    torch.testing.assert_close(found, wanted, atol=5e-3, rtol=0)


def test_a_stream_draws_the_same_again_and_another_child_does_not() -> None:
    posterior = layer()(*texts())
    stream = NoiseStream.insecure(5)
    first, again = (sampled(posterior, stream.child("release", 1)) for _ in range(2))
    other = sampled(posterior, stream.child("release", 2))
    assert torch.equal(rows_of(first), rows_of(again))
    assert not torch.equal(rows_of(first), rows_of(other))


def test_rows_go_out_and_come_back() -> None:
    sample = sampled(layer()(*texts()), source())
    rows = rows_of(sample, TOKENS + 3)
    assert rows.dtype == torch.float32
    assert rows.shape == (6, row_length(TOKENS + 3, WIDTH))
    back = sample_of(rows, TOKENS + 3, WIDTH)
    assert torch.equal(back.mask[:, : TOKENS + 1], sample.mask)
    assert not back.mask[:, TOKENS + 1 :].any()
    torch.testing.assert_close(back.vectors[:, : TOKENS + 1], sample.vectors.detach())
    torch.testing.assert_close(back.log_weights[:, : TOKENS + 1], sample.log_weights.detach(), atol=1e-4, rtol=1e-4)
    reader = Reader(WIDTH, 2, heads=2, seed=1)
    torch.testing.assert_close(reader(back), reader(sample), atol=1e-4, rtol=1e-4)
    assert torch.equal(rows_of(back), rows)


def test_rows_of_filled_texts_do_not_show_their_length() -> None:
    sample = sampled(layer()(*texts()).filled(TOKENS + 3), source())
    rows = rows_of(sample)
    assert (rows[:, : TOKENS + 3] > 0).all()
    assert (rows != 0).all()


def spoiled(rows: torch.Tensor, place: int, value: float) -> torch.Tensor:
    rows = rows.clone()
    rows[0, place] = value
    return rows


def test_rows_that_are_no_samples_are_refused() -> None:
    rows = rows_of(sampled(layer()(*texts()), source()))
    for bad in (
        spoiled(rows, 0, math.nan),
        spoiled(rows, 20, math.inf),
        spoiled(rows, 0, -1.0),
        spoiled(rows, 0, 2.0),
        rows[:, 1:],
        rows.long(),
    ):
        with pytest.raises(DataError):
            sample_of(bad, TOKENS + 1, WIDTH)
    with pytest.raises(DataError, match="do not fit"):
        rows_of(sampled(layer()(*texts()), source()), TOKENS)
    with pytest.raises(ConclaveError, match="do not fit"):
        layer()(*texts()).filled(TOKENS)


def test_parameters_of_others_are_checked_before_any_is_taken() -> None:
    mine, other = layer(), TokenBottleneck(READ, WIDTH, counted=True, seed=9)
    given = {name: each.detach().clone() for name, each in other.named_parameters()}
    for name, value in {"mean.bias": math.nan, "linear_count.bias": 1e30}.items():
        with pytest.raises(ModelError):
            load_parameters(mine, given | {name: torch.full_like(given[name], value)})
    with pytest.raises(ModelError):
        load_parameters(mine, {name: each for name, each in given.items() if name != "mean.bias"})
    with pytest.raises(ModelError):
        load_parameters(mine, given | {"mean.bias": torch.zeros(3)})
    assert not torch.equal(mine.mean.weight, other.mean.weight)
    load_parameters(mine, given)
    assert torch.equal(mine.mean.weight, other.mean.weight)
    with pytest.raises(ConclaveError, match="reads vectors"):
        mine(torch.zeros(2, 3, READ + 1), torch.ones(2, 3, dtype=torch.bool))


def test_attention_is_the_formula_head_by_head() -> None:
    sample = sampled(layer()(*texts()), source())
    attention = DenoisingAttention(WIDTH, 2)
    found = attention(sample)
    size = WIDTH // 2
    for text in range(1, 6):
        z, pi = sample.vectors[text][sample.mask[text]], sample.log_weights[text][sample.mask[text]].exp()
        q = attention.query(z)
        heads = []
        for start in (0, size):
            part, asked = z[:, start : start + size], q[:, start : start + size]
            scores = asked @ part.T / math.sqrt(size) + pi.log() - part.square().sum(1) / (2 * math.sqrt(size))
            heads.append(scores.softmax(1) @ part)
        wanted = attention.out(torch.cat(heads, dim=1))
        torch.testing.assert_close(found[text][sample.mask[text]], wanted)


def test_what_is_read_is_a_function_of_the_sample_alone() -> None:
    """No way around the bottleneck: rows alone give the same logits."""
    vectors, mask = texts()
    drawn = sampled(layer()(vectors, mask), source())
    reader = Reader(WIDTH, 2, heads=2, seed=1)
    rows = rows_of(drawn)
    assert torch.allclose(reader(sample_of(rows, TOKENS + 1, WIDTH)), reader(drawn), atol=1e-5)


def test_a_pooled_text_has_one_vector_of_bounded_mean_and_its_noise_is_no_function_of_it() -> None:
    vectors, mask = texts()
    for sigma, wanted in ((0.5, 2 * math.log(0.5)), (None, -3.0)):
        posterior = PooledBottleneck(READ, WIDTH, sigma=sigma, seed=1)(vectors * 100, mask)
        assert posterior.mean.shape == (6, 1, WIDTH)
        assert posterior.mean.abs().max() <= 1
        torch.testing.assert_close(posterior.log_variance, torch.full((6, 1, WIDTH), wanted), atol=1e-4, rtol=1e-4)
        assert np.isfinite(rows_of(sampled(posterior, source())).numpy()).all()
