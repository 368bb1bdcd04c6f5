"""What each token of a tokenizer writes: its bytes, so that a place in a text is a place among its tokens, exactly."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aggregation.errors import ConclaveError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPACE: Final = "\u2581"
"""What stands for a space in the tokens of SentencePiece."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The bytes that each token writes, b"" for those that write nothing, such as an end token.

    It knows byte-level tokenizers (GPT-2, BART, Llama 3) and SentencePiece's (T5, Llama 2), whose tokens stand for
    bytes one after the other. Others, such as WordPiece, guess at spaces.
    """

    written: tuple[bytes, ...]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> "Pieces":
        """Of a tokenizer. Raises `ConclaveError` for one whose tokens do not stand for bytes."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        told = json.loads(backend.to_str()) if backend is not None else {}
        # A party's copy of a tokenizer only reads, and has no decoder.
        kinds = _kinds(told.get("decoder")) | _kinds(told.get("pre_tokenizer"))
        if "ByteLevel" in kinds:
            table = {letter: value for value, letter in _letters().items()}
        elif kinds & {"Metaspace", "ByteFallback"} or any(each == f"Replace {_SPACE}" for each in kinds):
            table = None
        else:
            raise ConclaveError(
                f"{type(tokenizer).__name__} does not say what bytes its tokens stand for, so clue words cannot be "
                "found in them. Use a model with a byte-level tokenizer, such as GPT-2 or BART, or SentencePiece's."
            )
        special, added = set(tokenizer.all_special_ids), tokenizer.get_added_vocab()
        written = [b""] * (max(tokenizer.get_vocab().values()) + 1)
        for token, number in tokenizer.get_vocab().items():
            if number not in special:
                written[number] = token.encode() if token in added else _bytes(token, table)
        return cls(tuple(written))

    def read(self, ids: NDArray[np.int32]) -> tuple[str, NDArray[np.int64], NDArray[np.int64]]:
        """A text of its tokens; where each of these begins, with the end last, int64 [length + 1]; and where each of
        its characters does, likewise [characters + 1]: both in bytes.

        A byte that is of no character in UTF-8 becomes one that stands for no letter. A number that no token has writes
        nothing.
        """
        known = len(self.written)
        parts = [self.written[number] if number < known else b"" for number in ids.tolist()]
        text = b"".join(parts).decode("utf-8", "surrogateescape")
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        sizes = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
        sizes[(codes >= 0xDC80) & (codes <= 0xDCFF)] = 1  # what "surrogateescape" makes of a byte
        return text, _begins([len(each) for each in parts]), _begins(sizes)


def _begins(sizes: ArrayLike) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def _bytes(token: str, table: dict[str, int] | None) -> bytes:
    if table is not None:
        return bytes(table[letter] for letter in token) if all(letter in table for letter in token) else token.encode()
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()


def _kinds(decoder: Any) -> frozenset[str]:
    """The kinds of the steps of a decoder or pre-tokenizer."""
    if not isinstance(decoder, dict):
        return frozenset()
    if decoder.get("type") == "Sequence":
        return frozenset().union(
            *(_kinds(each) for name in ("decoders", "pretokenizers") for each in decoder.get(name, []))
        )
    if decoder.get("type") == "Replace":
        return frozenset({f"Replace {decoder.get('pattern', {}).get('String')}"})
    return frozenset({str(decoder.get("type"))})


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level tokens (Radford et al. 2019): itself where it is seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {value: chr(value) for value in seen}
    others = (value for value in range(256) if value not in letters)
    return letters | {value: chr(256 + place) for place, value in enumerate(others)}
