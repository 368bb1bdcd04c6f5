"""What is wrong with a settings file, as a sentence. It imports nothing: a command shows its help without pydantic."""

from typing import Final

LONGEST: Final = 1000
"""The most characters of a sentence about a settings file."""


class SettingsError(ValueError):
    """A settings file that cannot be used. The message is a complete sentence; code: of the page that says more."""

    def __init__(self, sentence: str, *, code: str = "C105") -> None:
        super().__init__(sentence)
        self.code = code


def printable(text: str) -> str:
    """A sentence as a terminal may print it: on one line, without control characters, whatever a file contains."""
    text = "".join(each if each.isprintable() else "?" for each in text[: LONGEST + 1])
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
