"""Draws what is known of a run into so many columns and rows, and says it in one line."""

import math
from typing import Final

from coordinator.progress.followed import MANY, Followed, Timed

BAR: Final = 24
NARROW: Final = 40
"""The fewest columns that a display is drawn into."""
PERCENT: Final = "percent"
"""The note of a bar whose figures are percents."""
_INDENT: Final = "  "


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def about(seconds: float) -> str:
    """Seconds that are only expected."""
    return f"about {duration(max(1, round(seconds)) if seconds < 10 else seconds)}".replace(".0 s", " s")


def figures(done: int, total: int, note: str) -> str:
    """How far a bar is, in figures: "3 / 12  blocks", or "40%" where the note says that they are percents."""
    return f"{100 * done / max(total, 1):.0f}%" if note == PERCENT else f"{done:,} / {total:,}  {note}".rstrip()


def bar(label: str, done: int, total: int, note: str, *, room: int = BAR, blocks: bool = True) -> str:
    """A bar with its label and figures. room: for the bar itself; blocks: whether the terminal has them."""
    full, empty = "█░" if blocks else "#."
    filled = round(room * done / max(total, 1))
    return f"{label:<9} {full * filled}{empty * (room - filled)}  {figures(done, total, note)}"


def money_of(spent: float, budget: float | None) -> str:
    """The epsilon that was charged so far, rounded up, of what the plan allows."""
    of = "" if budget is None else f" of {budget:g}"
    return f"epsilon {math.ceil(100 * spent) / 100:.2f}{of} so far"


def money(seen: Followed) -> str:
    """What was charged so far; empty where nothing is known."""
    return "" if seen.spent is None else money_of(seen.spent, seen.budget)


def spoken(seen: Followed, now: float) -> str:
    """What goes on now, in one line."""
    running = seen.running()
    words = [] if running is None else [f"{running.name} {_so_far(seen, running, now)}"]
    words += [f"{label} {figures(*each)}" for label, each in list(seen.bars.items())]
    words += [_crowd(seen)] if seen.parties else []
    words += [money(seen)] if seen.spent else []
    return "; ".join(words)


def drawn(seen: Followed, now: float, width: int, height: int, *, blocks: bool = True) -> list[str]:
    """The rows of a display, each within `width` columns, no more than `height` of them."""
    wide = min(max(9, *(len(name) for name in [*seen.parties, *seen.stages, *seen.bars, ""])), width // 3)
    parties = [(name, state) for name, state in list(seen.parties.items())]
    if len(parties) > MANY:
        parties = [("parties", _crowd(seen))]
    over = [(each.name, duration(each.seconds(now))) for each in list(seen.stages.values()) if each.ended is not None]
    now_on = [(each.name, _so_far(seen, each, now)) for each in list(seen.stages.values()) if each.ended is None]
    coming = [
        (name, about(seconds))
        for name in seen.expected
        if name not in seen.stages and (seconds := seen.foreseen(name, now) or 0.0) >= 1
    ]
    last = [("spent", words)] if (words := money(seen)) else []
    last += [("warning", seen.warning)] if seen.warning else []
    last += [("time", _clock(seen, now))]
    bars = list(seen.bars.items())

    def over_the_height() -> bool:
        return len(parties) + len(over) + len(now_on) + len(bars) + len(coming) + len(last) > height

    if over_the_height():
        over, coming = [("done", " · ".join(f"{name} {took}" for name, took in over))] if over else [], []
    if over_the_height() and len(parties) > 1:
        parties = [("parties", _crowd(seen))]
    if over_the_height():
        over = []
    if over_the_height():
        parties = []
    lines = [_row(*each, wide, width) for each in (*parties, *over, *now_on)]
    room = max(4, min(BAR, width - wide - 24))
    lines += [
        _cut(f"{_INDENT}{bar(_cut(label, wide).ljust(wide), *each, room=room, blocks=blocks)}", width)
        for label, each in bars
    ]
    lines += [_row(*each, wide, width) for each in (*coming, *last)]
    return lines[: max(1, height)]


def _so_far(seen: Followed, stage: Timed, now: float) -> str:
    so_far, expected = stage.seconds(now), seen.estimate(stage, now)
    if expected is None or expected < 1:
        return f"{duration(so_far)} so far"
    if so_far > expected * 1.05:
        return f"{duration(so_far)}, longer than the {duration(expected)} expected"
    return f"{duration(so_far)} of {about(expected)}"


def _clock(seen: Followed, now: float) -> str:
    elapsed, expected = now - seen.began, seen.altogether(now)
    return duration(elapsed) + ("" if expected is None else f" of {about(max(expected, elapsed))}")


def _crowd(seen: Followed) -> str:
    if len(seen.parties) > MANY:
        return " · ".join(f"{count:,} {state}" for state, count in seen.counts().most_common())
    return " · ".join(f"{name} {state}" for name, state in list(seen.parties.items()))


def _row(name: str, words: str, wide: int, width: int) -> str:
    return _cut(f"{_INDENT}{_cut(name, wide).ljust(wide)} {' '.join(words.split())}", width)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(0, width - 3)].rstrip()}..."
