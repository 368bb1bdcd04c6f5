"""Questions at a terminal, and answers that can be read."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from coordinator.console import shown

Answer = TypeVar("Answer")


def asked(question: str, usual: str, read: Callable[[str], Answer]) -> Answer:
    """Ask until the answer can be read. read: raises ValueError, whose sentence is shown."""
    while True:
        answer = input(f"{question}{f' [{usual}]' if usual else ''}: ").strip() or usual
        try:
            return read(answer)
        except ValueError as error:
            say(str(error))


def one_of(*known: str) -> Callable[[str], str]:
    """Reads one of these words."""

    def read(answer: str) -> str:
        if answer not in known:
            raise ValueError(f"{_listed(known)}, please.")
        return answer

    return read


def anything(answer: str) -> str:
    """Reads whatever was typed, if it is something."""
    if not answer:
        raise ValueError("A name, please.")
    return answer


def _listed(known: Sequence[str]) -> str:
    *others, last = known
    return f"{', '.join(others)} or {last}" if others else last


def say(text: str) -> None:
    """Print a line, broken where the terminal ends."""
    shown.out.print(text, markup=False, soft_wrap=False)
