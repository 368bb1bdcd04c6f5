"""Public texts that were provided to a party: a JSON list of texts, or of lists of two."""

import json
from pathlib import Path
from typing import Any

from party.errors import TrainingError


def public_texts(path: Path, *, pairs: bool) -> list[Any]:
    """The texts in a file, or its lists of two, in order. Memory: the texts, and the file's bytes while it is read.

    Raises `TrainingError` for a file with anything else, or without texts.
    """
    found = listed(path)
    if not all(_is_pair(each) if pairs else is_text(each) for each in found):
        found = []
    if not found:
        wanted = "lists of two texts" if pairs else "texts"
        raise TrainingError(f"the texts that were provided are no JSON list of {wanted}. Start the run again.")
    return found


def listed(path: Path) -> list[Any]:
    """The JSON list in a file, whatever its entries are; empty where there is none."""
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def is_text(each: object) -> bool:
    """Whether a JSON value is a valid text: JSON can spell half a surrogate pair, which no tokenizer takes."""
    if not isinstance(each, str):
        return False
    try:
        each.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_pair(each: object) -> bool:
    return isinstance(each, list) and len(each) == 2 and all(map(is_text, each))
