"""The sum of units' gradients, each clipped on its own: what a step of DP-SGD bounds (Abadi et al. 2016, algorithm 1,
"compute gradient" and "clip gradient").

Noise-free: it is the input of a mechanism.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from aggregation.arrays import FloatArray
from aggregation.errors import IntegrityError
from aggregation.mechanisms.gradients import SINGLE_MARGIN, GradientMechanism
from learning.errors import EXHAUSTED, ComputeError
from learning.models.agreement import MADE_UP, agreeing_within, divided, drawn, filled, smaller, step_on
from learning.models.compute import device_of, loss_scale, moved
from learning.models.device_memory import attempted
from learning.private_training.per_example import ROUNDING, PerExample, single_precision
from learning.private_training.term_norms import DOUBLE, off
from learning.private_training.units import Losses, MicroBatch, Shape, cut, joined

_SPARE = SINGLE_MARGIN * 0.99
"""The rest of the margin, for the few roundings of a scale itself."""
_log = logging.getLogger(__name__)


def clipped_sum(
    gradients: PerExample,
    batches: Iterable[MicroBatch],
    losses: Losses,
    mechanism: GradientMechanism,
    left_out: Callable[[int], None] | None = None,
) -> FloatArray:
    """Sum of the units' gradients, each clipped on its own: float64 [parameters], ordered by the parameters' names.

    Noise-free: for `train_private`, a party's part of a step, and tests. One unit more or less moves it by at most
    `mechanism.clip`: each adds a vector of at most clip (1 - SINGLE_MARGIN), whose bits do not depend on who else is
    there (`learning.models.agreement`), and adding the vectors is off by at most `adding`, within the margin. A unit
    with a loss or a gradient that is no finite number adds zero and changes nothing of the others; `left_out` is told
    how many there were. No batch at all gives zeros.

    The model's device does the passes, in the precision of `learning.models.compute.running`, and the sums, in float64;
    what a unit adds is bounded by what was really recorded of it. Where the device's memory is exhausted, micro-batches
    halve themselves: to sizes in which a unit's bits are the same, so that only the order changes in which units are
    added, which `adding` covers. Raises `IntegrityError` for more units than the margin covers, `ComputeError` where
    the device has too little memory for one unit.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1, "compute gradient" and "clip gradient").
    """
    device = gradients.device
    flat = torch.zeros(gradients.count, dtype=torch.float64, device=device)
    totals, place = {}, 0
    for name, each in gradients.parameters.items():
        totals[name] = flat[place : place + each.numel()].view(each.shape)
        place += each.numel()
    units, parts, empty, longest, uses = 0, 0, 0, 0, 1
    with single_precision():
        for batch in batches:
            for bounds, own in _parts(gradients, batch, losses):
                bad = ~torch.isfinite(bounds)
                scales = mechanism.scales(bounds.cpu().numpy(), margin=SINGLE_MARGIN)
                scales[own:] = 0.0
                if bool(bad.any()):
                    gradients.leave_out(bad)
                gradients.add_weighted(torch.from_numpy(scales).to(device), totals)
                units, parts, empty = units + own, parts + 1, empty + int(bad[:own].sum())
                longest, uses = max(longest, gradients.positions()), max(uses, gradients.uses())
                gradients.clear()
    if adding(units, longest, uses * (units + parts)) > _SPARE:
        raise IntegrityError(
            f"{units:,} units are in one sum, more than its margin for rounding covers. Sample fewer at a time."
        )
    if left_out is not None:
        left_out(empty)
    return flat.cpu().numpy()


def tokens_held(
    gradients: PerExample,
    shape_at: Callable[[int, int, int], Shape],
    losses: Losses,
    *,
    longest: int,
    examples: int,
    tokens: int,
) -> int:
    """The most tokens of a micro-batch, `tokens` or fewer, that the device's memory holds, whatever its units are.

    shape_at: the shape of units of so many examples, of such a length, in micro-batches of so many tokens. longest: the
    largest such length; examples: of a unit, at most. All is tried on made-up units, before any text is opened; after
    it no text is a reason for memory to be exhausted, and none for another size or device. What a micro-batch takes
    goes by its units, by its tokens, and by its tokens times their length: of one number of tokens, the shortest units
    or the longest take most. Raises `ComputeError` where a unit of the longest kind is too large.
    """
    shortest = min(step_on(device_of(gradients.model).type), longest)
    for each, length in dict.fromkeys([(filled(examples), longest), (1, longest), (1, shortest)]):
        while not attempted(partial(_passes, gradients, shape := shape_at(each, length, tokens), losses)):
            gradients.clear()
            if shape.most == 1:
                raise ComputeError(EXHAUSTED, code="C304")
            tokens //= 2
    gradients.clear()
    return tokens


def _passes(gradients: PerExample, shape: Shape, losses: Losses) -> bool:
    """A full micro-batch of made-up units twice: with all that `clipped_sum` holds, and `agreeing` compares."""
    totals = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in gradients.parameters.items()}
    kept: list[Tensor] = []
    with single_precision(), drawn(gradients.model):
        for _ in range(2):
            bounds = _record(gradients, shape.made_up([place % MADE_UP for place in range(shape.most)]), losses)
            gradients.add_weighted(torch.zeros_like(bounds), totals)
            kept = gradients.recorded()
    return bool(kept)


def adding(units: int, positions: int, additions: int) -> float:
    """How far one unit can move a clipped sum by the rounding of the others, in parts of the clip.

    units: in the sum. positions: added up in one matrix product, at most. additions: of products to the sum, one after
    another. What a unit adds has a norm within the clip, and the terms that make it are together at most clip /
    sqrt(ROUNDING), whatever cancels. In double precision a sum is therefore within units (off(additions) +
    off(positions) / sqrt(ROUNDING)) clip of the exact one (`learning.private_training.term_norms.off`), and there
    are two sums, with the unit and without.
    """
    return 2 * (units + 1) * (off(additions, DOUBLE) + off(positions, DOUBLE) / math.sqrt(ROUNDING))


def tell_left_out(units: int) -> None:
    """Say in this process' own log how many times a unit counted as an empty one."""
    if units:
        _log.warning(
            "%s times a unit's loss or gradient was no finite number, and it counted as an empty unit.", f"{units:,}"
        )


def _record(gradients: PerExample, batch: MicroBatch, losses: Losses) -> Tensor:
    """A micro-batch through the model and back: bounds of its units' norms, infinite for a loss that is no number."""
    device = device_of(gradients.model)
    labels = None if batch.labels is None else batch.labels.to(device)
    scale = loss_scale()
    with gradients.recording(batch.units, batch.examples_per_unit, scale):
        each = losses(gradients.model, moved(batch.inputs, gradients.model), labels)
        total = (each * batch.weights.to(device)).sum()
        (total if scale == 1 else total * scale).backward()  # type: ignore[no-untyped-call]
    sound = torch.isfinite(each.detach()).view(batch.units, -1).all(dim=1)
    return gradients.bounds().where(sound.to(gradients.device), math.inf)


def _parts(gradients: PerExample, batch: MicroBatch, losses: Losses) -> Iterator[tuple[Tensor, int]]:
    """Record a micro-batch in parts of sizes in which units' gradients do not depend on each other: the bounds of a
    part's units, and how many of them, the first, are the micro-batch's own.

    Where units are too few for a part, made-up ones fill its place.
    """
    shape = batch.shape
    sizes = (1,) if shape is None else _sizes(gradients, shape, losses)
    start, kind = 0, device_of(gradients.model).type
    while start < batch.units:
        size = divided(batch.units - start, sizes, kind)[0]
        own = min(size, batch.units - start)
        part = cut(batch, start, start + own)
        if own < size:
            assert shape is not None
            part = joined(part, shape.made_up([place % MADE_UP for place in range(size - own)]))
        bounds = attempted(lambda part=part: _record(gradients, part, losses))  # type: ignore[misc]
        if bounds is None:  # though it fitted on made-up units: something else takes the device's memory
            gradients.clear()
            sizes = smaller(sizes, size)
            if shape is not None:
                gradients.sizes[shape.most, *shape.name] = sizes
            continue
        yield bounds, own
        start += own


def _sizes(gradients: PerExample, shape: Shape, losses: Losses) -> tuple[int, ...]:
    def answer(numbers: Sequence[int]) -> list[Tensor]:
        bounds = _record(gradients, shape.made_up(numbers), losses)
        return [bounds, *gradients.recorded()]

    name = (shape.most, *shape.name)
    if name not in gradients.sizes:
        with drawn(gradients.model):
            gradients.sizes[name] = agreeing_within(answer, shape.most)
        gradients.clear()
    return gradients.sizes[name]
