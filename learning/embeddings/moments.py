"""What a unit says along public directions: word frequencies and second moments, not V * V counts.

Where the words' vectors u_i [k] are public, the model

    log N_ij = b_i + b_j + u_i' K u_j        b [V], K [k, k] symmetric

is an exponential family: of the counts N, the row sums N 1 and the moments U' N U say all that there is to say about
it. So units release those instead of counts. A sentence's V * V counts are spread over cells that hold less than one
count each, and under noise on every cell little is left to learn; its moments are a few thousand numbers, each of them
a mean over all of the text.

The directions are those along which words of public text differ in their contexts: with A the prior's interaction and p
public frequencies, the leading eigenvectors of diag(p)^1/2 A diag(p)^1/2, divided by p^1/2, so that each has variance 1
over the text and words of every frequency count. A constant comes first: its moments are how many pairs were counted,
after clipping, and their means. Frequencies are weighted by p^-1/2, as chi-square does: noise falls where words are
frequent.

`learning.embeddings.prior` fits the student; `aggregation.mechanisms.vectors.VectorMechanism` clips the units and makes
the noise.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy import sparse
from threadpoolctl import threadpool_limits

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import IntegrityError
from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.cooccurrence import alike

if TYPE_CHECKING:
    from learning.embeddings.skipgram import SkipGram

SHARE = 0.65
"""The part of a usual unit's squared norm that is word frequencies. It sets how well the floor is learned, which comes
first.
"""
QUANTILE = 0.25
"""Public units up to this quantile of the norm are not clipped. Long units lose weight, and the noise is smaller for
it.
"""
PAIR_QUANTILE = 1.0
"""The same where every pair is a unit: there the long ones are rare words, and clipping them would make them rarer."""

_SMOOTHING = 0.2  # the part of public frequencies that is uniform: a word may be rarer in public text than in private
_SMALL = 2048  # words up to which one thread decomposes faster than several, which wait for each other
_SLICE, _FEWEST = 1 << 16, 8  # numbers of embeddings in memory at a time, half a MiB, and units, where these are more
# A training process gives arrays of 4 MiB back to the system: in slices of that size most of its time was page faults.


@dataclass(frozen=True, slots=True)
class Directions:
    """vectors [V, k] and strengths [k] of the public interaction, weights [V] > 0 of frequencies; float32, finite.

    A public artefact. k may be 0: then frequencies alone are released, and what is learned of them is the floor.
    log p of the public text is -2 log(weights), up to a constant. Raises `IntegrityError` for anything else.
    """

    vectors: NDArray[np.float32]
    strengths: NDArray[np.float32]
    weights: NDArray[np.float32]

    def __post_init__(self) -> None:
        parts = (self.vectors, self.strengths, self.weights)
        if any(part.dtype != np.float32 or not np.isfinite(part).all() for part in parts):
            raise IntegrityError("Directions are finite float32 numbers.")
        if self.vectors.ndim != 2 or self.strengths.shape != (self.rank,) or self.weights.shape != (self.size,):
            shapes = ", ".join(str(part.shape) for part in parts)
            raise IntegrityError(f"The parts of directions do not fit: vectors, strengths and weights are {shapes}.")
        if self.size < 2 or not (self.weights > 0).all():
            raise IntegrityError("Directions need two words or more, each with a weight above 0.")

    @property
    def size(self) -> int:
        """Words of the vocabulary, V."""
        return int(self.vectors.shape[0])

    @property
    def rank(self) -> int:
        """Directions, k."""
        return int(self.vectors.shape[1])

    @property
    def columns(self) -> int:
        """Numbers that a unit comes to: V + (k + 1) (k + 2) / 2."""
        return self.size + (self.rank + 1) * (self.rank + 2) // 2

    def unpack(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Released values [columns] as frequencies [V], in counts, and moments [k + 1, k + 1], the constant first.

        Noise of sigma on the values is sigma / weights on frequencies, sigma on the moments' diagonal, and
        sigma / sqrt(2) off it. Raises `IntegrityError` for another number of values, or values not finite.
        """
        if values.shape != (self.columns,) or not np.isfinite(values).all():
            raise IntegrityError(f"Moments along these directions are {self.columns:,} finite numbers.")
        upper = np.triu_indices(self.rank + 1)
        moments = np.zeros((self.rank + 1, self.rank + 1))
        moments[upper] = values[self.size :] / _lengths(self.rank)
        moments.T[upper] = moments[upper]
        return values[: self.size] / self.weights, moments

    def to_bytes(self) -> bytes:
        """Safetensors of the three tensors: the same directions give the same bytes."""
        tensors = {name: np.ascontiguousarray(getattr(self, name)) for name in ("strengths", "vectors", "weights")}
        return bytes(save(tensors))

    @classmethod
    def from_bytes(cls, content: bytes) -> "Directions":
        """Read what `to_bytes` wrote. Raises `IntegrityError` for anything else."""
        try:
            tensors: dict[str, NDArray[np.float32]] = load(content)
        except (SafetensorError, KeyError, ValueError, TypeError) as error:  # unknown types raise one of the latter
            raise IntegrityError("The directions are not in the safetensors format, or were cut short.") from error
        if tensors.keys() != {"strengths", "vectors", "weights"}:
            raise IntegrityError(f"Directions are strengths, vectors and weights, not {', '.join(sorted(tensors))}.")
        return cls(tensors["vectors"], tensors["strengths"], tensors["weights"])


def public_directions(
    prior: "SkipGram",
    units: sparse.csr_array,
    *,
    rank: int,
    share: float = SHARE,
    quantile: float | None = None,
    usual: sparse.csr_array | None = None,
) -> tuple[Directions, float]:
    """Choose directions and a clip from PUBLIC text alone: (directions, clip).

    prior: fitted to public text over the same vocabulary; `rank` at most V directions are taken from it, 0 for the
    floor. units: pair counts [units, V * V] of public text cut into units of the plan's kind; a few thousand do.
    usual: other public units, whose size is nearer to that of private ones: clip and share are then taken from them,
    and nothing else.
    share: part of the squared norm that frequencies take, in the mean of public units' logarithms; all where rank is 0.
    quantile: of public units' norms, which is the clip; by default `QUANTILE`, or `PAIR_QUANTILE` where no unit has
    more than one cell. Public units much longer than private ones make a clip that is too large, and noise to match.
    Raises `IntegrityError` where units and prior do not fit, a setting is out of range, or no unit has a pair.
    """
    size = len(prior.bias)
    usual = units if usual is None else usual
    for each in (units, usual):
        if not isinstance(each, sparse.csr_array) or each.ndim != 2 or each.shape[1] != size * size:
            raise IntegrityError(f"Units must be a csr_array [units, {size} * {size}] of pair counts.")
    if not 0 <= rank <= size or not 0 < share < 1:
        raise IntegrityError(f"A rank lies in 0..{size} and a share between 0 and 1, not {rank} and {share}.")
    if quantile is None:
        quantile = PAIR_QUANTILE if (np.diff(usual.indptr) <= 1).all() else QUANTILE
    if not 0 < quantile <= 1:
        raise IntegrityError(f"A quantile lies above 0 and up to 1, not at {quantile}.")
    if not (units.sum() > 0 and usual.sum() > 0):
        raise IntegrityError("The public units have no two words of the vocabulary near each other. Give more of them.")
    frequencies = np.bincount(units.indices // size, weights=units.data, minlength=size).astype(np.float64)
    frequencies = (1 - _SMOOTHING) * frequencies / frequencies.sum() + _SMOOTHING / size
    root = np.sqrt(frequencies)
    with threadpool_limits(1 if size <= _SMALL else None, user_api="blas"):
        values, vectors = _leading(root[:, None] * prior.inputs, root[:, None] * prior.outputs, rank)
    found = vectors / root[:, None]
    plain = Directions(found.astype(np.float32), values.astype(np.float32), (1 / root).astype(np.float32))
    filled = usual[np.flatnonzero(np.diff(usual.indptr))]
    squares = np.concatenate([
        np.stack([(part[:, :size] ** 2).sum(axis=1), (part[:, size:] ** 2).sum(axis=1)], axis=1)
        for part in (embed(filled[rows], plain) for rows in _slices(filled.shape[0], plain.columns))
    ])  # fmt: skip
    means = np.exp(np.log(squares).mean(axis=0))
    scale = math.sqrt(means[1] / means[0] * share / (1 - share)) if rank else 1.0
    clip = float(np.sqrt(np.quantile(squares @ [scale * scale, 1.0], quantile)))
    return Directions(plain.vectors, plain.strengths, (scale / root).astype(np.float32)), clip


def embed(units: sparse.csr_array, directions: Directions) -> FloatArray:
    """Every unit as a vector, [units, columns]: weighted frequencies [V], then the upper triangle of A' N A, row by
    row, sqrt(2) times off the diagonal, A = [1, vectors].

    units: pair counts [units, V * V], symmetric or one end of a pair alone; N is their symmetric part. The vector of a
    unit depends on that unit and on the directions alone and is linear in its counts; nothing bounds its norm yet:
    `VectorMechanism` does. Memory: 8 bytes a number; `contribute` goes in slices.
    Raises `IntegrityError` where units and directions do not fit.
    """
    size, rank = directions.size, directions.rank
    if not isinstance(units, sparse.csr_array) or units.ndim != 2 or units.shape[1] != size * size:
        raise IntegrityError(f"Units must be a csr_array [units, {size} * {size}] of pair counts.")
    count = units.shape[0]
    augmented = np.hstack([np.ones((size, 1)), directions.vectors.astype(np.float64)])
    owner = np.repeat(np.arange(count), np.diff(units.indptr))
    centre, context = np.divmod(units.indices.astype(np.int64), size)
    data = units.data.astype(np.float64)
    places, row = np.unique(owner * size + centre, return_inverse=True)  # (unit, centre), in order
    near = sparse.csr_array((data, (row, context)), shape=(places.size, size)) @ augmented
    ends = np.searchsorted(places, np.arange(count + 1) * size)
    upper, lengths = np.triu_indices(rank + 1), _lengths(rank)
    out = np.zeros((count, directions.columns))
    ends_of_pairs = np.concatenate([owner * size + centre, owner * size + context])
    counted = np.bincount(ends_of_pairs, weights=np.concatenate([data, data]) / 2, minlength=count * size)
    out[:, :size] = counted.reshape(count, size) * directions.weights
    for unit in np.flatnonzero(np.diff(ends)):
        part = slice(ends[unit], ends[unit + 1])
        square = augmented[places[part] % size].T @ near[part]
        out[unit, size:] = (square + square.T)[upper] * (lengths / 2)
    return out


def contribute(units: sparse.csr_array, directions: Directions, mechanism: VectorMechanism) -> IntArray:
    """A party's part of the sum of embeddings, [columns] on the mechanism's grid.

    Memory: half a MiB of embeddings at a time, or eight units'. Adding or removing one unit, a row of `units`, changes
    the result by at most `mechanism.sensitivity` in L2: every embedding is clipped by the mechanism first. Units of one
    cell, as where every pair is one, are embedded once for all that are equal. Raises `IntegrityError` like `embed`.
    """
    total = np.zeros(directions.columns, dtype=np.int64)
    for rows, times in alike(units):
        for part in _slices(rows.shape[0], directions.columns):
            total += times * mechanism.contribute(embed(rows[part], directions))
    return total


def _leading(left: FloatArray, right: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues [rank], the largest by size first, and eigenvectors [V, rank] of (left right' + right left') / 2.

    left, right: [V, d]. The matrix has rank 2 d at most: with Q an orthonormal basis of both their columns, its
    eigenvectors are Q times those of Q' (...) Q, [2 d, 2 d]. Beyond 2 d any others do, so there it is made whole.
    """
    width = 2 * left.shape[1]
    if rank == 0:
        return np.empty(0), np.empty((len(left), 0))
    if rank > width or width >= len(left):
        values, vectors = np.linalg.eigh((left @ right.T + right @ left.T) / 2)
    else:
        basis, _ = np.linalg.qr(np.hstack([left, right]))
        within = (basis.T @ left) @ (right.T @ basis)
        values, small = np.linalg.eigh((within + within.T) / 2)
        vectors = basis @ small
    leading = np.argsort(-np.abs(values), kind="stable")[:rank]
    values, vectors = values[leading], vectors[:, leading]
    # An eigenvector may point either way. Its largest coordinate is above 0, whichever algorithm found it.
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(rank)]
    return values, vectors * np.where(largest < 0, -1.0, 1.0)


def _slices(count: int, columns: int) -> list[slice]:
    step = max(_FEWEST, _SLICE // columns)
    return [slice(first, min(first + step, count)) for first in range(0, count, step)]


def _lengths(rank: int) -> FloatArray:
    """What the upper triangle of a symmetric [rank + 1, rank + 1] is multiplied by to keep the matrix's norm."""
    first, second = np.triu_indices(rank + 1)
    return np.where(first == second, 1.0, math.sqrt(2.0))
