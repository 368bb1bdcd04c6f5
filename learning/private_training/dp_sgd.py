"""Private training (DP-SGD, Abadi et al. 2016, algorithm 1) of any model whose gradients
`learning.private_training.per_example` tells apart: secret Poisson batches, every unit's gradient clipped, sums on an
integer grid under noise, an optimiser on them.

What a step releases is a noisy sum; model, optimiser and checkpoints are post-processing of such sums and of public
values. Where several parties train together, a party's part of a step is `clipped_sum` alone.
"""

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.arrays import FloatArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import SINGLE_MARGIN, GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.classification.training import Diverged
from learning.models.adapting import flatten, unflatten
from learning.models.agreement import MADE_UP, agreeing, divided, drawn
from learning.private_training.gradient_terms import DOUBLE, off
from learning.private_training.per_example import ROUNDING, PerExample, check_apart, single_precision
from learning.private_training.schedules import Schedule

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LARGEST = 1e6
"""Beyond it no parameter is taken to be of a model that learned."""
AT_ONCE = 1 << 20
"""Numbers that are rounded and noised at a time: some 32 MiB of arrays."""

_SPARE = SINGLE_MARGIN * 0.99
"""The rest of the margin is for the few roundings of a scale itself."""
_log = logging.getLogger(__name__)

Losses = Callable[[nn.Module, dict[str, Tensor], Tensor | None], Tensor]
"""A model, its inputs and its labels to one loss an example, [examples]."""


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
    """What it has in common with others; None: its units go one at a time."""


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


@dataclass(frozen=True, slots=True)
class Optimisation:
    """What is done with noisy sums; public.

    expected_batch: what a sum is divided by, from a declared public number of units, never from a shard's own.
    decay: AdamW's or SGD's weight decay.
    """

    expected_batch: float
    learning_rate: float
    optimiser: Literal["adamw", "sgd"] = "adamw"
    schedule: Schedule = field(default_factory=Schedule)
    momentum: float = 0.9
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("expected_batch", "learning_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConclaveError(f"{name} is {value}; it must be a number above 0.")


@dataclass(frozen=True, slots=True)
class Trained:
    """A model trained under `mechanism`, whose event is its price under add-or-remove of one unit."""

    model: nn.Module
    mechanism: GradientMechanism

    @property
    def event(self) -> "DpEvent":
        """What the training cost."""
        return self.mechanism.event()


class Descent:
    """An optimiser on one vector of parameters, float32 [parameters], that takes noisy sums step by step.

    What it holds can be stored, and it goes on from there to the same end.
    """

    def __init__(self, start: Tensor, settings: Optimisation, steps: int):
        self.settings = settings
        self.steps = steps
        self.done = 0
        self._point = nn.Parameter(start.clone())
        if settings.optimiser == "adamw":
            self._optimiser: torch.optim.Optimizer = torch.optim.AdamW(
                [self._point], settings.learning_rate, weight_decay=settings.decay
            )
        else:
            self._optimiser = torch.optim.SGD(
                [self._point], settings.learning_rate, settings.momentum, weight_decay=settings.decay
            )

    @property
    def point(self) -> Tensor:
        """The parameters, float32 [parameters]."""
        return self._point.detach()

    def step(self, noisy_sum: NDArray[np.float32]) -> None:
        """Go one step down a noisy sum of gradients, [parameters], which it uses up.

        Raises `Diverged` where the parameters would go to infinity; they stay where they were, the step is done, the
        optimiser forgets what it had of those before, and others may follow.
        """
        settings, before = self.settings, self.point.clone()
        (group,) = self._optimiser.param_groups
        group["lr"] = settings.learning_rate * settings.schedule.scale(self.done, self.steps)
        self._point.grad = torch.from_numpy(noisy_sum).div_(settings.expected_batch)
        self._optimiser.step()
        self._point.grad = None
        self.done += 1
        if not bool((self.point.abs() < LARGEST).all()):
            self.point.copy_(before)
            self._optimiser.state.clear()
            raise Diverged("Private training went to infinity. Use a smaller learning rate or a larger batch.")

    def state(self) -> dict[str, Tensor]:
        """All that `resume` needs, by name."""
        own = self._optimiser.state.get(self._point, {})
        kept = {f"optimiser.{name}": value for name, value in own.items() if isinstance(value, Tensor)}
        return {"point": self._point.detach(), "done": torch.tensor([self.done]), **kept}

    def resume(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave. Raises `IntegrityError` for a state of another shape."""
        try:
            point, done = state["point"], int(state["done"].item())
            if point.shape != self._point.shape or point.dtype != torch.float32 or not 0 <= done <= self.steps:
                raise ValueError
        except (KeyError, ValueError, RuntimeError):
            raise IntegrityError("A checkpoint is not of this training.") from None
        with torch.no_grad():
            self._point.copy_(point)
        own = {name.removeprefix("optimiser."): value for name, value in state.items() if name.startswith("optimiser.")}
        if own:
            self._optimiser.state[self._point] = own
        self.done = done


def train_private(
    model: nn.Module,
    units: Units,
    losses: Losses,
    mechanism: GradientMechanism,
    optimisation: Optimisation,
    *,
    stream: NoiseStream,
    probe: MicroBatch | None = None,
    checkpoint: Path | None = None,
    checkpoint_steps: int = 10,
    on_step: Callable[[float], None] | None = None,
) -> Trained:
    """Train the parameters that require gradients, in place, from the model's public start.

    One unit more or less costs `mechanism.event()` under add-or-remove, on the assumptions in `GradientMechanism`:
    `stream` is secret, secure and of this training alone. The words for step t are those of two of its children, for
    t's batch and for t's noise. A training that goes on from its `checkpoint`, or begins again, draws for a step what
    was drawn for that step before, and nothing of it had left but to the checkpoint: no draw is added to two sums that
    anybody sees. A checkpoint of other settings, units of another number among them, or of another stream is refused.

    losses: every example's own, in which no other has a part. probe: made-up or public units, one example each, on
    which `learning.private_training.per_example.check_apart` tries whether the model keeps examples apart, before
    anything else. checkpoint: a file, written whole with mode 0600, removed when the model is trained. on_step: told
    the fraction done. Memory: the model; activations and what came back to them for one `MicroBatch`; 16 bytes a
    trainable number, the optimiser's 8, and `AT_ONCE` numbers. What units hold fails nothing: one whose loss or
    gradient is no number is an empty one, and a step to infinity is not taken. This process' log says how many there
    were. Raises `ModelError` for a model whose gradients cannot be told apart, `IntegrityError` for a checkpoint of
    something else.
    """
    gradients = PerExample(model)
    descent = Descent(flatten(model).cpu(), optimisation, mechanism.steps)
    if gradients.count != mechanism.parameters:
        raise ConclaveError(
            f"The model trains {gradients.count:,} numbers, and the mechanism bounds {mechanism.parameters:,}."
        )
    if probe is not None:
        _try(gradients, probe, losses)
    digest = _digest(mechanism, optimisation, len(units), stream)
    if checkpoint is not None and checkpoint.exists():
        descent.resume(_read(checkpoint, digest))
        unflatten(model, descent.point)
    empty, held = 0, 0

    def left_out(found: int) -> None:
        nonlocal empty
        empty += found

    while descent.done < mechanism.steps:
        step = descent.done
        taken = mechanism.batch(len(units), stream.child("batch", step))
        total = clipped_sum(gradients, units.micro_batches(taken), losses, mechanism, left_out)
        try:
            descent.step(noised(total, mechanism, stream.child("noise", step)))
        except Diverged:
            held += 1
        unflatten(model, descent.point)
        if checkpoint is not None and descent.done % checkpoint_steps == 0:
            _write(checkpoint, descent.state(), digest)
        if on_step is not None:
            on_step(descent.done / mechanism.steps)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    tell_left_out(empty)
    if held:
        _log.warning(
            "%s of %s steps would have gone to infinity and were not taken. Use a smaller learning rate or a larger "
            "batch.",
            f"{held:,}",
            f"{mechanism.steps:,}",
        )
    return Trained(model, mechanism)


def tell_left_out(units: int) -> None:
    """Say in this process' own log how many times a unit counted as an empty one."""
    if units:
        _log.warning(
            "%s times a unit's loss or gradient was no finite number, and it counted as an empty unit.", f"{units:,}"
        )


def _try(gradients: PerExample, probe: MicroBatch, losses: Losses) -> None:
    def loss(part: slice) -> Tensor:
        labels = None if probe.labels is None else probe.labels[part]
        return losses(gradients.model, {name: each[part] for name, each in probe.inputs.items()}, labels)

    check_apart(gradients, loss, probe.units)


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
    how many there were. No batch at all gives zeros. Raises `IntegrityError` for more units than the margin covers.
    """
    device = next(iter(gradients.parameters.values())).device
    flat = torch.zeros(gradients.count, dtype=torch.float64, device=device)
    totals, place = {}, 0
    for name, each in gradients.parameters.items():
        totals[name] = flat[place : place + each.numel()].view(each.shape)
        place += each.numel()
    units, parts, empty, longest, uses = 0, 0, 0, 0, 1
    with single_precision():
        for batch in batches:
            for part, own in _parts(gradients, batch, losses):
                bounds = _record(gradients, part, losses)
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


def adding(units: int, positions: int, additions: int) -> float:
    """How far one unit can move a clipped sum by the rounding of the others, in parts of the clip.

    units: in the sum. positions: added up in one matrix product, at most. additions: of products to the sum, one after
    another. What a unit adds has a norm within the clip, and the terms that make it are together at most clip /
    sqrt(ROUNDING), whatever cancels. In double precision a sum is therefore within units (off(additions) +
    off(positions) / sqrt(ROUNDING)) clip of the exact one (`learning.private_training.gradient_terms.off`), and there
    are two sums, with the unit and without.
    """
    return 2 * (units + 1) * (off(additions, DOUBLE) + off(positions, DOUBLE) / math.sqrt(ROUNDING))


def _record(gradients: PerExample, batch: MicroBatch, losses: Losses) -> Tensor:
    """A micro-batch through the model and back: bounds of its units' norms, infinite for a loss that is no number."""
    device = next(iter(gradients.parameters.values())).device
    inputs = {name: each.to(device) for name, each in batch.inputs.items()}
    labels = None if batch.labels is None else batch.labels.to(device)
    with gradients.recording(batch.units, batch.examples_per_unit):
        each = losses(gradients.model, inputs, labels)
        (each * batch.weights.to(device)).sum().backward()  # type: ignore[no-untyped-call]
    sound = torch.isfinite(each.detach()).view(batch.units, -1).all(dim=1)
    return gradients.bounds().where(sound, math.inf)


def _parts(gradients: PerExample, batch: MicroBatch, losses: Losses) -> Iterator[tuple[MicroBatch, int]]:
    """A micro-batch in parts of sizes in which units' gradients do not depend on each other, and how many are its own.

    Where units are too few for a part, made-up ones fill its place.
    """
    shape = batch.shape
    sizes = (1,) if shape is None else _sizes(gradients, shape, losses)
    start = 0
    for size in divided(batch.units, sizes):
        own = min(size, batch.units - start)
        part = _cut(batch, start, start + own)
        if own < size:
            assert shape is not None
            part = _joined(part, shape.made_up([place % MADE_UP for place in range(size - own)]))
        yield part, own
        start += own


def _sizes(gradients: PerExample, shape: Shape, losses: Losses) -> tuple[int, ...]:
    def answer(numbers: Sequence[int]) -> list[Tensor]:
        bounds = _record(gradients, shape.made_up(numbers), losses)
        return [bounds, *gradients.recorded()]

    name = (shape.most, *shape.name)
    if name not in gradients.sizes:
        with drawn(gradients.model):
            gradients.sizes[name] = agreeing(answer, shape.most)
        gradients.clear()
    return gradients.sizes[name]


def _cut(batch: MicroBatch, start: int, stop: int) -> MicroBatch:
    if (start, stop) == (0, batch.units):
        return batch
    part = slice(start * batch.examples_per_unit, stop * batch.examples_per_unit)
    inputs = {name: each[part].clone() for name, each in batch.inputs.items()}
    labels = None if batch.labels is None else batch.labels[part]
    return MicroBatch(inputs, labels, batch.weights[part], stop - start, batch.examples_per_unit)


def _joined(one: MicroBatch, other: MicroBatch) -> MicroBatch:
    labels = None
    if one.labels is not None and other.labels is not None:
        labels = torch.cat([one.labels, other.labels])
    inputs = {name: torch.cat([each, other.inputs[name]]) for name, each in one.inputs.items()}
    weights = torch.cat([one.weights, other.weights])
    return MicroBatch(inputs, labels, weights, one.units + other.units, one.examples_per_unit)


def noised(total: FloatArray, mechanism: GradientMechanism, stream: NoiseStream) -> NDArray[np.float32]:
    """A step's sum on the grid with its noise, in the gradient's units: what is released, [parameters]."""
    made = np.empty(len(total), dtype=np.float32)
    for start in range(0, len(total), AT_ONCE):
        part = mechanism.contribute_part(total[start : start + AT_ONCE])
        part += mechanism.noise_share(part.shape, stream)
        made[start : start + AT_ONCE] = mechanism.release(part).values
    return made


def _digest(mechanism: GradientMechanism, optimisation: Optimisation, units: int, stream: NoiseStream) -> str:
    """What a checkpoint belongs to; its stream shows as words of a child that nothing else draws from."""
    told = [asdict(mechanism), asdict(optimisation), units, stream.child("checkpoint").uint64(4).tolist()]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _read(path: Path, digest: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            if (file.metadata() or {}).get("training") != digest:
                raise IntegrityError(f"The checkpoint {path.name} is of another training. Remove it to begin anew.")
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise IntegrityError(f"The checkpoint {path.name} cannot be read: {error}. Remove it to begin anew.") from error


def _write(path: Path, state: dict[str, Tensor], digest: str) -> None:
    from safetensors.torch import save

    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(save({name: each.contiguous() for name, each in state.items()}, {"training": digest}))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
