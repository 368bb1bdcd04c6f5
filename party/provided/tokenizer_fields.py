"""Fields that all parts of a provided tokenizer.json share: flags, marks, tokens."""

from typing import Any, Final

from party.provided.documents import quoted, wrong

FILE: Final = "tokenizer.json"
LONGEST_TOKEN: Final = 512

Part = dict[str, Any]


def flags_of(part: Part, names: tuple[str, ...]) -> dict[str, bool]:
    """These flags of a part, false where missing. Raises `TrainingError`, as all functions here do."""
    return {name: flag(part.get(name, False)) for name in names}


def flag(given: object) -> bool:
    """A boolean flag."""
    if not isinstance(given, bool):
        raise wrong(FILE, f"has {quoted(given)} where it says true or false")
    return given


def short(given: object) -> str:
    """A short mark before or after tokens."""
    if not isinstance(given, str) or len(given) > 16:
        raise wrong(FILE, f"has {quoted(given)} where a mark of 16 characters at most is")
    return given


def check_token(token: object) -> None:
    """Check that a token is a text, neither empty nor too long."""
    if not isinstance(token, str) or not 1 <= len(token) <= LONGEST_TOKEN:
        raise wrong(FILE, f"has {quoted(token)} for a token, which is no text of 1 to {LONGEST_TOKEN} characters")
