"""What a page says in words anyone understands: who taught what, and what became of their text."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from coordinator.page.account import Account
from coordinator.publishing.verdict import promises

_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_STATUS: Final = {
    "running": "This run is not finished: it goes on, and this page shows what there was when it was made.",
    "resumable": "This run is not finished: it stopped, and can go on.",
    "failed": "This run failed: nothing was published.",
    "cancelled": "This run was cancelled: nothing was published.",
}


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun; small numbers in words."""
    noun = one if number == 1 else many or f"{one}s"
    return f"{_NUMBERS[number] if 0 < number < len(_NUMBERS) else f'{number:,}'} {noun}"


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names in a sentence; of many only the first."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    *others, last = names or ("nobody",)
    return f"{', '.join(others)} and {last}" if others else last


def unit(privacy: Mapping[str, Any]) -> str:
    """What one unit of the promise is, as in "one document"."""
    if privacy["unit"] == "user":
        return "all text of one user"
    return {"pair": "one pair of words"}.get(privacy["record"], f"one {privacy['record']}")


def yours(privacy: Mapping[str, Any]) -> str:
    """The same as in "your document"."""
    if privacy["unit"] == "user":
        return "all your text"
    return {"pair": "one pair of your words"}.get(privacy["record"], f"your {privacy['record']}")


def unfinished(account: Account) -> str | None:
    """A sentence on a run without a student; None of a finished one."""
    return _STATUS.get(account.status)


def lede(account: Account) -> str:
    """What was learned, from whom and under what promise, in one paragraph."""
    who, several = counted(len(account.parties), "party", "parties"), len(account.parties) > 1
    names = f" ({listed(account.parties)})" if account.parties else ""
    what = account.about or f"a student by the recipe {account.recipe}"
    together = " together" if several else ""
    verb = "taught" if account.finished else "were to teach" if several else "was to teach"
    first = f"{who[0].upper()}{who[1:]}{names}{together} {verb} {what}"
    first += ", without showing each other their text." if several else "."
    if account.simulated:
        shards = account.plan["federation"]["shards"] or {}
        source = str(shards.get("source", "one source"))
        first += f" It was a simulation: the parties are made up, each with a part of \u201c{source}\u201d."
    return f"{first} {_left(account)}"


def _left(account: Account) -> str:
    """What left the parties, and what it tells."""
    privacy = account.privacy
    if privacy is None:
        return "Nothing is published, so that there is nothing yet that would tell anything of anybody."
    if not privacy.get("guarantee", True):
        return "What left each party was protected by no mechanism that has a proof: any text of theirs may show in it."
    if not promises(privacy):
        return (
            "What left each party had noise that can be drawn again from the plan, so that it hides nothing: this is "
            "an experiment, not for publishing."
        )
    summed = ", and was added up before anybody saw it" if privacy["trust"] == "secure-sum" else ""
    which = "any one person's text" if privacy["unit"] == "user" else f"any {unit(privacy)}"
    return (
        f"What left each party was bounded and had noise added{summed}. So the student is nearly the same, whether or "
        f"not {which} was there."
    )


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
