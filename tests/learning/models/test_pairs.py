"""Pairs of an input and an answer as tokens: where each is cut, what is learned, and that no pair harms another."""

import copy

import numpy as np
import pytest
import torch

from learning.classification.training import Fit, fit
from learning.models.batching import NOTHING
from learning.models.checkpoints import ModelError
from learning.models.encoders import language_model, sequence_model
from learning.models.optimisers import Schedule
from learning.models.pairs import PairForm, check_room, encode_inputs, encode_pairs

FORM = PairForm(" and ", 24, 8, False)
LONG = "the film was good and " * 9


@pytest.fixture(scope="module")
def tokenizer(tiny_gpt2):
    return language_model(str(tiny_gpt2))[1]


def words(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_causal_model_reads_both_texts_in_one_with_the_separator_between_them(tokenizer):
    found = encode_pairs(tokenizer, ["the film", ""], ["was good", "bad"], FORM)
    assert found.truncated == 0
    for row, first, second in zip(found.rows, ("the film", ""), ("was good", "bad"), strict=True):
        before = [0, *words(tokenizer, first), *words(tokenizer, " and ")]
        assert row.ids.tolist() == [*before, *words(tokenizer, second), 0]
        assert row.second == len(before)


def test_an_input_is_cut_at_one_place_whatever_the_length_of_its_answer(tokenizer):
    found = encode_pairs(tokenizer, [LONG] * 3, ["a", "was good", LONG], FORM)
    assert found.truncated == 3
    openings = [row.ids[: row.second].tolist() for row in found.rows]
    assert openings[0] == openings[1] == openings[2]
    assert len(openings[0]) == 24 - 8
    assert [len(row) - row.second for row in found.rows[:2]] == [
        len(words(tokenizer, each)) + 1 for each in ("a", "was good")
    ]
    assert found.rows[2].ids[found.rows[2].second :].tolist() == words(tokenizer, LONG)[:8]
    asked = encode_inputs(tokenizer, [LONG], FORM)
    assert asked.rows[0].ids.tolist() == openings[0]
    assert asked.truncated == 1


def test_an_encoder_reads_the_input_alone_with_the_tokens_that_belong_around_it(tokenizer):
    around = copy.deepcopy(tokenizer)
    from tokenizers.processors import TemplateProcessing

    around.backend_tokenizer.post_processor = TemplateProcessing(single="a $A b", special_tokens=[("a", 40), ("b", 41)])
    form = PairForm(" and ", 24, 8, True)
    found = encode_pairs(around, ["the film", LONG], ["was good", "bad"], form)
    assert found.rows[0].ids.tolist() == [40, *words(tokenizer, "the film"), 41, *words(tokenizer, "was good"), 0]
    assert found.rows[1].ids[: found.rows[1].second].tolist() == [40, *words(tokenizer, LONG)[:14], 41]
    assert found.truncated == 1


def test_a_private_pair_that_cannot_be_tokenised_is_none_and_changes_no_other(tokenizer):
    awful, good = "\ud800", "the film"
    found = encode_pairs(tokenizer, [good, awful, good], ["good", "bad", awful], FORM, known=300).rows
    assert found[1] is NOTHING
    assert found[2] is NOTHING
    assert found[0].ids.tolist() == encode_pairs(tokenizer, [good], ["good"], FORM).rows[0].ids.tolist()
    assert encode_pairs(tokenizer, [good], ["good"], FORM, known=100).rows == [NOTHING]
    with pytest.raises(Exception):  # noqa: B017, PT011 - of public text the library's own error is raised
        encode_pairs(tokenizer, [awful], ["good"], FORM)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (
            PairForm(" and ", 24, 14, False),
            "Pairs of 24 tokens leave 7 for an input beside 14 of its answer and 3 around",
        ),
        (PairForm("", 24, 8, False), "The separator '' is no token of this model"),
        (PairForm(" and ", 8, 30, True), "leave 0 for an input beside 30"),
    ],
)
def test_a_form_that_leaves_no_input_is_refused(tokenizer, form, said):
    with pytest.raises(ModelError, match=said):
        check_room(tokenizer, form)
    with pytest.raises(ModelError, match=said):
        encode_pairs(tokenizer, ["a"], ["b"], form)


@pytest.mark.parametrize("kind", ["gpt2", "bart", "t5"])
def test_answers_alone_are_learned(tiny_gpt2, tiny_sequence, kind):
    """One step of plain descent is one along the gradient of the library's own loss on the answers' tokens."""
    apart = kind != "gpt2"
    model, tokenizer = sequence_model(str(tiny_sequence(kind))) if apart else language_model(str(tiny_gpt2))
    rows = encode_pairs(tokenizer, ["the film was"], ["good actor"], FORM.of(model.config)).rows
    by_hand = copy.deepcopy(model)
    ids = torch.from_numpy(rows[0].ids.astype(np.int64))[None]
    before, own = ids[:, : rows[0].second], ids[:, rows[0].second :]
    if apart:
        start = torch.tensor([[model.config.decoder_start_token_id]])
        loss = by_hand(input_ids=before, decoder_input_ids=torch.cat([start, own[:, :-1]], dim=1), labels=own).loss
    else:
        loss = by_hand(input_ids=ids, labels=torch.cat([torch.full_like(before, -100), own], dim=1)).loss
    loss.backward()
    size = torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
    assert size > 0
    settings = Fit(1, 1, 0.1, "sgd", Schedule("constant", 0.0), 0.0, 0.0)
    before_it = {name: each.detach().clone() for name, each in model.named_parameters()}
    fit(model, rows, None, settings, np.random.default_rng(0))
    for (name, each), (_, other) in zip(model.named_parameters(), by_hand.named_parameters(), strict=True):
        slope = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(each, before_it[name] - 0.1 * slope, atol=1e-5, rtol=1e-3)
