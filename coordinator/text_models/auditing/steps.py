"""Scores of canaries in noisy gradient sums, which every training under DP-SGD releases: the white-box attack.

An attacker knows every record but not the coins, and sees the parameters and the noisy sum of each step. The gradients
of all units at these parameters are known too, clipped as the mechanism clips; what is not known is which units a step
took. So the sum is a linear regression on the units' gradients, with noise of a known size, and every step tells a
little of which canaries there are to be taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.progress.progress import Progress
from learning.models.adapting import trainable, unflatten
from learning.models.batching import inputs_of, losses, losses_of
from learning.models.features import features, head_alone
from learning.models.forked import in_processes
from learning.models.machine import processors
from learning.private_training.feature_units import INPUT, head_losses
from learning.private_training.per_example import PerExample, single_precision
from learning.private_training.units import Losses

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.models.batching import Tokens

Floats: TypeAlias = NDArray[np.float64]
Points: TypeAlias = NDArray[np.float32]
Steps: TypeAlias = Sequence[tuple[Points, NDArray[np.int64]]]

_AT_ONCE: Final = 2048
"""Tokens of one pass, padding included; of examples that are vectors, as many examples."""
MOST_GRADIENTS: Final = 4000
"""Gradients of single units by more than a last layer that one attack computes: a few minutes' worth."""
_NUMBERS: Final = 1 << 20
"""Numbers of the gradients that are made together."""
_LEAST: Final = 1e-3
"""The least noise that is reckoned with, in parts of the charged one."""
_SMALL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Known:
    """Units as their model sees them, the canaries first.

    trained: the model, or its last layer where that is all that is trained. owner: the unit of each example
    [examples]. inputs: of examples at some places. labels: of all, None for a language model. order: places of the
    examples, those of like lengths together.
    """

    trained: nn.Module
    losses: Losses
    inputs: Callable[[NDArray[np.int64]], dict[str, Tensor]]
    labels: Tensor | None
    owner: NDArray[np.int64]
    batches: tuple[NDArray[np.int64], ...]
    units: int

    def begun(self, point: Points) -> None:
        """Set the trained parameters."""
        unflatten(self.trained, torch.from_numpy(point.copy()))

    def losses_at(self, point: Points) -> Floats:
        """The loss of every unit, the mean over its examples, [units]; 0 for one without examples."""
        self.begun(point)
        return self.losses_now()

    def losses_now(self) -> Floats:
        """The same with the parameters that the model has."""
        found = np.zeros(len(self.owner))
        with torch.inference_mode():
            for places in self.batches:
                found[places] = self._loss(places).double().cpu().numpy()
        return self._by_unit(found)

    def gradients_at(self, point: Points, mechanism: GradientMechanism) -> Points:
        """The gradient of every unit, clipped as in a step, float32 [units, parameters]."""
        self.begun(point)
        found = self._of_head() if isinstance(self.trained, nn.Linear) else self._of_layers()
        norms = np.linalg.norm(found.astype(np.float64), axis=1)
        return np.asarray(found * mechanism.scales(norms)[:, None], np.float32)

    def _of_head(self) -> Points:
        """The unclipped gradients of a last layer: of each example an outer product."""
        head = self.trained
        assert isinstance(head, nn.Linear)
        found: Points = np.zeros((self.units, sum(each.numel() for each in trainable(head).values())), np.float32)
        parts = torch.from_numpy(1 / self._counts[self.owner]).float()
        for places in self.batches:
            given = self.inputs(places)[INPUT]
            said = head(given.to(head.weight.device)).detach().requires_grad_()
            assert self.labels is not None
            loss = losses_of(said, self.labels[torch.from_numpy(places)].to(said.device)).sum()
            (back,) = torch.autograd.grad(loss, said)
            back = back.cpu() * parts[torch.from_numpy(places)][:, None]
            whole = {"weight": torch.einsum("ec,ew->ecw", back, given).flatten(1), "bias": back}
            each = torch.cat([whole[name] for name in trainable(head)], dim=1)
            np.add.at(found, self.owner[places], each.numpy())
        return found

    def _of_layers(self) -> Points:
        """The unclipped gradients of a model, of a few examples at a time."""
        per = PerExample(self.trained)
        some = max(1, _NUMBERS // per.count)
        parts = [each[start : start + some] for each in self.batches for start in range(0, len(each), some)]

        def made(number: int) -> Points:
            places = parts[number]
            with single_precision(), per.recording(len(places)):
                self._loss(places).sum().backward()  # type: ignore[no-untyped-call]
            found = per.gradients().cpu().numpy()
            per.clear()
            return np.asarray(found / self._counts[self.owner[places], None], np.float32)

        found: Points = np.zeros((self.units, per.count), np.float32)
        for number, each in in_processes(made, range(len(parts)), processors()):
            np.add.at(found, self.owner[parts[number]], each)
        return found

    @property
    def _counts(self) -> Floats:
        """How many examples each unit has, 1 at least."""
        return np.maximum(np.bincount(self.owner, minlength=self.units), 1).astype(np.float64)

    def _loss(self, places: NDArray[np.int64]) -> Tensor:
        labels = None if self.labels is None else self.labels[torch.from_numpy(places)]
        return self.losses(self.trained, self.inputs(places), labels)

    def _by_unit(self, values: Floats) -> Floats:
        return np.asarray(np.bincount(self.owner, values, minlength=self.units) / self._counts, np.float64)


def known(
    model: "PreTrainedModel",
    rows: Sequence["Tokens"],
    labels: Tensor | None,
    owner: Sequence[int],
    units: int,
    how: Losses = losses,
) -> Known:
    """Units of a model whose trained parameters are marked. owner: the unit of each row. Memory: vectors or tokens."""
    model.eval()  # type: ignore[no-untyped-call]
    head = None if labels is None else head_alone(model)
    lengths = np.array([len(row) for row in rows])
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    if head is not None:
        vectors = torch.from_numpy(features(model, rows))
        chunks = tuple(order[start : start + _AT_ONCE] for start in range(0, len(order), _AT_ONCE))
        inputs: Callable[[NDArray[np.int64]], dict[str, Tensor]] = lambda places: {  # noqa: E731
            INPUT: vectors[torch.from_numpy(places)]
        }
        return Known(head, head_losses, inputs, labels, np.array(owner, np.int64), chunks, units)
    config = model.config

    def tokens(places: NDArray[np.int64]) -> dict[str, Tensor]:
        return inputs_of(config, [rows[place] for place in places], documents=labels is None)

    return Known(model, how, tokens, labels, np.array(owner, np.int64), tuple(_chunks(order, lengths)), units)


def _chunks(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    start = 0
    while start < len(order):
        size = max(1, _AT_ONCE // max(1, int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def scores_in_steps(
    known: Known, canaries: int, steps: Steps, mechanism: GradientMechanism, parties: int, progress: Progress
) -> Floats:
    """The sum over steps of how much more of each canary is in the sum than was to be expected, [canaries].

    known: the canaries, and then all other units. With G the clipped gradients of all n units [n, parameters], Z a
    step's noisy sum, m and V the mean and the variance of what a unit's coin and sample make of it, and s the noise, a
    step adds (G G' / s^2 + V^-1)^-1 G (Z - G' m) / s^2: the linear estimate of least mean square error. s is the noise
    as it shows in the directions that no gradient has, and the charged one where there are none.
    """
    rate = mechanism.sampling_probability
    taken = np.full(known.units, rate)
    taken[:canaries] /= 2
    spread = np.maximum(taken * (1 - taken), 1e-6)
    sigma = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    sigma *= np.sqrt(parties / mechanism.shares) if mechanism.shares > 1 else 1.0
    found = np.zeros(canaries)
    if not isinstance(known.trained, nn.Linear):
        # What is left out tells nothing: an attack on fewer steps is a weaker one, and as sound.
        kept = min(len(steps), max(1, MOST_GRADIENTS // known.units))
        steps = [steps[place] for place in np.linspace(0, len(steps) - 1, kept).round().astype(int)]
    for number, (point, total) in enumerate(steps):
        progress.bar("attack", number, len(steps), "steps")
        gradients = known.gradients_at(point, mechanism).astype(np.float64)
        noisy = total.reshape(-1).astype(np.float64) * mechanism.granularity
        gram, seen = gradients @ gradients.T, gradients @ noisy
        noise = max(_noise(gram, seen, noisy, sigma), _LEAST * sigma) ** 2
        left = (seen - gram @ taken) / noise
        precision = gram / noise
        precision[np.diag_indices(known.units)] += 1 / spread
        found += np.linalg.solve(precision, left)[:canaries]
    progress.bar("attack", len(steps), len(steps), "steps")
    return found


def _noise(gram: Floats, seen: Floats, noisy: Floats, charged: float) -> float:
    """The standard deviation of a step's noise, of the part of the sum that no gradient explains."""
    sizes, vectors = np.linalg.eigh(gram)
    own = sizes > _SMALL * sizes.max()
    spare = noisy.size - int(own.sum())
    if spare < noisy.size // 2:
        return charged
    along = vectors.T @ seen
    return float(np.sqrt(max(0.0, noisy @ noisy - (along[own] ** 2 / sizes[own]).sum()) / spare))
