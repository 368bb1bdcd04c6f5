"""`coordinator preview`: what a run would use of the text that its plan divides among simulated parties."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.console import shown

if TYPE_CHECKING:
    from coordinator.run.before.previewing import Preview

_LABELS = 20
_VALUES = 6


def preview(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Read no more rows of the source than so many.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Show what a run would use of the text that a plan divides: rows, labels, words, and how much each party has.

    Starts and spends nothing. Parties that run elsewhere have a preview of their own: party preview.
    """
    from coordinator import api

    found = api.preview(plan, rows=rows)
    _show(found)
    for line in found.doubts:
        shown.prose(f"{line.state}: {line.said}")
    if as_json:
        shown.as_one_line(record(found))


def _show(found: "Preview") -> None:
    parties, labels = found.found.parties, found.labels
    split = any(each.values for each in parties.values())
    shown.prose(f"{found.said}.")
    if found.unreadable:
        shown.prose(f"Rows that cannot be read: {_counts(found.unreadable)}.")
    if found.left_out:
        shown.prose(f"Rows that make no example: {_counts(found.left_out)}.")
    if split and (shards := found.plan.federation.shards) is not None:
        shown.prose(f'Rows with the same value of "{shards.split.by}" stay together; below, who has which.')
    if labels:
        shown.prose(f"Labels: {_counts(dict(labels.most_common(_LABELS)))}.")
    if (coverage := found.coverage) is not None:
        shown.prose(f"The vocabulary has {coverage:.1%} of the words.")
    heads = ["party", found.unit, *(["records"] if found.by_user else []), *([""] if split else [])]
    cells = [
        [
            name,
            f"{each.units:,}",
            *([f"{each.passages:,}"] if found.by_user else []),
            *([_values(each.values)] if split else []),
        ]
        for name, each in parties.items()
    ]
    shown.table(heads, cells)


def record(found: "Preview") -> dict[str, Any]:
    """The same for other programs."""
    return {
        "rows": found.found.rows,
        "whole": found.found.whole,
        "unreadable": dict(found.unreadable),
        "left_out": dict(found.left_out),
        "labels": dict(found.labels),
        "coverage": found.coverage,
        "parties": {
            name: {"units": each.units, "records": each.passages, "values": dict(each.values)}
            for name, each in found.found.parties.items()
        },
        "doubts": [line.said for line in found.doubts],
    }


def _counts(found: "dict[str, int] | Any") -> str:
    return ", ".join(f"{name} {count:,}" for name, count in found.items())


def _values(found: Any) -> str:
    named = [value[:40] or "(none)" for value in found]
    more = len(named) - _VALUES
    return ", ".join(named[:_VALUES]) + (f" and {more:,} more" if more > 0 else "")
