"""The student of DPED (Feng & Hong): distilled from what teachers released about public words, and from nothing else.

Two weightings of the same signals. "paper" is the paper's loss, equations (3) and (4), a mean over the queries

    |h_S(x) - H~(x)|^2 + |softmax(y_S(x)) - y~(x)|^2      (or the cross-entropy of y~ for the second term),

in which a noisy signal pulls as hard as an exact one. "likelihood" takes each signal for what it is worth, about a
start that is public:

- hidden: H~ is the teachers' mean under N(0, s^2), s known. Were the means normal about the start with variance t^2 in
  each coordinate, the best guess is start + t^2 / (t^2 + s^2) (H~ - start). t^2 is estimated from the noisy values
  (James & Stein 1961): their mean square distance from the start less s^2 and less two standard errors of it, at least
  0, and at most `FURTHEST` squared times the start's own mean square. Where the noise drowns the signal the student
  keeps the start.
- labels: a label is one observed context, beside `OBSERVATIONS` of them that the model's own prediction counts for, and
  a ridge in the same unit. Labels that are pure noise then cost queried words about a factor of
  1 + 1/OBSERVATIONS in perplexity at worst.
- histogram: as a label, its noisy shares first drawn towards the model's prediction by the rule for hidden; what the
  model gives the classes altogether is not touched.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from learning.embeddings.optimising import fixed_threads, minimise
from learning.embeddings.released_answers import ABSTAINED, ReleasedAnswers
from learning.embeddings.skipgram import RIDGE, SkipGram
from learning.embeddings.teachers import check_words

Weighting = Literal["paper", "likelihood"]
OutputLoss = Literal["squared", "cross-entropy"]

OBSERVATIONS = 30.0
"""The model's own prediction for a query counts as this many contexts, a label as one."""
FURTHEST = 4.0
"""The largest distance of hidden states from the start's, in lengths of the start's: teachers' are at most three times
as long.
"""
UNQUERIED = 1e-3
"""Ridge towards the start for words that are never queried, under the paper's loss, which is about 1."""
BLOCK_CELLS = 1 << 22
"""Cells of [queries, V] worked on at a time: 16 MiB an array."""

_MOST_PRECISION = 1e6  # a coordinate with a stronger ridge than this hardly moves
_CURVATURE = 0.1


def distil(
    start: SkipGram,
    answers: ReleasedAnswers,
    *,
    weighting: Weighting,
    output_loss: OutputLoss = "squared",
    steps: int = 60,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Distil a student from released signals; see the module for the two weightings.

    start: the public model that the student goes on from. output_loss: of "paper"; "likelihood" is
    always the cross-entropy. steps: of L-BFGS. on_step: told the fraction done. The same arguments give the same bytes
    on the same machine. Post-processing of releases: it costs no privacy.
    Raises `IntegrityError` for words outside the start's vocabulary, hidden states of another width, or a fit that does
    not stay finite; `ConclaveError` for an unknown weighting or loss, or "likelihood" without the noise it needs.
    Source: "paper": DPED (Feng & Hong), equations (3) and (4). "likelihood": our own, with the shrinkage of James &
    Stein 1961.
    """
    size, width = start.inputs.shape
    check_words(answers.queries, size, "query")
    if answers.classes is not None:
        check_words(answers.classes, size, "class")
    if answers.labels is not None:
        check_words(np.where(answers.labels == ABSTAINED, 0, answers.labels), size, "label")
    if answers.hidden is not None and answers.hidden.shape[2] != width:
        raise IntegrityError(f"Hidden states have width {answers.hidden.shape[2]}, the student {width}.")
    if output_loss not in ("squared", "cross-entropy"):
        raise ConclaveError(f"output_loss is {output_loss!r}; it must be 'squared' or 'cross-entropy'.")
    with torch.no_grad(), fixed_threads(size):
        if weighting == "paper":
            student = _paper(start, answers, output_loss).minimum(steps, on_step)
        elif weighting == "likelihood":
            student = _likelihood(start, answers, steps, on_step)
        else:
            raise ConclaveError(f"weighting is {weighting!r}; it must be 'paper' or 'likelihood'.")
    if not all(np.isfinite(part).all() for part in (student.inputs, student.outputs, student.bias)):
        raise IntegrityError("Distilling did not stay finite. Are the signals and their noise in the same unit?")
    return student


@dataclass(frozen=True, slots=True)
class _Problem:
    """sum_q weight_q loss(softmax(y_q), target_q) + 1/2 sum precision (vectors - centre)^2 + the same for the bias.

    vectors [2 V, d] are inputs over outputs. targets [asked, columns] are for the words `columns`, 0 elsewhere;
    own [asked]: how much of the model `centre`'s own prediction is added to a target.
    """

    centre: tuple[Tensor, Tensor]
    precision: tuple[Tensor, Tensor]
    asked: Tensor
    weights: Tensor
    targets: Tensor
    columns: Tensor
    own: Tensor
    squared: bool

    def minimum(self, steps: int, on_step: Callable[[float], None] | None) -> SkipGram:
        bias, vectors = self.centre
        if len(self.asked):
            curved = torch.zeros(len(bias))
            for rows in self._blocks():
                curved += (self.weights[rows, None] * self._softmax(bias, vectors, rows).exp_()).sum(0)
            seen = torch.zeros(len(vectors), 1)
            seen[self.asked, 0] = self.weights
            seen[len(bias) :, 0] = curved
            scales = (curved + self.precision[0]).sqrt(), (_CURVATURE * seen + self.precision[1]).sqrt()
        else:
            scales = self.precision[0].sqrt(), self.precision[1].sqrt()
        smallest = 1e-6  # where nothing pulls, nothing moves
        bias, vectors = minimise(
            self.centre,
            (scales[0].clamp(min=smallest), scales[1].clamp(min=smallest)),
            self._objective,
            steps,
            on_step,
        )
        return _model(bias, vectors)

    def _objective(self, bias: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        off_bias, off = bias - self.centre[0], vectors - self.centre[1]
        by_bias, by_vectors = self.precision[0] * off_bias, self.precision[1] * off
        loss = (off_bias * by_bias).sum(dtype=torch.float64) / 2 + (off * by_vectors).sum(dtype=torch.float64) / 2
        size = len(bias)
        for rows in self._blocks():
            logarithms = self._softmax(bias, vectors, rows)
            target = torch.zeros_like(logarithms)
            target.index_add_(1, self.columns, self.targets[rows])
            if self.own[rows].any():
                target += self.own[rows, None] * self._softmax(*self.centre, rows).exp_()
            weights = self.weights[rows, None]
            if self.squared:
                probable = logarithms.exp_()
                away = probable - target
                loss += (weights * away.square()).sum(dtype=torch.float64)
                slope = probable * (away - (probable * away).sum(1, keepdim=True)) * (2 * weights)
            else:
                loss -= (weights * target * logarithms).sum(dtype=torch.float64)
                slope = (logarithms.exp_() * target.sum(1, keepdim=True) - target) * weights
            words = self.asked[rows]
            by_bias += slope.sum(0)
            by_vectors.index_add_(0, words, slope @ vectors[size:])
            by_vectors[size:] += slope.T @ vectors[words]
        return loss, by_bias, by_vectors

    def _softmax(self, bias: Tensor, vectors: Tensor, rows: slice) -> Tensor:
        """log p(context | query), [rows, V]."""
        return torch.log_softmax(torch.addmm(bias, vectors[self.asked[rows]], vectors[len(bias) :].T), dim=1)

    def _blocks(self) -> list[slice]:
        rows = max(1, BLOCK_CELLS // len(self.centre[0]))
        return [slice(first, first + rows) for first in range(0, len(self.asked), rows)]


def _paper(start: SkipGram, answers: ReleasedAnswers, output_loss: OutputLoss) -> _Problem:
    size = len(start.bias)
    bias, vectors = _tensors(start)
    kept = np.ones(len(answers.queries), dtype=bool) if answers.labels is None else answers.labels != ABSTAINED
    queries = answers.queries[kept]
    weights = torch.from_numpy(answers.weights[kept] / max(1, answers.weights[kept].sum())).float()

    unasked = torch.ones(size)
    unasked[torch.from_numpy(queries)] = 0
    precision = (UNQUERIED * unasked).repeat(2)[:, None].repeat(1, vectors.shape[1])
    centre = vectors.clone()
    for place, values in _hidden(answers, kept, size):
        centre[place] = values
        precision[place] = 2 * weights[:, None]
    targets, columns = _targets(answers, kept)
    if answers.labels is None and answers.histogram is None:
        queries, weights, targets = queries[:0], weights[:0], targets[:0]
    return _Problem(
        (bias, centre),
        (UNQUERIED * unasked, precision),
        torch.from_numpy(queries.astype(np.int64)),
        weights,
        targets,
        columns,
        torch.zeros(len(queries)),
        output_loss == "squared",
    )


def _likelihood(
    start: SkipGram, answers: ReleasedAnswers, steps: int, on_step: Callable[[float], None] | None
) -> SkipGram:
    size = len(start.bias)
    bias, vectors = _tensors(start)
    precision = torch.full_like(vectors, RIDGE)
    every = np.ones(len(answers.queries), dtype=bool)
    for place, values in _hidden(answers, every, size):
        if answers.hidden_noise is None:
            raise ConclaveError("The likelihood of hidden states needs hidden_noise, their standard deviation.")
        moved = values - vectors[place]
        noise = answers.hidden_noise**2
        layer = vectors[:size] if int(place[0]) < size else vectors[size:]
        variance = _variance(moved, answers.hidden_noise, FURTHEST**2 * layer.square().mean(0))
        vectors[place] += variance / (variance + noise).clamp(min=1e-30) * moved
        held = 1 / variance.clamp(min=1e-30) + 1 / max(noise, 1e-30)
        precision[place] = held.clamp(min=RIDGE, max=_MOST_PRECISION)
    if answers.labels is None and answers.histogram is None:
        if on_step is not None:
            on_step(1.0)
        return _model(bias, vectors)

    targets, columns = _targets(answers, every)
    own = torch.full((len(answers.queries),), OBSERVATIONS)
    asked = torch.from_numpy(answers.queries.astype(np.int64))
    if answers.histogram is not None:
        if answers.histogram_noise is None:
            raise ConclaveError("The likelihood of a histogram needs histogram_noise, its standard deviation.")
        among = torch.softmax(torch.addmm(bias[columns], vectors[asked], vectors[size:][columns].T), dim=1)
        moved = targets - among
        variance = _variance(moved, answers.histogram_noise, torch.ones(len(columns)))
        targets = variance / (variance + answers.histogram_noise**2).clamp(min=1e-30) * moved
    problem = _Problem(
        (bias, vectors),
        (torch.full_like(bias, RIDGE), precision),
        asked,
        torch.ones(len(asked)),
        targets,
        columns,
        own,
        False,
    )
    return problem.minimum(steps, on_step)


def _variance(moved: Tensor, noise: float, most: Tensor) -> Tensor:
    """Variance [columns] of the true distances from the start, given noisy ones [queries, columns]; at most `most`.

    A mean square of pure noise strays by noise^2 sqrt(2 / queries); twice that is taken off, lest chance be learned.
    """
    chance = 2 * math.sqrt(2 / len(moved))
    return torch.minimum(torch.clamp(moved.square().mean(0) - noise**2 * (1 + chance), min=0), most)


def _hidden(answers: ReleasedAnswers, kept: NDArray[np.bool_], size: int) -> list[tuple[Tensor, Tensor]]:
    """For each layer: rows of the vectors [2 V, d], and what was released for them."""
    if answers.hidden is None:
        return []
    places = torch.from_numpy(answers.queries[kept].astype(np.int64))
    values = torch.from_numpy(answers.hidden[kept].astype(np.float32))
    return [
        (places + (size if layer == "context" else 0), values[:, index]) for index, layer in enumerate(answers.layers)
    ]


def _targets(answers: ReleasedAnswers, kept: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Targets [queries, columns] and the words that the columns are."""
    if answers.histogram is not None:
        assert answers.classes is not None
        columns = torch.from_numpy(answers.classes.astype(np.int64))
        return torch.from_numpy(answers.histogram[kept].astype(np.float32)), columns
    if answers.labels is None:
        return torch.zeros(int(kept.sum()), 0), torch.zeros(0, dtype=torch.int64)
    labels = answers.labels[kept]
    words, place = np.unique(labels[labels != ABSTAINED], return_inverse=True)
    targets = torch.zeros(len(labels), len(words))
    targets[torch.from_numpy(np.flatnonzero(labels != ABSTAINED)), torch.from_numpy(place)] = 1
    return targets, torch.from_numpy(words.astype(np.int64))


def _tensors(model: SkipGram) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(model.bias.copy()), torch.from_numpy(np.concatenate([model.inputs, model.outputs]))


def _model(bias: Tensor, vectors: Tensor) -> SkipGram:
    size = len(bias)
    return SkipGram(vectors[:size].numpy().copy(), vectors[size:].numpy().copy(), bias.numpy().copy())
