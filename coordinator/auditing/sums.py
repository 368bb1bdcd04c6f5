"""Scores of canaries in a sum that was released once: how much of each canary's own part the noisy sum holds."""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError

Floats = NDArray[np.float64]

_SMALL: Final = 1e-10
"""Directions that canaries share to this part are rounding, not theirs."""


def scores_in_sum(total: Floats, others: Floats, contributions: sparse.csr_array, sigma: float) -> Floats:
    """The best linear guess of every canary's coin, less 1/2: float64 [canaries].

    total: the noisy sum; others: the sum of all but the canaries, which the attacker knows; both [cells], grid units.
    contributions: each canary's bounded part [canaries, cells], by the mechanism's own bound. sigma: the charged
    standard deviation of a cell's noise.

    With y = total - others - sum_j c_j / 2, C the contributions and fair coins, it is (C C' + 4 s^2 I)^-1 C y, the
    linear estimate of least mean square error, where s is the noise as it shows in the cells' directions that no canary
    has, and `sigma` where there is none. For canaries that are orthogonal it is the inner product <y, c_i> up to its
    scale. Only the guess assumes so: a party that bounds in another way than `contributions` says, or adds other
    noise, is audited all the same.
    """
    if contributions.shape[1] != total.size or total.shape != others.shape:
        raise IntegrityError(
            f"Contributions of {contributions.shape[1]:,} cells do not fit sums of {total.size:,} and {others.size:,}."
        )
    parts = contributions.astype(np.float64)
    left = total - others - np.asarray(parts.sum(axis=0)).reshape(-1) / 2
    seen = np.asarray(parts @ left).reshape(-1)
    gram = np.asarray((parts @ parts.T).todense())
    sizes, vectors = np.linalg.eigh(gram)
    known = sizes > _SMALL * sizes.max()
    along = vectors.T @ seen
    spare = total.size - int(known.sum())
    if spare > 0:
        sigma = math.sqrt(max(0.0, float(left @ left) - float((along[known] ** 2 / sizes[known]).sum())) / spare)
    return np.asarray(vectors[:, known] @ (along[known] / (sizes[known] + 4 * sigma**2)), np.float64)
