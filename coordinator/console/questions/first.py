"""The first questions of `coordinator init`. They are asked at once, and what the others need is imported meanwhile."""

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from signal import SIG_BLOCK, SIGINT, pthread_sigmask
from threading import Thread
from time import sleep
from typing import Final

from coordinator.console.questions.answers import asked, one_of, say
from coordinator.systems.glances import GROUP, Glance, glance, ordered
from protos.console.starting import LOADING

HERE: Final = "here"
SITES: Final = "sites"
GRACE: Final = 0.2
"""Seconds before anything is imported, which would hold up the prompt itself."""
_OTHERS: Final = "coordinator.console.questions.others"


@dataclass(frozen=True, slots=True)
class First:
    """The first answers. recipe: which system. alone: whether it trains without parties. launch: how parties start."""

    recipe: str
    alone: bool
    launch: str


class Importing:
    """Imports what later questions need, while somebody reads the first ones."""

    def __init__(self) -> None:
        self._thread = Thread(target=self._load, name=LOADING, daemon=True)

    def start(self) -> None:
        """Begin; called once."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    @staticmethod
    def _load() -> None:
        pthread_sigmask(SIG_BLOCK, {SIGINT})  # Ctrl-C is for the thread that waits for an answer
        sleep(GRACE)
        try:
            import_module(_OTHERS).load()
        except Exception:  # noqa: BLE001 - whoever needs it imports it again, and then the error is told
            return


def glances() -> dict[str, Glance]:
    """A glance at each system that has a plan to start from, in the order of `ordered`."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    found = ((name, glance(points[name].module) or _loaded(name)) for name in ordered(points))
    return {name: each for name, each in found if each is not None}


def ask_first(importing: Importing) -> First:
    """Ask which system is to be used, and where the text is. importing: is started once the first question is shown.

    Raises KeyboardInterrupt and EOFError where no answer comes.
    """
    able = glances()
    known = list(able)
    first = next((name for name, each in able.items() if each.first), known[0])
    say("Enter takes what stands in brackets; Ctrl-C ends this, and nothing is written.")
    say("\nWhat is to be learned?")
    width = max(map(len, known))
    for number, (name, each) in enumerate(able.items(), 1):
        say(f"  {number}  {name:<{width}}  {each.about or 'a system of another package'}")
    importing.start()

    def read(answer: str) -> str:
        if answer.isdigit() and 1 <= int(answer) <= len(known):
            return known[int(answer) - 1]
        return one_of(*known)(answer)

    recipe = asked("recipe", first, read)
    if able[recipe].alone:
        return First(recipe, True, "ray")
    say("\nWhose text is it? here: one source on this machine, divided among simulated parties, to try it.")
    say("sites: parties run elsewhere, each with text of its own.")
    return First(recipe, False, "connect" if asked("text", HERE, one_of(HERE, SITES)) == SITES else "ray")


def _loaded(name: str) -> Glance | None:
    from coordinator.systems.registry import system

    found = system(name)
    return None if found.example is None else Glance(found.about, found.first, found.alone is not None)
