"""Samples as flat float32 rows, one a text: the form in which they leave a party and are pooled.

A row is the weights of a fixed public number of positions, then their vectors one after the other: positions * (1 +
width) numbers. A position that is not there has the weight 0 and the vector 0, so that rows say how many positions a
text has. Where that is to stay unsaid, sample a posterior that was `filled`: then every position is there.
"""

import torch
from torch import Tensor
from torch.nn import functional

from learning.bottleneck.posterior import LEAST_LOG_WEIGHT, NO_WEIGHT, Sample
from learning.errors import DataError

_SUM = 1e-3


def row_length(positions: int, width: int) -> int:
    """Numbers in a row."""
    return positions * (1 + width)


def rows_of(sample: Sample, positions: int | None = None) -> Tensor:
    """A batch of samples as rows, float32 [texts, positions * (1 + width)], without gradients.

    positions: of a row, as many as the sample has or more; by default as many. Raises `DataError` for fewer.
    Sensitivity and neighbouring relation: those of the sample; this is post-processing.
    """
    now = sample.mask.shape[1]
    positions = now if positions is None else positions
    if positions < now:
        raise DataError(f"Samples of {now:,} positions do not fit in rows of {positions:,}. Cut the texts before.")
    with torch.no_grad():
        weights = sample.log_weights.detach().float().exp().masked_fill(~sample.mask, 0.0)
        vectors = sample.vectors.detach().float().masked_fill(~sample.mask.unsqueeze(2), 0.0)
        weights = functional.pad(weights, (0, positions - now))
        vectors = functional.pad(vectors, (0, 0, 0, positions - now))
        return torch.cat([weights, vectors.flatten(1)], dim=1).contiguous()


def sample_of(rows: Tensor, positions: int, width: int) -> Sample:
    """Rows back as samples; a position of weight 0 is none.

    rows: float32 [texts, positions * (1 + width)]; a row that is no probability distribution over positions is refused:
    rows come from others. Raises `DataError` for another length, numbers that are not finite, weights below 0, and
    weights that add up to neither 1 nor, in a text without positions, 0.
    """
    wanted = row_length(positions, width)
    if rows.ndim != 2 or rows.shape[1] != wanted or not rows.is_floating_point():
        raise DataError(
            f"Rows of {positions:,} positions of width {width:,} have {wanted:,} numbers; these are "
            f"{tuple(rows.shape)}. Say the positions and the width that they were made with."
        )
    if not bool(torch.isfinite(rows).all()):
        raise DataError("Rows of samples hold numbers that are not finite. Ask their sender for others.")
    weights, flat = rows[:, :positions], rows[:, positions:]
    sums = weights.sum(dim=1)
    empty = (weights == 0).all(dim=1)
    if bool((weights < 0).any()) or bool((((sums - 1).abs() > _SUM) & ~empty).any()):
        raise DataError("The weights of a row of samples do not add up to 1. Ask its sender for another.")
    mask = weights > 0
    logs = torch.log(weights.clamp(min=1e-38)).clamp(min=LEAST_LOG_WEIGHT).masked_fill(~mask, NO_WEIGHT)
    vectors = flat.reshape(len(rows), positions, width).masked_fill(~mask.unsqueeze(2), 0.0)
    return Sample(vectors, logs, mask)
