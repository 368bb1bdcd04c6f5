"""How long a text model takes for a text, by the lengths of public text: measured on made-up texts of such lengths.

Time is the processor's, of one core, so that other work on this machine has little part in it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LOOKED_AT: Final = 2_000
"""Public texts whose lengths are looked at."""
EDGES: Final = (0.1, 0.9)
"""A tenth of the texts are shorter than the first of these quantiles, a tenth longer than the last."""
TRIED: Final = 3.5
"""Micro-batches that take as long as the trial of one length (`learning.models.agreement`)."""

FILLED: Final = 1.5
"""Places that a sample leaves empty in its last micro-batch of a length, on average."""

_PASSES: Final = 2


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in tokens, int64 [texts], sorted. known: of public text; else the longest that is read alone."""

    values: NDArray[np.int64]
    known: bool

    @classmethod
    def of(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        first: Sequence[str],
        second: Sequence[str] | None = None,
        *,
        longest: int,
    ) -> Self:
        """The lengths of public texts, or of pairs, cut to `longest`; where there is none, it is taken for all."""
        from learning.models.batching import encode

        if not first:
            return cls(np.array([longest], np.int64), known=False)
        others = None if second is None else second[:LOOKED_AT]
        rows = encode(tokenizer, first[:LOOKED_AT], others, longest=longest).rows
        return cls(np.sort(np.array([len(row) for row in rows], np.int64)), known=True)

    @property
    def middle(self) -> int:
        """The median."""
        return int(np.median(self.values))

    def cut(self, longest: int) -> "Lengths":
        """The same of texts that are cut to so many tokens."""
        return Lengths(np.minimum(self.values, longest), self.known)


@dataclass(frozen=True, slots=True)
class Span:
    """A figure as it is likely, and the least and the most that it may come to."""

    likely: float
    least: float
    most: float

    def through(self, work: Callable[[float], float]) -> "Span":
        """What a function that grows makes of it."""
        return Span(work(self.likely), work(self.least), work(self.most))


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one core. text: for one text, over all lengths, and were all as short or as long as `EDGES` say.

    trial: for trying all lengths once, before the first text.
    """

    text: Span
    trial: float


def pace_of(
    model: "PreTrainedModel", lengths: Lengths, *, trained: bool, sample: float, language: bool = False
) -> Pace:
    """Measure a model on made-up texts, as many at once as a party takes.

    trained: with the clipped gradients of what requires gradients; else the model is run alone. sample: texts of a
    party that are expected in one step. language: whether it learns the next token. Memory: one micro-batch, and 8
    bytes a trained number.
    """
    import torch

    from learning.models.agreement import STEP, rounded
    from learning.models.batching import form_of
    from learning.private_training.text_units import TOKENS_AT_ONCE

    limit = form_of(model.config).longest
    padded = np.array([rounded(int(length), limit) for length in lengths.values], np.int64)
    low, high = (int(each) for each in np.quantile(padded, EDGES, method="nearest"))
    low = low if lengths.known else min(STEP, low)
    measured = sorted({low, high, int(padded[-1])})
    work = (_spoken if language else _trained) if trained else _run
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [_timed(work(model, length, max(1, TOKENS_AT_ONCE // length))) for length in measured]
    finally:
        torch.set_num_threads(threads)
    a_text = [seconds / _together(TOKENS_AT_ONCE // length) for seconds, length in zip(found, measured, strict=True)]
    each, counts = np.unique(padded, return_counts=True)
    parts = counts / len(padded)
    filling = FILLED * np.minimum(1, sample * parts) / max(1.0, sample)
    likely = float(((parts + filling) * np.interp(each, measured, a_text)).sum())
    least, most = (float(np.interp(edge, measured, a_text)) for edge in (low, high))
    tried = each if lengths.known else np.arange(low, padded[-1] + 1, STEP)
    trial = TRIED * float(np.interp(tried, measured, found).sum())
    return Pace(Span(likely, min(least, likely), max(most, likely)), trial)


def _together(most: int) -> int:
    """How many texts go at once: the largest power of two."""
    return 1 << (max(1, most).bit_length() - 1)


def _timed(work: Callable[[], object]) -> float:
    seconds = []
    work()
    for _ in range(_PASSES):
        begun = time.thread_time()
        work()
        seconds.append(time.thread_time() - begun)
    return min(seconds)


def _run(model: "PreTrainedModel", length: int, most: int) -> Callable[[], object]:
    import torch

    from learning.models.agreement import made_up_rows
    from learning.models.batching import inputs_of, logits_of

    rows = [made_up_rows(int(model.config.vocab_size), length, 0)[0]] * _together(most)
    inputs = inputs_of(model.config, rows, length)

    def run() -> object:
        with torch.inference_mode():
            return logits_of(model, inputs)

    return run


def _trained(model: "PreTrainedModel", length: int, most: int) -> Callable[[], object]:
    import torch

    regression = getattr(model.config, "problem_type", None) == "regression"
    return _clipped(model, length, torch.zeros(_together(most), dtype=torch.float32 if regression else torch.int64))


def _spoken(model: "PreTrainedModel", length: int, most: int) -> Callable[[], object]:
    return _clipped(model, length, _together(most))


def _clipped(model: "PreTrainedModel", length: int, labels: "Tensor | int") -> Callable[[], object]:
    """The clipped gradients of one micro-batch. labels: one for each text, or the number of texts without any."""
    from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
    from learning.models.agreement import made_up_rows
    from learning.models.batching import losses
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.per_example import PerExample
    from learning.private_training.text_units import TextUnits

    count = labels if isinstance(labels, int) else len(labels)
    rows = [made_up_rows(int(model.config.vocab_size), length, 0)[0]] * count
    gradients = PerExample(model)
    mechanism = GradientMechanism(1.0, fine_levels(1.0, gradients.count), 1.0, 1.0, 1, gradients.count)
    (batch,) = TextUnits(model.config, rows, None if isinstance(labels, int) else labels).micro_batches(
        np.arange(count)
    )
    assert batch.shape is not None
    gradients.sizes[batch.shape.most, *batch.shape.name] = (count,)  # no trial: nobody's bits are at stake
    return lambda: clipped_sum(gradients, [batch], losses, mechanism)
