"""What is to be written, or was written, as it was provided: openings, codes, and texts of tokens, as JSON."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from party.errors import TrainingError

MOST_TOKENS: Final = 1 << 31
_KEYS: Final = {"openings", "codes", "texts"}


@dataclass(frozen=True, slots=True)
class Written:
    """openings: for each control code, the tokens before a text. codes: the code of each text. texts: their tokens;
    empty where they are still to be written.
    """

    openings: list[list[int]]
    codes: list[int]
    texts: list[list[int]]

    @property
    def longest_opening(self) -> int:
        """Tokens of the longest opening."""
        return max(map(len, self.openings))

    @property
    def largest(self) -> int:
        """The largest number of a token."""
        return max(max(each) for each in (*self.openings, *self.texts))

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.texts))

    @property
    def before(self) -> list[list[int]]:
        """What stands before each text."""
        return [self.openings[code] for code in self.codes]


def written(path: Path, *, texts: bool, part: tuple[int, int] = (0, 1)) -> Written:
    """The openings, codes and, where texts are expected, texts in a file.

    part: of codes alone, which of how many parts is wanted: codes are dealt out in turn.
    Memory: some 30 bytes a token. Raises `TrainingError` for a file that holds anything else.
    """
    found = _object(path)
    wanted = _KEYS if texts else _KEYS - {"texts"}
    openings: Any = found.get("openings")
    codes: Any = found.get("codes")
    given: Any = found.get("texts", [])
    if (
        set(found) != wanted
        or not _are_texts(openings)
        or not isinstance(codes, list)
        or len(codes) < part[1]
        or not all(_is_number(each, len(openings)) for each in codes)
        or (texts and not (_are_texts(given) and len(given) == len(codes)))
    ):
        what = "openings, codes and texts" if texts else "openings and codes"
        raise TrainingError(f"what was provided as written is no JSON object of {what}. Start the run again.")
    number, parts = part
    return Written(openings, codes[number::parts], given)


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _are_texts(found: Any) -> bool:
    """Whether a JSON value is a list of texts as tokens, one text or more, none without a token."""
    return (
        isinstance(found, list)
        and bool(found)
        and all(isinstance(each, list) and each for each in found)
        and all(_is_number(token, MOST_TOKENS) for each in found for token in each)
    )


def _is_number(found: Any, most: int) -> bool:
    return type(found) is int and 0 <= found < most
