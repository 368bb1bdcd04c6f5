"""Words: how text is split into them, and the public vocabulary of those that are counted."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from learning.errors import DataError

UNKNOWN = -1
MAXIMUM_WORDS = 1_000_000

WORD = r"[^\W\d_]+(?:['’][^\W\d_]+)*"
"""A word in lower-case text: a run of letters, with apostrophes inside."""

_WORD = re.compile(WORD)
_BREAK = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'”’)\]])\s+|\n\s*\n")
_FORMAT = "conclave.vocabulary/1"


def tokenize(text: str) -> list[str]:
    """Split text into lower-case words: runs of letters, with apostrophes inside (`don't`). Digits and `_` separate."""
    return [word.replace("’", "'") for word in _WORD.findall(text.lower())]


def sentences(text: str) -> list[str]:
    """Split text after `.`, `!` or `?` before white space, and at blank lines: a rule of thumb."""
    return [part.strip() for part in _BREAK.split(text) if part.strip()]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that are counted, most frequent first. It is public: never make it from private text without a charge.

    words: distinct, each what `tokenize` makes of itself. Raises `DataError` otherwise.
    """

    words: tuple[str, ...]
    _index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.words) <= MAXIMUM_WORDS:
            raise DataError(f"A vocabulary has 1 to {MAXIMUM_WORDS:,} words, not {len(self.words):,}.")
        index = {word: position for position, word in enumerate(self.words)}
        if len(index) != len(self.words):
            twice = next(word for word, times in Counter(self.words).items() if times > 1)
            raise DataError(f"The vocabulary has {twice[:80]!r} twice.")
        broken = next((word for word in self.words if tokenize(word) != [word]), None)
        if broken is not None:
            raise DataError(f"The vocabulary has {broken[:80]!r}, which is not one lower-case word.")
        object.__setattr__(self, "_index", index)

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._index

    def position(self, word: str) -> int:
        """Where a word stands, or -1."""
        return self._index.get(word, UNKNOWN)

    def encode(self, tokens: Sequence[str]) -> NDArray[np.int32]:
        """Turn words into positions [tokens]; -1 for a word that is not in the vocabulary."""
        get = self._index.get
        return np.fromiter((get(token, UNKNOWN) for token in tokens), dtype=np.int32, count=len(tokens))

    def to_bytes(self) -> bytes:
        """Write as canonical JSON in UTF-8: the same words give the same bytes everywhere."""
        document = {"format": _FORMAT, "words": list(self.words)}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()

    @property
    def sha256(self) -> bytes:
        """The digest by which both ends name this vocabulary: 32 bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Vocabulary":
        """Read what `to_bytes` wrote. Raises `DataError` for anything else, other JSON spellings included."""
        try:
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError("The vocabulary is not JSON.") from error
        words = document.get("words") if isinstance(document, dict) and document.get("format") == _FORMAT else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"The vocabulary is not of the form {_FORMAT} with a list of words.")
        vocabulary = cls(tuple(words))
        if vocabulary.to_bytes() != content:
            raise DataError("The vocabulary is not canonical JSON, so its digest would not be unique.")
        return vocabulary

    @classmethod
    def from_public(cls, texts: Iterable[str], size: int) -> "Vocabulary":
        """Take the `size` most frequent words of PUBLIC text, ties in alphabetical order; fewer if it has fewer.

        There is no privacy in this: which words are frequent in private text is private.
        Raises `DataError` when the text has no word at all.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(tokenize(text))
        ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls(tuple(word for word, _ in ordered[:size]))
