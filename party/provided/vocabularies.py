"""The token model of a provided tokenizer: its vocabulary, and a way to split words that cannot fail."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from party.provided.documents import is_number, is_whole, known, quoted, wrong
from party.provided.tokenizer_fields import FILE, Part, check_token, flags_of, short

MOST_MERGES: Final = 1 << 21
MOST_WORD: Final = 1000
"""The most characters of a word that WordPiece splits: the time grows with their square."""
_SCORE: Final = 1e6
_IN_UTF_8: Final = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}


def added_tokens(given: object, most: int) -> list[Part]:
    """The tokens besides the vocabulary, with numbers below `most`. Raises `TrainingError`."""
    if not isinstance(given, list) or len(given) > most:
        raise wrong(FILE, f"has added tokens that are no list of {most:,} at most")
    marks = ("single_word", "lstrip", "rstrip", "normalized", "special")
    kept = []
    for each in given:
        token = known(each, ("id", "content", *marks), f"added token in {FILE}")
        check_token(token.get("content"))
        if not is_whole(token.get("id"), 0, most - 1):
            raise _out_of_range(token.get("content"), token.get("id"), most)
        kept.append({"id": token["id"], "content": token["content"], **flags_of(token, marks)})
    return kept


def token_model(given: object, most: int, *, bytewise: bool) -> Part:
    """The token model, with numbers below `most`. Raises `TrainingError` for one that fails at some texts.

    bytewise: whether its input is bytes, each as one character.
    """
    kind = given.get("type") if isinstance(given, dict) else None
    models: Mapping[str, Callable[[Part, int], Part]] = {
        "WordPiece": _word_piece,
        "WordLevel": _word_level,
        "Unigram": _unigram,
    }
    if kind == "BPE":
        return _bpe(given, most, bytewise=bytewise)
    if not isinstance(kind, str) or kind not in models:
        raise wrong(FILE, f"is of the kind {quoted(kind)}; WordPiece, BPE, Unigram and WordLevel are known here")
    assert isinstance(given, dict)
    return models[kind](given, most)


def _word_level(given: Part, most: int) -> Part:
    model = known(given, ("type", "vocab", "unk_token"), f"WordLevel in {FILE}")
    words = _words(model.get("vocab"), most)
    return {"type": "WordLevel", "vocab": words, "unk_token": _unknown(model.get("unk_token"), words)}


def _word_piece(given: Part, most: int) -> Part:
    keys = ("type", "vocab", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word")
    model = known(given, keys, f"WordPiece in {FILE}")
    words = _words(model.get("vocab"), most)
    longest = model.get("max_input_chars_per_word", 100)
    if not is_whole(longest, 1, MOST_WORD):
        raise wrong(FILE, f"takes words of {quoted(longest)} characters apart; {MOST_WORD:,} at most are")
    return {
        "type": "WordPiece",
        "vocab": words,
        "unk_token": _unknown(model.get("unk_token"), words),
        "continuing_subword_prefix": short(model.get("continuing_subword_prefix", "##")),
        "max_input_chars_per_word": longest,
    }


def _bpe(given: Any, most: int, *, bytewise: bool) -> Part:
    flags = ("fuse_unk", "byte_fallback", "ignore_merges")
    marks = ("continuing_subword_prefix", "end_of_word_suffix")
    model = known(given, ("type", "vocab", "merges", "unk_token", "dropout", *marks, *flags), f"BPE in {FILE}")
    if model.get("dropout"):
        raise wrong(FILE, "drops merges at random, so that a text would not be the same tokens twice")
    words = _words(model.get("vocab"), most)
    unknown = model.get("unk_token")
    fallback = bool(model.get("byte_fallback")) and all(f"<0x{each:02X}>" in words for each in range(256))
    if unknown is not None:
        _unknown(unknown, words)
    elif not fallback and not (bytewise and all(_letter(each) in words for each in _IN_UTF_8)):
        raise wrong(FILE, "has neither an unknown token nor every byte, so that it fails at some texts")
    kept = {mark: None if model.get(mark) is None else short(model[mark]) for mark in marks}
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        **kept,
        **flags_of(model, flags),
        "vocab": words,
        "merges": _merges(model.get("merges"), words, kept["continuing_subword_prefix"] or ""),
    }


def _unigram(given: Part, most: int) -> Part:
    model = known(given, ("type", "vocab", "unk_id", "byte_fallback"), f"Unigram in {FILE}")
    pieces = model.get("vocab")
    if not isinstance(pieces, list) or not 1 <= len(pieces) <= most:
        raise wrong(FILE, f"has no vocabulary of 1 to {most:,} tokens, which the model knows")
    for each in pieces:
        if not isinstance(each, list) or len(each) != 2 or not is_number(each[1], _SCORE):
            raise wrong(FILE, f"has {quoted(each)} in its vocabulary, which is no token with a finite score")
        check_token(each[0])
    if not is_whole(model.get("unk_id"), 0, len(pieces) - 1):
        raise wrong(FILE, "has no unknown token in its vocabulary, so that it fails at some texts")
    return {"type": "Unigram", "unk_id": model["unk_id"], "vocab": pieces, **flags_of(model, ("byte_fallback",))}


def _words(given: object, most: int) -> dict[str, int]:
    if not isinstance(given, dict) or not 1 <= len(given) <= most:
        raise wrong(FILE, f"has no vocabulary of 1 to {most:,} tokens, which the model knows")
    for token, number in given.items():
        check_token(token)
        if not is_whole(number, 0, most - 1):
            raise _out_of_range(token, number, most)
    return given


def _merges(given: object, words: Mapping[str, int], prefix: str) -> list[list[str]]:
    """Pairs of tokens with the token that each makes.

    The library cuts the prefix off the second token without a check, and reads past its end where there is none.
    """
    if not isinstance(given, list) or len(given) > MOST_MERGES:
        raise wrong(FILE, f"has merges that are no list of {MOST_MERGES:,} at most")
    kept = []
    for each in given:
        pair = each.split(" ") if isinstance(each, str) else each
        fits = isinstance(pair, list) and len(pair) == 2
        if not fits or not all(isinstance(one, str) and one in words for one in pair):
            raise wrong(FILE, f"merges {quoted(each)}, which are no two tokens of its vocabulary")
        if not pair[1].startswith(prefix) or pair[0] + pair[1][len(prefix) :] not in words:
            raise wrong(FILE, f"merges {quoted(each)} to what is not in its vocabulary")
        kept.append(pair)
    return kept


def _unknown(token: object, words: Mapping[str, int]) -> str:
    if not isinstance(token, str) or token not in words:
        raise wrong(FILE, "has no unknown token in its vocabulary, so that it fails at some texts")
    return token


def _out_of_range(token: object, number: object, most: int) -> Exception:
    return wrong(FILE, f"numbers {quoted(token)} {quoted(number)}; the model knows 0 to {most - 1:,}")


def _letter(byte: int) -> str:
    """The character for a byte in a byte-level vocabulary, as in GPT-2: the byte's own where it is printable."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    if byte in shown:
        return chr(byte)
    return chr(256 + sum(1 for each in range(byte) if each not in shown))
