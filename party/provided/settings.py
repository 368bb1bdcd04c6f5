"""A provided config.json of a model, rewritten with only the keys that its architecture has.

The library takes any key of the file for an attribute, including names of files, of code to run, of parts to fetch. So
keys that the architecture's own class does not have are left out, and so are keys that choose how a text is processed
rather than what the model is.
"""

import re
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

from learning.models.pooling import MARK
from party.provided.documents import is_number, is_whole, parsed, quoted, written, wrong
from party.provided.tokenizers import MOST_TOKENS
from party.shard_table import LONGEST_CLASS, MOST_CLASSES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ARCHITECTURES: Final = frozenset(
    {
        "albert", "bart", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "gpt2",
        "gpt_neo", "gpt_neox", "llama", "mistral", "modernbert", "mpnet", "opt", "phi", "qwen2", "qwen3", "roberta",
        "t5", "xlm-roberta", "xlnet",
    }
)  # fmt: skip
"""Kinds of model that a party loads: text only, no code of their own. BART and T5 read pairs alone, an encoder the one
text, a decoder the other.
"""
MOST_LAYERS: Final = 512
MOST_WIDTH: Final = 1 << 20
"""The largest whole number that is a size: a width, positions, heads."""
MOST_LISTED: Final = 1024
LARGEST: Final = 1e9
"""The largest other number; the base of rotary positions is the largest that public models have."""

_FILE: Final = "config.json"
_POOLING: Final = "1_Pooling/config.json"
_CODE: Final = ("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code")
_MORE: Final = frozenset(
    {
        MARK, "model_type", "num_labels", "rope_theta", "rope_scaling", "partial_rotary_factor", "rotary_pct",
        "rotary_emb_base", "head_dim", "attention_head_size", "embedding_size", "pooler_hidden_size",
        "position_buckets", "share_att_key", "norm_rel_ebd", "talking_head", "conv_kernel_size", "conv_groups",
        "conv_act", "decoder_start_token_id", "summary_activation", "summary_proj_to_labels", "summary_type",
        "summary_use_proj",
    }
)  # fmt: skip
"""Keys of public models that their architecture reads although its class has no such field."""
_LEFT_OUT: Final = frozenset(
    {
        "add_cross_attention", "architectures", "chunk_size_feed_forward", "deterministic_flash_attn", "dtype",
        "is_encoder_decoder", "output_attentions", "output_hidden_states", "pretraining_tp", "problem_type",
        "return_dict", "sparse_pred_ignore_index", "sparse_prediction", "torch_dtype", "transformers_version",
        "use_cache",
    }
)  # fmt: skip
"""Fields about how the library works. One of them, feed-forward in chunks, fails on texts that chunks do not divide."""
_WORD: Final = re.compile(r"[A-Za-z0-9_|-]{1,64}", re.ASCII)
_MODE: Final = re.compile(r"pooling_mode_[a-z_]{1,40}", re.ASCII)


def clean_config(content: bytes) -> bytes:
    """The checked and rewritten config.json of the same model.

    Raises `TrainingError` for an architecture that is not in `ARCHITECTURES`, for a model that asks for code, and for
    values other than bounded numbers, single words and lists of these.
    """
    from transformers import CONFIG_MAPPING

    given = parsed(content, _FILE)
    kind = given.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise wrong(_FILE, f"is of a {quoted(kind)} model; a party takes {', '.join(sorted(ARCHITECTURES))}")
    code = next((key for key in _CODE if key in given), None)
    if code is not None:
        raise wrong(_FILE, f"has {code}: it names code to run, which is never run")
    found: Any = CONFIG_MAPPING[kind]
    assert is_dataclass(found)
    keys = ({field.name for field in fields(found)} | _MORE) - _LEFT_OUT
    kept = {key: _value(key, value) for key, value in given.items() if key in keys and not key.startswith("_")}
    return written(kept)


def clean_pooling(content: bytes) -> bytes:
    """Which of a sentence encoder's pooling modes are used, and nothing else of its file. Raises `TrainingError`."""
    given = parsed(content, _POOLING)
    return written({key: value for key, value in given.items() if _MODE.fullmatch(key) and isinstance(value, bool)})


def tokens_of(config: "PretrainedConfig") -> int:
    """How many tokens a model knows. Raises `TrainingError` for a file that does not say it."""
    size = getattr(config, "vocab_size", None)
    if not is_whole(size, 1, MOST_TOKENS):
        raise wrong(_FILE, f"says that the model knows {quoted(size)} tokens; 1 to {MOST_TOKENS:,} are taken")
    assert isinstance(size, int)
    return size


def _value(key: str, value: object) -> Any:
    """A value that is harmless under its key."""
    if key in ("id2label", "label2id"):
        return _labels(key, value)
    if "dropout" in key or "pdrop" in key or "layerdrop" in key:
        return None if value is None else 0.0
    if isinstance(value, dict) and key.startswith("rope_"):
        return _rotary(key, value)
    return _plain(key, value)


def _rotary(key: str, value: dict[str, Any], deep: int = 0) -> dict[str, Any]:
    """The rotary position settings, of the whole model or of each kind of its layers."""
    if deep > 1 or len(value) > MOST_LISTED:
        raise _unlike(key, value)
    return {
        _word(key, name): _rotary(key, each, deep + 1) if isinstance(each, dict) else _plain(name, each)
        for name, each in value.items()
    }


def _plain(key: str, value: object, deep: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if key.endswith(("_eps", "_epsilon")) and not (is_number(value, 1) and value > 0):  # type: ignore[operator]
        raise _unlike(key, value)
    if isinstance(value, str):
        return _word(key, value)
    if isinstance(value, list):
        if deep > 2 or len(value) > MOST_LISTED:
            raise _unlike(key, value)
        return [_plain(key, each, deep + 1) for each in value]
    if isinstance(value, int):
        layers = ("layer" in key and "norm" not in key) or key in ("attention_types", "inner_group_num")
        if not is_whole(value, -1, MOST_LAYERS if layers or "groups" in key else _most(key)):
            raise _unlike(key, value)
        return value
    if not is_number(value, LARGEST):
        raise _unlike(key, value)
    return value


def _most(key: str) -> int:
    return int(LARGEST) if key.startswith("rope") or "base" in key or "theta" in key else MOST_WIDTH


def _labels(key: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MOST_CLASSES:
        raise wrong(_FILE, f"has {key} that are no map of {MOST_CLASSES:,} labels at most")
    for name, each in value.items():
        for one in (name, each):
            text = isinstance(one, str) and len(one) <= LONGEST_CLASS and one.isprintable()
            if not text and not is_whole(one, 0, MOST_CLASSES):
                raise _unlike(key, one)
    return value


def _word(key: str, value: str) -> str:
    """The name of something in the library, which cannot be a path."""
    if not _WORD.fullmatch(value):
        raise wrong(_FILE, f"has {quoted(value)} for {key[:64]}, which is no single word")
    return value


def _unlike(key: str, value: object) -> Exception:
    return wrong(_FILE, f"has {quoted(value)} for {key[:64]}, which no model here has")
