"""The neighbour-aware baseline: hidden states noised in proportion to how far a word's public neighbours are.

The published mechanism (Bollegala et al. 2023) noises finished, static word vectors: little where a word has close
neighbours that it can be taken for, more where it stands alone. Its guarantee is metric, local privacy of a word's
*vector*: a noisy vector is hard to distinguish from its neighbours'. There is no guarantee for the records that the
vectors were learned from, because both where the neighbours are and the vectors themselves follow from those records.
Calling that (epsilon, delta) for a record, as tables of comparison do, has no proof.

What this does instead, with a promise for a unit: the radius of a word's neighbourhood comes from a *public* reference
model; a teacher's hidden state is taken relative to the reference's and measured in radii; clipped, summed over
teachers and noised by `aggregation.mechanisms.hidden.HiddenMechanism`, whose clip is then in radii and the same for
every word. One unit changes one teacher, arbitrarily, and so one such clipped vector a layer and query: the price is
that mechanism's, sensitivity 2 clip sqrt(layers) under add-or-remove of one unit, whatever the radii, as long as they
and the reference do not depend on private text. Written back in the hidden's units the noise on a word is proportional
to its radius: that, and teachers that move a word by no more than a few radii, is all that the idea buys.
"""

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError

FloatArray = NDArray[np.float64]

_BLOCK_CELLS = 1 << 22  # distances that are worked on at a time: 32 MiB
_LEAST = 1e-3  # of the median radius: a word with a twin would have radius 0


def radii(reference: NDArray[np.floating], k: int) -> FloatArray:
    """Euclidean distance of every word to its k-th nearest other word in a public reference: [V], above 0.

    reference: [V, d], PUBLIC word vectors. k: 1 to V - 1. Words that coincide with k others get a thousandth of the
    median radius. Memory: blocks of 32 MiB.
    Raises `IntegrityError` for a k out of range, vectors that are not finite, or k + 1 that coincide for most words.
    Source: in the style of Bollegala et al. 2023; the module says where this departs from it.
    """
    vectors = np.asarray(reference, dtype=np.float64)
    if vectors.ndim != 2 or not np.isfinite(vectors).all():
        raise IntegrityError(f"A reference is a matrix [words, dimension] of finite numbers, not {vectors.shape}.")
    size = len(vectors)
    if not 1 <= k < size:
        raise IntegrityError(f"Of {size} words each has {size - 1} others: there is no {k}-th nearest.")
    squares = np.square(vectors).sum(axis=1)
    found = np.empty(size)
    rows = max(1, _BLOCK_CELLS // size)
    for first in range(0, size, rows):
        part = slice(first, min(first + rows, size))
        distances = squares[part, None] + squares - 2 * vectors[part] @ vectors.T
        np.fill_diagonal(distances[:, first:], -np.inf)  # the word itself comes first, twins or not
        found[part] = np.sqrt(np.maximum(np.partition(distances, k, axis=1)[:, k], 0))
    middle = float(np.median(found))
    if not middle > 0:
        raise IntegrityError(f"Most words of the reference coincide with {k} others, so it has no neighbourhoods.")
    return np.maximum(found, _LEAST * middle)


def to_local(
    states: NDArray[np.floating], reference_states: NDArray[np.floating], radii: NDArray[np.floating]
) -> FloatArray:
    """Teachers' hidden states relative to the public reference's, in radii; unbounded until a mechanism clips them.

    states: [teachers, queries, layers, width]. reference_states: [queries, layers, width] of the public model that the
    teachers started from or were aligned to. radii: [queries], above 0. Each teacher's result depends on that teacher
    and on public values alone.
    Raises `IntegrityError` where shapes do not fit, or a reference or radius is no number that can be used.
    Source: as for `radii`.
    """
    if states.ndim != 4 or states.shape[1:] != reference_states.shape:
        raise IntegrityError(f"Hidden states {states.shape} do not fit the reference's {reference_states.shape}.")
    scale = _scale(reference_states, radii)
    return (np.asarray(states, dtype=np.float64) - reference_states) / scale


def from_local(
    noisy_mean: NDArray[np.floating], reference_states: NDArray[np.floating], radii: NDArray[np.floating]
) -> FloatArray:
    """The noisy mean over teachers of `to_local`'s states, in the hidden's own units again: [queries, layers, width].

    noisy_mean: [queries, layers, width], the released sum over the public number of teachers. Its noise of standard
    deviation s, in radii, is noise of s * radius here. Post-processing. Raises `IntegrityError` like `to_local`.
    Source: as for `radii`.
    """
    if noisy_mean.shape != reference_states.shape:
        raise IntegrityError(f"Hidden states {noisy_mean.shape} do not fit the reference's {reference_states.shape}.")
    scale = _scale(reference_states, radii)
    return reference_states + np.asarray(noisy_mean, dtype=np.float64) * scale


def _scale(reference_states: NDArray[np.floating], radii: NDArray[np.floating]) -> FloatArray:
    if reference_states.ndim != 3 or radii.shape != reference_states.shape[:1]:
        raise IntegrityError(
            f"A radius a query is needed: {radii.shape} radii for a reference of shape {reference_states.shape}, which "
            "must be [queries, layers, width]."
        )
    if not (np.isfinite(reference_states).all() and np.isfinite(radii).all() and (radii > 0).all()):
        raise IntegrityError("Reference states are finite, and radii finite and above 0; these are not.")
    return np.asarray(radii, dtype=np.float64)[:, None, None]
