"""Attacks on text classifiers: on noisy gradient sums, on the models of parties, on votes, and on the student.

A worst case is a text of two halves of different records, under the label that the public start finds least likely: its
gradient is long, and like no other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.pricing.release import Release
from coordinator.published.audit import Exposed
from coordinator.text_models.auditing.steps import Known, known, scores_in_steps
from coordinator.text_models.federated_training import floats_of
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.recipe import TextRecipe
from learning.text.labelled import LabelMap, TextColumns, examples
from learning.text.source import Document, Skipped

Floats: TypeAlias = NDArray[np.float64]

ENOUGH: Final = 200
"""Records beside the canaries: with more, what a step samples of them hides a canary, which is no part of the claim."""
_ROUNDS: Final = 8
"""Rounds of training alone that are attacked, the last ones: each attack costs all of them some confidence."""
_STEPS: Final = (
    "Knew all records, and regressed each step's noisy sum on their clipped gradients at its released parameters."
)
_ALONE: Final = "Compared the loss of each canary under the models that parties released with that at their start."
STUDENT: Final = "Compared the loss of each canary under the published student with that of the public start."


@dataclass(frozen=True, slots=True)
class ClassifierAttacks:
    """A `coordinator.auditing.attacks.Attacks` on a model that parties train under DP-SGD."""

    recipe: TextRecipe

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
        return mislabelled(self.recipe.plan, self.recipe.read, count, rows, rng)

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        from safetensors.numpy import load

        units = labelled_units(self.recipe.plan, self.recipe.read, [canary.rows for canary in canaries])
        return units.losses_at(load(ran.run.content)["point"])

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        return ()

    def scores(self, seen: Seen) -> Iterator[Scores]:
        from safetensors.numpy import load

        public = self.recipe.read
        units = labelled_units(self.recipe.plan, public, seen.units(self.recipe.plan))
        yield from trained_scores(seen, seen.ran.run.priced.releases, units, public.start)
        point = load(seen.ran.run.content)["point"]
        yield Scores("student", STUDENT, loss_scores(units, seen, public.start, point))


def trained_scores(
    seen: Seen, releases: Iterable[Release], units: Known, start: NDArray[np.float32]
) -> Iterator[Scores]:
    """The scores of canaries in every release of a training under DP-SGD: in steps, or in parties' own models."""
    watch, canaries, releases = seen.watch, len(seen.planted.canaries), tuple(releases)
    assert watch is not None
    last = {release.name for release in releases[-_ROUNDS:]}
    for release in releases:
        if release.form == Form.STEPPED:
            mechanism = release.under(GradientMechanism)
            steps = watch.steps(release.name)
            values = scores_in_steps(units, canaries, steps, mechanism, watch.parties, seen.progress)
            yield Scores(release.name, _STEPS, values)
        elif release.form == Form.WEIGHTS:
            models = [floats_of(each.astype(np.int64)) for each in watch.alone[release.name].values()]
            if release.name in last:
                found = [loss_scores(units, seen, start, model) for model in models]
                yield Scores(release.name, _ALONE, np.mean(found, axis=0))
            start = np.asarray(np.mean(models, axis=0, dtype=np.float64), np.float32)


def loss_scores(units: Known, seen: Seen, before: NDArray[np.float32], after: NDArray[np.float32]) -> Floats:
    """By how much the loss of each canary fell from one point to another, [canaries]."""
    return (units.losses_at(before) - units.losses_at(after))[: len(seen.planted.canaries)]


def labelled_units(plan: ClassifierPlan, public: PublicText, units: Sequence[Sequence[Document]]) -> Known:
    """The records of units as parties read them and as the plan's model sees them."""
    owner, first, second, targets = [], [], [], []
    for number, rows in enumerate(units):
        for each in examples(rows, columns_of_plan(plan), plan.text.targets, Skipped(), lenient=True):
            owner.append(number)
            first.append(each.first)
            second.append(each.second or "")
            targets.append(each.target)
    tokens = encoded(public, first, second if plan.text.pairs else None)
    return known(public.model, tokens, _labels(plan, targets), owner, len(units))


def mislabelled(
    plan: ClassifierPlan, public: PublicText, count: int, rows: Sequence[Document], rng: np.random.Generator
) -> list[Document]:
    """Records of halves of two others, with the label that the public start finds least likely."""
    shards = plan.federation.shards
    assert shards is not None
    assert shards.label is not None
    texts = [halves(rows, rng) for _ in range(count)]
    seconds = [halves(rows, rng, shards.second) for _ in range(count)] if plan.text.pairs else None
    labels = least_likely(plan, public, texts, seconds)
    made = []
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        like = rows[int(rng.integers(len(rows)))]
        fields = {**like.fields, shards.label: label}
        if seconds is not None and shards.second is not None:
            fields[shards.second] = seconds[number]
        made.append(replace(like, text=text, fields=fields))
    return made


def least_likely(plan: ClassifierPlan, public: PublicText, first: list[str], second: list[str] | None) -> list[str]:
    """For each text the label, as rows have it, that the public start finds least likely; a score's farther end."""
    from learning.classification.training import predict
    from learning.models.adapting import unflatten

    unflatten(public.model, torch.from_numpy(public.start))
    said, targets = predict(public.model, encoded(public, first, second)), plan.text.targets
    if isinstance(targets, LabelMap):
        values = targets.values or targets.names
        return [values[int(each.argmin())] for each in said]
    return [f"{targets.low if each[0] > 0 else targets.high:g}" for each in said]


def halves(rows: Sequence[Document], rng: np.random.Generator, column: str | None = None) -> str:
    """The first half of one record's words and the second of another's. column: of the text; None for the first one."""
    drawn = [rows[int(place)] for place in rng.integers(0, len(rows), 2)]
    one, other = ((row.text if column is None else row.fields[column]).split() for row in drawn)
    return " ".join([*one[: -(-len(one) // 2)], *other[len(other) // 2 :]])


def columns_of_plan(plan: ClassifierPlan) -> TextColumns:
    """The columns that a plan's simulated parties have."""
    shards = plan.federation.shards
    assert shards is not None
    assert shards.label is not None
    return TextColumns(plan.text.kind, shards.text, shards.second if plan.text.pairs else None, shards.label)


def encoded(public: PublicText, first: list[str], second: list[str] | None) -> list[Any]:
    """Texts, or pairs, as the public model's tokens."""
    from learning.models.batching import encode

    return encode(public.tokenizer, first, second, longest=public.longest).rows


def _labels(plan: ClassifierPlan, targets: Sequence[int | float]) -> torch.Tensor:
    scale = plan.text.targets
    if isinstance(scale, LabelMap):
        return torch.tensor(targets, dtype=torch.int64)
    return torch.tensor([scale.standard(each) for each in targets], dtype=torch.float32)
