"""What rows of a comparison of swing distillation share: a seed's data, and the parties' teachers in clear."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.language_models.comparing import LanguageData

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(slots=True)
class SwingData(LanguageData):
    """The data of one seed. taught: what each party's teacher learned, float32 [parameters], once it was trained."""

    taught: list[NDArray[np.float32]] = field(default_factory=list)


def teachers_of(data: SwingData) -> "list[PreTrainedModel]":
    """A teacher of each party, trained in clear on all of its text, adapters merged.

    Raises as `learning.classification.training.fit`.
    """
    import torch

    from learning.classification.training import fit
    from learning.models.adapting import flatten, merged, unflatten

    public, plan = data.public, data.plan
    if not data.taught:
        for number, part in enumerate(data.documents(coded=False)):
            unflatten(public.model, torch.from_numpy(public.start))
            fit(public.model, part.rows, None, plan.teachers.fit(), np.random.default_rng([data.seed, number]))
            data.taught.append(np.asarray(flatten(public.model).numpy(), np.float32))
    found = []
    for point in data.taught:
        unflatten(public.model, torch.from_numpy(point))
        found.append(merged(public.model))
    return found
