"""The teachers' released answers about public words, which a student learns from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError, IntegrityError
from learning.embeddings.teachers import Layer, Words, check_layers

ABSTAINED = -1


@dataclass(frozen=True, slots=True)
class ReleasedAnswers:
    """The released answers, or what follows from them, about distinct public words.

    queries: word positions [queries], each once.
    weights: how often each is asked, integers >= 1 [queries]. "paper" takes its mean over them; "likelihood" has no use
    for them, for asking again gives the same answer.
    labels: word positions [queries], -1 where the aggregator abstained: the paper then skips the query, hidden states
    included; "likelihood" uses what there is.
    histogram: the teachers' votes as shares of their number, float [queries, classes], with their noise, also below 0,
    for the word positions `classes` [classes]; histogram_noise: its standard deviation, in shares.
    hidden: the teachers' mean hidden states, float [queries, layers, width], with their noise of standard deviation
    hidden_noise, for the named `layers`.

    Raises `ConclaveError` for no signal, labels beside a histogram, or a signal without what belongs to it;
    `IntegrityError` for shapes that do not fit, NaN or infinity, and a query named twice.
    """

    queries: Words
    weights: NDArray[np.int64]
    labels: NDArray[np.int64] | None = None
    histogram: NDArray[np.floating] | None = None
    classes: Words | None = None
    histogram_noise: float | None = None
    hidden: NDArray[np.floating] | None = None
    layers: Sequence[Layer] = ()
    hidden_noise: float | None = None

    def __post_init__(self) -> None:
        count = len(self.queries)
        if self.labels is None and self.histogram is None and self.hidden is None:
            raise ConclaveError("There is nothing to distil: give labels, a histogram or hidden states.")
        if self.labels is not None and self.histogram is not None:
            raise ConclaveError("Labels say what the histogram says. Give one of the two.")
        if count == 0 or len(np.unique(self.queries)) != count:
            raise IntegrityError("Queries are distinct words, one or more; say how often each is asked by weights.")
        if self.weights.shape != (count,) or (self.weights < 1).any():
            raise IntegrityError(f"Weights are {count} whole numbers from 1, one for every query.")
        if self.labels is not None and self.labels.shape != (count,):
            raise IntegrityError(f"There are {count} queries and labels of shape {self.labels.shape}.")
        if self.histogram is not None:
            if self.classes is None or len(np.unique(self.classes)) != len(self.classes):
                raise ConclaveError("A histogram needs `classes`, the distinct words that it counts votes for.")
            _check_values("histogram", self.histogram, (count, len(self.classes)))
        if self.hidden is not None:
            width = self.hidden.shape[-1] if self.hidden.ndim else 0
            _check_values("hidden", self.hidden, (count, len(check_layers(self.layers)), width))
        for name, noise in (("histogram_noise", self.histogram_noise), ("hidden_noise", self.hidden_noise)):
            if noise is not None and not (np.isfinite(noise) and noise >= 0):
                raise IntegrityError(f"{name} is {noise}; a standard deviation is a finite number from 0.")


def _check_values(name: str, values: NDArray[np.floating], shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise IntegrityError(f"{name} has shape {values.shape}, and the queries ask for {shape}.")
    if not np.isfinite(values).all():
        raise IntegrityError(f"{name} holds NaN or infinity, so it is not what a mechanism released.")
