"""From a source to the units that are protected: records or users, in one party's part, chosen by public hashes.

Whether a unit is here, and in which slot, depends only on the unit's own id and on public values, so that adding or
removing one unit moves no other. What a unit holds depends on its own records alone. A record that cannot be used
becomes an empty unit in its place; where users are units it becomes nothing, because nobody can say whose it is.

A unit's position among all is secret and decides nothing. A step's sample (`GradientMechanism.batch`) draws independent
secret words, one for every position: one position more or less leaves every other unit taken with the same probability,
independently, whichever word it then gets. So a sum over the sample is distributed as the sum over the others plus,
with that probability, the unit's own part, which is 0 for an empty unit.
"""

import hashlib
import hmac
import json
import logging
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from learning.text import labelled
from learning.text.labelled import TextColumns
from learning.text.source import Document, Skipped, Source, read, records
from learning.text.words import sentences
from party.errors import EmptyShard, ShardError
from party.shard.routing import current
from party.shard_table import PartTable, ShardTable

log = logging.getLogger("conclave.party")

Kind = Literal["document", "sentence", "pair"]

MOST_CHARACTERS: Final = 1 << 20
"""The most characters of one unit that are used: a longer record is cut, and no further records of a user are taken.
This bounds the memory that one unit takes; otherwise one record could end a training.
"""
MOST_EXAMPLES: Final = 32
"""The most examples of one user that are used; further ones are left out, so that no user fills the memory."""
BEYOND_EXAMPLES: Final = "beyond the first examples of their user"
"""Why the further ones are left out."""

_SPILLS: Final = 64
_BEYOND: Final = f"beyond the first {MOST_CHARACTERS:,} characters of their user"


@dataclass(frozen=True, slots=True)
class Unit:
    """One unit of the guarantee: its id and its passages; no word pair reaches across passages.

    passages: none for a record that cannot be used, whose id is then empty. rows: where columns, or others, were asked
    for, the documents of the passages, one each in order; otherwise none.
    """

    id: str
    passages: tuple[str, ...]
    rows: tuple[Document, ...] = ()


def units(
    shard: ShardTable,
    record: Kind,
    *,
    by_user: bool,
    cache: Path,
    frank: bool,
    skipped: Skipped | None = None,
    noted: Callable[[Document], None] | None = None,
    columns: TextColumns | None = None,
    also: tuple[str, ...] = (),
) -> Iterator[Unit]:
    """The units of this party's part of its source, streamed, each of at most `MOST_CHARACTERS`.

    record: a document is one unit; or each sentence; for "pair" this yields documents, and the caller takes each of
    their pairs as a unit. by_user: all records of a user are one unit; they are gathered through files below `cache`
    (mode 0700), so that memory holds about a 64th of the shard at a time. frank: whether the caller may know that there
    is no usable text, as in a simulation or a command of the party's own; otherwise this is a warning in the party's
    log. skipped: is given the rows that make empty units. noted: is given every document of which anything is in this
    part, once, before its units come. columns: also read these, leave out rows without a label, and let units carry
    their rows; for documents only. also: instead of them, further columns that are read: units carry their rows,
    whatever those columns hold.

    Raises `ShardError` when the settings cannot give such units; `EmptyShard` when `frank` and no unit has text;
    `learning.errors.DataError` when the source cannot be read, whatever its records are.
    """
    skipped = Skipped() if skipped is None else skipped
    noted = noted or _nothing
    if by_user and shard.user is None:
        raise ShardError(
            "[shard] user is missing: the plan protects users. Name the column that says whose a record is."
        )
    if by_user and shard.part is not None and shard.part.by not in ("hash", shard.user):
        raise ShardError(
            f'[shard] part: by = "{shard.part.by}" may divide one user among parties, and the plan protects users. '
            f'Use by = "hash" or by = "{shard.user}".'
        )
    if columns is not None and record != "document":
        raise ShardError(f'a label belongs to a document, and a record is a {record}. Plan with record = "document".')
    if also and record != "document":
        raise ShardError(f'a second text belongs to a document, and a record is a {record}. Plan with "document".')
    source = source_of(shard) if columns is None else labelled.source_of(source_of(shard), columns)
    if also:
        source = replace(source, columns=(*source.columns, *also))
    documents = _documents(source, shard, record, by_user=by_user, cache=cache, frank=frank, skipped=skipped)
    rows = columns is not None or bool(also)
    if by_user:
        found = _by_user(shard, documents, cache, skipped, noted, rows=rows)
    else:
        found = _by_record(shard, documents, record, noted, rows=rows)
    empty = True
    for unit in found:
        empty = empty and not unit.passages
        yield unit
    if empty and frank:
        next(read(source, cache), None)  # if the whole source is wrong, this error says so
        raise EmptyShard(_emptiness(shard, skipped))
    if empty:
        log.warning("%s Training goes on, and learns nothing.", _emptiness(shard, skipped))


def source_of(shard: ShardTable) -> Source:
    """The shard's table as the reader takes it, with the columns that dividing it needs."""
    wanted = [shard.part.by] if shard.part is not None and shard.part.by not in ("hash", "dirichlet") else []
    wanted += [shard.part.label] if shard.part is not None and shard.part.label is not None else []
    named = {shard.text, shard.id, shard.user, shard.label}
    extra = tuple(dict.fromkeys(column for column in wanted if column not in named))
    return Source(
        source=shard.source,
        text=shard.text,
        id=shard.id,
        user=shard.user,
        label=shard.label,
        columns=extra,
        split=shard.split,
        stream=shard.stream,
        encoding=shard.encoding,
        delimiter=shard.delimiter,
        sheet=shard.sheet,
    )


def slot(key: bytes, unit: str, slots: int) -> int:
    """The slot of a unit among `slots`: HMAC-SHA256 under the party's key, so that no other unit affects it."""
    digest = hmac.digest(key, unit.encode(), "sha256")
    return int.from_bytes(digest, "big") % slots


def part_of(table: PartTable, unit: str, fields: Mapping[str, str]) -> int:
    """The part that a unit belongs to, from its own id (or owner, or label) and the public seed alone.

    hash: evenly by the id. A column: all units of one value together. dirichlet: the parts' proportions of each label
    are drawn from Dirichlet(alpha, ..., alpha) with the seed, and the id decides within them.
    """
    if table.by == "hash":
        return min(int(_fraction(table.seed, "unit", unit) * table.parts), table.parts - 1)
    if table.by == "dirichlet":
        assert table.label is not None
        shares = _shares(table, fields.get(table.label, ""))
        place = np.searchsorted(np.cumsum(shares), _fraction(table.seed, "unit", unit), side="right")
        return min(int(place), table.parts - 1)
    owner = fields.get(table.by, "")
    return min(int(_fraction(table.seed, "owner", owner) * table.parts), table.parts - 1)


def _shares(table: PartTable, label: str) -> NDArray[np.float64]:
    assert table.alpha is not None
    digest = hashlib.sha256(f"conclave dirichlet {table.seed}\n{label}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big")).dirichlet(np.full(table.parts, table.alpha))


def _fraction(seed: int, role: str, name: str) -> float:
    """A number in [0, 1) that depends on its arguments alone."""
    digest = hashlib.sha256(f"conclave part {role} {seed}\n{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _here(shard: ShardTable, unit: str, document: Document) -> bool:
    return shard.part is None or part_of(shard.part, unit, document.fields) == shard.part.part


def _documents(
    source: Source, shard: ShardTable, record: Kind, *, by_user: bool, cache: Path, frank: bool, skipped: Skipped
) -> Iterator[Document | None]:
    """The source's documents, of which what is not in this party's part is left out later.

    Where simulated parties share a process, only those that may have something in the part, read once for all of them.
    """
    routes, part = current(), shard.part
    if routes is None or part is None or not frank:
        return records(source, cache, skipped)

    def parts_of(document: Document) -> list[int]:
        return [part_of(part, name, document.fields) for name in _names(shard, record, document, by_user=by_user)]

    return routes.documents(source, shard, f"{record} {by_user} {shard.user}", parts_of, cache, skipped)


def _names(shard: ShardTable, record: Kind, document: Document, *, by_user: bool) -> list[str]:
    """What decides on the part of a document's units: whose they are, or each unit's own id."""
    if by_user:
        return [document.text if shard.user == shard.text else _user(shard, document)]
    if shard.user is not None and shard.part is not None and shard.part.by == "hash":
        return [_user(shard, document)]
    if record == "sentence":
        return [_name_of(sentence) for sentence in sentences(document.text[:MOST_CHARACTERS])]
    return [document.id]


def _name_of(sentence: str) -> str:
    return hashlib.sha256(sentence.encode()).hexdigest()


def _by_record(
    shard: ShardTable,
    documents: Iterator[Document | None],
    record: Kind,
    noted: Callable[[Document], None],
    *,
    rows: bool,
) -> Iterator[Unit]:
    together = shard.user is not None and shard.part is not None and shard.part.by == "hash"
    for document in documents:
        if document is None:
            if shard.part is None:  # nobody can say to which part it belongs
                yield Unit("", ())
        elif record == "sentence":
            new = True
            for sentence in sentences(document.text[:MOST_CHARACTERS]):
                name = _name_of(sentence)
                if _here(shard, _user(shard, document) if together else name, document):
                    if new:
                        noted(document)
                        new = False
                    yield Unit(name, (sentence,))
        elif _here(shard, _user(shard, document) if together else document.id, document):
            noted(document)
            used = _cut(document)
            yield Unit(used.id, (used.text,), (used,) if rows else ())


def _cut(document: Document) -> Document:
    if len(document.text) <= MOST_CHARACTERS:
        return document
    return replace(document, text=document.text[:MOST_CHARACTERS])


def _user(shard: ShardTable, document: Document) -> str:
    return document.fields.get(shard.user, "") if shard.user is not None else ""


def _by_user(
    shard: ShardTable,
    documents: Iterator[Document | None],
    cache: Path,
    skipped: Skipped,
    noted: Callable[[Document], None],
    *,
    rows: bool,
) -> Iterator[Unit]:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="users-", dir=cache) as folder:
        spills = [Path(folder) / f"{number}.jsonl" for number in range(_SPILLS)]
        with ExitStack() as stack:
            files = [stack.enter_context(path.open("w", encoding="utf-8")) for path in spills]
            for document in documents:
                if document is None:
                    continue
                user = document.text if shard.user == shard.text else _user(shard, document)
                if _here(shard, user, document):
                    noted(document)
                    spill = int(_fraction(0, "spill", user) * _SPILLS)
                    used = _cut(document)
                    spilled = [user, used.text, used.id, used.fields] if rows else [user, used.text]
                    files[spill].write(json.dumps(spilled) + "\n")
        for path in spills:
            gathered: dict[str, list[str]] = defaultdict(list)
            carried: dict[str, list[Document]] = defaultdict(list)
            held: dict[str, int] = defaultdict(int)
            with path.open(encoding="utf-8") as lines:
                for user, text, *rest in map(json.loads, lines):
                    held[user] += sum(map(len, (text, *(rest[1].values() if rest else ()))))
                    if held[user] > MOST_CHARACTERS and gathered[user]:
                        skipped.reasons[_BEYOND] += 1
                        continue
                    gathered[user].append(text)
                    if rest:
                        carried[user].append(Document(rest[0], text, rest[1]))
            path.unlink()
            yield from (Unit(user, tuple(texts), tuple(carried.get(user, ()))) for user, texts in gathered.items())


def _nothing(document: Document) -> None:
    pass


def _emptiness(shard: ShardTable, skipped: Skipped) -> str:
    why = f" Rows were skipped for: {', '.join(sorted(skipped.reasons))}."
    part = f", part {shard.part.part + 1} of {shard.part.parts} by {shard.part.by}" if shard.part else ""
    return (
        f'the shard is empty: source "{shard.source}"{part} has no usable text in column "{shard.text}".'
        f"{why if skipped.reasons else ''} "
        + ("Use fewer parties or another split." if shard.part else "Name a source that has some.")
    )
