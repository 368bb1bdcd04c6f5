"""How far a model is from a public one, computed directly; and what is left of it under noise: nothing of noise alone,
all without noise, and never much worse than the public model.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.language.differences import Outcomes, denoised, differences
from learning.language.generation import Texts
from learning.language.soft_targets import SMALLEST, STEP, coded, graded
from learning.language.speaker import Speaker

TOP = 8


def opening(place):
    return [0, 3] if place % 3 else [0]


@pytest.fixture
def asked(speaker, texts, tmp_path):
    """What another speaker, the public one, says of every token."""
    openings = [opening(place) for place in range(len(texts))]
    kept = graded([speaker], texts, [openings], top=TOP, temperature=1.0, folder=tmp_path)
    return openings, Outcomes(np.array(kept.ids), np.array(kept.codes))


def directly(model, texts, openings, outcomes):
    """Text by text, place by place: the chances of the named outcomes and of the rest, less the public ones."""
    found, at = [], 0
    for place in range(len(texts)):
        ids = [*openings[place], *texts[place].tolist()]
        with torch.no_grad():
            said = model(torch.tensor([ids])).logits[0].double().softmax(dim=-1).numpy()
        for number in range(len(texts[place])):
            row = said[len(openings[place]) - 1 + number]
            named = row[outcomes.ids[at].astype(int)]
            public = np.exp(-STEP * outcomes.codes[at].astype(float))
            found.append([*(named - public), (1 - named.sum()) - (1 - public.sum())])
            at += 1
    return np.array(found)


def test_a_difference_is_the_chances_of_the_named_outcomes_and_of_the_rest_less_the_public_ones(model, texts, asked):
    openings, outcomes = asked
    found = differences(Speaker(model), texts, openings, outcomes)
    assert found.shape == outcomes.shape == (len(texts.ids), TOP + 1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, directly(model, texts, openings, outcomes), atol=2e-6)
    assert np.abs(found).max() > 0.1
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=2e-6)
    assert (np.linalg.norm(found, axis=1) <= np.sqrt(2)).all()


def test_a_tilted_speaker_differs_by_what_it_says_and_the_public_one_from_itself_by_its_grid_alone(
    model, speaker, texts, asked
):
    openings, outcomes = asked
    own = differences(speaker, texts, openings, outcomes)
    assert np.abs(own[:, :-1]).max() <= np.exp(STEP / 2) - 1 + 1e-6
    assert np.abs(own).max() < np.abs(differences(Speaker(model), texts, openings, outcomes)).max() / 100


@pytest.mark.parametrize("tokens", [8, 40, 10**6])
def test_how_texts_are_put_together_changes_nothing(model, texts, asked, monkeypatch, tokens):
    openings, outcomes = asked
    expected = differences(Speaker(model), texts, openings, outcomes)
    monkeypatch.setattr("learning.language.differences._TOKENS", tokens)
    np.testing.assert_allclose(differences(Speaker(model), texts, openings, outcomes), expected, atol=1e-6)


def test_the_order_of_texts_is_the_order_of_their_differences(model, texts, asked):
    openings, outcomes = asked
    expected = differences(Speaker(model), texts, openings, outcomes)
    order = np.random.default_rng(0).permutation(len(texts))
    where = np.concatenate([np.arange(texts.stops[place], texts.stops[place + 1]) for place in order])
    found = differences(
        Speaker(model), Texts.joined([texts[place] for place in order], 0), [openings[place] for place in order],
        Outcomes(outcomes.ids[where], outcomes.codes[where]),
    )  # fmt: skip
    np.testing.assert_allclose(found, expected[where], atol=1e-6)


def test_dropout_is_off_while_a_model_says_something(model, texts, asked):
    openings, outcomes = asked
    model.train()
    found = differences(Speaker(model), texts, openings, outcomes)
    np.testing.assert_array_equal(found, differences(Speaker(model), texts, openings, outcomes))
    np.testing.assert_allclose(found, directly(model, texts, openings, outcomes), atol=2e-6)


# What is left of noisy means.


def made(seed, tokens=400, top=TOP, sharp=1.0, apart=1.0):
    """Public outcomes of tokens, and teachers' true distributions of the same outcomes: [tokens, top + 1] both."""
    rng = np.random.default_rng(seed)
    logits = np.sort(rng.normal(0, sharp, (tokens, top + 30)), axis=1)[:, ::-1]
    public = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    moved = logits + apart * rng.normal(0, 1, logits.shape)
    taught = np.exp(moved) / np.exp(moved).sum(axis=1, keepdims=True)
    outcomes = Outcomes(np.tile(np.arange(top), (tokens, 1)), coded(np.log(public[:, :top])))
    together = np.hstack([taught[:, :top], taught[:, top:].sum(axis=1, keepdims=True)])
    return outcomes, together


def crossed(truth, said):
    """The mean cross-entropy, nats a token."""
    return float(-(truth * np.log(said)).sum(axis=1).mean())


def start(outcomes):
    """The public model's word, as a distribution."""
    public = np.maximum(outcomes.chances(slice(None)).astype(float), SMALLEST)
    return public / public.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("sigma", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("tokens", [1, 10, 4000])
def test_of_noise_alone_nothing_is_left_but_once_in_hundreds_of_times(sigma, tokens):
    """In a release of nine outcomes, whose variances are looked at twice: 2 in 100 releases move anything at all."""
    outcomes, _ = made(0, tokens=tokens)
    public, moved = start(outcomes), 0
    for seed in range(100):
        noise = np.random.default_rng(seed).normal(0, sigma, public.shape)
        moved += not np.allclose(denoised(noise, sigma, outcomes), public, atol=1e-12)
    assert moved <= 8


def test_without_noise_the_mean_is_given_exactly():
    outcomes, truth = made(1)
    public = outcomes.chances(slice(None)).astype(float)
    found = denoised(truth - public, 0.0, outcomes)
    np.testing.assert_allclose(found, truth, atol=1e-6)


@settings(max_examples=60)
@given(
    st.integers(0, 1000), st.integers(1, 40), st.integers(1, 12), st.floats(0, 1e6), st.floats(0, 5),
    st.sampled_from([0.0, 0.1, 1.0]),
)  # fmt: skip
def test_every_row_is_a_distribution_whatever_comes(seed, tokens, top, sigma, apart, least):
    outcomes, truth = made(seed, tokens, top, apart=apart)
    public = outcomes.chances(slice(None)).astype(float)
    noise = sigma * np.random.default_rng(seed).normal(0, 1, public.shape)
    found = denoised(truth - public + noise, sigma, outcomes, least=least)
    assert found.shape == public.shape
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-9)
    assert (found > 0).all()
    assert np.isfinite(np.log(found)).all()


@settings(max_examples=40)
@given(st.integers(0, 1000), st.integers(1, 40), st.floats(1e-3, 10))
def test_means_that_vary_less_than_their_noise_leave_the_public_models_word(seed, tokens, sigma):
    outcomes, _ = made(seed, tokens)
    rng = np.random.default_rng(seed)
    quiet = rng.uniform(-1, 1, (tokens, TOP + 1)) * sigma / np.sqrt(tokens) / 2
    np.testing.assert_allclose(denoised(quiet, sigma, outcomes), start(outcomes), atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("apart", [0.2, 0.7, 1.5])
@pytest.mark.parametrize("sigma", [0.1, 0.3, 1.0, 10.0])
def test_under_noise_it_is_hardly_worse_than_the_public_model(seed, sigma, apart):
    """By less than 0.02 nats a token, whereas the noisy means as they are would cost more than a quarter of one."""
    outcomes, truth = made(seed, tokens=3000, apart=apart)
    public = outcomes.chances(slice(None)).astype(float)
    noise = np.random.default_rng(seed + 100).normal(0, sigma, public.shape)
    means = truth - public + noise
    taken = np.maximum(public + means, SMALLEST)
    assert crossed(truth, denoised(means, sigma, outcomes)) < crossed(truth, start(outcomes)) + 0.02
    assert crossed(truth, taken / taken.sum(axis=1, keepdims=True)) > crossed(truth, start(outcomes)) + 0.25


def test_what_noise_took_below_nothing_keeps_a_share_of_the_public_models_word():
    outcomes, truth = made(2, tokens=3000, apart=1.5)
    public = outcomes.chances(slice(None)).astype(float)
    means = truth - public + np.random.default_rng(2).normal(0, 0.1, public.shape)
    found = denoised(means, 0.1, outcomes, least=0.1)
    assert (found >= 0.1 * public / (1.1 + found.shape[1])).all()
    assert crossed(truth, found) < crossed(truth, start(outcomes)) - 0.15
    assert crossed(truth, denoised(means, 0.1, outcomes, least=0.0)) > crossed(truth, start(outcomes)) + 0.15


@pytest.mark.parametrize("seed", range(3))
def test_at_small_noise_it_is_better_than_the_public_model(seed):
    outcomes, truth = made(seed, tokens=3000, apart=0.7)
    public = outcomes.chances(slice(None)).astype(float)
    noise = np.random.default_rng(seed + 100).normal(0, 0.003, public.shape)
    assert crossed(truth, denoised(truth - public + noise, 0.003, outcomes)) < crossed(truth, start(outcomes)) - 0.05


def test_what_all_tokens_share_is_found_under_noise_that_drowns_each_alone():
    """A mean of 3,000 tokens has a 55th of their noise."""
    outcomes, _ = made(3, tokens=3000)
    public = outcomes.chances(slice(None)).astype(float)
    moved = np.zeros(TOP + 1)
    moved[[0, -1]] = -0.08, 0.08
    noise = np.random.default_rng(3).normal(0, 0.3, public.shape)
    found = denoised(moved + noise, 0.3, outcomes) - start(outcomes)
    assert found.mean(axis=0)[-1] == pytest.approx(0.08, abs=0.03)
