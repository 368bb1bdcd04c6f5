"""Private units as a classifier's last layer sees them (`learning.models.features`), which alone is trained on them."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.models.agreement import MADE_UP, filled
from learning.models.batching import losses_of
from learning.private_training.units import MicroBatch, Shape

INPUT = "input"


class FeatureUnits:
    """Units as `learning.private_training.text_units.TextUnits` has them, of vectors in place of texts.

    vectors: float32 [examples, width], perhaps none. labels, members: as of `TextUnits`, and so are units without
    examples. examples_at_once: in one micro-batch; a unit that has more goes alone. A unit's examples are taken for a
    power of two, as of `TextUnits`.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        labels: Tensor,
        *,
        members: Sequence[Sequence[int]] | None = None,
        examples_at_once: int = 1024,
    ):
        self._vectors = torch.from_numpy(vectors)
        self._labels = labels
        self._members = members
        self._at_once = examples_at_once
        if members is None:
            self._examples = np.ones(len(vectors), np.int64)
        else:
            self._examples = np.array([filled(len(each)) for each in members], np.int64)

    def __len__(self) -> int:
        return len(self._examples)

    def micro_batches(self, taken: NDArray[np.int64]) -> Iterator[MicroBatch]:
        """Units of like numbers of examples together, those with the most first; of those that have any."""
        taken = taken[self._examples[taken] > 0]
        for each in np.unique(self._examples[taken])[::-1].tolist():
            units = taken[self._examples[taken] == each]
            most = max(1, self._at_once // each)
            shape = Shape((each,), most, partial(self._made_up, each))
            for start in range(0, len(units), most):
                yield self._batch(units[start : start + most], each, shape)

    def _batch(self, units: NDArray[np.int64], each: int, shape: Shape) -> MicroBatch:
        if self._members is None:
            places, weights = units, np.ones(len(units), np.float32)
        else:
            own = [list(self._members[unit]) for unit in units.tolist()]
            places = np.array([[*some, *[some[0]] * (each - len(some))] for some in own], np.int64).reshape(-1)
            parts = [[1 / len(some)] * len(some) + [0.0] * (each - len(some)) for some in own]
            weights = np.array(parts, np.float32).reshape(-1)
        found = torch.from_numpy(places)
        inputs = {INPUT: self._vectors[found]}
        return MicroBatch(inputs, self._labels[found], torch.from_numpy(weights), len(units), each, shape)

    def _made_up(self, each: int, numbers: Sequence[int]) -> MicroBatch:
        width = self._vectors.shape[1]
        kinds = np.random.default_rng(0).standard_normal((MADE_UP, each, width)).astype(np.float32)
        vectors = torch.from_numpy(kinds[list(numbers)].reshape(-1, width))
        labels = torch.zeros(len(vectors), *self._labels.shape[1:], dtype=self._labels.dtype)
        return MicroBatch({INPUT: vectors}, labels, torch.full((len(vectors),), 1 / each), len(numbers), each)


def head_losses(head: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None) -> Tensor:
    """One loss per example, float32 [examples], as `learning.models.batching.losses` of the whole model."""
    assert labels is not None
    return losses_of(head(inputs[INPUT]), labels)
