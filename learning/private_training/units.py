"""Private units as a model sees them: micro-batches of units, and the public shapes that these have."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Losses = Callable[[nn.Module, dict[str, Tensor], Tensor | None], Tensor]
"""A function of a model, its inputs and its labels that returns one loss for each example, [examples]."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Units that go through the model at once.

    inputs, labels: [units * examples_per_unit, ...], unit by unit. weights [units * examples_per_unit]: each example's
    part in its unit's loss; 0 where a unit has fewer examples, and something has to fill its place.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    weights: Tensor
    units: int
    examples_per_unit: int
    shape: "Shape | None" = None
    """The shape that these units share with others; None: the units go one at a time."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a micro-batch's shape follows from: its own units, one by one, and public values.

    name: which shape it is, of one set of units. most: units in one micro-batch. made_up: public units of this shape,
    by `learning.models.agreement`'s numbers.
    """

    name: tuple[int, ...]
    most: int
    made_up: Callable[[Sequence[int]], MicroBatch]


class Units(Protocol):
    """Private units, by position. What a unit's examples are depends on that unit and on public values alone."""

    def __len__(self) -> int: ...

    def micro_batches(self, taken: NDArray[np.int64]) -> Iterator[MicroBatch]:
        """The units at these positions, each once, in any order, in parts that fit in memory.

        The shape that a unit has in its part depends on that unit and on public values alone.
        """


def cut(batch: MicroBatch, start: int, stop: int) -> MicroBatch:
    """Units [start, stop) of a micro-batch, as one that owns its memory."""
    if (start, stop) == (0, batch.units):
        return batch
    part = slice(start * batch.examples_per_unit, stop * batch.examples_per_unit)
    inputs = {name: each[part].clone() for name, each in batch.inputs.items()}
    labels = None if batch.labels is None else batch.labels[part]
    return MicroBatch(inputs, labels, batch.weights[part], stop - start, batch.examples_per_unit)


def joined(one: MicroBatch, other: MicroBatch) -> MicroBatch:
    """The units of one micro-batch, then those of another of the same shape."""
    labels = None
    if one.labels is not None and other.labels is not None:
        labels = torch.cat([one.labels, other.labels])
    inputs = {name: torch.cat([each, other.inputs[name]]) for name, each in one.inputs.items()}
    weights = torch.cat([one.weights, other.weights])
    return MicroBatch(inputs, labels, weights, one.units + other.units, one.examples_per_unit)
