import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.models import pooling
from learning.models.adapting import Lora, adapt, flatten, merged, trainable, unflatten
from learning.models.batching import Tokens, encode, inputs_of, losses
from learning.models.checkpoints import ModelError, save
from learning.models.encoders import classifier, digest, language_model
from learning.text.labelled import LabelMap

SENTIMENT = LabelMap(("negative", "positive"))
TEXTS = ["a good film", "the plot was dull and slow"]


def _stir(model, size: float = 0.1) -> None:
    torch.manual_seed(0)
    unflatten(model, flatten(model) + size * torch.randn(flatten(model).shape))


def _gradients(model, tokenizer) -> set[str]:
    inputs = inputs_of(model.config, encode(tokenizer, TEXTS, longest=32).rows)
    losses(model, inputs, torch.tensor([0, 1])).sum().backward()
    return {name for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_only_the_head_is_trained_where_the_head_is_meant(tiny_bert, pool) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool=pool)
    pooler = ["bert.pooler.dense.bias", "bert.pooler.dense.weight"] if pool == "first" else []
    names = adapt(model, "head", seed=1)
    assert names == [*pooler, "classifier.bias", "classifier.weight"]
    assert _gradients(model, tokenizer) == set(names)


def test_full_is_everything_but_a_fixed_pooling_layer(tiny_bert) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool="mean")
    names = set(adapt(model, "full", seed=1))
    assert names == {name for name, _ in model.named_parameters()} - pooling.fixed(model)
    assert len(pooling.fixed(model)) == 18
    assert _gradients(model, tokenizer) == names


def test_a_model_without_adapters_is_copied_without_their_library(tiny_bert, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "peft.tuners.lora", None)
    model, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
    adapt(model, "head", seed=1)
    plain = merged(model)
    _stir(model)
    again, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
    assert digest(plain) == digest(again) != digest(model)


@pytest.mark.parametrize("how", ["lora", "lora-all"])
@pytest.mark.parametrize("folder", ["tiny_bert", "tiny_gpt2"])
def test_lora_starts_as_the_model_itself_and_merges_into_a_plain_one(folder, how, request, tmp_path) -> None:
    name = str(request.getfixturevalue(folder))
    model, tokenizer = classifier(name, SENTIMENT, seed=1, pool="auto")
    plain_names = [key for key, _ in model.named_parameters()]
    inputs = inputs_of(model.config, encode(tokenizer, TEXTS, longest=32).rows)
    with torch.no_grad():
        before = model(**inputs).logits
        names = adapt(model, how, seed=1, lora=Lora(rank=3, alpha=6))
        assert torch.equal(model(**inputs).logits, before)
        _stir(model)
        adapted = model(**inputs).logits
        whole = merged(model)
        assert not torch.allclose(adapted, before, atol=1e-3)
        torch.testing.assert_close(whole(**inputs).logits, adapted, atol=1e-5, rtol=1e-4)
        assert torch.equal(model(**inputs).logits, adapted)
    assert all("lora_" in name or name.startswith(("classifier", "score", "bert.pooler")) for name in names)
    assert [key for key, _ in whole.named_parameters()] == plain_names
    with pytest.raises(ModelError, match="adapters"):
        save(model, tokenizer, tmp_path / "published")
    save(whole, tokenizer, tmp_path / "published")
    again, _ = classifier(str(tmp_path / "published"), SENTIMENT, seed=2)
    assert digest(again) == digest(whole)


def test_loras_start_is_the_seeds(tiny_gpt2) -> None:
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(found))
        model, _ = language_model(str(tiny_gpt2))
        names = adapt(model, "lora", seed=seed)
        found.append(flatten(model))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert all("c_attn.lora_" in name for name in names)


def test_lora_leaves_the_pooling_layer_alone(tiny_bert) -> None:
    model, _ = classifier(str(tiny_bert), SENTIMENT, seed=1, pool="mean")
    names = adapt(model, "lora", seed=1)
    assert any("layer.1.attention.self.query.lora_A" in name for name in names)
    assert not any("layer.2." in name or "pooler" in name for name in names)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_lora_of_all_layers_is_an_adapter_of_every_linear_layer_of_the_encoder(tiny_bert, pool) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool=pool)
    parts = [f"attention.self.{name}" for name in ("query", "key", "value")]
    parts += ["attention.output.dense", "intermediate.dense", "output.dense"]
    inside = {f"bert.encoder.layer.{layer}.{part}" for layer in range(2) for part in parts}
    head = {"classifier.bias", "classifier.weight"}
    if pool == "first":
        head |= {"bert.pooler.dense.bias", "bert.pooler.dense.weight"}
    names = set(adapt(model, "lora-all", seed=1))
    assert names == head | {f"{name}.lora_{side}.private.weight" for name in inside for side in "AB"}
    assert _gradients(model, tokenizer) == names


def test_lora_of_all_layers_leaves_a_language_models_words_alone(tiny_gpt2) -> None:
    model, _ = language_model(str(tiny_gpt2))
    names = adapt(model, "lora-all", seed=1)
    assert {name.split(".")[-4] for name in names} == {"c_attn", "c_proj", "c_fc"}


def test_a_language_model_has_no_head_to_train_alone(tiny_gpt2) -> None:
    model, _ = language_model(str(tiny_gpt2))
    with pytest.raises(ModelError, match='"lora" or "full"'):
        adapt(model, "head", seed=1)
    names = adapt(model, "full", seed=1)
    assert "lm_head.weight" not in names  # tied to the embeddings, which count once
    assert len(names) == len(list(model.parameters()))


def test_a_kind_of_model_that_lora_is_not_known_for_is_named(tiny_bert) -> None:
    model, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
    model.config.model_type = "novel"
    with pytest.raises(ModelError, match="a novel model"):
        adapt(model, "lora", seed=1)
    assert any("lora_" in name for name in adapt(model, "lora-all", seed=1))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans()), max_size=6), st.randoms())
def test_what_is_trained_becomes_a_vector_and_comes_back(shapes, random) -> None:
    model = torch.nn.Module()
    for place, (rows, columns, trained) in enumerate(shapes):
        parameter = torch.nn.Parameter(torch.zeros(rows, columns), requires_grad=trained)
        model.register_parameter(f"p{place}", parameter)
    vector = torch.tensor([random.random() for _ in flatten(model)])
    unflatten(model, vector)
    assert torch.equal(flatten(model), vector)
    assert list(trainable(model)) == sorted(f"p{i}" for i, (_, _, trained) in enumerate(shapes) if trained)
    assert all(not p.any() for p in model.parameters() if not p.requires_grad)
    with pytest.raises(ValueError, match="what is trained has"):
        unflatten(model, torch.zeros(len(vector) + 1))


def test_an_example_of_padding_alone_has_a_gradient_that_is_finite(tiny_gpt2) -> None:
    import numpy as np

    model, tokenizer = classifier(str(tiny_gpt2), SENTIMENT, seed=1)
    adapt(model, "full", seed=1)
    rows = [Tokens(np.array([tokenizer.pad_token_id], np.int32), 1), *encode(tokenizer, TEXTS, longest=32).rows]
    losses(model, inputs_of(model.config, rows), torch.tensor([0, 1, 0])).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
