"""What a system shows of its student on a page: plain values, which a run keeps, and the page draws and escapes."""

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from aggregation.errors import IntegrityError
from coordinator.errors import RunError
from coordinator.reading import strict_json
from coordinator.store.store import RunStore
from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, check_settings

KEPT: Final = "artefacts/exhibits.json"
MOST: Final = 24
"""The most exhibits of a run."""
_LONGEST: Final = 4000

Text = Annotated[str, Field(max_length=_LONGEST)]
Line = Annotated[str, Field(max_length=300)]


class Spot(Settings):
    """A named point of a map."""

    label: Line
    x: float
    y: float


class Points(Settings):
    """A map of named points, in two directions without a unit of their own."""

    kind: Literal["points"] = "points"
    spots: Annotated[list[Spot], Field(min_length=1, max_length=400)]


class Matrix(Settings):
    """Counts of a true class, by row, that was said to be a class, by column."""

    kind: Literal["matrix"] = "matrix"
    names: Annotated[list[Line], Field(min_length=2, max_length=60)]
    cells: list[list[Annotated[int, Field(ge=0)]]]


class Sure(Settings):
    """Examples of which the student was about as sure: its mean confidence, and the share that is right."""

    confidence: Annotated[float, Field(ge=0, le=1)]
    right: Annotated[float, Field(ge=0, le=1)]
    examples: Annotated[int, Field(ge=1)]


class Calibration(Settings):
    """Whether a student is right as often as it is sure."""

    kind: Literal["calibration"] = "calibration"
    bins: Annotated[list[Sure], Field(min_length=1, max_length=50)]


class Dots(Settings):
    """Pairs of numbers of the same unit, (across, up), beside the line on which both are equal."""

    kind: Literal["dots"] = "dots"
    across: Line
    up: Line
    dots: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class Table(Settings):
    """A small table; the first column names its rows."""

    kind: Literal["table"] = "table"
    heads: Annotated[list[Line], Field(min_length=1, max_length=12)]
    rows: Annotated[list[list[Text]], Field(min_length=1, max_length=200)]


class Passage(Settings):
    """A text, and a line on it."""

    text: Text
    about: Line = ""


class Passages(Settings):
    """Texts, one below the other."""

    kind: Literal["passages"] = "passages"
    passages: Annotated[list[Passage], Field(min_length=1, max_length=60)]


Content = Annotated[
    Points | Matrix | Calibration | Dots | Table | Passages,
    Field(discriminator="kind"),
]


class Exhibit(Settings):
    """One thing to see: a title, sentences that say how to read it, and what is shown."""

    title: Line
    says: list[Text] = Field(default_factory=list)
    content: Content


class _Kept(Settings):
    exhibits: Annotated[list[Exhibit], Field(max_length=MOST)]


Exhibits = Callable[[Any], Sequence[Exhibit]]
"""Makes the exhibits of a system's student, of what was released and of public text alone."""


def shortened(text: str, most: int = 600) -> str:
    """A text that may be long, as an exhibit holds it."""
    plain = text.encode("utf-8", "replace").decode().strip()  # of halves of characters nothing is shown
    return plain if len(plain) <= most else f"{plain[: most - 1].rstrip()}\u2026"


def keep(exhibits: Sequence[Exhibit], store: RunStore) -> None:
    """Store a run's exhibits with it. Raises `RunError` when the disk fails."""
    value = _Kept(exhibits=list(exhibits)[:MOST]).model_dump(mode="json")
    store.write(KEPT, json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace"))


def kept(store: RunStore) -> tuple[Exhibit, ...]:
    """The exhibits of a run, none where it kept none. Raises `RunError` for a file that is damaged."""
    path = store.folder / KEPT
    if not path.exists():
        return ()
    try:
        value = strict_json(path.read_bytes(), KEPT)
        return tuple(check_settings(value if isinstance(value, dict) else {}, _Kept, KEPT).exhibits)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    except (IntegrityError, SettingsError) as error:
        raise RunError(f"{path} is damaged: {error} Remove it to see the rest of the page.", code="C802") from None
