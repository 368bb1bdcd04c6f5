"""The noisy argmax of votes among many classes, exactly and without drawing noise for classes that have no vote."""

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri, ndtri_exp

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.votes import check_classes, checked_votes
from aggregation.noise.shares import delta_of
from aggregation.noise.stream import NoiseStream

SMALLEST_NOISE = 1e-6
LARGEST_NOISE = 1e9
TOTAL_VARIATION = 2.0**-128
"""Upper bound, per query, of the distance between `noisy_argmax` and the argmax under exact normals; see there."""

Words = NDArray[np.uint64]

_CELLS = 1 << 18  # cells of one block: its arrays stay small
_RARE = 2.0**-32  # further out, 64 bits determine a normal too roughly
_CLOSE = 2.0**-28  # candidates this close are compared with more bits
_MORE_WORDS = 3  # 64 bits each, beside the first
_PRECISION = 640  # bits


def noisy_argmax(votes: IntArray, classes: int, noise: float, stream: NoiseStream) -> IntArray:
    """For each query the class with the most votes after N(0, noise^2) on every class: labels `[queries]`.

    votes: `[queries, teachers]`, indices of classes. noise: standard deviation, in votes, from 1e-6 to 1e9.

    Only the label may be released, by an aggregator that is trusted with the votes. It then costs what the noisy
    histogram costs: `GaussianDpEvent(noise / sqrt(2))` a query under add-or-remove of one unit, which changes one
    teacher's vote.

    At most `teachers` classes have a vote; each of these gets a normal of its own. The largest of the m others' normals
    has the distribution function Phi(x)^m, so it is Phi^-1(U^(1/m)), U uniform on (0, 1), and by symmetry it belongs to
    any of the m classes with equal probability, whatever it is. So the work is O(teachers log teachers) a query, not
    O(classes), and the distribution of the label is the same.

    How exact: a normal's first 64-bit word places it within 2^-31 standard deviations where U is 2^-32 or more away
    from 0 and 1, because at a distance t from either end the density of a normal, and of the largest of m, is above
    0.4 t. Where a query's two leading candidates are closer than 2^-28, or one of its words is further out, the query
    is decided again with 256 bits of each uniform, of which the first 64 are those drawn: the label is the one that 256
    bits of everything would have given. 256 bits leave a normal uncertain by 2^-250 on average over its distribution,
    and two candidates are that close with a probability of the same order; over the pairs of candidates this is far
    below 2^-128 a query for up to 10^6 teachers, whatever the votes. That is `TOTAL_VARIATION`, given uniform words and
    special functions right to 2^-31; ties have no weight. The class without a vote is drawn by rejection, without any
    bias. The time of a draw depends a little on its value.

    Raises `IntegrityError` for votes that are not whole numbers from 0 to classes - 1 in two axes or of no teacher;
    `ConclaveError` for classes or noise out of range.
    Source: GNMax (Papernot et al. 2018). Drawing one normal for all classes without a vote is our own.
    """
    check_classes(classes)
    check_noise(noise)
    votes = checked_votes(votes, classes)
    queries, teachers = votes.shape
    if queries and not teachers:
        raise IntegrityError("There are queries and no teacher has voted; a noisy argmax needs one vote at least.")
    labels = np.empty(queries, dtype=np.int64)
    rows = max(1, _CELLS // max(teachers, 1))
    for start in range(0, queries, rows):
        labels[start : start + rows] = _block(votes[start : start + rows], classes, noise, stream)
    return labels


def slack(queries: int, epsilon: float) -> float:
    """The delta to add for this many labels of `noisy_argmax`, at the claimed epsilon."""
    return delta_of(queries * TOTAL_VARIATION, epsilon)


def check_noise(noise: float) -> None:
    """Raises `ConclaveError` unless noise is a number of votes from 1e-6 to 1e9."""
    if not SMALLEST_NOISE <= noise <= LARGEST_NOISE:
        raise ConclaveError(
            f"The noise on votes is {noise:g}; it must be a number from {SMALLEST_NOISE:g} to {LARGEST_NOISE:g}."
        )


def _block(votes: IntArray, classes: int, noise: float, stream: NoiseStream) -> IntArray:
    """Labels of votes `[queries, teachers]`, all at once."""
    queries, teachers = votes.shape
    ranked = np.sort(votes, axis=1)
    first = np.ones(votes.shape, dtype=np.bool_)  # where a class is met for the first time
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    counts = np.zeros(votes.shape)
    counts[first] = np.diff(np.append(np.flatnonzero(first), votes.size))
    others = classes - first.sum(axis=1)  # classes without a vote

    words = stream.uint64(queries * (teachers + 1)).reshape(queries, teachers + 1)
    tail, upper = _tails(words)
    values = np.full(words.shape, -np.inf)
    normals = ndtri(tail[:, :-1])
    values[:, :-1][first] = (np.where(upper[:, :-1], -normals, normals) + counts / noise)[first]
    some = others > 0
    below = np.where(upper[:, -1], np.log1p(-tail[:, -1]), np.log(tail[:, -1]))
    values[some, -1] = ndtri_exp(below[some] / others[some])

    best = np.argmax(values, axis=1)
    leads = np.take_along_axis(values, best[:, None], axis=1)
    np.put_along_axis(values, best[:, None], -np.inf, axis=1)
    # The second term is far above the rounding error in counts / noise and in the sum.
    unclear = leads[:, 0] - values.max(axis=1) < _CLOSE + 2.0**-48 * teachers / noise
    used = np.column_stack([first, some])
    unclear |= ((tail < _RARE) & used).any(axis=1)
    for query in np.flatnonzero(unclear):
        places = np.flatnonzero(used[query])
        best[query] = places[
            _decided(words[query, places], np.append(counts[query], 0)[places], int(others[query]), noise, stream)
        ]

    none = np.flatnonzero(best == teachers)
    labels = np.take_along_axis(ranked, np.minimum(best, teachers - 1)[:, None], axis=1)[:, 0]
    labels[none] = _outside(ranked[none], first[none], _below(others[none], stream))
    return labels


def _tails(words: Words) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Uniforms (word + 1/2) / 2^64 as their distance from the nearer end, in (0, 1/2], and whether that is 1."""
    upper = words >> np.uint64(63) == 1
    return (np.where(upper, ~words, words).astype(np.float64) + 0.5) * 2.0**-64, upper


def _decided(words: Words, counts: FloatArray, others: int, noise: float, stream: NoiseStream) -> int:
    """Which candidate of one query leads, each uniform continued to 256 bits.

    words, counts: `[candidates]`; the last candidate stands for the classes without a vote where its count is 0.
    """
    values = []
    with mpmath.workprec(_PRECISION):
        for word, count in zip(words, counts, strict=True):
            bits = int(word)
            for more in stream.uint64(_MORE_WORDS):
                bits = bits << 64 | int(more)
            uniform = mpmath.ldexp(2 * bits + 1, -64 * (1 + _MORE_WORDS) - 1)
            above = 1 - uniform if count else -mpmath.expm1(mpmath.log(uniform) / others)
            values.append(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * above) + int(count) / mpmath.mpf(noise))
        return max(range(len(values)), key=values.__getitem__)


def _below(bounds: IntArray, stream: NoiseStream) -> IntArray:
    """Uniform integers from 0 to bound - 1, one for each bound `[n]`; words that would favour some are drawn again."""
    drawn = np.empty(bounds.size, dtype=np.int64)
    left = np.arange(bounds.size)
    while left.size:
        size = bounds[left].astype(np.uint64)
        words = stream.uint64(left.size)
        fair = words <= ~((~size + np.uint64(1)) % size)  # (2^64 - size) % size == 2^64 % size words are too many
        drawn[left[fair]] = (words % size)[fair].astype(np.int64)
        left = left[~fair]
    return drawn


def _outside(ranked: IntArray, first: NDArray[np.bool_], ranks: IntArray) -> IntArray:
    """Of each row, the class of this rank, from 0, among those that are not in the row.

    The j-th class in a row, from 0, has (class - j) smaller ones outside it: so many as are <= rank come before.
    """
    place = np.cumsum(first, axis=1) - 1
    return np.asarray(ranks + ((ranked - place <= ranks[:, None]) & first).sum(axis=1))


def expected_accuracy(counts: IntArray, noise: float, classes: int) -> FloatArray:
    """Probability `[queries]` that a noisy argmax is a class with the most votes, for a forecast from assumed votes.

    counts: votes of the classes that have any `[queries, up to as many]`, in any order, 0 for none; at least one vote a
    query. noise: standard deviation on every class, in votes. With k classes of c votes in the lead it is

        k * integral of phi(z) product_j Phi(z + (c - c_j)/noise) Phi(z + c/noise)^m dz

    over the other classes j with votes and the m without, by the trapezoidal rule from -9 to 9, in steps of 1/64, which
    is right to 1e-12.

    Raises `ConclaveError` for classes or noise out of range, `IntegrityError` for impossible counts.
    """
    check_classes(classes)
    check_noise(noise)
    if counts.ndim != 2 or not np.issubdtype(counts.dtype, np.integer) or not counts.size or counts.min() < 0:
        raise IntegrityError("Counts must be whole numbers >= 0, [queries, classes with votes].")
    ranked = -np.sort(-counts, axis=1)
    order = np.lexsort(ranked.T)  # equal rows together; several times faster than np.unique of rows
    new = np.append(True, (np.diff(ranked[order], axis=0) != 0).any(axis=1))
    patterns = ranked[order[new]]
    voted = (patterns > 0).sum(axis=1)
    if voted.min() < 1 or voted.max() > classes:
        raise IntegrityError(
            f"Queries have votes for {voted.min()} to {voted.max()} classes; it must be for 1 to {classes}."
        )
    step = 1 / 64
    z = np.arange(-9, 9 + step, step)
    behind = {int(gap): log_ndtr(z + gap / noise) for gap in np.unique(patterns[:, :1] - patterns)}
    weights = np.exp(-z * z / 2) * (step / math.sqrt(2 * math.pi))
    chances = np.empty(len(patterns))
    for i, (pattern, some) in enumerate(zip(patterns, voted, strict=True)):
        lead = int(pattern[0])
        log = (classes - some) * log_ndtr(z + lead / noise)
        for gap, times in zip(*np.unique(lead - pattern[1:some], return_counts=True), strict=True):
            log += times * behind[int(gap)]
        chances[i] = (pattern == lead).sum() * (weights @ np.exp(log))
    accuracy = np.empty(len(ranked))
    accuracy[order] = np.minimum(chances, 1.0)[np.cumsum(new) - 1]
    return accuracy
