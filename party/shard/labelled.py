"""A party's labelled text in the form that a model takes: read in chunks, tokenised, with each unit's examples
together.

All counts made here are private: rows left out, texts cut, units, classes. They go to the party's own log only.
"""

import dataclasses
import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from learning.models.batching import Tokens, encode
from learning.text.labelled import Example, LabelMap, ScoreRange, TextColumns, examples
from learning.text.source import Document, Skipped
from party.errors import ShardError
from party.ledger.census import Census
from party.shard.fitting import no_example, reasons
from party.shard.units import BEYOND_EXAMPLES, MOST_EXAMPLES, units
from party.shard_table import ShardTable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("conclave.party")

NOT_TOKENISED: Final = "that the model's tokenizer fails on"

_CHUNK_EXAMPLES: Final = 512
_CHUNK_CHARACTERS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class TokenRows(Sequence[Tokens]):
    """Tokenised examples in one array: 4 bytes a token, 12 bytes an example.

    ids: int32 [tokens]. stops: int64 [examples + 1], where each begins and the last ends. seconds: int32 [examples], as
    `Tokens.second`.
    """

    ids: NDArray[np.int32]
    stops: NDArray[np.int64]
    seconds: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.seconds)

    @overload
    def __getitem__(self, place: int) -> Tokens: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tokens]: ...
    def __getitem__(self, place: int | slice) -> Tokens | list[Tokens]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        place = range(len(self))[place]
        return Tokens(self.ids[self.stops[place] : self.stops[place + 1]], int(self.seconds[place]))


@dataclass(frozen=True, slots=True)
class Members(Sequence[range]):
    """For every unit the positions of its examples, possibly none: 8 bytes a unit.

    stops: int64 [units + 1], where each unit's begin and the last's end.
    """

    stops: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.stops) - 1

    @overload
    def __getitem__(self, unit: int) -> range: ...
    @overload
    def __getitem__(self, unit: slice) -> list[range]: ...
    def __getitem__(self, unit: int | slice) -> range | list[range]:
        if isinstance(unit, slice):
            return [self[each] for each in range(len(self))[unit]]
        unit = range(len(self))[unit]
        return range(int(self.stops[unit]), int(self.stops[unit + 1]))


@dataclass(frozen=True, slots=True)
class LabelledUnits:
    """The data that `learning.private_training.text_units.TextUnits` describes: rows, labels [examples], and each
    unit's examples.

    labels: int64 positions in the label map, or float32 scores within [-1, 1]. members: None where every example is a
    unit and every unit an example. truncated: number of examples of which anything was cut. left_out: number of rows
    that made no example, by reason. slots: int32 [units], each unit's slot, None where no slots were asked.
    """

    rows: TokenRows
    labels: NDArray[np.int64] | NDArray[np.float32]
    members: Members | None
    truncated: int
    left_out: Skipped
    slots: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.members is None else len(self.members)


class _Unit(NamedTuple):
    id: str
    examples: list[Example]


def labelled_units(
    shard: ShardTable,
    columns: TextColumns,
    targets: LabelMap | ScoreRange,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    longest: int,
    known: int,
    by_user: bool,
    cache: Path,
    frank: bool,
    census: Census | None = None,
    most_examples: int = MOST_EXAMPLES,
    slot_of: Callable[[str], int] | None = None,
) -> LabelledUnits:
    """Read this party's part of its shard for training: a document is an example, all examples of a user are one unit.

    columns, targets: of `party.admission.labels`. longest: maximum tokens in an example; longer ones are cut by the
    rule of `learning.models.batching`. known: number of tokens that the model knows. frank: as in
    `party.shard.units.units`. census: is given every document that was read, whether it made an example or not.
    slot_of: gives the slot of every unit from its id, which is not stored.

    A row that cannot be read, has no label of the map or range, or cannot be tokenised is no example; its unit keeps
    its other examples, possibly none. What becomes of a row depends on that row alone, and for a user's rows on that
    user's rows alone; the order of two records does not depend on others. Memory: `TokenRows`, 16 bytes an example, 8 a
    unit, 4 a slot, and one chunk of text.

    Raises `ShardError` as `party.shard.units.units` does and, where `frank`, when no row makes an example or, for a
    classifier, all are of one class; `learning.errors.DataError`.
    """
    left_out = Skipped()
    found = _examples(
        shard,
        columns,
        targets,
        left_out,
        by_user=by_user,
        cache=cache,
        frank=frank,
        census=census,
        most_examples=most_examples,
    )
    ids, stops, seconds, begins = array("i"), array("q", [0]), array("i"), array("q", [0])
    labels, slots = array("d"), array("i")
    truncated = 0
    for chunk in _chunks(found):
        together = [example for unit in chunk for example in unit.examples]
        second = None if columns.second is None else [example.second or "" for example in together]
        encoded = encode(tokenizer, [example.first for example in together], second, longest=longest, known=known)
        truncated += encoded.truncated
        made = iter(encoded.rows)
        for unit in chunk:
            for example, row in zip(unit.examples, islice(made, len(unit.examples)), strict=True):
                if not len(row):
                    left_out.reasons[NOT_TOKENISED] += 1
                    continue
                ids.frombytes(row.ids.tobytes())
                stops.append(len(ids))
                seconds.append(row.second)
                labels.append(_label(targets, example))
            begins.append(len(seconds))
        if slot_of is not None:
            slots.extend(slot_of(unit.id) for unit in chunk)
    _check(shard, targets, labels, left_out, frank=frank)
    rows = TokenRows(*(np.frombuffer(each, each.typecode) for each in (ids, stops, seconds)))
    members = members_of(begins, together=by_user)
    numbers = np.frombuffer(labels)
    typed = numbers.astype(np.int64) if isinstance(targets, LabelMap) else numbers.astype(np.float32)
    places = None if slot_of is None else np.frombuffer(slots, np.int32)
    whole = LabelledUnits(rows, typed, members, truncated, left_out, places)
    _tell(whole, longest)
    return whole


def members_of(begins: "array[int]", *, together: bool) -> Members | None:
    """The value of `LabelledUnits.members`. begins: as `Members.stops`. together: whether a unit may have several."""
    stops = np.frombuffer(begins, np.int64)
    return None if not together and bool((np.diff(stops) == 1).all()) else Members(stops)


def tell_if_few(units: int, *, needed: int, why: str) -> None:
    """Warn, in the party's own log only, that the shard has fewer units than assumed.

    units: private. needed: public, [policy] declared_size or a figure of the plan; why: which of the two. Nothing is
    refused for it: a refusal would tell the coordinator what the shard holds.
    """
    if units < needed:
        log.warning(
            "the shard has %s units, fewer than the %s of %s. What is promised holds as it stands; the noise is larger "
            "beside so little text. Add text, or declare fewer.",
            f"{units:,}",
            f"{needed:,}",
            why,
        )


def _examples(
    shard: ShardTable,
    columns: TextColumns,
    targets: LabelMap | ScoreRange,
    left_out: Skipped,
    *,
    by_user: bool,
    cache: Path,
    frank: bool,
    census: Census | None,
    most_examples: int,
) -> Iterator[_Unit]:
    """The units with those examples that their rows make."""
    found = units(
        shard,
        "document",
        by_user=by_user,
        cache=cache,
        frank=frank,
        skipped=left_out,
        noted=noting(census, columns.second),
        columns=columns,
    )
    for unit in found:
        made = list(examples(unit.rows, columns, targets, left_out, lenient=True))
        if len(made) > most_examples:
            left_out.reasons[BEYOND_EXAMPLES] += len(made) - most_examples
        yield _Unit(unit.id, made[:most_examples])


def noting(census: Census | None, second: str | None) -> Callable[[Document], None]:
    """A function that adds a document that was read, with all its text, to a census.

    second: the column of second texts, if it is read.
    """

    def noted(document: Document) -> None:
        if census is not None:
            census.note(document)
            text = "" if second is None else document.fields.get(second, "")
            if text.strip():  # it belongs to the record as the first does, and may be the first in another shard
                census.note(dataclasses.replace(document, text=text))

    return noted


def _chunks(found: Iterator[_Unit]) -> Iterator[list[_Unit]]:
    """Units in groups of bounded examples and characters; every unit is in one group."""
    chunk: list[_Unit] = []
    held, characters = 0, 0
    for unit in found:
        chunk.append(unit)
        held += max(1, len(unit.examples))
        characters += sum(len(example.first) + len(example.second or "") for example in unit.examples)
        if held >= _CHUNK_EXAMPLES or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, held, characters = [], 0, 0
    if chunk:
        yield chunk


def _label(targets: LabelMap | ScoreRange, example: Example) -> float:
    return example.target if isinstance(targets, LabelMap) else targets.standard(example.target)


def _check(
    shard: ShardTable, targets: LabelMap | ScoreRange, labels: Sequence[float], left_out: Skipped, *, frank: bool
) -> None:
    """Warn that nothing can be learned from these labels (none, or all of one class): in the party's log, or by
    `ShardError` if `frank`.

    A training that failed for it would reveal the one row with another label.
    """
    what = None
    if not labels:
        what = no_example(shard, left_out)
    elif isinstance(targets, LabelMap) and all(label == labels[0] for label in labels):
        what = (
            f'the shard has one class only: in source "{shard.source}" every label is '
            f"{targets.names[int(labels[0])]!r}. Use a part of the source with two classes or more."
        )
    if what is not None and frank:
        raise ShardError(what)
    if what is not None:
        log.warning("%s Training goes on.", what)


def _tell(read: LabelledUnits, longest: int) -> None:
    if read.truncated:
        log.warning(
            "%s of %s examples are longer than %s tokens and were cut.",
            f"{read.truncated:,}",
            f"{len(read.rows):,}",
            f"{longest:,}",
        )
    if read.left_out.total:
        log.warning("rows were left out: %s.", reasons(read.left_out))
