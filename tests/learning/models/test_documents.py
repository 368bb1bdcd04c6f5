"""Documents of a language model: what stands before a text is told to the model, and never learned."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from learning.models.batching import BEGINS, LEAST_OWN, Tokens, encode_documents, inputs_of, logits_of, losses, opening
from learning.models.checkpoints import ModelError

TEXTS = ("good film", "", "a very slow start and a bright end " * 5)
CODES = ("Opinion: yes", None, "Opinion: no")


@pytest.fixture(scope="module")
def tokenizer(tiny_gpt2):
    return AutoTokenizer.from_pretrained(tiny_gpt2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    return GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()


def test_an_opening_is_the_beginning_and_the_code_with_a_line_break(tokenizer):
    said = tokenizer("Opinion: yes\n", add_special_tokens=False)["input_ids"]
    assert opening(tokenizer, "Opinion: yes") == [tokenizer.bos_token_id, *said]
    assert opening(tokenizer, None) == [tokenizer.bos_token_id]


def test_a_document_is_its_opening_its_own_text_and_the_end_and_says_where_its_own_text_begins(tokenizer):
    found = encode_documents(tokenizer, TEXTS, longest=32, codes=CODES)
    for row, text, code in zip(found.rows, TEXTS, CODES, strict=True):
        body = tokenizer(text, add_special_tokens=False)["input_ids"]
        whole = [*opening(tokenizer, code), *body, tokenizer.eos_token_id]
        assert row.ids.tolist() == whole[:32]
        assert row.second == len(opening(tokenizer, code))
    assert found.truncated == 1


def test_without_codes_a_row_is_what_it_was(tokenizer):
    before, now = (encode_documents(tokenizer, TEXTS, longest=32, codes=codes).rows for codes in (None, [None] * 3))
    assert [row.ids.tolist() for row in now] == [row.ids.tolist() for row in before]
    assert [row.second for row in before] == [len(row) for row in before]
    assert [row.second for row in now] == [1, 1, 1]


def test_a_code_leaves_room_for_a_text_or_is_named(tokenizer):
    taken = len(opening(tokenizer, "Opinion: yes"))
    (row,) = encode_documents(tokenizer, [TEXTS[2]], longest=taken + LEAST_OWN, codes=["Opinion: yes"]).rows
    assert len(row) - row.second == LEAST_OWN
    with pytest.raises(ModelError, match=r"The code 'Opinion: yes' and what stands before it take .* and 8 are to be"):
        encode_documents(tokenizer, [TEXTS[2]], longest=taken + LEAST_OWN - 1, codes=["Opinion: yes"])


def test_a_text_without_a_token_of_its_own_has_no_loss(tokenizer, model):
    class Endless:
        """The same tokenizer without an end."""

        eos_token_id = None

        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, *given, **more):
            return tokenizer(*given, **more)

    (row,) = encode_documents(Endless(), [""], longest=32, codes=["Opinion: yes"]).rows
    assert len(row) == 1
    assert losses(model, inputs_of(model.config, [row], documents=True), None) == 0


def test_the_loss_is_of_the_texts_own_tokens_alone(model):
    rng = np.random.default_rng(0)
    rows = [Tokens(rng.integers(0, 300, 12).astype(np.int32), second) for second in (0, 1, 5, 11, 12)]
    found = losses(model, inputs_of(model.config, rows, 16, documents=True), None)
    for row, loss in zip(rows, found, strict=True):
        ids = torch.from_numpy(row.ids.astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0]
        first = 1 if row.second in (0, 12) else row.second  # 12: no opening is said
        torch.testing.assert_close(loss, functional.cross_entropy(logits[first - 1 : -1], ids[first:]))


def test_whatever_stands_before_a_text_has_no_part_in_its_loss_but_by_what_the_model_sees(model):
    """Without attention to it, another opening gives the same loss."""
    torch.manual_seed(1)
    blind = GPT2LMHeadModel._from_config(model.config, attn_implementation="eager").eval()
    with torch.no_grad():
        blind.transformer.h[0].attn.c_proj.weight.zero_()
        blind.transformer.h[0].attn.c_proj.bias.zero_()
    own = np.arange(40, 48)
    rows = [Tokens(np.concatenate([start, own]).astype(np.int32), 5) for start in (np.full(5, 3), [9, 8, 7, 6, 3])]
    one, other = losses(blind, inputs_of(blind.config, rows, documents=True), None)
    torch.testing.assert_close(one, other)


def test_a_tilt_is_added_to_the_logits_at_every_position(model):
    rows = [Tokens(np.arange(5, 15, dtype=np.int32), 3), Tokens(np.arange(90, 96, dtype=np.int32), 2)]
    inputs = inputs_of(model.config, rows, documents=True)
    tilt = torch.linspace(-2, 2, 300)
    said = logits_of(model, inputs)
    tilted = torch.log_softmax(said + tilt, dim=-1)
    wanted = [
        -tilted[n, row.second - 1 : len(row) - 1, row.ids[row.second :]].diag().mean() for n, row in enumerate(rows)
    ]
    torch.testing.assert_close(losses(model, inputs, None, tilt=tilt), torch.stack(wanted))
    torch.testing.assert_close(losses(model, inputs, None, tilt=torch.ones(300)), losses(model, inputs, None))


def test_no_model_is_given_where_a_text_begins(model):
    inputs = inputs_of(model.config, [Tokens(np.arange(5, 15, dtype=np.int32), 3)], documents=True)
    assert inputs[BEGINS].tolist() == [3]
    assert BEGINS not in inputs_of(model.config, [Tokens(np.arange(5, 15, dtype=np.int32), 3)])
    assert logits_of(model, inputs).shape == (1, 10, 300)
