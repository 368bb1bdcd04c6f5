"""The skip-gram under DP-SGD (Abadi et al. 2016): the baseline that noises gradients, and a teacher that answers free.

A unit u has counts N_c [V] of contexts for each of its centres c, n_c of them; its loss is the mean of -log p over its
pairs, n in all. With P_c the model's probabilities, x_c = inputs[c], O the outputs and D_c = (n_c P_c - N_c) / n:

    by inputs[c]: D_c O          by outputs: sum_c D_c' x_c          by bias: sum_c D_c

The outputs' part is a full matrix for every unit, and is never formed: its squared norm is sum_cc' (D_c . D_c')
(x_c . x_c'), so with the bias the norm takes the Gram matrix of the unit's D alone ("ghost" clipping, Goodfellow 2015).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import GradientMechanism, gradient_norms
from aggregation.noise.stream import NoiseStream
from learning.embeddings.skipgram import SkipGram

BLOCK_CELLS = 1 << 22
"""Cells of [centres, V] in double precision worked on at a time: 32 MiB an array. One unit is never divided."""
MOMENTUM = 0.9
LARGEST = 1e4
"""A parameter of this size or more shows that a training has diverged."""

_log = logging.getLogger(__name__)

_Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClippedSum:
    """total [V (2 d + 1)]: sum over units of clipped gradients, by inputs, outputs, bias. norms [units]: before."""

    total: _Float
    norms: _Float


def train_private(
    units: sparse.csr_array,
    mechanism: GradientMechanism,
    *,
    start: SkipGram,
    expected_batch: float,
    learning_rate: float,
    stream: NoiseStream,
    momentum: float = MOMENTUM,
    decay: float = 0.0,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Train a skip-gram on private units, from a public start, by noisy gradients with momentum.

    units: counts >= 0 [units, V * V] as `learning.embeddings.cooccurrence.unit_counts` gives; a unit without pairs adds
    nothing. start: public. expected_batch: what sums are divided by, from a declared public number of units, never from
    the shard. decay: pull towards the start at each step, as a share of the way times the learning rate. The model
    returned is the mean of the last half of the iterates, which averages noise away; it is
    post-processing of the noisy sums. What it costs is `mechanism.event()`, under add-or-remove of one unit (a row of
    `units`), on the assumptions in `GradientMechanism`. `stream` must be used for nothing else before; batches and
    noise come from it.

    Memory: a few arrays of `BLOCK_CELLS` and of the parameters in double precision.
    What units hold fails nothing: a step to infinity is not taken, and this process' log says how many were not.
    Raises `IntegrityError` for units that are not finite counts over V * V cells and for a start that is not finite,
    `ConclaveError` where the mechanism is for another number of parameters, or a setting is out of range.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1); the mean of iterates (Polyak & Juditsky 1992).
    """
    size, width = start.inputs.shape
    _check(units, mechanism, size, width, expected_batch, learning_rate)
    if not all(np.isfinite(each).all() for each in (start.inputs, start.outputs, start.bias)):
        raise IntegrityError("The skip-gram that training starts from holds NaN or infinity.")
    first = np.concatenate([start.inputs.ravel(), start.outputs.ravel(), start.bias]).astype(np.float64)
    point, velocity, mean, averaged = first.copy(), np.zeros_like(first), np.zeros_like(first), 0
    held = 0
    for step in range(mechanism.steps):
        taken = units[mechanism.batch(units.shape[0], stream)]
        clipped = clipped_sum(taken, *_unpack(point, size, width), mechanism)
        total = mechanism.contribute(clipped.total)
        total += mechanism.noise_share(total.shape, stream)
        velocity *= momentum
        velocity += mechanism.release(total).values / expected_batch + decay * (point - first)
        moved = point - learning_rate * velocity
        if (np.abs(moved) < LARGEST).all():
            point = moved
        else:
            velocity[:], held = 0.0, held + 1
        if step >= mechanism.steps // 2:
            averaged += 1
            mean += (point - mean) / averaged
        if on_step is not None:
            on_step((step + 1) / mechanism.steps)
    if held:
        _log.warning(
            "%s of %s steps would have gone to infinity and were not taken. Use a smaller learning rate or a larger "
            "batch.",
            f"{held:,}",
            f"{mechanism.steps:,}",
        )
    inputs, outputs, bias = (part.astype(np.float32) for part in _unpack(mean, size, width))
    return SkipGram(inputs, outputs, bias)


def clipped_sum(
    units: sparse.csr_array, inputs: _Float, outputs: _Float, bias: _Float, mechanism: GradientMechanism
) -> ClippedSum:
    """Sum of the units' gradients, each clipped on its own; units [units, V * V], parameters in float64.

    Noise-free: for `train_private` and tests. One unit more or less moves `total` by at most `mechanism.clip`.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1, "clip gradient"); norms by Goodfellow 2015.
    """
    by_inputs, by_outputs, by_bias = np.zeros_like(inputs), np.zeros_like(outputs), np.zeros_like(bias)
    norms = np.zeros(units.shape[0])
    for chunk in _chunks(units, len(bias)):
        centres, place = np.unique(chunk.centres, return_inverse=True)
        probable = inputs[centres] @ outputs.T + bias
        probable -= probable.max(axis=1, keepdims=True)
        np.exp(probable, out=probable)
        probable /= probable.sum(axis=1, keepdims=True)
        pull = chunk.weights[:, None] * (probable @ outputs)[place] - chunk.shares @ outputs  # D_c O, [rows, d]

        bounds = np.zeros(chunk.units.size)
        for index, rows in enumerate(chunk.rows):
            slope = chunk.weights[rows, None] * probable[place[rows]]
            block = chunk.shares[rows].tocoo()
            slope[block.coords] -= block.data
            vectors = inputs[chunk.centres[rows]]
            gram, alike = slope @ slope.T, vectors @ vectors.T + 1
            squared = (gram * alike).sum() + np.square(pull[rows]).sum()
            terms = np.sqrt(gram.diagonal() * alike.diagonal()).sum()
            bounds[index] = gradient_norms(squared, np.square(terms))
        norms[chunk.units] = bounds
        scale = np.repeat(mechanism.scales(bounds), [rows.stop - rows.start for rows in chunk.rows])

        np.add.at(by_inputs, chunk.centres, scale[:, None] * pull)
        weighted = sparse.diags_array(scale) @ chunk.shares
        probable *= np.bincount(place, weights=scale * chunk.weights)[:, None]
        by_outputs += probable.T @ inputs[centres] - weighted.T @ inputs[chunk.centres]
        by_bias += probable.sum(axis=0) - np.asarray(weighted.sum(axis=0)).ravel()
    return ClippedSum(np.concatenate([by_inputs.ravel(), by_outputs.ravel(), by_bias]), norms)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some units, a row for each (unit, centre): rows of unit `units[k]` are `rows[k]`."""

    units: NDArray[np.int64]
    rows: list[slice]
    centres: NDArray[np.int64]
    shares: sparse.csr_array  # N_c / n, [rows, V]
    weights: _Float  # n_c / n


def _chunks(units: sparse.csr_array, size: int) -> Iterator[_Chunk]:
    """All units with pairs, in chunks of at most BLOCK_CELLS / V rows unless one unit alone has more."""
    counts = sparse.csr_array(units, dtype=np.float64, copy=True)
    counts.has_sorted_indices = counts.has_canonical_format = False  # a stale flag would let a cell be counted twice
    counts.sum_duplicates()
    counts.eliminate_zeros()
    owner = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    totals = np.bincount(owner, weights=counts.data, minlength=counts.shape[0])
    centre, context = np.divmod(counts.indices.astype(np.int64), size)
    new = np.ones(owner.size, dtype=bool)
    new[1:] = (owner[1:] != owner[:-1]) | (centre[1:] != centre[:-1])
    row = np.cumsum(new) - 1
    shape = (int(new.sum()), size)
    shares = sparse.csr_array((counts.data / totals[owner], (row, context)), shape=shape)
    row_owner, row_centre = owner[new], centre[new]
    present, first = np.unique(row_owner, return_index=True)
    edges = np.append(first, row_owner.size)
    most, begin = max(1, BLOCK_CELLS // size), 0
    while begin < present.size:
        end = begin + 1
        while end < present.size and edges[end + 1] - edges[begin] <= most:
            end += 1
        low, high = edges[begin], edges[end]
        part = shares[low:high]
        yield _Chunk(
            present[begin:end],
            [slice(int(edges[k] - low), int(edges[k + 1] - low)) for k in range(begin, end)],
            row_centre[low:high],
            part,
            np.asarray(part.sum(axis=1)).ravel(),
        )
        begin = end


def _unpack(point: _Float, size: int, width: int) -> tuple[_Float, _Float, _Float]:
    cells = size * width
    return point[:cells].reshape(size, width), point[cells : 2 * cells].reshape(size, width), point[2 * cells :]


def _check(
    units: sparse.csr_array,
    mechanism: GradientMechanism,
    size: int,
    width: int,
    expected_batch: float,
    learning_rate: float,
) -> None:
    if units.ndim != 2 or units.shape[1] != size * size:
        raise IntegrityError(f"Units of {size} words have {size * size} cells each; these are {units.shape}.")
    if not np.isfinite(units.data).all() or (units.data < 0).any():
        raise IntegrityError("A unit's counts hold NaN, infinity or a negative number; every count must be >= 0.")
    if mechanism.parameters != size * (2 * width + 1):
        raise ConclaveError(
            f"The mechanism noises {mechanism.parameters:,} parameters, and a skip-gram of {size:,} words and {width} "
            f"dimensions has {size * (2 * width + 1):,}."
        )
    for name, value in (("expected_batch", expected_batch), ("learning_rate", learning_rate)):
        if not (np.isfinite(value) and value > 0):
            raise ConclaveError(f"{name} is {value}; it must be a number above 0.")
