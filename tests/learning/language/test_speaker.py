"""What a speaker says: the tilted model mixed with a floor; perplexity of own text alone."""

import math

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.language.floor import own_marginal, tilt, unigram
from learning.language.perplexity import LARGEST, perplexity
from learning.language.speaker import Speaker
from learning.models.batching import Tokens


def _row(ids, begins=1):
    return Tokens(np.array(ids, np.int32), begins)


def test_a_speaker_says_the_tilted_model_and_the_floor_by_its_weight(speaker):
    rows = [_row([0, 5, 9, 4])]
    logits = speaker.logits(rows)
    said = speaker.log_probabilities(logits).exp()
    expected = 0.7 * torch.softmax(logits + speaker.tilt, dim=-1) + 0.3 * speaker.floor
    assert torch.allclose(said, expected, atol=1e-6)
    warm = speaker.log_probabilities(logits, 2.0).exp()
    assert torch.allclose(
        warm, 0.7 * torch.softmax((logits + speaker.tilt) / 2, dim=-1) + 0.3 * speaker.floor, atol=1e-6
    )


def test_what_does_not_fit_a_model_is_said(model):
    size = model.config.vocab_size
    flat = torch.full((size,), 1 / size)
    with pytest.raises(ConclaveError, match="does not fit"):
        Speaker(model, torch.zeros(size - 1))
    with pytest.raises(ConclaveError, match="not finite"):
        Speaker(model, torch.full((size,), math.nan))
    with pytest.raises(ConclaveError, match="above 0"):
        Speaker(model, None, torch.zeros(size), 0.1)
    with pytest.raises(ConclaveError, match="weight"):
        Speaker(model, None, flat, 1.0)
    with pytest.raises(ConclaveError, match="weight"):
        Speaker(model, weight=0.1)


def test_perplexity_is_of_own_text_and_neither_of_openings_nor_of_padding(speaker):
    rows = [_row([0, 7, 8, 3, 5, 0], 3), _row([0, 4, 0]), _row([0, 2, 9, 9, 9, 9, 9, 1], 2)]
    nats, tokens = 0.0, 0
    for row in rows:
        said = speaker.log_probabilities(speaker.logits([row])[0]).detach()
        for place in range(row.second, len(row)):
            nats -= float(said[place - 1, row.ids[place]])
            tokens += 1
    told = []
    found = perplexity([speaker], rows, progress=lambda *seen: told.append(seen))
    assert told[-1] == (len(rows), len(rows))
    assert found.tokens == tokens == 11
    assert found.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)


def test_several_speakers_are_measured_by_the_mean_of_what_they_say(model, speaker):
    row, other = _row([0, 7, 8]), Speaker(model)
    chances = [
        (speaker.log_probabilities(speaker.logits([row])[0])[place, row.ids[place + 1]].exp()
         + other.log_probabilities(other.logits([row])[0])[place, row.ids[place + 1]].exp()) / 2
        for place in (0, 1)
    ]  # fmt: skip
    expected = math.exp(-sum(math.log(float(each.detach())) for each in chances) / 2)
    assert perplexity([speaker, other], [row]).perplexity == pytest.approx(expected, rel=1e-5)


def test_a_perplexity_that_json_cannot_hold_is_the_largest(model):
    size = model.config.vocab_size
    away = torch.zeros(size)
    away[5] = -1e4
    assert perplexity([Speaker(model, away)], [_row([0, 5, 5])]).perplexity == LARGEST
    assert perplexity([Speaker(model)], [_row([0])]).tokens == 0


def test_counts_above_the_noise_stay_and_those_in_it_are_drawn_to_the_public_ones():
    rng = np.random.default_rng(0)
    marginal = np.full(1000, 1e-3)
    true = np.zeros(1000)
    true[:10] = 5000.0
    noisy = true + rng.normal(0, 40.0, 1000)
    found = unigram(noisy, 40.0, marginal)
    assert found.min() > 0
    assert found.sum() == pytest.approx(1)
    assert np.allclose(found[:10] * noisy.sum(), 5000, rtol=0.1)
    clipped = np.maximum(noisy, 1e-9)
    truth = (true + 1) / (true + 1).sum()
    worse = -(truth * np.log(clipped / clipped.sum())).sum()
    assert -(truth * np.log(found)).sum() < worse
    exact = unigram(true, 0.0, marginal)
    assert np.allclose(exact[:10], 0.1, rtol=0.05)


def test_a_tilt_moves_a_model_whose_mean_is_the_marginal_to_the_floor():
    rng = np.random.default_rng(0)
    marginal, floor = rng.dirichlet(np.ones(50)), rng.dirichlet(np.ones(50))
    moved = np.log(marginal) + tilt(floor, marginal, 1.0)
    assert np.allclose(np.exp(moved) / np.exp(moved).sum(), floor, atol=1e-6)
    assert not tilt(floor, marginal, 0.0).any()


def test_a_models_own_marginal_is_that_of_its_own_texts_and_the_same_every_time(model):
    found = own_marginal(model, [0], longest=8, seed=3)
    assert found.sum() == pytest.approx(1)
    assert (found == own_marginal(model, [0], longest=8, seed=3)).all()
    assert (found != own_marginal(model, [0], longest=8, seed=4)).any()
    first = torch.softmax(Speaker(model).logits([_row([0])])[0, 0], dim=0).detach().double().numpy()
    assert np.allclose(own_marginal(model, [0], longest=2, seed=3), first, atol=1e-6)


def test_texts_of_each_code_have_a_tilt_and_a_floor_of_their_own(speaker):
    size = speaker.model.config.vocab_size
    chance = torch.Generator().manual_seed(5)
    tilts = torch.randn(3, size, generator=chance)
    floors = torch.softmax(torch.randn(3, size, generator=chance), dim=-1)
    spoken = Speaker(speaker.model, tilts, floors, 0.3)
    rows = [_row([0, 5, 9, 4]), _row([0, 7, 3, 2]), _row([0, 6, 8, 1])]
    logits = spoken.logits(rows)
    said = spoken.log_probabilities(logits, cells=torch.tensor([1, -1, 0])[:, None])
    for place, cell in enumerate((1, 2, 0)):
        own = Speaker(speaker.model, tilts[cell], floors[cell], 0.3)
        torch.testing.assert_close(said[place], own.log_probabilities(logits[place]))
    without = Speaker(speaker.model, tilts[2], floors[2], 0.3)
    torch.testing.assert_close(spoken.log_probabilities(logits), without.log_probabilities(logits))
    apart = [perplexity([Speaker(speaker.model, tilts[cell], floors[cell], 0.3)], [row]).perplexity
             for row, cell in zip(rows, (1, 2, 0), strict=True)]  # fmt: skip
    together = perplexity([spoken], rows, [1, -1, 0]).perplexity
    assert together == pytest.approx(math.exp(np.log(apart).mean()), rel=1e-5)
    with pytest.raises(ConclaveError, match="does not fit"):
        Speaker(speaker.model, torch.zeros(3, size - 1))
    with pytest.raises(ConclaveError, match="above 0"):
        Speaker(speaker.model, tilts, floors * torch.tensor([[1.0], [1.0], [0.5]]), 0.3)
