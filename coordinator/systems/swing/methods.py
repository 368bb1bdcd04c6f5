"""The methods that a comparison of swing distillation has as rows, each on the same simulated text."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np

from coordinator.comparing.comparable import Method, Outcome, changed, composed
from coordinator.comparing.simulated_run import driven
from coordinator.language_models.comparing import Measured
from coordinator.store.store import RunStore
from coordinator.systems.swing.data import SwingData, teachers_of
from coordinator.systems.swing.questions import public_outcomes, start_of
from coordinator.systems.swing.recipe import Swing
from coordinator.systems.swing.student import model_of
from coordinator.systems.swing.teaching import taught

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.language.soft_targets import Targets
    from learning.language.speaker import Speaker
    from learning.models.batching import Tokens


def _certified(data: SwingData, epsilon: float) -> Outcome:
    """The recipe itself: clipped differences under noise, every token charged."""
    recipe = Swing(changed(data.plan, epsilon=epsilon), data.public)
    with driven(recipe, data.shards, data.progress, data.base) as run:
        student = recipe.student(run.content, run.priced, run.present, run.store).model
        event = composed([release.event for release in run.priced.releases])
        return Outcome(Measured((_speaker(student),)), event)


def _alone(data: SwingData, epsilon: float) -> Outcome:
    """The student of the texts alone, whom nobody teaches."""
    return _distilled(data, None)


def _kd(data: SwingData, epsilon: float) -> Outcome:
    """Knowledge distillation from all parties' teachers, in clear. Source: Hinton et al. 2015."""
    from learning.language.soft_targets import graded

    with TemporaryDirectory(dir=data.folder) as folder:
        targets = graded(
            tuple(map(_speaker, teachers_of(data))),
            data.public.queries,
            [[data.public.bare] * len(data.public.queries)] * len(data.plan.federation.names),
            top=data.plan.distil.top,
            temperature=1.0,
            folder=Path(folder),
        )
        return _distilled(data, targets)


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


def _distilled(data: SwingData, targets: "Targets | None") -> Outcome:
    """A student of the texts, and of what was said of their tokens; None for one that nobody teaches."""
    plan = data.plan if targets is not None else changed(data.plan, {"distil": {"mixing": 0.0}})
    with TemporaryDirectory(dir=data.folder) as beside:
        store = RunStore.create(Path(beside) / "run", "beside", "beside", bytes(32))
        try:
            if targets is None:
                public_outcomes(plan, data.public, store, data.progress.bar)
            content = taught(plan, data.public, targets, store, data.progress)
        finally:
            store.close()
    return Outcome(Measured((_speaker(model_of(plan, data.public, content)),)), None)


def _rows(data: SwingData) -> "list[Tokens]":
    """The texts that are asked, as a model reads them."""
    from learning.models.batching import Tokens

    before = np.asarray(data.public.bare, np.int32)
    return [Tokens(np.concatenate([before, ids]), len(before)) for ids in data.public.queries]


def _speaker(model: "PreTrainedModel") -> "Speaker":
    from learning.language.speaker import Speaker

    return Speaker(model)


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("swing", "swing, certified", _certified),
        Method("alone", "student alone", _alone, private=False),
        Method("kd", "KD from all teachers", _kd, private=False),
        Method("fine_tune", "a teacher, trained on", _fine_tuned, private=False),
        Method("teachers", "the teachers themselves", _teachers, private=False),
        Method("public", "public model", _public, private=False),
    )
}
