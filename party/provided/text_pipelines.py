"""The parts of a provided tokenizer around its token model: normalizers, pre-tokenizers, post-processors.

Only regular expressions of well-known public models are accepted, because matching one can fail.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

from party.provided.charsmaps import check_charsmap
from party.provided.documents import is_whole, known, quoted, wrong
from party.provided.tokenizer_fields import FILE, Part, check_token, flag, flags_of, short

MOST_PARTS: Final = 32
DEEPEST: Final = 4
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


def flattened(part: Part | None) -> list[Part]:
    """A checked part and all parts inside it."""
    if part is None:
        return []
    inside: list[Part] = part.get("normalizers") or part.get("pretokenizers") or []
    return [part, *(each for one in inside for each in flattened(one))]


def normalizer(given: object, deep: int) -> Part:
    """A checked normalizer, which changes a text before it is split; `deep`: how deeply it is nested. Raises
    `TrainingError`.
    """
    kind, part = _typed(given, "normalizer", deep)
    match kind:
        case "BertNormalizer":
            found = _keyed(part, ("clean_text", "handle_chinese_chars", "lowercase"), ("strip_accents",))
            accents = part.get("strip_accents")
            return found | {"strip_accents": None if accents is None else flag(accents)}
        case "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents" | "Nmt" | "ByteLevel":
            return _keyed(part, ())
        case "Strip":
            return _keyed(part, ("strip_left", "strip_right"))
        case "Prepend":
            return _keyed(part, (), ("prepend",)) | {"prepend": short(part.get("prepend"))}
        case "Replace":
            found, (kind_of, pattern) = _keyed(part, (), ("pattern", "content")), _pattern(part)
            if (kind_of, pattern, part.get("content")) not in _REPLACED:
                raise wrong(FILE, f"replaces {quoted(pattern)}, which no known public model does")
            return found | {"pattern": {kind_of: pattern}, "content": part["content"]}
        case "Precompiled":
            found = _keyed(part, (), ("precompiled_charsmap",))
            return found | {"precompiled_charsmap": _charsmap(part.get("precompiled_charsmap"))}
        case "Sequence":
            return _keyed(part, (), ("normalizers",)) | {"normalizers": _each(part, "normalizers", normalizer, deep)}
    raise _unheard(kind, "normalizer")


def pre_tokenizer(given: object, deep: int) -> Part:
    """A checked pre-tokenizer, which splits a text into words; otherwise as `normalizer`."""
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
                raise wrong(FILE, f"splits texts at {quoted(pattern)}, which no known public model does")
            return found | {"pattern": {kind_of: pattern}, "behavior": _behaviour(part.get("behavior"))}
        case "Sequence":
            inside = _each(part, "pretokenizers", pre_tokenizer, deep)
            return _keyed(part, (), ("pretokenizers",)) | {"pretokenizers": inside}
    raise _unheard(kind, "pre-tokenizer")


def post_processor(given: object, deep: int, most: int) -> Part:
    """A checked post-processor, which adds special tokens with numbers below `most`; otherwise as `normalizer`."""
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
            inside = _each(part, "processors", lambda each, deeper: post_processor(each, deeper, most), deep)
            return _keyed(part, (), ("processors",)) | {"processors": inside}
    raise _unheard(kind, "post-processor")


def _template(part: Part, most: int) -> Part:
    found = _keyed(part, (), ("single", "pair", "special_tokens"))
    special = part.get("special_tokens")
    if not isinstance(special, dict) or len(special) > MOST_PARTS:
        raise wrong(FILE, f"puts more than {MOST_PARTS} special tokens around texts, or none that can be read")
    tokens = {}
    for name, each in special.items():
        token = known(each, ("id", "ids", "tokens"), f"special token in {FILE}")
        ids, words = token.get("ids"), token.get("tokens")
        if not isinstance(ids, list) or not isinstance(words, list) or not 1 <= len(ids) == len(words) <= MOST_PARTS:
            raise wrong(FILE, f"has the special token {quoted(name)}, whose numbers cannot be read")
        kept = [_numbered([word, number], most) for word, number in zip(words, ids, strict=True)]
        tokens[name] = {"id": name, "ids": [number for _, number in kept], "tokens": [word for word, _ in kept]}
        check_token(name)
    pieces = {}
    for side in ("single", "pair"):
        given = part.get(side)
        if not isinstance(given, list) or not 1 <= len(given) <= MOST_PARTS:
            raise wrong(FILE, f"has a template of other than 1 to {MOST_PARTS} parts")
        pieces[side] = [_piece(each, tokens) for each in given]
    return found | pieces | {"special_tokens": tokens}


def _piece(given: object, tokens: Mapping[str, Part]) -> Part:
    part = known(given, ("Sequence", "SpecialToken"), f"part of a template in {FILE}")
    for kind, names in (("Sequence", ("A", "B")), ("SpecialToken", tuple(tokens))):
        if len(part) == 1 and kind in part:
            inside = known(part[kind], ("id", "type_id"), f"part of a template in {FILE}")
            if inside.get("id") in names and is_whole(inside.get("type_id"), 0, 1):
                return {kind: {"id": inside["id"], "type_id": inside["type_id"]}}
    raise wrong(FILE, f"has {quoted(given)} in a template, which is no text and no special token of its own")


def _byte_level(part: Part) -> Part:
    return _keyed(part, ("add_prefix_space", "trim_offsets", "use_regex"), absent=True)


def _metaspace(part: Part) -> Part:
    found = _keyed(part, ("split",), ("replacement", "prepend_scheme"), absent=True)
    scheme = part.get("prepend_scheme", "always")
    if scheme not in ("always", "first", "never"):
        raise wrong(FILE, f"has the prepend_scheme {quoted(scheme)}, which is not known here")
    replacement = part.get("replacement")
    if not isinstance(replacement, str) or len(replacement) != 1:
        raise wrong(FILE, "replaces spaces by other than one character")
    return found | {"replacement": replacement, "prepend_scheme": scheme}


def _typed(given: object, what: str, deep: int) -> tuple[str, Part]:
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(kind, str):
        raise wrong(FILE, f"has a {what} of no kind")
    if deep > DEEPEST:
        raise wrong(FILE, f"has a {what} that is more than {DEEPEST} lists deep")
    return kind, given


def _keyed(part: Part, flags: tuple[str, ...], others: tuple[str, ...] = (), *, absent: bool = False) -> Part:
    """The part with its kind and its flags. absent: whether a missing flag has the library's default."""
    known(part, ("type", *flags, *others), f"{part['type'][:32]} in {FILE}")
    present = tuple(flag for flag in flags if flag in part) if absent else flags
    return {"type": part["type"], **flags_of(part, present)}


def _each(part: Part, key: str, check: Callable[[object, int], Part], deep: int) -> list[Part]:
    inside = part.get(key)
    if not isinstance(inside, list) or len(inside) > MOST_PARTS:
        raise wrong(FILE, f"has {key} that are no list of {MOST_PARTS} at most")
    return [check(each, deep + 1) for each in inside]


def _pattern(part: Part) -> tuple[str, str]:
    pattern = known(part.get("pattern"), ("String", "Regex"), f"pattern in {FILE}")
    if len(pattern) != 1:
        raise wrong(FILE, "has a pattern that is no single string or regular expression")
    (found,) = pattern.items()
    if not isinstance(found[1], str):
        raise wrong(FILE, "has a pattern that is no text")
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
        raise wrong(FILE, f"puts {quoted(given)} around texts, which is no token with a number below {most:,}")
    check_token(given[0])
    return given


def _behaviour(given: object) -> str:
    known_here = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    if given not in known_here:
        raise wrong(FILE, f"splits by the behavior {quoted(given)}, which is not known here")
    return str(given)


def _unheard(kind: str, what: str) -> Exception:
    return wrong(FILE, f"has a {what} of the kind {quoted(kind)}, which is not known here")
