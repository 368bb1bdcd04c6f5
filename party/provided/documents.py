"""JSON that a coordinator provided, read as hostile: of bounded size, of the expected types, and quoted briefly."""

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from party.errors import TrainingError

MOST_BYTES: Final = 64 * 2**20
"""The most bytes of one JSON file. The largest public tokenizers take 40 MB."""


def parsed(content: bytes, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises `TrainingError` for anything else, for example half a surrogate pair."""
    if len(content) > MOST_BYTES:
        raise wrong(what, f"has {len(content):,} bytes; {MOST_BYTES:,} at most are read")
    try:
        text = content.decode()
        found = json.loads(text)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # JSON, its numbers, and UTF-8 that are none
        raise wrong(what, "is no JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise wrong(what, "is no JSON object")
    return found


def written(document: Mapping[str, Any]) -> bytes:
    """The JSON bytes of a checked value. Numbers in it are finite."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def known(given: object, keys: Collection[str], what: str) -> dict[str, Any]:
    """An object with no keys but these. Raises `TrainingError`."""
    if not isinstance(given, dict):
        raise wrong(what, "is no JSON object")
    odd = next((key for key in given if key not in keys), None)
    if odd is not None:
        raise wrong(what, f"has the key {quoted(odd)}, which is not known here")
    return given


def is_whole(given: object, low: int, high: int) -> bool:
    """Whether a value is an integer from low to high, both included; booleans are not."""
    return isinstance(given, int) and not isinstance(given, bool) and low <= given <= high


def is_number(given: object, most: float) -> bool:
    """Whether a value is a finite number of absolute value at most `most`."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        return False
    return abs(given) <= most and math.isfinite(given)


def quoted(given: object) -> str:
    """A value as it is quoted in a sentence: short, with every character printable."""
    return ascii(given)[:64]


def wrong(what: str, how: str) -> TrainingError:
    """The error for a file that is not accepted."""
    return TrainingError(f"the {what} that was provided {how}. Provide a public model's own file.")
