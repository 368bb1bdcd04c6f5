"""Classifiers and regressions: ordinary training, and prediction.

Training here is not private: for teachers whose answers are protected afterwards, for public text and for simulation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.errors import ConclaveError
from learning.errors import EXHAUSTED, ComputeError, DataError, Diverged
from learning.models.adapting import trainable
from learning.models.batching import TOKENS, Tokens, batches, inputs_of, logits_of, losses, losses_of
from learning.models.compute import device_of, loss_scale
from learning.models.device_memory import attempted, halved
from learning.models.optimisers import Schedule, uncompiled

_GROUP: Final = 50


@dataclass(frozen=True, slots=True)
class Fit:
    """How to train without privacy.

    epochs: passes over the examples. batch: examples in one step. learning_rate: the highest; `schedule` says what
    share of it a step takes. optimiser: AdamW or SGD with `momentum`; decay: its weight
    decay. longest_gradient: the norm that a step's gradient is cut to. Raises `ConclaveError` for
    a number of epochs or a batch below 1.
    Source: AdamW (Loshchilov & Hutter 2019); cutting gradients (Pascanu et al. 2013).
    """

    epochs: int = 3
    batch: int = 32
    learning_rate: float = 5e-4
    optimiser: Literal["adamw", "sgd"] = "adamw"
    schedule: Schedule = field(default_factory=lambda: Schedule("linear", warm_up=0.06))
    decay: float = 0.01
    momentum: float = 0.9
    longest_gradient: float = 1.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise ConclaveError(
                f"{self.epochs} epochs in batches of {self.batch} train nothing. Give one or more of each."
            )


def fit(
    model: nn.Module,
    rows: Sequence[Tokens],
    labels: NDArray[np.int64] | NDArray[np.float32] | None,
    settings: Fit,
    rng: np.random.Generator,
    on_step: Callable[[float], None] | None = None,
) -> None:
    """Train what is trainable in a model on examples, in place. Not private.

    labels: a class's place, int64 [examples], or a standard score, float32 [examples]; None for a language
    model, which learns the examples themselves, less what stands before each one's own text. Examples of like length
    share a batch. A shard with only one class trains a model that always predicts it, and is no error: an error would
    reveal what the shard holds. on_step: told the fraction done. Raises `DataError` without examples, `ConclaveError`
    for a model of which nothing is to be trained, `Diverged` for one that goes to infinity.
    """
    labelled = len(rows) if labels is None else len(labels)
    if not rows or len(rows) != labelled:
        raise DataError(f"Training needs a label for every example: {len(rows):,} examples, {labelled:,} labels.")
    targets = None if labels is None else torch.from_numpy(np.ascontiguousarray(labels))
    config = _config(model)

    def of(places: NDArray[np.int64]) -> Tensor:
        own = None if targets is None else targets[places]
        some = [rows[place] for place in places]
        return losses(model, inputs_of(config, some, documents=labels is None), own)

    model.train()
    _descend(model, of, [len(row) for row in rows], settings, rng, on_step)
    model.eval()


def fit_head(
    head: nn.Linear,
    vectors: NDArray[np.float32],
    labels: NDArray[np.int64] | NDArray[np.float32],
    settings: Fit,
    rng: np.random.Generator,
) -> None:
    """Train a classifier's last layer as `fit` does, on what it sees [examples, width] (`learning.models.features`), in
    place.

    Of texts of one length the steps are those of `fit`; otherwise it does not put like lengths together.
    Raises like `fit`.
    """
    if not len(vectors) or len(vectors) != len(labels):
        raise DataError(f"Training needs a label for every example: {len(vectors):,} examples, {len(labels):,} labels.")
    device = device_of(head)
    inputs, targets = torch.from_numpy(vectors).to(device), torch.from_numpy(np.ascontiguousarray(labels)).to(device)

    def of(places: NDArray[np.int64]) -> Tensor:
        taken = torch.from_numpy(places).to(device)
        return losses_of(head(inputs[taken]), targets[taken])

    _descend(head, of, [1] * len(vectors), settings, rng, None)


def predict(
    model: nn.Module,
    rows: Sequence[Tokens],
    tokens: int = TOKENS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> NDArray[np.float32]:
    """A model's output on examples: logits [examples, classes], or a regression's standard scores [examples, 1].

    It runs in batches of similar length, at most `tokens` tokens at a time. The other examples change an output by
    rounding only. progress: is told how many examples of how many are through.
    """
    found: list[NDArray[np.float32]] = []
    order: list[NDArray[np.int64]] = []
    config, met = _config(model), 0
    model.eval()

    def of(places: NDArray[np.int64]) -> NDArray[np.float32]:
        return logits_of(model, inputs_of(config, [rows[place] for place in places])).cpu().numpy()

    with torch.inference_mode():
        for places, logits in halved(batches(rows, tokens), of):
            found.append(logits)
            order.append(places)
            met += len(places)
            progress(met, len(rows))
    if not found:
        return np.empty((0, getattr(config, "num_labels", 1)), np.float32)
    answers = np.empty((len(rows), found[0].shape[1]), np.float32)
    answers[np.concatenate(order)] = np.concatenate(found)
    return answers


def predict_head(head: nn.Module, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """A classifier's last layer on what it sees [examples, width]: its output as of `predict`."""
    with torch.inference_mode():
        said: Tensor = head(torch.from_numpy(vectors).to(device_of(head)))
    return np.asarray(said.cpu().numpy())


def probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """The softmax of logits [examples, classes]."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def _descend(
    model: nn.Module,
    losses_at: Callable[[NDArray[np.int64]], Tensor],
    lengths: Sequence[int],
    settings: Fit,
    rng: np.random.Generator,
    on_step: Callable[[float], None] | None,
) -> None:
    """The steps of a training: of every batch's places, the losses [examples], the gradient of their mean, an update.

    lengths: of the examples, by which a batch is put together.
    """
    parameters = list(trainable(model).values())
    if not parameters:
        raise ConclaveError("Nothing of the model is to be trained. Say what by `adapt`.")
    optimiser = _optimiser(parameters, settings)
    steps, step, parts = settings.epochs * -(-len(lengths) // settings.batch), 0, 1
    for _ in range(settings.epochs):
        for places in _shuffled(lengths, settings.batch, rng):
            for group in optimiser.param_groups:
                group["lr"] = settings.learning_rate * settings.schedule.scale(step, steps)
            parts = _backward(optimiser, losses_at, places, parts)
            size = nn.utils.clip_grad_norm_(parameters, settings.longest_gradient)
            if not torch.isfinite(size):
                raise Diverged(f"Training went to infinity in step {step + 1:,}. Use a smaller learning rate.")
            try:
                with uncompiled():
                    optimiser.step()
            except RuntimeError as error:  # a step that no single-precision number is as large as
                if "overflow" not in str(error):
                    raise
                raise Diverged(
                    f"Training went to infinity in step {step + 1:,}. Use a smaller learning rate."
                ) from None
            step += 1
            if on_step is not None:
                on_step(step / steps)


def _backward(
    optimiser: torch.optim.Optimizer,
    losses_at: Callable[[NDArray[np.int64]], Tensor],
    places: NDArray[np.int64],
    parts: int,
) -> int:
    """The gradient of the examples' mean loss, in `parts` parts or as many more as the device's memory makes necessary;
    returns how many. In another number of parts the same gradient is rounded in another order.

    Raises `ComputeError` where one example alone is too large.
    """

    def add(count: int) -> bool:
        optimiser.zero_grad(set_to_none=True)
        for some in np.array_split(places, min(count, len(places))):
            loss = losses_at(some)
            mean = loss.mean() if len(some) == len(places) else loss.sum() / len(places)
            (mean if scale == 1 else mean * scale).backward()  # type: ignore[no-untyped-call]
        return True

    scale = loss_scale()
    while attempted(partial(add, parts)) is None:
        if parts >= len(places):
            raise ComputeError(EXHAUSTED, code="C304")
        parts *= 2
    if scale != 1:
        for group in optimiser.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad.div_(scale)
    return parts


@uncompiled()
def _optimiser(parameters: list[nn.Parameter], settings: Fit) -> torch.optim.Optimizer:
    if settings.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, settings.learning_rate, momentum=settings.momentum, weight_decay=settings.decay
        )
    return torch.optim.AdamW(parameters, settings.learning_rate, weight_decay=settings.decay)


def _shuffled(lengths: Sequence[int], batch: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Every example once, in batches by chance; within some batches' worth of them, by length."""
    order = rng.permutation(len(lengths))
    whole: list[NDArray[np.int64]] = []
    for first in range(0, len(lengths), batch * _GROUP):
        group = order[first : first + batch * _GROUP]
        group = group[np.argsort([lengths[place] for place in group], kind="stable")]
        whole += [group[start : start + batch] for start in range(0, len(group), batch)]
    yield from (whole[place] for place in rng.permutation(len(whole)))


def _config(model: nn.Module) -> Any:
    return model.config
