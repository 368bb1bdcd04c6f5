"""The methods that a comparison of swing distillation has as rows, each on the same simulated text."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dp_accounting import DpEvent

from coordinator.comparing.comparable import Method, Outcome, changed, composed
from coordinator.comparing.simulated_run import driven
from coordinator.errors import PlanError
from coordinator.language_models.comparing import Measured
from coordinator.pricing.release import PricedPlan, at_most, borne
from coordinator.store.store import RunStore
from coordinator.systems.swing.data import SwingData, teachers_of
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import clues_of
from coordinator.systems.swing.questions import start_of
from coordinator.systems.swing.recipe import Swing
from coordinator.systems.swing.student import model_of
from coordinator.systems.swing.teaching import taught
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.speaker import Speaker
    from learning.models.batching import Tokens


def _certified(data: SwingData, epsilon: float) -> Outcome:
    """The recipe itself: clipped differences under noise, every token charged. All parties teach."""
    everyone = data.plan.model_copy(update={"learner": None})
    return _driven(data, changed(everyone, {"swing": {"form": "certified"}}, epsilon=epsilon))


def _trained(data: SwingData, epsilon: float) -> Outcome:
    """The recipe with `[learner]`: who learns does not teach, and the taught student is trained on its text."""
    return _driven(data, changed(data.plan, epsilon=epsilon))


def _softened(data: SwingData, epsilon: float, **settings: Any) -> Outcome:
    """The published form of the recipe, which has no guarantee. settings: of `[swing]`."""
    return _driven(data, unproven(data.plan, settings))


def _driven(data: SwingData, plan: SwingPlan) -> Outcome:
    recipe = Swing(plan, replace(data.public, clues=clues_of(plan, data.base)))
    with driven(recipe, data.shards, data.progress, data.base) as run:
        student = recipe.student(run.content, run.priced, run.present, run.store, data.progress).model
        return Outcome(Measured((_speaker(student),)), None if plan.published else _paid(run.priced))


def _paid(priced: PricedPlan[SwingPlan]) -> DpEvent:
    """What the party pays that pays most: those that teach and those that learn are in different releases."""
    delta = priced.plan.privacy.delta
    most = max(borne(priced.releases), key=lambda each: at_most(each, delta).epsilon)
    return composed([release.event for release in most])


def unproven(plan: SwingPlan, settings: Mapping[str, Any]) -> SwingPlan:
    """A plan in the published form, with other settings in `[swing]`: no party is promised anything.

    Raises `PlanError` where it is not valid.
    """
    found = plan.model_dump()
    privacy = found["privacy"]
    found["privacy"] = {key: privacy[key] for key in ("unit", "record", "declared_size")} | {"guarantee": False}
    found["federation"]["minimum_parties"] = found["learner"] = None
    found["teachers"]["per_party"] = 1
    found["swing"] |= {"form": "published", **settings}
    try:
        return check_settings(found, SwingPlan, "the plan")
    except SettingsError as error:
        raise PlanError(str(error)) from None


def _alone(data: SwingData, epsilon: float) -> Outcome:
    """The student of the texts alone, whom nobody teaches."""
    from learning.language.soft_targets import graded

    plan = changed(data.plan, {"distil": {"mixing": 0.0}})
    with TemporaryDirectory(dir=data.folder) as folder:
        targets = graded(  # what the public model says counts for nothing
            (_speaker(start_of(data.public)),),
            data.public.queries,
            [data.public.before],
            top=1,
            temperature=1.0,
            folder=Path(folder) / "public",
        )
        store = RunStore.create(Path(folder) / "run", "beside", "beside", bytes(32))
        with closing(store):
            content = taught(plan, data.public, targets, store, data.progress)
    return Outcome(Measured((_speaker(model_of(plan, data.public, content)),)), None)


def _fine_tuned(data: SwingData, epsilon: float) -> Outcome:
    """The first party's teacher, trained on with the texts: whoever has it has all that it remembers."""
    from learning.classification.training import fit

    model = teachers_of(data)[0]
    model.requires_grad_(True)
    fit(model, _rows(data), None, data.plan.teachers.fit(), np.random.default_rng(data.seed))
    return Outcome(Measured((_speaker(model),)), None)


def _teachers(data: SwingData, epsilon: float) -> Outcome:
    """The mean of the parties' teachers, which nobody else may have."""
    return Outcome(Measured(tuple(map(_speaker, teachers_of(data)))), None)


def _public(data: SwingData, epsilon: float) -> Outcome:
    """The public model as it is, which nobody's text has any part in."""
    return Outcome(Measured((_speaker(start_of(data.public)),)), None)


def _rows(data: SwingData) -> "list[Tokens]":
    """The texts that are asked, as a model reads them."""
    from learning.models.batching import Tokens

    said = zip(data.public.before, data.public.queries, strict=True)
    return [Tokens(np.concatenate([np.asarray(before, np.int32), ids]), len(before)) for before, ids in said]


def _speaker(model: "PreTrainedModel") -> "Speaker":
    from learning.language.speaker import Speaker

    return Speaker(model)


def methods_of(plan: SwingPlan) -> dict[str, Method]:
    """The rows that a plan has, in the table's order: one is of `[learner]` alone."""
    return {name: each for name, each in METHODS.items() if name != TRAINED or plan.learner is not None}


TRAINED: Final = "trained"
METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("swing", "swing, certified", _certified),
        Method(TRAINED, "swing, trained privately", _trained),
        Method("published", "swing, as published", _softened, private=False, heuristic=True),
        Method(
            "temperature",
            "dynamic temperature alone",
            partial(_softened, protection="none"),
            private=False,
            heuristic=True,
        ),
        Method(
            "noise", "noise on the likeliest alone", partial(_softened, strength=0.0), private=False, heuristic=True
        ),
        Method(
            "laplace", "noise on all", partial(_softened, strength=0.0, protection="all"), private=False, heuristic=True
        ),
        Method("kd", "KD", partial(_softened, strength=0.0, protection="none"), private=False),
        Method("alone", "student alone", _alone, private=False),
        Method("fine_tune", "a teacher, trained on", _fine_tuned, private=False),
        Method("teachers", "the teachers themselves", _teachers, private=False),
        Method("public", "public model", _public, private=False),
    )
}
