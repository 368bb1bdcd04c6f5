import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    GPT2LMHeadModel,
    RobertaConfig,
)

from learning.models.batching import Tokens, batches, encode, encode_documents, form_of, inputs_of, losses

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def _row(*ids: int, second: int | None = None) -> Tokens:
    return Tokens(np.array(ids, np.int32), len(ids) if second is None else second)


def _classifier(config, seed: int = 0):
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def bert_tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


@pytest.fixture(scope="module")
def gpt2_tokenizer(tiny_gpt2):
    return AutoTokenizer.from_pretrained(tiny_gpt2)


def test_a_long_text_is_cut_at_its_end_and_counted(bert_tokenizer) -> None:
    found = encode(bert_tokenizer, ["good " * 50, "bad film", "good " * 6], longest=8)
    whole = bert_tokenizer("good " * 50)["input_ids"]
    assert [len(row) for row in found.rows] == [8, 4, 8]
    assert found.truncated == 1
    assert list(found.rows[0].ids) == [*whole[:7], whole[-1]]


def test_of_a_pair_the_longer_text_is_cut_first(bert_tokenizer) -> None:
    (row,) = encode(bert_tokenizer, ["good " * 50], ["bad film"], longest=10).rows
    assert (len(row), row.second) == (10, 7)
    assert list(row.ids[-3:]) == bert_tokenizer("bad film")["input_ids"][1:]


def test_of_a_huge_text_only_the_beginning_is_looked_at(bert_tokenizer) -> None:
    found = encode(bert_tokenizer, ["x" * 10**6, "good"], longest=4)
    assert found.truncated == 1
    assert len(found.rows[0]) <= 4


def test_an_empty_text_is_an_example_with_a_token(bert_tokenizer, gpt2_tokenizer) -> None:
    assert len(encode(bert_tokenizer, [""], longest=8).rows[0]) == 2
    for found in (encode(gpt2_tokenizer, [""], longest=8), encode(gpt2_tokenizer, [""], [""], longest=8)):
        assert [list(row.ids) for row in found.rows] == [[0]]
    assert [len(row) for row in encode_documents(gpt2_tokenizer, [""], longest=8).rows] == [2]


def test_a_document_stands_between_beginning_and_end(gpt2_tokenizer) -> None:
    found = encode_documents(gpt2_tokenizer, ["good film", "good film " * 20], longest=16)
    end = gpt2_tokenizer.eos_token_id
    assert (found.rows[0].ids[0], found.rows[0].ids[-1]) == (end, end)
    assert gpt2_tokenizer.decode(found.rows[0].ids[1:-1]) == "good film"
    assert len(found.rows[1]) == 16
    assert found.rows[1].ids[-1] != end
    assert found.truncated == 1


def test_bert_gets_types_and_a_position_for_every_token_of_every_example() -> None:
    inputs = inputs_of(BertConfig(**SMALL), [_row(5, 6, 7, 8, second=2), _row(9)])
    assert inputs["input_ids"].tolist() == [[5, 6, 7, 8], [9, 0, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    assert inputs["token_type_ids"].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3]] * 2


def test_a_model_gets_only_what_it_takes() -> None:
    rows = [_row(5, 6, second=1)]
    assert inputs_of(GPT2Config(), rows).keys() == {"input_ids", "attention_mask", "position_ids"}
    assert form_of(GPT2Config(n_positions=77)).longest == 77
    assert form_of(RobertaConfig(max_position_embeddings=514)).longest == 512


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(**SMALL),
        RobertaConfig(**SMALL, max_position_embeddings=40),
        DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=16),
    ],
    ids=lambda config: config.model_type,
)
def test_positions_are_those_that_the_model_would_make_itself(config) -> None:
    model = _classifier(config)
    inputs = inputs_of(config, [_row(5, 6, 7, 8), _row(9, 10)])
    with torch.no_grad():
        ours = model(**inputs).logits
        inputs.pop("position_ids")
        assert torch.equal(ours, model(**inputs).logits)


@pytest.mark.parametrize("config", [BertConfig(**SMALL), GPT2Config(n_embd=16, n_layer=1, n_head=2, pad_token_id=0)])
def test_a_classifiers_loss_does_not_depend_on_the_rest_of_the_batch(config) -> None:
    model = _classifier(config)
    rows = [_row(5, 6, 7, 8, 9), _row(11), _row(12, 13)]
    labels = torch.tensor([0, 1, 1])
    together = losses(model, inputs_of(config, rows), labels)
    alone = [losses(model, inputs_of(config, [row]), labels[i : i + 1]) for i, row in enumerate(rows)]
    assert together.dtype == torch.float32
    torch.testing.assert_close(together, torch.cat(alone))


def test_a_language_models_loss_is_the_mean_over_an_examples_own_tokens() -> None:
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, initializer_range=0.5)
    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="eager").eval()
    rows = [_row(5, 6, 7, 8), _row(9, 10), _row(11)]
    found = losses(model, inputs_of(config, rows), None)
    for row, loss in zip(rows[:2], found, strict=False):
        ids = torch.from_numpy(row.ids.astype(np.int64))[None]
        logits = model(input_ids=ids).logits[0, :-1]
        torch.testing.assert_close(loss, functional.cross_entropy(logits, ids[0, 1:]))
    assert found[2] == 0
    found.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_regressions_loss_is_the_squared_error() -> None:
    config = BertConfig(**SMALL, num_labels=1)
    model = _classifier(config)
    inputs = inputs_of(config, [_row(5, 6), _row(7)])
    said = model(**inputs).logits[:, 0]
    labels = torch.tensor([0.5, -1.0])
    torch.testing.assert_close(losses(model, inputs, labels), (said - labels) ** 2)


@pytest.mark.parametrize("rows", [[], [_row(5), _row()]])
def test_a_batch_without_tokens_is_an_error(rows: list[Tokens]) -> None:
    with pytest.raises(ValueError, match="each with a token"):
        inputs_of(BertConfig(), rows)


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(1, 100))
def test_batches_hold_every_example_once_within_the_tokens_allowed(lengths: list[int], tokens: int) -> None:
    rows = [_row(*range(length)) for length in lengths]
    found = list(batches(rows, tokens))
    assert sorted(place for batch in found for place in batch) == list(range(len(rows)))
    for batch in found:
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens
