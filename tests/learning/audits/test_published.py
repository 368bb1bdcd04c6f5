"""What was published alone: texts that echo canaries betray them, and words after a prompt are the likeliest."""

import itertools

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.audits.one_run import audited
from learning.audits.published import NGrams, Word, echoes, likeliest_words, named
from learning.language.speaker import Speaker


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_model_of_texts_gives_every_history_one_distribution(order):
    rng = np.random.default_rng(0)
    model = NGrams.trained(rng.integers(0, 6, (20, 9)).tolist(), 6, order)
    for history in itertools.product(range(6), repeat=2):
        total = sum(np.exp(model.log_probability([*history, token], 2)) for token in range(6))
        assert total == pytest.approx(1.0)
    assert np.isfinite(model.log_probability([5, 5, 5, 5]))


def test_counts_are_discounted_and_fall_back_as_the_formula_says():
    model = NGrams.trained([[0, 1, 0, 1, 0, 2]], 4, 2)
    shorter = (2 - 0.75) / 6 + 0.75 * 3 / 6 / 4  # of token 1, which is 2 of 6
    wanted = (2 - 0.75) / 3 + 0.75 * 2 / 3 * shorter
    assert np.exp(model.log_probability([0, 1], 1)) == pytest.approx(wanted)
    assert np.exp(model.log_probability([3, 1], 1)) == pytest.approx(shorter)


@pytest.mark.slow
def test_texts_that_echo_canaries_betray_them_and_others_do_not():
    """400 canaries of 10 tokens; texts hold four tokens in a row of each that is in, once. The bound says so."""
    rng = np.random.default_rng(0)
    canaries, inside = rng.integers(0, 500, (400, 10)), rng.random(400) < 0.5
    public = rng.integers(0, 500, (400, 20)).tolist()
    noise = rng.integers(0, 500, (400, 20))
    echoing = noise.copy()
    echoing[np.flatnonzero(inside), 5:9] = canaries[inside][:, 3:7]
    for order in (2, 3):
        found = echoes(echoing.tolist(), canaries.tolist(), 500, public=public, order=order)
        assert audited(found, inside, delta=1e-5).lower > 1.5
        assert audited(found, inside, delta=1e-9, confidence=1 - 1e-4).lower > 1.0
    silent = echoes(noise.tolist(), canaries.tolist(), 500, public=public)
    assert audited(silent, inside, delta=1e-9, confidence=1 - 1e-4).lower == 0
    alone = echoes(echoing.tolist(), canaries.tolist(), 500)
    assert audited(alone, inside, delta=1e-5).lower > 1.0


def test_what_is_no_model_of_texts_is_an_error_in_words():
    for texts, order in (([], 2), ([[]], 2), ([[1]], 0)):
        with pytest.raises(ConclaveError, match="make no model"):
            NGrams.trained(texts, 5, order)
    for token in (5, -1):
        with pytest.raises(ConclaveError, match="outside 0 to 4"):
            NGrams.trained([[0, token]], 5)
    with pytest.raises(ValueError, match="shorter"):
        NGrams.trained([[0, 1]], 5).scores([[0], [1]], [0])


@pytest.fixture(scope="module")
def gpt2(tiny_gpt2):
    from transformers import AutoTokenizer, GPT2LMHeadModel

    return GPT2LMHeadModel.from_pretrained(tiny_gpt2).eval(), AutoTokenizer.from_pretrained(tiny_gpt2)


PROMPT = "the plot was"


def _probability(model, tokenizer, word):
    """A word's probability by its usual spelling: its tokens, and whatever begins something new after them."""
    opening, own = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (PROMPT, f" {word}"))
    with torch.no_grad():
        said = torch.softmax(model(torch.tensor([opening + own])).logits[0].float(), -1)
    places = range(len(opening), len(opening) + len(own))
    inside = np.prod([float(said[place - 1, token]) for place, token in zip(places, own, strict=True)])
    begins = [
        token
        for token, text in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))))
        if text[0] in "\u0120\u010a" or token in tokenizer.all_special_ids
    ]
    return inside * float(said[-1, begins].sum())


@pytest.mark.slow
def test_the_likeliest_words_are_those_that_were_learned(gpt2, tiny_gpt2):
    from transformers import GPT2LMHeadModel

    _, tokenizer = gpt2
    model = GPT2LMHeadModel.from_pretrained(tiny_gpt2)
    names = {"great": 6, "dull": 3, "zoe": 2, "bob": 1}  # the last two are no tokens of their own
    texts = [f"{PROMPT} {name} and not slow" for name, times in names.items() for _ in range(times)]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        loss = model(ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = likeliest_words(Speaker(model.eval()), tokenizer, PROMPT, 4)
    assert [word.text for word in found[:2]] == ["great", "dull"]
    assert {word.text for word in found} == set(names)
    assert found[0].probability == pytest.approx(0.5, abs=0.15)
    for word in found:
        assert word.probability >= _probability(model, tokenizer, word.text) * (1 - 1e-4)
        assert word.probability == pytest.approx(_probability(model, tokenizer, word.text), rel=0.1)


@pytest.mark.slow
def test_no_word_that_is_left_out_is_likelier_than_those_that_come_back(gpt2):
    model, tokenizer = gpt2
    found = likeliest_words(Speaker(model), tokenizer, PROMPT, 20)
    assert len(found) == 20
    assert [word.probability for word in found] == sorted((word.probability for word in found), reverse=True)
    texts = {word.text for word in found}
    for word in (
        "film",
        "was",
        "good",
        "bad",
        "great",
        "awful",
        "dull",
        "bright",
        "actor",
        "slow",
        "fast",
        "saw",
        "it",
    ):
        if word not in texts:
            assert _probability(model, tokenizer, word) <= found[-1].probability


def test_names_are_found_among_words_whatever_is_around_them():
    words = [Word("Kim,", 0.5), Word("the", 0.2), Word("lee.", 0.1)]
    assert [word.text for word in named(words, ["Lee", "kim", "Ann"])] == ["Kim,", "lee."]


def test_a_prompt_of_nothing_is_an_error_in_words(gpt2):
    model, tokenizer = gpt2
    for prompt, count in (("", 5), ("the", 0)):
        with pytest.raises(ConclaveError, match="Give a prompt"):
            likeliest_words(Speaker(model), tokenizer, prompt, count)
