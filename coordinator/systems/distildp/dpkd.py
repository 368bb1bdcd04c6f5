"""DPKD (Mireshghallah et al. 2022), a baseline: teacher and student both train under DP-SGD on the private text.

It is no recipe: its student is shown every party's own text and what the teacher says of it, in a training that all
parties pay for a second time. A comparison runs that training in one process, on the simulated parties' text in clear.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from coordinator.comparing.comparable import Outcome, changed
from coordinator.comparing.simulated_run import driven, kept_folder
from coordinator.language_models.comparing import LanguageData, Measured
from coordinator.language_models.students import PublicTeacher
from coordinator.systems.distildp.data import PrivateHalf, alone, paid
from coordinator.text_models.federated_training import descent_event, mechanism, optimisation_of
from coordinator.text_models.in_clear import Trainable, trained_in_clear

if TYPE_CHECKING:
    from learning.language.speaker import Speaker


def trained_twice(data: LanguageData, epsilon: float, *, inherits: bool = False) -> Outcome:
    """Train the teacher under DP-SGD, then the student on the same text by (1 - l) CE + l KL, l as in `[distil]`.

    Both trainings cost epsilon, at one noise multiplier; nobody counts tokens or codes. inherits: whether the student
    begins with layers of the trained teacher, which is paid for, or of the public one. Source: DPKD, Mireshghallah et
    al. 2022.
    """
    plan = changed(data.plan, {"floor": {"use": False}}, epsilon=epsilon).model_copy(update={"codes": None})
    recipe = PrivateHalf(plan, data.public)
    size = len(alone(data, plan).start)

    def both(multiplier: float) -> DpEvent:
        return ComposedDpEvent([recipe.total_event(multiplier), descent_event(plan, multiplier, size)])

    multiplier = calibrate(both, epsilon, data.delta)
    noised = plan.model_copy(update={"privacy": plan.privacy.model_copy(update={"noise_multiplier": multiplier})})
    with driven(PrivateHalf(noised, data.public), data.shards, data.progress, data.base) as run:
        teacher = PrivateHalf(noised, data.public).teacher(run.store)
        student = alone(data, plan, teacher.plain if inherits else None)
        steps = mechanism(plan, multiplier, size, plan.dp_sgd.steps)
        point = trained_in_clear(
            _shown(data, student, teacher.speakers[0]),
            student.start,
            steps,
            optimisation_of(plan.dp_sgd, plan.dp_sgd.batch),
            partial(data.stream, "twice", repr(epsilon), str(inherits)),
            data.progress,
            kept_folder,
        )
        event = paid(run.priced, steps.event())
    return Outcome(Measured((_speaking(student, point),)), event, notes={"noise_multiplier": multiplier})


def _shown(data: LanguageData, student: PublicTeacher, teacher: "Speaker") -> Trainable:
    """Each party's units as the student is shown them, beside what the teacher says of their tokens."""
    from learning.language.taught_losses import taught_losses
    from learning.models.compute import device_of
    from learning.private_training.text_units import TextUnits, tokens_at_once

    at_once = tokens_at_once(kind := device_of(student.model).type)
    units = [
        TextUnits(student.model.config, part.rows, None, members=part.members, tokens_at_once=at_once, device=kind)
        for part in data.documents(coded=False)
    ]
    return Trainable(student.model, units, taught_losses(teacher, data.plan.distil.mixing))


def _speaking(student: PublicTeacher, point: NDArray[np.float32]) -> "Speaker":
    import torch

    from learning.language.speaker import Speaker
    from learning.models.adapting import merged, unflatten

    unflatten(student.model, torch.from_numpy(point))
    return Speaker(merged(student.model))
