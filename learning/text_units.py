"""Private units of text as a model takes them: examples of one unit together, micro-batches of bounded size."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learning.batching import Tokens, inputs_of
from learning.private_training import MicroBatch

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PROBES = 3


def probe_of(config: "PretrainedConfig", targets: int | None) -> MicroBatch:
    """Made-up units of several lengths, to try a model on; the same for everybody.

    targets: classes of a classifier, 0 for a regression, None for a language model.
    """
    rng = np.random.default_rng(0)
    words = int(getattr(config, "vocab_size", 2))
    rows = [rng.integers(0, words, length).astype(np.int32) for length in range(3, 3 + PROBES)]
    labels = None
    if targets is not None:
        labels = torch.arange(PROBES) % targets if targets else torch.linspace(-1, 1, PROBES)
    inputs = inputs_of(config, [Tokens(ids, len(ids)) for ids in rows])
    return MicroBatch(inputs, labels, torch.ones(PROBES), PROBES, 1)


class TextUnits:
    """Units whose gradients are taken together; the loss of a unit is the mean over its examples.

    rows: all examples, perhaps none. labels: one an example, as `learning.batching.losses` takes them, or None.
    members: for every unit the positions of its examples, of which the first `most_examples` count; None where every
    example is a unit. A unit without examples is one like any other, and in no micro-batch: its part in a sum is 0.
    tokens_at_once: padding included, in one micro-batch; a unit that has more goes alone.
    """

    def __init__(
        self,
        config: "PretrainedConfig",
        rows: Sequence[Tokens],
        labels: Tensor | None,
        *,
        members: Sequence[Sequence[int]] | None = None,
        tokens_at_once: int = 4096,
        most_examples: int = 32,
    ):
        self._config = config
        self._rows = rows
        self._labels = labels
        given = [[place] for place in range(len(rows))] if members is None else members
        self._members = [list(each)[:most_examples] for each in given]
        self._tokens = tokens_at_once
        self._longest = np.array(
            [max((len(rows[place]) for place in each), default=0) for each in self._members], dtype=np.int64
        )
        self._examples = np.array([len(each) for each in self._members], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._members)

    def micro_batches(self, taken: NDArray[np.int64]) -> Iterator[MicroBatch]:
        """Units of like numbers of examples and like lengths together, the largest first; of those that have any."""
        filled = map(int, taken[self._examples[taken] > 0])
        order = sorted(filled, key=lambda unit: (-self._examples[unit], -self._longest[unit], unit))
        start = 0
        while start < len(order):
            each = int(self._examples[order[start]])
            longest = 0
            stop = start
            while stop < len(order):
                longest = max(longest, int(self._longest[order[stop]]))
                if stop > start and (stop - start + 1) * each * longest > self._tokens:
                    break
                stop += 1
            yield self._batch(order[start:stop], each)
            start = stop

    def _batch(self, units: list[int], each: int) -> MicroBatch:
        places: list[int] = []
        weights: list[float] = []
        for unit in units:
            own = self._members[unit]
            places += own + [own[0]] * (each - len(own))
            weights += [1 / len(own)] * len(own) + [0.0] * (each - len(own))
        inputs = inputs_of(self._config, [self._rows[place] for place in places])
        labels = None if self._labels is None else self._labels[torch.tensor(places)]
        return MicroBatch(inputs, labels, torch.tensor(weights), len(units), each)
