"""A tokenizer that was provided, taken apart and written anew from what is known to take any text.

What a tokenizer does with a text is its own affair; that it does it is not: one that fails at some texts tells whoever
made it which texts a party has. So it is made of known parts alone. Its vocabulary has an unknown token, or every byte;
it has no random dropout; regular expressions, which can give up, are those of well-known public models. Padding,
truncation and decoding are left out: nothing here uses them.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from party.provided.charsmaps import check_charsmap
from party.provided.documents import is_number, is_whole, known, parsed, quoted, written, wrong

MOST_TOKENS: Final = 1 << 20
LONGEST_TOKEN: Final = 512
MOST_MERGES: Final = 1 << 21
MOST_PARTS: Final = 32
DEEPEST: Final = 4
MOST_WORD: Final = 1000
"""Characters of a word that WordPiece takes apart, at most: the time goes with its square."""

SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_FILE: Final = "tokenizer.json"
_SETTINGS: Final = "tokenizer_config.json"
_SCORE: Final = 1e6

_GPT_2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_BEGINS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_ENDS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3: Final = _BEGINS + r"\p{N}{1,3}" + _ENDS
_QWEN_2: Final = _BEGINS + r"\p{N}" + _ENDS
_SPLITS: Final = frozenset(
    {
        ("Regex", _GPT_2),  # GPT-2, where it is written out
        ("Regex", _LLAMA_3),  # Llama 3
        ("Regex", _QWEN_2),  # Qwen 2, 2.5 and 3
        ("String", " "),  # Gemma
    }
)
_REPLACED: Final = frozenset(
    {
        ("Regex", " {2,}", " "),  # ALBERT, XLNet and DeBERTa-v3, as their SentencePiece models are converted
        ("Regex", " {2,}", "▁"),  # T5 and XLM-RoBERTa, likewise
        ("String", " ", "▁"),  # Llama 2 and Gemma
        ("String", "``", '"'),  # ALBERT and XLNet
        ("String", "''", '"'),  # ALBERT and XLNet
    }
)

_IN_UTF_8: Final = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}

Part = dict[str, Any]


def clean_tokenizer(content: bytes, vocabulary: int) -> bytes:
    """The tokenizer.json that does to texts what a provided one does, made of what was checked.

    vocabulary: tokens that the model knows; numbers are below it. Raises `TrainingError` for a part, a key or a pattern
    that is not known, numbers out of range, and a model of tokens that fails at some texts.
    """
    whole = known(
        parsed(content, _FILE),
        {
            "version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
            "decoder", "model",
        },
        _FILE,
    )  # fmt: skip
    most = min(vocabulary, MOST_TOKENS)
    normalizer = _optional(whole.get("normalizer"), _normalizer)
    pre_tokenizer = _optional(whole.get("pre_tokenizer"), _pre_tokenizer)
    bytewise = any(each["type"] == "ByteLevel" for each in (*_flat(normalizer), *_flat(pre_tokenizer)))
    return written(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added(whole.get("added_tokens") or [], most),
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": _optional(whole.get("post_processor"), lambda part, deep: _processor(part, deep, most)),
            "decoder": None,
            "model": _model(whole.get("model"), most, bytewise=bytewise),
        }
    )


def clean_settings(tokenizer: bytes, settings: bytes | None, special: bytes | None) -> bytes:
    """The tokenizer_config.json that goes with a checked tokenizer.json: its kind, and which tokens are special.

    settings, special: the files tokenizer_config.json and special_tokens_map.json that were provided. All else in them
    is left out: the names of files among it. Raises `TrainingError` for a special token that is not in the tokenizer.
    """
    whole = parsed(tokenizer, _FILE)
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


def _flat(part: Part | None) -> list[Part]:
    if part is None:
        return []
    inside: list[Part] = part.get("normalizers") or part.get("pretokenizers") or []
    return [part, *(each for one in inside for each in _flat(one))]


def _added(given: object, most: int) -> list[Part]:
    if not isinstance(given, list) or len(given) > most:
        raise wrong(_FILE, f"has added tokens that are no list of {most:,} at most")
    marks = ("single_word", "lstrip", "rstrip", "normalized", "special")
    kept = []
    for each in given:
        token = known(each, ("id", "content", *marks), f"added token in {_FILE}")
        _check_token(token.get("content"))
        if not is_whole(token.get("id"), 0, most - 1):
            raise _out_of_range(token.get("content"), token.get("id"), most)
        kept.append({"id": token["id"], "content": token["content"], **_flags(token, marks)})
    return kept


def _model(given: object, most: int, *, bytewise: bool) -> Part:
    kind = given.get("type") if isinstance(given, dict) else None
    models: Mapping[str, Callable[[Part, int], Part]] = {
        "WordPiece": _word_piece,
        "WordLevel": _word_level,
        "Unigram": _unigram,
    }
    if kind == "BPE":
        return _bpe(given, most, bytewise=bytewise)
    if not isinstance(kind, str) or kind not in models:
        raise wrong(_FILE, f"is of the kind {quoted(kind)}; WordPiece, BPE, Unigram and WordLevel are known here")
    assert isinstance(given, dict)
    return models[kind](given, most)


def _word_level(given: Part, most: int) -> Part:
    model = known(given, ("type", "vocab", "unk_token"), f"WordLevel in {_FILE}")
    words = _words(model.get("vocab"), most)
    return {"type": "WordLevel", "vocab": words, "unk_token": _unknown(model.get("unk_token"), words)}


def _word_piece(given: Part, most: int) -> Part:
    keys = ("type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word")
    model = known(given, keys, f"WordPiece in {_FILE}")
    words = _words(model.get("vocab"), most)
    longest = model.get("max_input_chars_per_word", 100)
    if not is_whole(longest, 1, MOST_WORD):
        raise wrong(_FILE, f"takes words of {quoted(longest)} characters apart; {MOST_WORD:,} at most are")
    return {
        "type": "WordPiece",
        "vocab": words,
        "unk_token": _unknown(model.get("unk_token"), words),
        "continuing_subword_prefix": _short(model.get("continuing_subword_prefix", "##")),
        "max_input_chars_per_word": longest,
    }


def _bpe(given: Any, most: int, *, bytewise: bool) -> Part:
    flags = ("fuse_unk", "byte_fallback", "ignore_merges")
    marks = ("continuing_subword_prefix", "end_of_word_suffix")
    model = known(given, ("type", "vocab", "merges", "unk_token", "dropout", *marks, *flags), f"BPE in {_FILE}")
    if model.get("dropout"):
        raise wrong(_FILE, "drops merges at random, so that a text would not be the same tokens twice")
    words = _words(model.get("vocab"), most)
    unknown = model.get("unk_token")
    fallback = bool(model.get("byte_fallback")) and all(f"<0x{each:02X}>" in words for each in range(256))
    if unknown is not None:
        _unknown(unknown, words)
    elif not fallback and not (bytewise and all(_letter(each) in words for each in _IN_UTF_8)):
        raise wrong(_FILE, "has neither an unknown token nor every byte, so that it fails at some texts")
    kept = {mark: None if model.get(mark) is None else _short(model[mark]) for mark in marks}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        **kept,
        **_flags(model, flags),
        "vocab": words,
        "merges": _merges(model.get("merges"), words, kept["continuing_subword_prefix"] or ""),
    }


def _unigram(given: Part, most: int) -> Part:
    model = known(given, ("type", "vocab", "unk_id", "byte_fallback"), f"Unigram in {_FILE}")
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not 1 <= len(pieces) <= most:
        raise wrong(_FILE, f"has no vocabulary of 1 to {most:,} tokens, which the model knows")
    for each in pieces:
        if not isinstance(each, list) or len(each) != 2 or not is_number(each[1], _SCORE):
            raise wrong(_FILE, f"has {quoted(each)} in its vocabulary, which is no token with a finite score")
        _check_token(each[0])
    if not is_whole(model.get("unk_id"), 0, len(pieces) - 1):
        raise wrong(_FILE, "has no unknown token in its vocabulary, so that it fails at some texts")
    return {"type": "Unigram", "unk_id": model["unk_id"], "vocab": pieces, **_flags(model, ("byte_fallback",))}


def _words(given: object, most: int) -> dict[str, int]:
    if not isinstance(given, dict) or not 1 <= len(given) <= most:
        raise wrong(_FILE, f"has no vocabulary of 1 to {most:,} tokens, which the model knows")
    for token, number in given.items():
        _check_token(token)
        if not is_whole(number, 0, most - 1):
            raise _out_of_range(token, number, most)
    return given


def _merges(given: object, words: Mapping[str, int], prefix: str) -> list[list[str]]:
    """Pairs of tokens with what they make. The library cuts the prefix off the second without looking whether it is
    there, and reads past its end where it is not.
    """
    if not isinstance(given, list) or len(given) > MOST_MERGES:
        raise wrong(_FILE, f"has merges that are no list of {MOST_MERGES:,} at most")
    kept = []
    for each in given:
        pair = each.split(" ") if isinstance(each, str) else each
        fits = isinstance(pair, list) and len(pair) == 2
        if not fits or not all(isinstance(one, str) and one in words for one in pair):
            raise wrong(_FILE, f"merges {quoted(each)}, which are no two tokens of its vocabulary")
        if not pair[1].startswith(prefix) or pair[0] + pair[1][len(prefix) :] not in words:
            raise wrong(_FILE, f"merges {quoted(each)} to what is not in its vocabulary")
        kept.append(pair)
    return kept


def _unknown(token: object, words: Mapping[str, int]) -> str:
    if not isinstance(token, str) or token not in words:
        raise wrong(_FILE, "has no unknown token in its vocabulary, so that it fails at some texts")
    return token


def _normalizer(given: object, deep: int) -> Part:
    kind, part = _typed(given, "normalizer", deep)
    match kind:
        case "BertNormalizer":
            found = _keyed(part, ("clean_text", "handle_chinese_chars", "lowercase"), ("strip_accents",))
            accents = part.get("strip_accents")
            return found | {"strip_accents": None if accents is None else _flag(accents)}
        case "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" | "Nmt" | "ByteLevel":
            return _keyed(part, ())
        case "Strip":
            return _keyed(part, ("strip_left", "strip_right"))
        case "Prepend":
            return _keyed(part, (), ("prepend",)) | {"prepend": _short(part.get("prepend"))}
        case "Replace":
            found, (kind_of, pattern) = _keyed(part, (), ("pattern", "content")), _pattern(part)
            if (kind_of, pattern, part.get("content")) not in _REPLACED:
                raise wrong(_FILE, f"replaces {quoted(pattern)}, which no known public model does")
            return found | {"pattern": {kind_of: pattern}, "content": part["content"]}
        case "Precompiled":
            found = _keyed(part, (), ("precompiled_charsmap",))
            return found | {"precompiled_charsmap": _charsmap(part.get("precompiled_charsmap"))}
        case "Sequence":
            return _keyed(part, (), ("normalizers",)) | {"normalizers": _each(part, "normalizers", _normalizer, deep)}
    raise _unheard(kind, "normalizer")


def _pre_tokenizer(given: object, deep: int) -> Part:
    kind, part = _typed(given, "pre-tokenizer", deep)
    match kind:
        case "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" | "UnicodeScripts":
            return _keyed(part, ())
        case "ByteLevel":
            return _byte_level(part)
        case "Metaspace":
            return _metaspace(part)
        case "Punctuation":
            return _keyed(part, (), ("behavior",)) | {"behavior": _behaviour(part.get("behavior", "Isolated"))}
        case "Digits":
            return _keyed(part, ("individual_digits",))
        case "Split":
            found, (kind_of, pattern) = _keyed(part, ("invert",), ("pattern", "behavior")), _pattern(part)
            if (kind_of, pattern) not in _SPLITS:
                raise wrong(_FILE, f"splits texts at {quoted(pattern)}, which no known public model does")
            return found | {"pattern": {kind_of: pattern}, "behavior": _behaviour(part.get("behavior"))}
        case "Sequence":
            inside = _each(part, "pretokenizers", _pre_tokenizer, deep)
            return _keyed(part, (), ("pretokenizers",)) | {"pretokenizers": inside}
    raise _unheard(kind, "pre-tokenizer")


def _processor(given: object, deep: int, most: int) -> Part:
    kind, part = _typed(given, "post-processor", deep)
    match kind:
        case "ByteLevel":
            return _byte_level(part)
        case "BertProcessing" | "RobertaProcessing":
            flags = ("trim_offsets", "add_prefix_space") if kind == "RobertaProcessing" else ()
            found = _keyed(part, flags, ("sep", "cls"))
            return found | {side: _numbered(part.get(side), most) for side in ("sep", "cls")}
        case "TemplateProcessing":
            return _template(part, most)
        case "Sequence":
            inside = _each(part, "processors", lambda each, deeper: _processor(each, deeper, most), deep)
            return _keyed(part, (), ("processors",)) | {"processors": inside}
    raise _unheard(kind, "post-processor")


def _template(part: Part, most: int) -> Part:
    found = _keyed(part, (), ("single", "pair", "special_tokens"))
    special = part.get("special_tokens")
    if not isinstance(special, dict) or len(special) > MOST_PARTS:
        raise wrong(_FILE, f"puts more than {MOST_PARTS} special tokens around texts, or none that can be read")
    tokens = {}
    for name, each in special.items():
        token = known(each, ("id", "ids", "tokens"), f"special token in {_FILE}")
        ids, words = token.get("ids"), token.get("tokens")
        if not isinstance(ids, list) or not isinstance(words, list) or not 1 <= len(ids) == len(words) <= MOST_PARTS:
            raise wrong(_FILE, f"has the special token {quoted(name)}, whose numbers cannot be read")
        kept = [_numbered([word, number], most) for word, number in zip(words, ids, strict=True)]
        tokens[name] = {"id": name, "ids": [number for _, number in kept], "tokens": [word for word, _ in kept]}
        _check_token(name)
    pieces = {}
    for side in ("single", "pair"):
        given = part.get(side)
        if not isinstance(given, list) or not 1 <= len(given) <= MOST_PARTS:
            raise wrong(_FILE, f"has a template of other than 1 to {MOST_PARTS} parts")
        pieces[side] = [_piece(each, tokens) for each in given]
    return found | pieces | {"special_tokens": tokens}


def _piece(given: object, tokens: Mapping[str, Part]) -> Part:
    part = known(given, ("Sequence", "SpecialToken"), f"part of a template in {_FILE}")
    for kind, names in (("Sequence", ("A", "B")), ("SpecialToken", tuple(tokens))):
        if len(part) == 1 and kind in part:
            inside = known(part[kind], ("id", "type_id"), f"part of a template in {_FILE}")
            if inside.get("id") in names and is_whole(inside.get("type_id"), 0, 1):
                return {kind: {"id": inside["id"], "type_id": inside["type_id"]}}
    raise wrong(_FILE, f"has {quoted(given)} in a template, which is no text and no special token of its own")


def _byte_level(part: Part) -> Part:
    return _keyed(part, ("add_prefix_space", "trim_offsets", "use_regex"), absent=True)


def _metaspace(part: Part) -> Part:
    found = _keyed(part, ("split",), ("replacement", "prepend_scheme"), absent=True)
    scheme = part.get("prepend_scheme", "always")
    if scheme not in ("always", "first", "never"):
        raise wrong(_FILE, f"has the prepend_scheme {quoted(scheme)}, which is not known here")
    replacement = part.get("replacement")
    if not isinstance(replacement, str) or len(replacement) != 1:
        raise wrong(_FILE, "replaces spaces by other than one character")
    return found | {"replacement": replacement, "prepend_scheme": scheme}


def _typed(given: object, what: str, deep: int) -> tuple[str, Part]:
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str):
        raise wrong(_FILE, f"has a {what} of no kind")
    if deep > DEEPEST:
        raise wrong(_FILE, f"has a {what} that is more than {DEEPEST} lists deep")
    return kind, given


def _keyed(part: Part, flags: tuple[str, ...], others: tuple[str, ...] = (), *, absent: bool = False) -> Part:
    """The part with its kind and its flags. absent: whether a flag that is not said has the library's default."""
    known(part, ("type", *flags, *others), f"{part['type'][:32]} in {_FILE}")
    present = tuple(flag for flag in flags if flag in part) if absent else flags
    return {"type": part["type"], **_flags(part, present)}


def _each(part: Part, key: str, check: Callable[[object, int], Part], deep: int) -> list[Part]:
    inside = part.get(key)
    if not isinstance(inside, list) or len(inside) > MOST_PARTS:
        raise wrong(_FILE, f"has {key} that are no list of {MOST_PARTS} at most")
    return [check(each, deep + 1) for each in inside]


def _pattern(part: Part) -> tuple[str, str]:
    pattern = known(part.get("pattern"), ("String", "Regex"), f"pattern in {_FILE}")
    if len(pattern) != 1:
        raise wrong(_FILE, "has a pattern that is no single string or regular expression")
    (found,) = pattern.items()
    if not isinstance(found[1], str):
        raise wrong(_FILE, "has a pattern that is no text")
    return found


def _charsmap(given: object) -> str:
    try:
        content = base64.b64decode(given, validate=True) if isinstance(given, str) else b""
    except (binascii.Error, ValueError):
        content = b""
    check_charsmap(content)
    return base64.b64encode(content).decode()


def _numbered(given: object, most: int) -> list[Any]:
    if not isinstance(given, list) or len(given) != 2 or not is_whole(given[1], 0, most - 1):
        raise wrong(_FILE, f"puts {quoted(given)} around texts, which is no token with a number below {most:,}")
    _check_token(given[0])
    return given


def _behaviour(given: object) -> str:
    known_here = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    if given not in known_here:
        raise wrong(_FILE, f"splits by the behavior {quoted(given)}, which is not known here")
    return str(given)


def _flags(part: Part, names: tuple[str, ...]) -> dict[str, bool]:
    return {name: _flag(part.get(name, False)) for name in names}


def _flag(given: object) -> bool:
    if not isinstance(given, bool):
        raise wrong(_FILE, f"has {quoted(given)} where it says true or false")
    return given


def _short(given: object) -> str:
    if not isinstance(given, str) or len(given) > 16:
        raise wrong(_FILE, f"has {quoted(given)} where a mark of 16 characters at most is")
    return given


def _check_token(token: object) -> None:
    if not isinstance(token, str) or not 1 <= len(token) <= LONGEST_TOKEN:
        raise wrong(_FILE, f"has {quoted(token)} for a token, which is no text of 1 to {LONGEST_TOKEN} characters")


def _out_of_range(token: object, number: object, most: int) -> Exception:
    return wrong(_FILE, f"numbers {quoted(token)} {quoted(number)}; the model knows 0 to {most - 1:,}")


def _unheard(kind: str, what: str) -> Exception:
    return wrong(_FILE, f"has a {what} of the kind {quoted(kind)}, which is not known here")


def _letter(byte: int) -> str:
    """The character that stands for a byte in a byte-level vocabulary, as GPT-2 has it: itself where that is shown."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    if byte in shown:
        return chr(byte)
    return chr(256 + sum(1 for each in range(byte) if each not in shown))
