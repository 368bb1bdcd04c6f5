"""Exposure of canaries: a trie gives what scoring each number alone gives, and where nothing leaked there is no more
than chance.
"""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.audits.exposure import digit_tokens, excess, exposures, likelihoods, ranks, uniform
from learning.language.speaker import Speaker


@pytest.fixture(scope="module")
def model(tiny_gpt2):
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(tiny_gpt2).eval()


OPENING, DIGITS = [0, 3, 4], list(range(10, 20))


def alone(speaker, number, depth):
    """The likelihood of one number, its tokens scored without anything kept."""
    own = [DIGITS[int(digit)] for digit in f"{number:0{depth}d}"]
    with torch.no_grad():
        logits = speaker.model(torch.tensor([[*OPENING, *own]])).logits[0, len(OPENING) - 1 : -1]
        return float(speaker.log_probabilities(logits).gather(1, torch.tensor(own)[:, None]).sum())


@pytest.fixture(scope="module")
def each_alone(model):
    """The likelihood of every number of three digits, scored alone."""
    return [alone(Speaker(model), number, 3) for number in range(1000)]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 7, 1000])
def test_a_trie_says_of_every_number_what_scoring_it_alone_says(model, width, each_alone):
    speaker = Speaker(model)
    told = []
    found = likelihoods(speaker, OPENING, DIGITS, 3, width=width, progress=lambda *given: told.append(given))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, each_alone, atol=1e-4)
    assert np.ptp(found) > 1
    assert told[-1] == (1000, 1000)
    assert told == sorted(told)


@pytest.mark.slow
def test_a_tilt_and_a_floor_are_part_of_what_is_said(model):
    tokens = model.config.vocab_size
    rng = np.random.default_rng(0)
    floor = torch.from_numpy((said := rng.random(tokens) + 0.01) / said.sum()).float()
    speaker = Speaker(model, torch.from_numpy(rng.normal(0, 1, tokens)).float(), floor, 0.3)
    found = likelihoods(speaker, OPENING, DIGITS, 2)
    np.testing.assert_allclose(found, [alone(speaker, number, 2) for number in range(100)], atol=1e-4)
    assert np.abs(found - likelihoods(Speaker(model), OPENING, DIGITS, 2)).max() > 0.1


@pytest.mark.slow
def test_a_canary_that_is_learned_by_heart_has_the_most_bits(model, tiny_gpt2):
    from transformers import GPT2LMHeadModel

    own = GPT2LMHeadModel.from_pretrained(tiny_gpt2)
    ids = torch.tensor([[*OPENING, *(DIGITS[digit] for digit in (4, 6, 7, 8))]])
    optimiser = torch.optim.Adam(own.parameters(), lr=1e-2)
    for _ in range(40):
        loss = own(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    seen = ranks(likelihoods(Speaker(own.eval()), OPENING, DIGITS, 4), [4678])
    unseen = ranks(likelihoods(Speaker(model), OPENING, DIGITS, 4), [4678])
    assert seen[0] == 1
    assert exposures(seen, 10**4)[0] == pytest.approx(np.log2(10**4))
    assert unseen[0] > 1


def test_ranks_share_places_where_numbers_are_equally_likely():
    logs = np.array([-1.0, -3.0, -2.0, -2.0, -4.0], np.float32)
    assert ranks(logs, [0, 2, 3, 1, 4]).tolist() == [1.0, 2.5, 2.5, 4.0, 5.0]
    for odd in ([5], [-1]):
        with pytest.raises(ConclaveError, match="from 0 to 4"):
            ranks(logs, odd)
    with pytest.raises(ConclaveError, match="not two"):
        ranks(logs, [2, 2])


def test_without_a_leak_exposure_is_what_chance_gives():
    rng = np.random.default_rng(0)
    ranked = rng.integers(1, 10**6 + 1, 200_000).astype(float)
    bits = exposures(ranked, 10**6)
    assert bits.mean() == pytest.approx(1 / np.log(2), abs=0.02)
    assert (bits >= 3.14).mean() == pytest.approx(0.113, abs=0.005)
    assert uniform(ranked[:100], 10**6) > 0.01
    assert uniform(ranked[:100] / 20, 10**6) < 1e-6


@pytest.mark.slow
def test_the_excess_is_paired_and_its_interval_holds_the_mean():
    rng = np.random.default_rng(1)
    unseen = rng.exponential(1.44, 100)
    found = excess(unseen + rng.normal(2.0, 0.5, 100), unseen)
    assert found.low < 2.0 < found.high
    assert found.low > 1.8
    assert found.high < 2.2
    none = [excess(unseen + rng.normal(0.0, 0.5, 100), unseen) for _ in range(200)]
    assert 0.9 < np.mean([each.low < 0 < each.high for each in none]) < 0.99
    for odd in (unseen[:1], unseen[:3]):
        with pytest.raises(ConclaveError, match="no pairs"):
            excess(odd, unseen[:1])


class _Tokenizer:
    """Reads one character after another, a space and a digit as one; some digits are joined."""

    def __init__(self, joined=()):
        self.joined = joined

    def __call__(self, text, add_special_tokens):
        import re

        parts = [*map(re.escape, self.joined), r" \d", "."]
        found = re.findall("|".join(parts), text)
        return {"input_ids": [sum(map(ord, each)) * len(each) for each in found]}


def test_digits_have_tokens_of_their_own_or_are_no_numbers():
    opening, digits = digit_tokens(_Tokenizer(), "My ID is")
    assert len(opening) == 8
    assert len(set(digits)) == 10
    with pytest.raises(ConclaveError, match="no token of its own for the digit 7"):
        digit_tokens(_Tokenizer([" 6 7"]), "My ID is")
    with pytest.raises(ConclaveError, match="needs a prompt"):
        digit_tokens(_Tokenizer(), "")


@pytest.mark.parametrize(("depth", "opening", "width"), [(0, OPENING, 5), (9, OPENING, 5), (2, [], 5), (2, OPENING, 0)])
def test_what_cannot_be_ranked_is_an_error_in_words(model, depth, opening, width):
    with pytest.raises(ConclaveError, match="cannot be ranked; use 1 to 8 digits"):
        likelihoods(Speaker(model), opening, DIGITS, depth, width=width)
