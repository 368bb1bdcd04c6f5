"""Private units of text as a model takes them: examples of one unit together, micro-batches of bounded size."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learning.models.agreement import filled, made_up_rows, rounded
from learning.models.batching import Tokens, form_of, inputs_of
from learning.private_training.units import MicroBatch, Shape

if TYPE_CHECKING:
    from transformers import PretrainedConfig


PROBES = 3
TOKENS_AT_ONCE = 512
"""Tokens in one micro-batch on the processor by default, padding included."""
ON_DEVICE = 16384
"""The same on a device, which takes about as long for a small micro-batch as for this many tokens of a small model. One
with less memory has them halved (`learning.private_training.clipped_sum.tokens_held`).
"""
MOST_EXAMPLES = 32
"""Examples of a unit that count, by default."""


def probe_of(config: "PretrainedConfig", targets: int | None) -> MicroBatch:
    """Made-up units of several lengths, to try on a model whether it keeps examples apart; the same for everybody.

    targets: classes of a classifier, 0 for a regression, None for a language model.
    """
    rng = np.random.default_rng(0)
    words = int(getattr(config, "vocab_size", 2))
    rows = [rng.integers(0, words, length).astype(np.int32) for length in range(3, 3 + PROBES)]
    labels = None
    if targets is not None:
        labels = torch.arange(PROBES) % targets if targets else torch.linspace(-1, 1, PROBES)
    inputs = inputs_of(config, [Tokens(ids, len(ids)) for ids in rows], documents=targets is None)
    return MicroBatch(inputs, labels, torch.ones(PROBES), PROBES, 1)


def tokens_at_once(device: str) -> int:
    """Tokens of a micro-batch on a kind of device: what fits a processor's cache; on others, what keeps them busy."""
    return TOKENS_AT_ONCE if device == "cpu" else ON_DEVICE


class TextUnits:
    """Units whose gradients are taken together; the loss of a unit is the mean over its examples.

    rows: all examples, perhaps none. labels: one an example, as `learning.models.batching.losses` takes them, or None
    for documents of a language model.
    members: for every unit the positions of its examples, of which the first `most_examples` count; None where every
    example is a unit. A unit without examples is one like any other, and in no micro-batch: its part in a sum is 0.
    tokens_at_once: padding included, in one micro-batch; a unit that has more goes alone. Its examples are taken for a
    power of two and its length for what `learning.models.agreement.rounded` gives on a kind of device, for a unit's
    gradient may not depend, even in its last bit, on the micro-batch that it is in. device: the kind that they are for.
    """

    def __init__(
        self,
        config: "PretrainedConfig",
        rows: Sequence[Tokens],
        labels: Tensor | None,
        *,
        members: Sequence[Sequence[int]] | None = None,
        tokens_at_once: int = TOKENS_AT_ONCE,
        most_examples: int = MOST_EXAMPLES,
        device: str = "cpu",
    ):
        self._config = config
        self._rows = rows
        self._labels = labels
        self._members, self._most = members, most_examples
        self._tokens = tokens_at_once
        limit = form_of(config).longest
        count = len(rows) if members is None else len(members)
        self._longest, self._examples = np.empty(count, np.int32), np.empty(count, np.int32)
        for unit in range(count):
            own = self._own(unit)
            self._longest[unit] = rounded(max((len(rows[place]) for place in own), default=0), limit, device)
            self._examples[unit] = filled(len(own))

    def __len__(self) -> int:
        return len(self._examples)

    def _own(self, unit: int) -> list[int]:
        """The positions of a unit's examples that count."""
        return [unit] if self._members is None else list(self._members[unit][: self._most])

    def micro_batches(self, taken: NDArray[np.int64]) -> Iterator[MicroBatch]:
        """Units of like numbers of examples and like lengths together, the largest first; of those that have any."""
        some = map(int, taken[self._examples[taken] > 0])
        order = sorted(some, key=lambda unit: (-self._examples[unit], -self._longest[unit], unit))
        alike = itertools.groupby(order, key=lambda unit: (int(self._examples[unit]), int(self._longest[unit])))
        for (each, length), units in alike:
            shape = shape_of(self._config, self._labels, each, length, self._tokens)
            while together := list(itertools.islice(units, shape.most)):
                yield self._batch(together, each, length, shape)

    def _batch(self, units: list[int], each: int, length: int, shape: Shape) -> MicroBatch:
        places: list[int] = []
        weights: list[float] = []
        for unit in units:
            own = self._own(unit)
            places += own + [own[0]] * (each - len(own))
            weights += [1 / len(own)] * len(own) + [0.0] * (each - len(own))
        rows = [self._rows[place] for place in places]
        inputs = inputs_of(self._config, rows, length, documents=self._labels is None)
        labels = None if self._labels is None else self._labels[torch.tensor(places)]
        return MicroBatch(inputs, labels, torch.tensor(weights), len(units), each, shape)


def shape_of(config: "PretrainedConfig", labels: Tensor | None, each: int, length: int, tokens: int) -> Shape:
    """The shape of units of `each` examples, a power of two, that are `length` tokens long, in micro-batches of so many
    tokens.

    labels: some of the units' kind; their numbers play no part.
    """
    return Shape((each, length), max(1, tokens // (each * length)), partial(_made_up, config, labels, each, length))


def _made_up(
    config: "PretrainedConfig", labels: Tensor | None, each: int, length: int, numbers: Sequence[int]
) -> MicroBatch:
    words = int(getattr(config, "vocab_size", 2))
    rows = [row for number in numbers for row in made_up_rows(words, length, number, each)]
    targets = None if labels is None else torch.zeros(len(rows), *labels.shape[1:], dtype=labels.dtype)
    inputs = inputs_of(config, rows, length, documents=labels is None)
    return MicroBatch(inputs, targets, torch.full((len(rows),), 1 / each), len(numbers), each)
