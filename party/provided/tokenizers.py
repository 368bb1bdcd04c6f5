"""A tokenizer that was provided, taken apart and written anew from what is known to take any text.

What a tokenizer does with a text is its own affair; that it does it is not: one that fails at some texts tells whoever
made it which texts a party has. So it is made of known parts alone. Its vocabulary has an unknown token, or every byte;
it has no random dropout; regular expressions, which can give up, are those of well-known public models. Padding,
truncation and decoding are left out: nothing here uses them.
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
    """The tokenizer.json that does to texts what a provided one does, made of what was checked.

    vocabulary: tokens that the model knows; numbers are below it. Raises `TrainingError` for a part, a key or a pattern
    that is not known, numbers out of range, and a model of tokens that fails at some texts.
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
    """The tokenizer_config.json that goes with a checked tokenizer.json: its kind, and which tokens are special.

    settings, special: the files tokenizer_config.json and special_tokens_map.json that were provided. All else in them
    is left out: the names of files among it. Raises `TrainingError` for a special token that is not in the tokenizer.
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
