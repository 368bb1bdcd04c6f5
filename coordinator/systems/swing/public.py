"""The public data of a swing run: the model that teachers and student start from, and the texts that are asked."""

from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, TypeAlias

from coordinator.errors import PlanError
from coordinator.language_models import public as language_public
from coordinator.language_models.public import PublicLanguage
from coordinator.language_models.students import PublicTeacher, with_student
from coordinator.plan.public_text import source_of
from coordinator.systems.swing.learning import trainable_of
from coordinator.systems.swing.plan import SwingPlan
from coordinator.text_models.public import placed_model
from learning.errors import DataError
from learning.text import source

if TYPE_CHECKING:
    from learning.language.generation import Texts

LEAST_QUERIES = 4
"""The fewest texts that anything can be learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSwing(PublicTeacher):
    """The public data of a plan.

    queries: the texts that are asked, as tokens without what stands before them; before: this, of each: the beginning,
    or, of an answer, its input. cut: how many of the queries lost something to `[text]` longest or answer. clues: the
    file of privacy clue words; empty where no temperature grows near them. trainable: how many numbers of the student
    learners train; 0 without any.
    """

    queries: "Texts"
    before: tuple[tuple[int, ...], ...]
    cut: int = 0
    clues: bytes = b""
    trainable: int = 0


def prepare(plan: SwingPlan, base: Path, cache: Path) -> PublicSwing:
    """Load the public model, read the texts that are asked and those of `[evaluation]`, and try the student.

    Raises as `coordinator.language_models.public.prepare` and `with_student`; `PlanError` where fewer than
    `LEAST_QUERIES` texts are asked, or more outcomes are wanted than leave others; `ConclaveError` for clue words that
    cannot be read.
    """
    _check_kind(plan, base, cache)
    began = language_public.prepare(plan, base, cache)
    if plan.pairs:
        began = _paired(plan, began)
    found = with_student(plan, began, base, cache, part=1)
    if plan.distil.top >= found.tokens:
        raise PlanError(
            f"[distil] top = {plan.distil.top:,} leaves no other of the {found.tokens:,} tokens of {plan.model.name}. "
            "Use fewer."
        )
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    queries, before, cut = (_pairs_asked if plan.pairs else _texts_asked)(plan, found, base, cache)
    trainable = 0 if plan.learner is None else trainable_of(plan, found)
    clues = clues_of(plan, base)
    return PublicSwing(**kept, queries=queries, before=before, cut=cut, clues=clues, trainable=trainable)


def clues_of(plan: SwingPlan, base: Path) -> bytes:
    """The file of privacy clue words; empty where no temperature grows near them. Raises `ConclaveError`."""
    from learning.swing.clues import SHIPPED, read

    if not (plan.published and plan.swing.strength):
        return b""
    path = SHIPPED if plan.swing.clues is None else base / plan.swing.clues
    read(path)
    return path.read_bytes()


Asked: TypeAlias = "tuple[Texts, tuple[tuple[int, ...], ...], int]"
"""The texts that are asked, what stands before each, and how many of them lost something."""


def _texts_asked(plan: SwingPlan, public: PublicTeacher, base: Path, cache: Path) -> Asked:
    import numpy as np

    from learning.language.generation import Texts
    from learning.models.batching import encode_documents

    table = plan.queries
    said = [each.text for each in islice(source.read(source_of(table, base), cache), table.limit)]
    if not said:
        raise DataError(f"[queries] {table.source} has no text. Name the column that holds it.", code="C204")
    found = encode_documents(public.tokenizer, said, longest=public.longest, codes=[None] * len(said))
    room = public.longest - len(public.bare)
    own = [np.asarray(row.ids[row.second :][:room], np.int32) for row in found.rows if len(row) > row.second]
    _check_number(plan, len(own), "texts have a token")
    return Texts.joined(own, public.end), (public.bare,) * len(own), found.truncated


def _pairs_asked(plan: SwingPlan, public: PublicTeacher, base: Path, cache: Path) -> Asked:
    import numpy as np

    from learning.language.generation import Texts
    from learning.models.pairs import encode_pairs

    table, form = plan.queries, public.pairs
    assert table.second is not None
    assert form is not None
    read = source.read(replace(source_of(table, base), columns=(table.second,)), cache)
    there = ((each.text, each.fields.get(table.second, "")) for each in read)
    said = list(islice((each for each in there if each[1].strip()), table.limit))
    _check_number(plan, len(said), f"rows have an answer in column {table.second!r}")
    found = encode_pairs(public.tokenizer, [each for each, _ in said], [each for _, each in said], form)
    own = [np.asarray(row.ids[row.second :], np.int32) for row in found.rows]
    before = tuple(tuple(map(int, row.ids[: row.second])) for row in found.rows)
    return Texts.joined(own, public.end), before, found.truncated


def _check_number(plan: SwingPlan, found: int, what: str) -> None:
    if found < LEAST_QUERIES:
        raise PlanError(
            f"[queries] {plan.queries.source}: {found} {what}, and a student takes {LEAST_QUERIES} or more. Give more "
            "texts.",
            code="C204",
        )


def _paired(plan: SwingPlan, public: PublicLanguage) -> PublicLanguage:
    """The public data with how it reads pairs. Raises `PlanError` where nothing is left for an input."""
    from learning.models.checkpoints import ModelError
    from learning.models.pairs import PairForm, check_room

    form = PairForm(plan.text.separator, public.longest, plan.text.answer, False).of(public.model.config)
    try:
        check_room(public.tokenizer, form)
    except ModelError as error:
        raise PlanError(f"[text] {error}") from None
    return replace(public, pairs=form)


def _check_kind(plan: SwingPlan, base: Path, cache: Path) -> None:
    from learning.models.checkpoints import config_of

    config = config_of(placed_model(plan.model.name, base), cache)
    if not plan.pairs and getattr(config, "is_encoder_decoder", False):
        raise PlanError(
            f"[model] name: {plan.model.name} has an encoder and a decoder, which says an answer to an input. Use "
            '[text] kind = "pair" with columns of answers, or name a model like GPT-2.'
        )


def cut_doubts(plan: SwingPlan, public: PublicSwing) -> list[str]:
    """A sentence where pairs that are asked lose something to their length; none for single texts."""
    if not (plan.pairs and public.cut):
        return []
    return [
        f"{public.cut:,} of the {len(public.queries):,} pairs of [queries] are longer than [text] longest = "
        f"{plan.text.longest} or answer = {plan.text.answer} and are cut, as the parties' are: inputs at their end, so "
        "that every answer has its room."
    ]


def temperature_doubts(plan: SwingPlan, public: PublicSwing) -> list[str]:
    """A sentence for each way in which clue words make no difference to the texts that are asked: none is there, or all
    tokens are at the highest temperature. None where no temperature grows.
    """
    from learning.swing.clues import marked, read
    from learning.swing.temperature import Temperature, temperatures

    if not public.clues:
        return []
    with NamedTemporaryFile(suffix=".toml") as file:
        file.write(public.clues)
        file.flush()
        found = marked(read(Path(file.name)), public.queries, public.tokenizer)
    settings = Temperature(plan.swing.temperature, plan.swing.strength, plan.swing.cap)
    return list(temperatures(settings, found, public.queries.stops).warnings)
