"""DPKD (Mireshghallah et al. 2022), PrivDistil's baseline: teacher and student both train under DP-SGD.

DPKD is no recipe: its second training shows every party's own text to the teacher, so a run would have to send the
teacher to the parties. A comparison runs it in one process, which sees the simulated parties' text.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from dp_accounting import ComposedDpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.comparing.comparable import Outcome, changed, composed
from coordinator.comparing.simulated_run import kept_folder
from coordinator.systems.privdistil.data import CorpusData, Floats, Trained
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.text_models.federated_training import descent_event, mechanism, optimisation_of
from coordinator.text_models.in_clear import Trainable, trained_in_clear
from coordinator.text_models.public import PublicText

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation
    from learning.private_training.units import Units


def trained_twice(data: CorpusData, epsilon: float, *, inherits: bool = False) -> Outcome:
    """Train the teacher under DP-SGD, then the student on the same private text, half on the labels and half on the
    teacher's output. Both trainings cost epsilon, at the same noise multiplier.

    inherits: whether the student starts from layers of the trained teacher (FT in PrivDistil's table 7), which is paid
    for, or from those of the public teacher (PT). Source: DPKD, Mireshghallah et al. 2022.
    """
    plan = changed(data.plan, epsilon=epsilon)
    whole, student = data.whole, data.public.text
    sizes = len(whole.start), len(student.start)
    multiplier = calibrate(
        lambda z: ComposedDpEvent([descent_event(plan, z, size) for size in sizes]), epsilon, data.delta
    )
    first, second = (mechanism(plan, multiplier, size, plan.dp_sgd.steps) for size in sizes)
    descent = optimisation_of(plan.dp_sgd, plan.dp_sgd.batch)
    labels = ("twice", repr(epsilon))
    truth = [part.labels for part in data.text.parts]
    taught = federated(data, whole, first, descent, (*labels, "teacher"), truth)
    said = data.said(Trained(whole, taught))
    soft = [mixed(labels, each) for labels, each in zip(truth, said, strict=True)]
    if inherits:
        student = replace(student, start=_inherited(plan, whole, student))
    purpose = (*labels, "student", "inherits") if inherits else (*labels, "student")
    point = federated(data, student, second, descent, purpose, soft)
    events = [first.event(), second.event()]
    return Outcome(Trained(student, point), composed(events), notes={"noise_multiplier": multiplier})


def _inherited(plan: PrivDistilPlan, teacher: PublicText, student: PublicText) -> Floats:
    """The student's parameters, float32 [parameters], copied from the teacher as it is now."""
    from learning.models.adapting import flatten
    from learning.transformers.layered_student import inherit

    inherit(teacher.model, student.model, plan.distil.start)
    return flatten(student.model).numpy().copy()


def mixed(labels: NDArray[Any], said: Floats) -> Floats:
    """Mix labels and the teacher's output in equal parts: probabilities [examples, classes], or scores [examples].

    Cross-entropy with the mixture has the same gradient as the mean of the two losses at temperature 1; the same holds
    for the squared error of scores.
    """
    from learning.classification.training import probabilities

    if said.shape[1] == 1:
        return np.asarray((labels + said[:, 0]) / 2, np.float32)
    truth = np.eye(said.shape[1], dtype=np.float32)[np.asarray(labels, np.int64)]
    return np.asarray((truth + probabilities(said)) / 2, np.float32)


def federated(
    data: CorpusData,
    text: PublicText,
    mechanism: GradientMechanism,
    optimisation: "Optimisation",
    purpose: tuple[str, ...],
    targets: Sequence[NDArray[Any]],
) -> Floats:
    """Train a model by federated DP-SGD from its public start; returns [parameters].

    purpose: labels of the noise stream. targets: labels or soft targets of each party's examples. The cost is
    `mechanism.event()`. Source: DP-SGD, Abadi et al. 2016, algorithm 1.
    """
    work = trainable(data, text, targets)
    return trained_in_clear(
        work, text.start, mechanism, optimisation, partial(data.stream, *purpose), data.progress, kept_folder
    )


def trainable(data: CorpusData, text: PublicText, targets: Sequence[NDArray[Any]]) -> Trainable:
    import torch

    from learning.models.adapting import unflatten
    from learning.models.batching import losses
    from learning.models.compute import device_of
    from learning.models.features import head_alone
    from learning.private_training.feature_units import FeatureUnits, head_losses
    from learning.private_training.text_units import TextUnits, tokens_at_once

    model, parts, seen = text.model, data.text.parts, data.text.vectors(text)
    unflatten(model, torch.from_numpy(text.start))
    labels = [torch.from_numpy(np.ascontiguousarray(each)) for each in targets]
    units: list[Units]
    if seen is None:
        at_once = tokens_at_once(kind := device_of(model).type)
        units = [
            TextUnits(model.config, part.rows, label, members=part.members, tokens_at_once=at_once, device=kind)
            for part, label in zip(parts, labels, strict=True)
        ]
        return Trainable(model, units, losses)
    head = head_alone(model)
    assert head is not None
    units = [
        FeatureUnits(vectors, label, members=part.members)
        for part, vectors, label in zip(parts, seen, labels, strict=True)
    ]
    return Trainable(head, units, head_losses)
