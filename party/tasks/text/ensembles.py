"""What text models on disjoint units share: which examples are whose, and how each model is trained."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from learning.classification.training import Fit
from learning.models.optimisers import Schedule
from party.tasks.text.request import Descent


def examples_of(
    slots: NDArray[np.int32], members: Sequence[Sequence[Any]] | None, teachers: int
) -> Iterator[NDArray[np.int64]]:
    """For every teacher the positions of its examples, in reading order.

    slots: each unit's teacher. members: each unit's examples; None where every example is a unit.
    """
    of_example = slots
    if members is not None:
        of_example = np.repeat(slots, [len(own) for own in members])
    order = np.argsort(of_example, kind="stable")
    ends = np.searchsorted(of_example[order], np.arange(teachers + 1))
    for number in range(teachers):
        yield order[ends[number] : ends[number + 1]]


def settings_of(descent: Descent) -> Fit:
    """The settings of ordinary training."""
    return Fit(
        epochs=descent.epochs,
        batch=descent.batch,
        learning_rate=descent.learning_rate,
        optimiser=descent.optimiser,
        schedule=Schedule(descent.schedule, descent.warm_up),
        decay=descent.decay,
        momentum=descent.momentum,
    )
