"""Finds the batch sizes at which an example's outputs are the same bits, whatever else is in the batch, on made-up
examples.

A processor adds in an order that depends on the shape of what it is given, so that one example more can change the last
digits of all others, and a model that is made for it turns last digits into anything. The order depends on the shape
alone and not on the numbers: shapes that agree on made-up examples agree on all (measured, not proven; an example that
goes alone in a shape of its own needs no trial). Lengths are multiples of `step_on`, so that there are few shapes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from learning.errors import EXHAUSTED, ComputeError
from learning.models.batching import Tokens
from learning.models.device_memory import attempted

MADE_UP: Final = 4
"""Made-up examples of each shape; the first two fill its whole length, the others do not."""
STEP: Final = 8
"""Lengths of shapes are multiples of this many tokens."""
STEP_ON_DEVICE: Final = 32
"""The same on a device, for which padding costs less than one batch more."""

FULL: Final = 0.8
"""A processor's batch that would be filled to this part is one, rather than several small ones."""
FULL_ON_DEVICE: Final = 0.25
"""The same where a batch takes a device about as long, whatever its size: most of that time it is told what to do."""

_LINE: Final = 64

Answer = Callable[[Sequence[int]], list[Tensor]]
"""Numbers of made-up examples, as often as they are given, to what is worked out of each: [examples, ...]."""


def agreeing(answer: Answer, most: int) -> tuple[int, ...]:
    """Sizes of batches, the largest first, in all of which every example's answer has the same bits in every place.

    They are some of the powers of two up to `most`, and the largest of them that agrees with itself is among them;
    (1,) where none does.
    """
    found: list[int] = []
    reference: list[list[Tensor]] | None = None
    for size in _tried(most):
        own = _own(answer, size, full=reference is None)
        if own is not None and (reference is None or _same(own, reference)):
            reference = reference or own
            found.append(size)
    return tuple(found)


def agreeing_within(answer: Answer, most: int) -> tuple[int, ...]:
    """As `agreeing`, of the sizes that a device's memory holds.

    That is found on made-up examples alone, so that it depends on their shape and on no other example. Raises
    `ComputeError` where one of this shape is too large.
    """
    while (found := attempted(partial(agreeing, answer, most))) is None:
        if most == 1:
            raise ComputeError(EXHAUSTED, code="C304")
        most //= 2
    return found


def smaller(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The agreeing sizes under one that exhausted a device's memory after all: in them each example has the same bits.

    Raises `ComputeError` where there is none.
    """
    found = tuple(each for each in sizes if each < size)
    if not found:
        raise ComputeError(EXHAUSTED, code="C304")
    return found


def _tried(most: int) -> list[int]:
    """The largest power of two, the powers of four under it."""
    largest = 1 << (max(1, most).bit_length() - 1)
    return [largest, *(size for size in (4**power for power in range(8, -1, -1)) if size < largest)]


def divided(count: int, sizes: tuple[int, ...], device: str = "cpu") -> list[int]:
    """Sizes of the batches that `count` examples go in, in order, on a kind of device; the last may have room over."""
    made, full = [], FULL if device == "cpu" else FULL_ON_DEVICE
    for size in sizes:
        whole, count = divmod(count, size)
        if count >= full * size:
            whole, count = whole + 1, 0
        made += [size] * whole
    return made + [sizes[-1]] * (count > 0)


def filled(examples: int) -> int:
    """The number of places that a unit of so many examples takes in its micro-batch: the next power of two, 0 for
    none.
    """
    return 1 << (examples - 1).bit_length() if examples else 0


def step_on(device: str) -> int:
    """What lengths are multiples of on a kind of device."""
    return STEP if device == "cpu" else STEP_ON_DEVICE


def rounded(length: int, longest: int | None, device: str = "cpu") -> int:
    """The length that an example of `length` tokens is padded to on a kind of device: a multiple of `step_on`, or what
    the model takes.
    """
    step = step_on(device)
    up = -(-length // step) * step
    return up if longest is None else max(length, min(up, longest))


@contextmanager
def drawn(model: nn.Module) -> Iterator[None]:
    """Within it, a model has random parameters in place of its own, which lie untouched where they were.

    Otherwise a model that was made to answer the same to everything would agree in every size. They lie as its own do
    in a line of a processor's cache, which can have a part in the order of additions. Memory: the parameters once more.
    """
    some = torch.randn(65_537, generator=torch.Generator().manual_seed(0))
    own = [(each, each.data) for each in model.parameters()]
    try:
        for each, kept in own:
            made = some.repeat(-(-each.numel() // len(some)))[: each.numel()].view(each.shape)
            made = made / each.shape[-1] ** 0.5 if each.ndim > 1 else 1 + made / 16
            each.data = _like(kept).copy_(made)
        yield
    finally:
        for each, kept in own:
            each.data = kept


def _like(tensor: Tensor) -> Tensor:
    """Memory for as many numbers in the same order, which begins at the same place of a cache's line."""
    size, within = tensor.element_size(), tensor.data_ptr() % _LINE
    room = torch.empty(tensor.numel() + _LINE // size, dtype=tensor.dtype, device=tensor.device)
    start = (within - room.data_ptr()) % _LINE // size
    return room.as_strided(tensor.shape, tensor.stride(), start)


def made_up_rows(words: int, length: int, number: int, count: int = 1) -> list[Tokens]:
    """Texts number 0 to `MADE_UP` - 1 of a length, `count` different ones each; the same for everybody."""
    rng = np.random.default_rng([number, length])
    own = length if number < 2 else max(1, length - number + 1)
    return [Tokens(rng.integers(0, words, own).astype(np.int32), own) for _ in range(count)]


def _own(answer: Answer, size: int, full: bool) -> list[list[Tensor]] | None:
    """Each made-up example's answer, if it is the same wherever it stands in a batch of this size.

    full: try a batch without padding too, for which some models take another way.
    """
    found: list[list[Tensor] | None] = [None] * MADE_UP
    mixed = [[(start + place) % MADE_UP for place in range(size)] for start in range(0, MADE_UP, size)]
    for numbers in [*mixed, [(place + 1) % 2 for place in range(size)]] if full else mixed:
        if not _all_are(_compared(answer(numbers), numbers, found)):
            return None
    return [each for each in found if each is not None]


def _compared(
    tensors: list[Tensor], numbers: Sequence[int], found: list[list[Tensor] | None]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each made-up example's own answer, kept in `found` from its first on, and all rows of it in this batch."""
    for number in sorted(set(numbers)):
        here = torch.tensor([place for place, each in enumerate(numbers) if each == number])
        rows = {each: here.to(each) for each in {tensor.device for tensor in tensors}}
        own = found[number]
        if own is None:  # a view would hold the whole batch
            own = found[number] = [tensor[int(here[0])].clone() for tensor in tensors]
        for one, tensor in zip(own, tensors, strict=True):
            yield one, tensor.index_select(0, rows[tensor.device])


def _same(one: list[list[Tensor]], other: list[list[Tensor]]) -> bool:
    return all(_alike(*pair) for pair in zip(one, other, strict=True))


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    return _all_are([(x, y[None]) for x, y in zip(one, other, strict=True)])


def _all_are(pairs: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether each row of the second tensors has the bits of the first. A device is asked once, for all of them."""
    asked: list[Tensor] = []
    for own, rows in pairs:
        same = torch.eq(torch.nan_to_num(own), torch.nan_to_num(rows)).all()
        if same.device.type == "cpu":
            if not same:
                return False
        else:
            asked.append(same)
    return not asked or bool(torch.stack(asked).all())
