"""The public data of a swing run: the model that teachers and student start from, and the texts that are asked."""

from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from coordinator.errors import PlanError
from coordinator.language_models import public as language_public
from coordinator.language_models.students import PublicTeacher, with_student
from coordinator.plan.public_text import source_of
from coordinator.systems.swing.learning import trainable_of
from coordinator.systems.swing.plan import SwingPlan
from learning.errors import DataError
from learning.text import source

if TYPE_CHECKING:
    from learning.language.generation import Texts

LEAST_QUERIES = 4
"""The fewest texts that anything can be learned from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSwing(PublicTeacher):
    """The public data of a plan.

    queries: the texts that are asked, as tokens without what stands before them. clues: the file of privacy clue words;
    empty where no temperature grows near them. trainable: how many numbers of the student learners train; 0 without
    any.
    """

    queries: "Texts"
    clues: bytes = b""
    trainable: int = 0


def prepare(plan: SwingPlan, base: Path, cache: Path) -> PublicSwing:
    """Load the public model, read the texts that are asked and those of `[evaluation]`, and try the student.

    Raises as `coordinator.language_models.public.prepare` and `with_student`; `PlanError` where fewer than
    `LEAST_QUERIES` texts are asked, or more outcomes are wanted than leave others; `ConclaveError` for clue words that
    cannot be read.
    """
    found = with_student(plan, language_public.prepare(plan, base, cache), base, cache, part=1)
    if plan.distil.top >= found.tokens:
        raise PlanError(
            f"[distil] top = {plan.distil.top:,} leaves no other of the {found.tokens:,} tokens of {plan.model.name}. "
            "Use fewer."
        )
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    queries = _queries(plan, found, base, cache)
    trainable = 0 if plan.learner is None else trainable_of(plan, found)
    return PublicSwing(**kept, queries=queries, clues=clues_of(plan, base), trainable=trainable)


def clues_of(plan: SwingPlan, base: Path) -> bytes:
    """The file of privacy clue words; empty where no temperature grows near them. Raises `ConclaveError`."""
    from learning.swing.clues import SHIPPED, read

    if not (plan.published and plan.swing.strength):
        return b""
    path = SHIPPED if plan.swing.clues is None else base / plan.swing.clues
    read(path)
    return path.read_bytes()


def _queries(plan: SwingPlan, public: PublicTeacher, base: Path, cache: Path) -> "Texts":
    import numpy as np

    from learning.language.generation import Texts
    from learning.models.batching import encode_documents

    table = plan.queries
    said = [each.text for each in islice(source.read(source_of(table, base), cache), table.limit)]
    if not said:
        raise DataError(f"[queries] {table.source} has no text. Name the column that holds it.")
    rows = encode_documents(public.tokenizer, said, longest=public.longest, codes=[None] * len(said)).rows
    room = public.longest - len(public.bare)
    own = [np.asarray(row.ids[row.second :][:room], np.int32) for row in rows if len(row) > row.second]
    if len(own) < LEAST_QUERIES:
        raise PlanError(
            f"[queries] {table.source}: {len(own)} texts have a token, and a student takes {LEAST_QUERIES} or more. "
            "Give more texts."
        )
    return Texts.joined(own, public.end)


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
