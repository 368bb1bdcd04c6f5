"""Canaries of language models: drawn as unlikely as asked, scored by their suffix, and refused where they would not be
canaries.
"""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.audits.canaries import Canary, enough, new_tokens, prefixes, scores, unlikely
from learning.audits.one_run import audited, canaries_for
from learning.language.speaker import Speaker


@pytest.fixture(scope="module")
def gpt2(tiny_gpt2):
    from transformers import AutoTokenizer, GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(tiny_gpt2).eval(), AutoTokenizer.from_pretrained(tiny_gpt2)


def begins(model, count=64, length=3):
    rng = np.random.default_rng(0)
    return [tuple(each) for each in rng.integers(1, model.config.vocab_size, (count, length)).tolist()]


def test_prefixes_are_the_beginnings_of_texts(gpt2):
    _, tokenizer = gpt2
    found = prefixes(tokenizer, ["the film was good", "a film is bad", "an actor and plot"], 2)
    assert [len(each) for each in found] == [2, 2, 2]
    assert tokenizer.decode(found[0]) == tokenizer.decode(tokenizer("the film was good")["input_ids"][:2])
    with pytest.raises(ConclaveError, match="1 of 2 texts have fewer than 2 tokens"):
        prefixes(tokenizer, ["the film was", ""], 2)
    with pytest.raises(ConclaveError, match="1 of 2 canaries share their prefix"):
        prefixes(tokenizer, ["the film was", "the film is"], 2)
    with pytest.raises(ConclaveError, match="A prefix of 0 tokens"):
        prefixes(tokenizer, ["the film"], 0)


def test_new_tokens_are_numbered_from_the_first_that_there_was_not(gpt2):
    model, _ = gpt2
    size = model.config.vocab_size
    made = new_tokens(begins(model, 5), size)
    assert [each.suffix for each in made] == [(size + place,) for place in range(5)]
    assert made[0].tokens == (*made[0].prefix, size)
    with pytest.raises(ConclaveError, match="Give the number of tokens"):
        new_tokens(begins(model, 5), 0)


@pytest.mark.parametrize("perplexity", [40.0, 150.0])
def test_suffixes_are_as_unlikely_as_asked(gpt2, perplexity):
    """64 canaries of 8 tokens: the mean surprise of 512 draws is within 0.2 of what was asked."""
    model, _ = gpt2
    speaker = Speaker(model)
    made = unlikely(speaker, begins(model), 8, perplexity, np.random.default_rng(0))
    assert all(len(each.suffix) == 8 for each in made)
    surprise = -scores(speaker, made).mean() / 8
    assert surprise == pytest.approx(np.log(perplexity), abs=0.2)
    again = unlikely(speaker, begins(model), 8, perplexity, np.random.default_rng(0))
    assert made == again


def test_a_score_is_the_suffixes_own_likelihood(gpt2):
    model, _ = gpt2
    some = [Canary((3, 4), (5, 6, 7)), Canary((9,), (8,)), Canary((4, 4), (1, 1, 2))]
    found = scores(Speaker(model), some)
    for canary, score in zip(some, found, strict=True):
        with torch.no_grad():
            logs = torch.log_softmax(model(torch.tensor([canary.tokens])).logits[0].float(), -1)
        wanted = sum(
            float(logs[place - 1, canary.tokens[place]]) for place in range(len(canary.prefix), len(canary.tokens))
        )
        assert score == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_a_model_that_was_trained_on_canaries_is_told_by_them_and_one_that_was_not_is_not(gpt2, tiny_gpt2):
    """New tokens: 64 canaries, half of them trained on until they are known by heart. Nearly all guesses are right."""
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(tiny_gpt2)
    size = model.config.vocab_size
    some = new_tokens(begins(model), size)
    torch.manual_seed(0)
    model.resize_token_embeddings(size + len(some), mean_resizing=False)
    inside = np.random.default_rng(2).random(len(some)) < 0.5
    before = scores(Speaker(model.eval()), some)
    ids = torch.tensor([each.tokens for each, own in zip(some, inside, strict=True) if own])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    after = scores(Speaker(model.eval()), some)
    assert audited(after - before, inside, delta=1e-5).lower > 1.5
    assert audited(before, inside, delta=1e-5).lower == 0


def test_too_few_canaries_for_a_claim_are_an_error_that_says_how_many_it_takes():
    least = canaries_for(4.0, delta=1e-5, confidence=0.95)
    enough(least, 4.0, delta=1e-5, confidence=0.95)
    with pytest.raises(ConclaveError, match=f"It takes {least:,} or more"):
        enough(least - 1, 4.0, delta=1e-5, confidence=0.95)


def test_what_is_no_canary_is_an_error_in_words(gpt2):
    model, _ = gpt2
    speaker, rng = Speaker(model), np.random.default_rng(0)
    for prefix, suffix in (((), (1,)), ((1,), ())):
        with pytest.raises(ConclaveError, match="a prefix and a suffix"):
            Canary(prefix, suffix)
    with pytest.raises(ConclaveError, match="There are no prefixes"):
        new_tokens([], 300)
    with pytest.raises(ConclaveError, match="2 of 4 canaries share their prefix"):
        unlikely(speaker, [(1, 2), (1, 2), (3, 4), (3, 4)], 2, 10.0, rng)
    with pytest.raises(ConclaveError, match="one number of tokens"):
        unlikely(speaker, [(1, 2), (1, 2, 3)], 2, 10.0, rng)
    for length, perplexity in ((0, 10.0), (2, 1.0), (2, float("inf"))):
        with pytest.raises(ConclaveError, match="cannot be drawn"):
            unlikely(speaker, [(1, 2)], length, perplexity, rng)
