"""Attacks on DistilDP: on counts of tokens, on the teacher's noisy gradient sums, on its texts, and on the student.

A worst case is a text that no model expects: a prompt that all have, a number of random digits of its own, and random
tokens. The number also shows how far it stands out under the student among all that it could have been.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.auditing.sums import scores_in_sum
from coordinator.language_models.audit import STUDENT, Read, exposures, fallen, losses_of_units, numbered, started
from coordinator.language_models.counts import TOKENS
from coordinator.language_models.students import first_student
from coordinator.pricing.release import Release
from coordinator.progress.progress import Silent
from coordinator.published.audit import Exposed
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.systems.distildp.teaching import written
from coordinator.text_models.auditing.steps import known
from coordinator.text_models.auditing.trained import ENOUGH, halves, trained_scores
from learning.models.batching import encode_documents, losses
from learning.models.encoders import tokens_of
from learning.text.source import Document

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Floats: TypeAlias = NDArray[np.float64]

_RARE: Final = 12
"""Random tokens of a worst case."""
_GRAM: Final = 3
_COUNTS: Final = (
    "Took the other records' counts, which are known, from the noisy ones, and looked for each canary's own tokens."
)
_TEXTS: Final = f"Looked in the published texts for runs of {_GRAM} tokens that a canary has and few other records."


@dataclass(frozen=True, slots=True)
class DistilDpAttacks:
    """A `coordinator.auditing.attacks.Attacks`."""

    recipe: DistilDp

    @property
    def compares(self) -> bool:
        return False

    @property
    def watches(self) -> bool:
        return True

    @property
    def most(self) -> int | None:
        return ENOUGH

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        tokenizer = self.recipe.read.tokenizer
        return numbered(tokenizer, count, rows, rng, lambda: _unlikely(self.recipe, rows, rng))

    def scores(self, seen: Seen) -> Iterator[Scores]:
        run, public, watch = seen.ran.run, self.recipe.read, seen.watch
        assert watch is not None
        units = seen.units(self.recipe.plan)
        read = _read(self.recipe, units)
        for release in run.priced.releases:
            if release.name == TOKENS:
                yield Scores(TOKENS, _COUNTS, _counted(self.recipe, seen, release, read))
        how = losses if watch.tilt is None else partial(losses, tilt=torch.from_numpy(watch.tilt))
        model = known(public.model, read.rows, None, read.owner, len(units), how)
        yield from trained_scores(seen, run.priced.releases, model, public.start)
        canaries = len(seen.planted.canaries)
        yield Scores("texts", _TEXTS, _copied(self.recipe, seen, read)[:canaries])
        yield Scores("student", STUDENT, fallen(public, read, model, student_of(self.recipe, seen.ran))[:canaries])

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        return losses_of_units(_read(self.recipe, [canary.rows for canary in canaries]), student_of(self.recipe, ran))

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        public = self.recipe.read
        return exposures(public, seen, student_of(self.recipe, seen.ran), started(public))


def _read(recipe: DistilDp, units: Sequence[Sequence[Document]]) -> Read:
    """The units' texts, as parties read them: a text without a control code of the plan is none."""
    plan, public = recipe.plan, recipe.read
    codes = None if plan.codes is None else plan.codes.codes()
    columns = plan.shard_columns.get("codes", {})
    texts, said, owner, cells = [], [], [], []
    for number, rows in enumerate(units):
        for row in rows:
            cell = None
            if codes is not None:
                cell = codes.cell({name: row.fields.get(column, "") for name, column in columns.items()})
                if cell is None:
                    continue
            texts.append(row.text)
            said.append(None if codes is None or cell is None else codes.texts()[cell])
            owner.append(number)
            cells.append(-1 if cell is None else cell)
    found = encode_documents(public.tokenizer, texts, longest=public.longest, codes=said).rows
    return Read(list(found), owner, cells, len(units))


def student_of(recipe: DistilDp, ran: Ran) -> "PreTrainedModel":
    """The student that a run published."""
    from safetensors.torch import load

    model = first_student(recipe.plan, recipe.read, recipe.teacher(ran.run.store).plain)
    kept = load(ran.run.content)
    with torch.no_grad():
        for name, each in model.named_parameters():
            each.copy_(kept[name])
    return model


def _counted(recipe: DistilDp, seen: Seen, release: Release, read: Read) -> Floats:
    """The scores in the counts of tokens, which are apart by code where the plan says so."""
    tokens, canaries = tokens_of(recipe.read.model), len(seen.planted.canaries)
    apart = release.columns > tokens
    places, units = [], []
    for row, unit, cell in zip(read.rows, read.owner, read.cells, strict=True):
        own = row.ids[row.second :].astype(np.int64)
        places.append(own + (tokens * cell if apart else 0))
        units.append(np.full(len(own), unit))
    shape = (read.units, release.columns)
    cells = (np.concatenate(units), np.concatenate(places))
    counts = sparse.coo_array((np.ones(len(cells[0])), cells), shape=shape).tocsr()
    mechanism = release.under(CountsMechanism)
    bounded = [mechanism.contribute(counts[[unit]]) for unit in range(read.units)]
    others = np.asarray(sparse.vstack(bounded[canaries:]).sum(axis=0), np.float64).reshape(-1)
    total = np.concatenate([block for _, _, block in seen.ran.run.store.blocks(TOKENS)]).reshape(-1)
    parts = sparse.csr_array(sparse.vstack(bounded[:canaries], format="csr"))
    sigma = mechanism.noise_multiplier * mechanism.levels
    return scores_in_sum(total.astype(np.float64), others, parts, sigma)


def _copied(recipe: DistilDp, seen: Seen, read: Read) -> Floats:
    """Of each unit how many runs of tokens stand in the published texts, each less the more units have it, [units]."""
    run = seen.ran.run
    shares = recipe.shares(run.priced, run.present, run.store)
    said = recipe.said(run.priced, shares, run.store)
    texts, _, _ = written(recipe.teacher(run.store), shares, run.store, Silent(), said)
    there = {gram for text in texts for gram in _grams(text)}
    own: list[set[tuple[int, ...]]] = [set() for _ in range(read.units)]
    for row, unit in zip(read.rows, read.owner, strict=True):
        own[unit] |= set(_grams(row.ids))
    often: dict[tuple[int, ...], int] = {}
    for grams in own:
        for gram in grams:
            often[gram] = often.get(gram, 0) + 1
    return np.array([sum(1 / often[gram] for gram in grams & there) for grams in own], np.float64)


def _grams(ids: NDArray[np.int32]) -> list[tuple[int, ...]]:
    listed: list[int] = ids.tolist()
    return [tuple(listed[place : place + _GRAM]) for place in range(len(listed) - _GRAM + 1)]


def _unlikely(recipe: DistilDp, rows: Sequence[Document], rng: np.random.Generator) -> str:
    """Words of random tokens, or of two records where a tokenizer has few words."""
    tokenizer: Any = recipe.read.tokenizer
    special = set(tokenizer.all_special_ids)
    drawn = [int(each) for each in rng.integers(0, len(tokenizer), 4 * _RARE) if int(each) not in special]
    words = [word for token in drawn if (word := str(tokenizer.decode([token])).strip()).isalpha()]
    return " ".join(words[:_RARE]) if len(words) >= _RARE else halves(rows, rng)
