"""Co-occurrence: how often a word stands near another, unit by unit, as sparse matrices.

A unit (a document, a sentence, all of a user's records) is a list of passages; a passage is an array of word positions,
-1 for a word that the vocabulary lacks. No pair crosses the end of a passage. An unknown word keeps its place, so that
words around it are as far apart as in the text, but counts for nothing. The matrices are symmetric: each pair of places
counts once from either end. They are the X of GloVe (Pennington et al. 2014, section 3), but for weights by distance:
here a pair counts one, however far apart it is within the window.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError

Passage = NDArray[np.int32]

WINDOW = 5
"""Words on either side that are a word's context."""


def unit_counts(units: Sequence[Sequence[Passage]], size: int, window: int = WINDOW) -> sparse.csr_array:
    """Count the (centre, context) pairs of every unit.

    units: lists of passages of positions in -1..size-1. size: words in the vocabulary, V.
    Returns float64 counts [units, V * V], the cell of a pair at centre * V + context; a unit without pairs is an
    empty row.
    Memory: about 32 bytes a pair, window * 2 pairs a word; give a large shard in slices.
    Raises `IntegrityError` for positions outside the vocabulary.
    Source: GloVe's matrix X (Pennington et al. 2014, section 3) for each unit, without weights by distance.
    """
    owner = [index for index, unit in enumerate(units) for _ in unit]
    rows, cells = _pairs([passage for unit in units for passage in unit], owner, size, window)
    ones = np.ones(rows.size)
    # Converting from coordinates adds up the counts of one cell.
    return sparse.coo_array((ones, (rows, cells)), shape=(len(units), size * size)).tocsr()


def pair_counts(passages: Sequence[Passage], size: int, window: int = WINDOW) -> sparse.csr_array:
    """Make every single (centre, context) pair a unit of its own: [pairs, V * V], a one in each row.

    This is the unit that word-embedding papers amount to. It protects one pair, not a sentence, and no person.
    """
    _, cells = _pairs(passages, range(len(passages)), size, window)
    return sparse.csr_array((np.ones(cells.size), cells, np.arange(cells.size + 1)), shape=(cells.size, size * size))


def counts_of(passages: Sequence[Passage], size: int, window: int = WINDOW) -> sparse.csr_array:
    """Count the pairs of all passages together: float64 [V, V], for public text and for simulation.

    Source: GloVe's matrix X (Pennington et al. 2014, section 3), without weights by distance. Raises `IntegrityError`
    like `unit_counts`.
    """
    _, cells = _pairs(passages, range(len(passages)), size, window)
    return sparse.coo_array((np.ones(cells.size), (cells // size, cells % size)), shape=(size, size)).tocsr()


def alike(units: sparse.csr_array) -> list[tuple[sparse.csr_array, int]]:
    """Units and how many equal ones each stands for; only units of one cell are looked at."""
    if units.shape[0] == 0 or not (np.diff(units.indptr) == 1).all():
        return [(units, 1)]
    kinds, times = np.unique(np.stack([units.indices.astype(np.float64), units.data]), axis=1, return_counts=True)
    groups = []
    for number in np.unique(times):
        cells, data = kinds[:, times == number]
        starts = np.arange(cells.size + 1)
        rows = sparse.csr_array((data, cells.astype(np.int64), starts), shape=(cells.size, units.shape[1]))
        groups.append((rows, int(number)))
    return groups


def _pairs(
    passages: Sequence[Passage], owners: Sequence[int], size: int, window: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs, as (owner of the passage, cell)."""
    if window < 1:
        raise IntegrityError(f"A window reaches 1 word or more, not {window}.")
    lengths = np.fromiter((len(passage) for passage in passages), dtype=np.int64, count=len(passages))
    words = np.concatenate([np.empty(0, np.int32), *passages]).astype(np.int64)
    if words.size and (words.min() < -1 or words.max() >= size):
        raise IntegrityError(f"Word positions must lie in -1..{size - 1} for a vocabulary of {size}.")
    passage = np.repeat(np.arange(lengths.size), lengths)
    owner = np.asarray(owners, dtype=np.int64)
    rows, cells = [], []
    for distance in range(1, window + 1):
        left, right = words[:-distance], words[distance:]
        near = (left >= 0) & (right >= 0) & (passage[:-distance] == passage[distance:])
        left, right, place = left[near], right[near], owner[passage[:-distance][near]]
        rows += [place, place]
        cells += [left * size + right, right * size + left]
    return np.concatenate(rows), np.concatenate(cells)
