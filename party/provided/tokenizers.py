"""A provided tokenizer, taken apart and rewritten from parts that are known to accept any text.

What a tokenizer makes of a text does not matter here, but it must never fail: a failure on some texts would tell its
author which texts a party has. So it is rebuilt from known parts only. Its vocabulary has an unknown token, or every
byte; it has no random dropout; only regular expressions of well-known public models are accepted, because matching one
can fail. Padding, truncation and decoding are left out: nothing here uses them.
"""

from collections.abc import Callable
from typing import Any, Final

from party.provided.documents import known, parsed, quoted, written, wrong
from party.provided.text_pipelines import flattened, normalizer, post_processor, pre_tokenizer
from party.provided.tokenizer_fields import FILE, Part
from party.provided.vocabularies import added_tokens, token_model

MOST_TOKENS: Final = 1 << 20

SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_SETTINGS: Final = "tokenizer_config.json"


def clean_tokenizer(content: bytes, vocabulary: int) -> bytes:
    """A checked and rewritten tokenizer.json that treats texts as the provided one does.

    vocabulary: number of tokens that the model knows; token numbers are below it. Raises `TrainingError` for an unknown
    part, key or pattern, for numbers out of range, and for a token model that fails at some texts.
    """
    whole = known(
        parsed(content, FILE),
        {
            "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
            "decoder", "model",
        },
        FILE,
    )  # fmt: skip
    most = min(vocabulary, MOST_TOKENS)
    before = _optional(whole.get("normalizer"), normalizer)
    splits = _optional(whole.get("pre_tokenizer"), pre_tokenizer)
    bytewise = any(each["type"] == "ByteLevel" for each in (*flattened(before), *flattened(splits)))
    return written(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens(whole.get("added_tokens") or [], most),
            "normalizer": before,
            "pre_tokenizer": splits,
            "post_processor": _optional(
                whole.get("post_processor"), lambda part, deep: post_processor(part, deep, most)
            ),
            "decoder": None,
            "model": token_model(whole.get("model"), most, bytewise=bytewise),
        }
    )


def clean_settings(tokenizer: bytes, settings: bytes | None, special: bytes | None) -> bytes:
    """The tokenizer_config.json for a checked tokenizer.json: its class, and its special tokens.

    settings, special: the provided files tokenizer_config.json and special_tokens_map.json. Everything else in them is
    left out, including file names. Raises `TrainingError` for a special token that is not in the tokenizer.
    """
    whole = parsed(tokenizer, FILE)
    vocabulary = whole["model"]["vocab"]
    words = set(vocabulary if isinstance(vocabulary, dict) else (piece for piece, _ in vocabulary))
    words |= {each["content"] for each in whole["added_tokens"]}
    kept: dict[str, Any] = {"tokenizer_class": "TokenizersBackend"}
    for content, what in ((settings, _SETTINGS), (special, "special_tokens_map.json")):
        if content is None:
            continue
        given = parsed(content, what)
        if "auto_map" in given:
            raise wrong(what, "names code to run, which is never run")
        for name in SPECIAL:
            token = given.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if token is None:
                continue
            if not isinstance(token, str) or token not in words:
                raise wrong(what, f"names the {name} {quoted(token)}, which is not in the tokenizer's vocabulary")
            kept[name] = token
    return written(kept)


def _optional(given: object, check: Callable[[object, int], Part]) -> Part | None:
    return None if given is None else check(given, 0)
