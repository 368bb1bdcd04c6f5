"""The progress of a run as a person sees it: parties, blocks, budget. One protocol, with two ways to show it."""

import sys
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

BAR = 24


class Progress(Protocol):
    """Is told by the run what happens; never asks anything back."""

    def say(self, line: str) -> None:
        """Print a line that stays on the screen."""
        ...

    def party(self, name: str, state: str) -> None:
        """Show a party's state in a word or two, for example `ready` or `counting 62%`."""
        ...

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        """Show how far something is; the same label again moves the same bar."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class Silent:
    """Shows nothing: for programs and notebooks that only want the result."""

    def say(self, line: str) -> None: ...

    def party(self, name: str, state: str) -> None: ...

    def bar(self, label: str, done: int, total: int, note: str = "") -> None: ...

    def close(self) -> None: ...


class Terminal:
    """A live display on a terminal; elsewhere one line when something begins or ends, so that logs stay short."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._parties: dict[str, str] = {}
        self._bars: dict[str, tuple[int, int, str]] = {}
        self._full: set[str] = set()
        self._live = Live(console=self._console, get_renderable=self._drawing, refresh_per_second=8, transient=True)
        if self._console.is_terminal:
            self._live.start()

    def say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def party(self, name: str, state: str) -> None:
        was, self._parties[name] = self._parties.get(name, ""), state
        if not self._console.is_terminal and was.split(" ")[0] != state.split(" ")[0]:
            self.say(f"  {name} {state}")

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        if done < total:
            self._bars[label] = (done, total, note)
            self._full.discard(label)
        elif label not in self._full:
            self._bars.pop(label, None)
            self._full.add(label)
            self.say(f"  {_line(label, done, total, note)}")

    def close(self) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _drawing(self) -> Group:
        """The part below the lines that stay; called by the display's own thread."""
        parties = " · ".join(f"{name} {state}" for name, state in list(self._parties.items()))
        lines = [Text(f"  parties   {parties}")] if parties else []
        lines += [Text(f"  {_line(label, *bar)}") for label, bar in list(self._bars.items())]
        return Group(*lines)


def _line(label: str, done: int, total: int, note: str) -> str:
    filled = round(BAR * done / max(total, 1))
    return f"{label:<9} {'█' * filled}{'░' * (BAR - filled)}  {done:,} / {total:,}  {note}".rstrip()
