"""The source of a plan's simulated shards, read for an audit, and written again with the canaries that are in.

Parties read the written file as they would the source: by its own columns, divided as the plan says. A record keeps its
id, which decides whose it is, so one record more or less moves no other.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from coordinator.auditing.canaries import Canary, named
from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from learning.errors import DataError
from learning.text.reading import UTF_8
from learning.text.source import Document, Source, columns, read
from learning.text.words import sentences, tokenize

ID: Final = "conclave-audit-id"
"""The column of the written file that keeps a record's id."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of a source, with all its columns. kept: those of the audit; source: how many the plan's parties have."""

    kept: tuple[Document, ...]
    source: int


def rows_of(plan: Plan, base: Path, cache: Path, most: int | None, rng: np.random.Generator) -> Rows:
    """The records of the plan's source: all, or a random sample of at most so many. Raises `DataError`.

    Memory: the records that are kept.
    """
    shards = plan.federation.shards
    assert shards is not None
    local = (base / shards.source).exists() or any(sign in shards.source for sign in "*?[")
    source = Source(
        source=str(base / shards.source) if local else shards.source,
        text=shards.text,
        id=shards.id,
        user=shards.user,
        label=shards.label,
        stream=shards.stream,
        encoding=shards.encoding or UTF_8,
        delimiter=shards.delimiter,
        sheet=shards.sheet,
    )
    source = replace(source, columns=tuple(columns(source, cache)))
    kept: list[Document] = []
    count = 0
    for document in read(source, cache):
        count += 1
        if most is None or len(kept) < most:
            kept.append(document)
        elif (place := int(rng.integers(count))) < most:
            kept[place] = document
    unused = shards.split.of or shards.split.parties
    if unused > shards.split.parties:  # the plan leaves parts of the source aside, and so as many records
        count = max(1, count * shards.split.parties // unused)
        kept = [kept[place] for place in sorted(rng.permutation(len(kept))[:count])]
    return Rows(tuple(kept), count)


def natural(plan: Plan, rows: Rows, count: int, rng: np.random.Generator) -> tuple[list[Canary], tuple[Document, ...]]:
    """So many units of the source as canaries, and the records that are left. Raises `PlanError` where they are too
    few.

    Half of the units stay at least, so that the simulation is still one of the plan.
    """
    units = grouped(plan, rows.kept)
    taken = min(count, len(units) // 2)
    if taken < 2:
        raise PlanError(
            f"The source has {len(units):,} units, too few to take canaries from. Audit with more records, or with "
            'kinds = ["worst"].',
            code="C204",
        )
    chosen = rng.permutation(len(units))
    canaries = [Canary("natural", _one_unit(plan, units[place], rng)) for place in chosen[:taken]]
    left = [document for place in sorted(chosen[taken:]) for document in units[place]]
    return canaries, tuple(left)


def made(plan: Plan, documents: Iterable[Document]) -> list[Canary]:
    """Made records as canaries of the worst kind, each a unit that nothing else belongs to."""
    shards = plan.federation.shards
    assert shards is not None
    user = None if shards.user == shards.text else shards.user
    return [Canary("worst", (named(each, number, user),)) for number, each in enumerate(documents)]


def divided(
    parties: Mapping[str, dict[str, Any]], path: Path, text: str, rows: Sequence[Document]
) -> dict[str, dict[str, Any]]:
    """The parties' tables, on a source of these records alone, which is written to `path`. Raises `DataError`.

    The text is not said to be a simulation's: coins may leave a party with one class or no record at all, and it then
    trains on, as a site does, where a simulation would refuse.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps({**row.fields, text: row.text, ID: row.id}, ensure_ascii=False) + "\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}. Make room for a copy of the source.") from None
    own = {"source": str(path), "id": ID, "stream": False}
    found = {}
    for name, tables in parties.items():
        part = {**tables["shard"]["part"], "parts": len(parties)}  # no part is left aside, or canaries would be in none
        policy = {**tables["policy"], "simulation": False}
        found[name] = {**tables, "policy": policy, "shard": {**tables["shard"], **own, "part": part}}
    return found


def grouped(plan: Plan, rows: Sequence[Document]) -> list[tuple[Document, ...]]:
    """The records of each unit; of where sentences are units, each record for itself."""
    shards = plan.federation.shards
    assert shards is not None
    if plan.privacy.unit == "record":
        return [(row,) for row in rows]
    assert shards.user is not None
    found: dict[str, list[Document]] = defaultdict(list)
    for row in rows:
        found[row.text if shards.user == shards.text else row.fields[shards.user]].append(row)
    return [tuple(each) for each in found.values()]


def _one_unit(plan: Plan, rows: tuple[Document, ...], rng: np.random.Generator) -> tuple[Document, ...]:
    """The records as one unit: where sentences are units, the longest of the record; where pairs are, any two words
    that stand side by side.
    """
    if plan.privacy.unit == "user" or plan.privacy.record == "document":
        return rows
    (row,) = rows
    if plan.privacy.record == "pair":
        words = tokenize(row.text)
        first = int(rng.integers(max(1, len(words) - 1)))
        return (replace(row, text=" ".join(words[first : first + 2])),)
    return (replace(row, text=max(sentences(row.text), key=len)),)
