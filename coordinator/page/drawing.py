"""Pictures as inline SVG: small functions from numbers to elements, each with a name and a description for all readers.

Everything is drawn 360 units wide, for a telephone, and grows with the page. Colours are classes of the page's style;
every text is escaped.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

WIDE: Final = 360


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: its name, its value, the value as written, and its class: "own", "free", "other". room: how far a pale
    bar behind it goes, None for no such bar.
    """

    name: str
    value: float
    shown: str
    kind: str = "own"
    room: float | None = None


def people(right: int, chance: int = 50) -> Markup:
    """A hundred people: of so many a guess is right by chance, of some more because of the student."""
    dots = []
    for number in range(100):
        kind = "base" if number < chance else "more" if number < right else "rest"
        x, y = 9 + 18.0 * (number % 10), 9 + 18.0 * (number // 10)
        dots.append(_tag("circle", cx=x, cy=y, r=6.6 if kind != "rest" else 6.1, kind=kind))
    more = max(0, right - chance)
    said = f"A hundred dots: {chance} are filled, {more} more are in another colour, {100 - chance - more} are empty."
    return _picture("Guesses that are right, of 100", said, 180, 180, dots, small=True)


def scale(marks: Sequence[tuple[float, str]]) -> Markup:
    """Epsilons on a logarithmic scale, with what such values are called. marks: each with its name."""
    low, high, top = 0.1, 100.0, 26

    def place(value: float) -> float:
        inside = min(max(value, low), high)
        return 8 + (WIDE - 16) * math.log(inside / low) / math.log(high / low)

    drawn = []
    for start, end, name in ((low, 1.0, "strong"), (1.0, 10.0, "reasonable"), (10.0, high, "weak alone")):
        x = place(start)
        drawn.append(_tag("rect", x=x + 1, y=top, width=place(end) - x - 2, height=9, rx=2, kind="band"))
        drawn.append(_text((x + place(end)) / 2, top + 40, name, anchor="middle", kind="soft"))
    for tick in (0.1, 1.0, 10.0, 100.0):
        anchor = "start" if tick == low else "end" if tick == high else "middle"
        drawn.append(_text(place(tick), top + 24, f"{tick:g}", anchor=anchor, kind="soft"))
    for number, (value, name) in enumerate(marks):  # the first above the scale, the others below it
        x, below = place(value), top + 48 + 17 * (number - 1)
        anchor = "start" if x < 80 else "end" if x > WIDE - 80 else "middle"
        ends = {"y1": top - 6, "y2": top + 9} if not number else {"y1": top, "y2": below}
        drawn.append(_tag("line", kind="own-line" if not number else "other-line", x1=x, x2=x, **ends))
        words = "strong" if not number else ""
        drawn.append(_text(min(max(x, 2), WIDE - 2), top - 10 if not number else below + 13, name, anchor, words))
    listed = ", ".join(f"{name}" for _, name in marks)
    said = (
        f"A scale of epsilon from 0.1 to 100. Up to 1 is strong, up to 10 reasonable, above that weak alone. {listed}."
    )
    return _picture("Epsilon on a scale of usual values", said, WIDE, top + 46 + 19 * (len(marks) - 1), drawn)


def bars(title: str, rows: Sequence[Bar], *, most: float | None = None, better: str = "") -> Markup:
    """Bars below each other from zero, each with its name above it and its value behind it.

    most: the value of the whole width; by default the largest. better: which direction is better, in words.
    """
    whole = most or max((row.value for row in rows), default=1.0) or 1.0
    drawn, y = [], 0.0
    for row in rows:
        width = max(1.5, 250 * min(1.0, max(0.0, row.value) / whole))
        drawn.append(_text(0, y + 12, _brief(row.name), kind="strong" if row.kind == "own" else ""))
        if row.room is not None:
            behind = 250 * min(1.0, row.room / whole)
            drawn.append(_tag("rect", x=0, y=y + 18, width=behind, height=10, rx=1.5, kind="band"))
        drawn.append(_tag("rect", x=0, y=y + 18, width=width, height=10, rx=1.5, kind=row.kind))
        width = max(width, 0.0 if row.room is None else behind)
        drawn.append(_text(width + 7, y + 27.5, row.shown, kind="strong" if row.kind == "own" else ""))
        y += 42
    listed = "; ".join(f"{row.name}: {row.shown}" for row in rows)
    return _picture(title, f"{listed}. {better}".strip(), WIDE, max(y - 8, 30), drawn)


def timeline(rows: Sequence[tuple[str, float, float, str]]) -> Markup:
    """Stages along a common clock. rows: name, start and seconds, both in seconds from the first start, and how long it
    was in words.
    """
    whole = max((start + seconds for _, start, seconds, _ in rows), default=1.0) or 1.0
    drawn, y = [], 0.0
    for name, start, seconds, shown in rows:
        x, width = 96 + 186 * start / whole, max(2.0, 186 * seconds / whole)
        drawn.append(_text(0, y + 12, _brief(name, 15)))
        drawn.append(_tag("rect", x=x, y=y + 3, width=width, height=10, rx=1.5, kind="own"))
        after = x + width + 7
        drawn.append(
            _text(after, y + 12, shown, kind="soft") if after < 300 else _text(x - 7, y + 12, shown, "end", "soft")
        )
        y += 21
    listed = "; ".join(f"{name}: {shown}" for name, _, _, shown in rows)
    return _picture("When each stage ran, and how long", listed, WIDE, max(y, 20), drawn)


def spots(points: Sequence[tuple[str, float, float]]) -> Markup:
    """A map of named points; a name is written where there is room, the earlier points first."""
    size, edge, letter, line = 420.0, 12.0, 6.3, 11.5
    xs, ys = [x for _, x, _ in points], [y for *_, y in points]
    across, up = (max(xs) - min(xs)) or 1.0, (max(ys) - min(ys)) or 1.0
    dots, names, written = [], [], 0
    placed = [
        (name, edge + (WIDE - 2 * edge) * (x - min(xs)) / across, edge + (size - 2 * edge) * (max(ys) - y) / up)
        for name, x, y in points
    ]
    points_at = [(x - 2.5, y - 2.5, x + 2.5, y + 2.5) for _, x, y in placed]
    taken: list[tuple[float, float, float, float]] = []
    for number, (name, x, y) in enumerate(placed):
        width = letter * len(name)
        others = points_at[:number] + points_at[number + 1 :]
        for at, base, anchor in (
            (x + 4, y + 3.5, "start"),
            (x - 4, y + 3.5, "end"),
            (x, y - 5, "middle"),
            (x, y + 13, "middle"),
        ):
            left = at - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor]
            box = (left, base - line + 2, left + width, base + 3)
            if (
                box[0] < 0
                or box[2] > WIDE
                or box[1] < 0
                or box[3] > size
                or any(_meet(box, other) for other in (*taken, *others))
            ):
                continue
            taken.append(box)
            names.append(_text(at, base, name, anchor, "word"))
            dots.append(_tag("circle", cx=x, cy=y, r=2.2, kind="own"))
            written += 1
            break
        else:
            dots.append(_tag("circle", cx=x, cy=y, r=1.4, kind="faint"))
    said = f"{len(points)} words as points; {written} are named, the others had no room."
    return _picture("A map of the words", said, WIDE, size, [*names, *dots])


def calibration(bins: Sequence[tuple[float, float, int]]) -> Markup:
    """How often a student is right, over how sure it is. bins: mean confidence, share right, number of examples."""
    left, top, side = 54.0, 10.0, 294.0
    most = max(examples for *_, examples in bins)
    drawn = _axes(left, top, side, "how sure it is", "how often it is right", ("0", "50%", "100%"))
    drawn.append(_tag("line", x1=left, y1=top + side, x2=left + side, y2=top, kind="even"))
    for confidence, right, examples in bins:
        radius = 2.5 + 7.5 * math.sqrt(examples / most)
        drawn.append(_tag("circle", cx=left + side * confidence, cy=top + side * (1 - right), r=radius, kind="own"))
    listed = "; ".join(f"{c:.0%} sure, {r:.0%} right, {n:,} texts" for c, r, n in bins)
    return _picture("Right over sure", listed, WIDE, top + side + 44, drawn)


def dots(pairs: Sequence[tuple[float, float]], across: str, up: str) -> Markup:
    """Dots of (across, up) in one unit, beside the line on which both are equal."""
    left, top, side = 54.0, 10.0, 294.0
    low, high = min(min(each) for each in pairs), max(max(each) for each in pairs)
    whole = (high - low) or 1.0
    ticks = (f"{low:g}", f"{(low + high) / 2:g}", f"{high:g}")
    drawn = _axes(left, top, side, across, up, ticks)
    drawn.append(_tag("line", x1=left, y1=top + side, x2=left + side, y2=top, kind="even"))
    drawn += [
        _tag("circle", kind="own", cx=left + side * (x - low) / whole, cy=top + side * (high - y) / whole, r=2.2)
        for x, y in pairs
    ]
    said = f"{len(pairs):,} dots, {across} from {low:g} to {high:g}, {up} likewise."
    return _picture(f"{up} over {across}", said, WIDE, top + side + 44, drawn)


def lines(
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float]], bool]],
    across: str,
    title: str,
    *,
    logarithmic: bool = False,
) -> Markup:
    """Rows over a common axis, each with its values as (epsilon, mean, spread); epsilon 0 for what has none.

    rows: name, the values, and whether the row is one to measure others by.
    """
    turn = (lambda value: math.log(max(value, 1e-12))) if logarithmic else float
    every = [value for _, values, _ in rows for _, mean, spread in values for value in (mean - spread, mean + spread)]
    every = [value for value in every if value > 0 or not logarithmic] or [1.0]
    low, high = min(every), max(every)
    whole = (turn(high) - turn(low)) or 1.0
    drawn, y = [], 0.0

    def place(value: float) -> float:
        return 8 + (WIDE - 16) * (turn(max(value, low)) - turn(low)) / whole

    for name, values, plain in rows:
        kind = "free" if plain else "own"
        drawn.append(_text(0, y + 12, _brief(name), kind="" if plain else "strong"))
        drawn.append(_tag("line", x1=8, x2=WIDE - 8, y1=y + 23, y2=y + 23, kind="rail"))
        for number, (_, mean, spread) in enumerate(values):
            if spread:
                ends = {"x1": place(mean - spread), "x2": place(mean + spread)}
                drawn.append(_tag("line", kind=f"{kind}-line", y1=y + 23, y2=y + 23, **ends))
            drawn.append(_tag("circle", kind=kind, cx=place(mean), cy=y + 23, r=3.0 + 1.0 * number))
        y += 38
    drawn.append(_text(8, y + 10, f"{low:,.4g}", kind="soft"))
    drawn.append(_text(WIDE - 8, y + 10, f"{high:,.4g}", "end", "soft"))
    listed = "; ".join(
        f"{name}: " + ", ".join(f"{mean:.4g} at epsilon {at:g}" if at else f"{mean:.4g}" for at, mean, _ in values)
        for name, values, _ in rows
    )
    return _picture(title, f"{across}, from {low:,.4g} to {high:,.4g}. {listed}", WIDE, y + 18, drawn)


def _brief(name: str, most: int = 54) -> str:
    """A name that fits the width of a picture."""
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"


def _axes(left: float, top: float, side: float, across: str, up: str, ticks: tuple[str, str, str]) -> list[Markup]:
    drawn = [_tag("rect", x=left, y=top, width=side, height=side, kind="frame")]
    for part, tick in zip((0.0, 0.5, 1.0), ticks, strict=True):
        anchor = "start" if part == 0 else "end" if part == 1 else "middle"
        drawn.append(_text(left + side * part, top + side + 15, tick, anchor, "soft"))
        drawn.append(_text(left - 6, top + side * (1 - part) + (4 if part < 1 else 8), tick, "end", "soft"))
    drawn.append(_text(left + side / 2, top + side + 34, across, "middle"))
    turned = f"rotate(-90 14 {top + side / 2:g})"
    drawn.append(_text(14, top + side / 2, up, "middle", transform=turned))
    return drawn


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _picture(
    title: str, said: str, width: float, height: float, parts: Sequence[Markup], *, small: bool = False
) -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        "picture small" if small else "picture", width, height, f"{title}. {said}", Markup("").join(parts)
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "", transform: str = "") -> Markup:
    turned = Markup(' transform="{}"').format(transform) if transform else Markup("")
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}"{}>{}</text>').format(
        x, y, anchor, kind, turned, text
    )


def _tag(name: str, *, kind: str, **numbers: float) -> Markup:
    given = Markup(" ").join(Markup('{}="{:g}"').format(key, round(value, 2)) for key, value in numbers.items())
    return Markup('<{} class="{}" {}/>').format(name, kind, given)
