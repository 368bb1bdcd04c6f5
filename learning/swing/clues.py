"""Privacy clue words: a file of them, and where they stand in texts and in tokens.

Clues are found in text, never in tokens: a tokenizer may cut a word anywhere. A token is a clue if a character of it is
one of a clue's. One regular expression looks for all entries in one pass. At every place where some entry's first word
begins, each entry that begins so is looked for on its own, so that no clue hides another.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.language.generation import Texts
from learning.swing.pieces import Pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CATEGORIES: Final = ("personal", "contact", "location", "network")
SHIPPED: Final = Path(__file__).with_name("clues.toml")
GAP: Final = 5
"""The most words in a gap where the file does not say."""
LARGEST_GAP: Final = 20
_DOTS: Final = "..."
_WORD: Final = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Clues:
    """Privacy clue words of four categories. Paper: the dictionary P of section 3.2, appendix C.

    gap: the most words that " ... " in an entry stands for. Raises `ConclaveError` for no entry at all, one that is
    empty, repeated, or has a gap at its end, and for a gap out of range.
    """

    personal: tuple[str, ...] = ()
    contact: tuple[str, ...] = ()
    location: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    gap: int = GAP

    def __post_init__(self) -> None:
        if isinstance(self.gap, bool) or not isinstance(self.gap, int) or not 0 <= self.gap <= LARGEST_GAP:
            raise ConclaveError(f"A gap of {self.gap!r} words makes no sense. Give a whole number, 0 to {LARGEST_GAP}.")
        seen: dict[str, str] = {}
        for category in CATEGORIES:
            for entry in getattr(self, category):
                if not entry.strip():
                    raise ConclaveError(f"{category} has an empty entry, which would be found everywhere. Remove it.")
                segments = _segments(entry)
                if not all(segments):
                    raise ConclaveError(
                        f"{entry[:60]!r} begins or ends with a gap, or has two in a row. Put a word on either side of "
                        "each gap."
                    )
                key = f" {_DOTS} ".join(" ".join(words) for words in segments)
                if key in seen:
                    raise ConclaveError(f"{entry[:60]!r} of {category} is in {seen[key]} already. Remove one.")
                seen[key] = category
        if not seen:
            raise ConclaveError("There is no clue word at all. Give one or more.")

    @property
    def entries(self) -> tuple[str, ...]:
        """All entries, one category after the other."""
        return (*self.personal, *self.contact, *self.location, *self.network)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where clues stand in a text: the first character of each and the one after its last, in order of the first.

        A clue with a gap has a span for each of its sides. Spans may overlap.
        """
        pattern, groups = _compiled(self)
        found = []
        for match in pattern.finditer(text):
            if match.lastindex is None:
                continue
            regs = match.regs
            for group in groups[match.lastindex]:
                start, stop = regs[group]
                if start >= 0:
                    found.append((start, stop))
        return sorted(found)


def read(path: Path = SHIPPED) -> Clues:
    """Clue words of a TOML file: a list of texts for each category, and perhaps `gap`.

    Raises `ConclaveError`: as `Clues`, for a file that is not there, is no TOML, or has other things in it.
    """
    try:
        told: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConclaveError(f"The clue words {path} cannot be read: {error.strerror}. Give a file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConclaveError(f"{path} is no TOML: {error}. Compare it with {SHIPPED.name}, which is shipped.") from None
    gap = told.pop("gap", GAP)
    for category, entries in told.items():
        if category not in CATEGORIES:
            raise ConclaveError(f"{path}: {category[:40]!r} is no category of clue words; use {', '.join(CATEGORIES)}.")
        if not (isinstance(entries, list) and all(isinstance(entry, str) for entry in entries)):
            raise ConclaveError(f'{path}: {category} must be a list of texts, such as ["name", "@"].')
    try:
        return Clues(**{category: tuple(entries) for category, entries in told.items()}, gap=gap)
    except ConclaveError as error:
        raise ConclaveError(f"{path}: {error}") from None


def marked(clues: Clues, texts: Texts, tokenizer: "PreTrainedTokenizerBase") -> NDArray[np.bool_]:
    """Which tokens of some texts are clues: bool [tokens], in the order of `Texts.ids`.

    Texts are arrays of token numbers, which are read as the tokenizer writes them, exactly to the byte. Raises
    `ConclaveError` for a tokenizer whose tokens cannot be read so (see `Pieces`).
    """
    pieces = Pieces.of(tokenizer)
    found = np.zeros(len(texts.ids), np.bool_)
    for place, ids in enumerate(texts):
        text, starts, places = pieces.read(ids)
        begin = int(texts.stops[place])
        spans = [(int(places[first]), int(places[stop])) for first, stop in clues.spans(text)]
        found[begin : begin + len(ids)] = covered(spans, starts)
    return found


def encoded(
    clues: Clues, texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", **settings: Any
) -> list[tuple[list[int], NDArray[np.bool_]]]:
    """Texts as token numbers, and which of these are clues [length], by the offsets that a fast tokenizer gives.

    settings: as of a call of the tokenizer. Raises `ConclaveError` for a tokenizer that gives no offsets.
    """
    if not tokenizer.is_fast:
        raise ConclaveError(
            f"{type(tokenizer).__name__} does not say where its tokens stand in a text. Use a fast tokenizer."
        )
    found = tokenizer(list(texts), return_offsets_mapping=True, verbose=False, **settings)
    result = []
    for text, ids, offsets in zip(texts, found["input_ids"], found["offset_mapping"], strict=True):
        inside = np.zeros(len(text) + 1, np.int64)
        for start, stop in clues.spans(text):
            inside[start:stop] = 1
        before = np.concatenate([[0], np.cumsum(inside)])
        places = np.array(offsets, np.int64).reshape(-1, 2)
        result.append((list(ids), before[places[:, 1]] > before[places[:, 0]]))
    return result


def covered(spans: Iterable[tuple[int, int]], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which tokens have a byte of a span: bool [length].

    starts: the first byte of each token and, last, the end of the text [length + 1]; they never fall.
    """
    found = np.zeros(len(starts) - 1, np.bool_)
    for start, stop in spans:
        first = int(np.searchsorted(starts, start, side="right")) - 1
        last = int(np.searchsorted(starts, stop, side="left"))
        found[first:last] = True
    return found & (starts[1:] > starts[:-1])


@lru_cache(maxsize=8)
def _compiled(clues: Clues) -> tuple[re.Pattern[str], dict[int, tuple[int, ...]]]:
    """The expression, and for each of its groups all groups of the same branch: only these can have matched.

    A branch is for one first word. It is empty in width: one character is consumed at a time, so that a clue that
    begins inside another is found too. Of two first words that match at one place the shorter begins the longer;
    longer ones are tried first, and a branch looks for the entries of every first word that begins its own.
    """
    split = sorted(_segments(entry) for entry in clues.entries)
    by_letter: dict[str, list[str]] = {}
    for first in sorted({segments[0][0] for segments in split}, key=lambda word: (-len(word), word)):
        by_letter.setdefault(first[0], []).append(first)
    order = sorted(by_letter, key=lambda letter: (not _WORD.match(letter), letter))
    number, groups, letters = 0, {}, []
    for letter in order:
        branches = []
        for first in by_letter[letter]:
            parts, before = [], number
            for segments in split:
                if first.startswith(segments[0][0]):
                    parts.append(f"(?:(?={_entry(segments, clues.gap)})|)")
                    number += len(segments)
            own = tuple(range(before + 1, number + 1))
            groups.update(dict.fromkeys(own, own))
            branches.append(f"(?={_bounded([first])}){''.join(parts)}")
        # One letter is compared before the branches of that letter, which spares most places nearly all of them.
        letters.append(f"(?={re.escape(letter)})(?:{'|'.join(branches)})")
    words = [each for letter, each in zip(order, letters, strict=True) if _WORD.match(letter)]
    symbols = letters[len(words) :]
    # Most places are inside a word, where no entry that begins with a letter can begin.
    sides = [rf"(?<!\w)(?:{'|'.join(words)})"] * bool(words) + symbols
    return re.compile(f"(?:{'|'.join(sides)}).", re.IGNORECASE | re.DOTALL), groups


def _entry(segments: Sequence[Sequence[str]], most: int) -> str:
    """An expression for an entry, each of its segments a group."""
    gap = rf"[^\w\s]*+(?:\s++\S++){{0,{most}}}?\s++"
    return gap.join(f"({_bounded(words)})" for words in segments)


def _segments(entry: str) -> list[list[str]]:
    """An entry's words on each side of its gaps, in lower case."""
    words = entry.lower().split()
    cuts = [-1, *(place for place, word in enumerate(words) if word == _DOTS), len(words)]
    return [words[start + 1 : stop] for start, stop in pairwise(cuts)]


def _bounded(words: Sequence[str]) -> str:
    """An expression for words in a row, with a boundary on a side that is a letter or a digit."""
    left = r"(?<!\w)" if _WORD.match(words[0]) else ""
    right = r"(?!\w)" if _WORD.match(words[-1][-1]) else ""
    return left + r"\s+".join(re.escape(word) for word in words) + right
