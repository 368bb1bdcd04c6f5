"""Private units of what a classifier's last layer sees (`learning.features`): that layer alone is trained on them."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.batching import losses_of
from learning.private_training import MicroBatch

INPUT = "input"


class FeatureUnits:
    """Units as `learning.text_units.TextUnits` has them, of vectors in place of texts.

    vectors: float32 [examples, width], perhaps none. labels, members: as of `TextUnits`, and so are units without
    examples. examples_at_once: in one micro-batch; a unit that has more goes alone.
    """

    def __init__(
        self,
        vectors: NDArray[np.float32],
        labels: Tensor,
        *,
        members: Sequence[Sequence[int]] | None = None,
        examples_at_once: int = 4096,
    ):
        self._vectors = torch.from_numpy(vectors)
        self._labels = labels
        self._members = members
        self._at_once = examples_at_once
        if members is None:
            self._examples = np.ones(len(vectors), np.int64)
        else:
            self._examples = np.array([len(each) for each in members], np.int64)

    def __len__(self) -> int:
        return len(self._examples)

    def micro_batches(self, taken: NDArray[np.int64]) -> Iterator[MicroBatch]:
        """Units of like numbers of examples together, those with the most first; of those that have any."""
        filled = taken[self._examples[taken] > 0]
        order = filled[np.argsort(-self._examples[filled], kind="stable")]
        start = 0
        while start < len(order):
            each = int(self._examples[order[start]])
            stop = start + max(1, self._at_once // each)
            yield self._batch(order[start:stop], each)
            start = stop

    def _batch(self, units: NDArray[np.int64], each: int) -> MicroBatch:
        if self._members is None:
            places, weights = units, np.ones(len(units), np.float32)
        else:
            own = [list(self._members[unit]) for unit in units.tolist()]
            places = np.array([[*some, *[some[0]] * (each - len(some))] for some in own], np.int64).reshape(-1)
            filled = [[1 / len(some)] * len(some) + [0.0] * (each - len(some)) for some in own]
            weights = np.array(filled, np.float32).reshape(-1)
        found = torch.from_numpy(places)
        inputs = {INPUT: self._vectors[found]}
        return MicroBatch(inputs, self._labels[found], torch.from_numpy(weights), len(units), each)


def head_losses(head: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None) -> Tensor:
    """One loss per example, float32 [examples], as `learning.batching.losses` of the whole model."""
    assert labels is not None
    return losses_of(head(inputs[INPUT]), labels)
