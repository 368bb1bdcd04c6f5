"""Scores of canaries in a sum that was released once: how much of each canary's own part the noisy sum holds."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError

Floats = NDArray[np.float64]


def scores_in_sum(total: Floats, others: Floats, contributions: sparse.csr_array, sigma: float) -> Floats:
    """The best linear guess of every canary's coin, less 1/2: float64 [canaries].

    total: the noisy sum; others: the sum of all but the canaries, which the attacker knows; both [cells], grid units.
    contributions: each canary's bounded part [canaries, cells], by the mechanism's own bound. sigma: the standard
    deviation of a cell's noise.

    With y = total - others - sum_j c_j / 2, C the contributions and fair coins, it is (C C' + 4 sigma^2 I)^-1 C y, the
    linear estimate of least mean square error. For canaries that are orthogonal it is the inner product <y, c_i> up to
    its scale. Only the guess assumes so: a party that bounds in another way than `contributions` says is audited all
    the same.
    """
    if contributions.shape[1] != total.size or total.shape != others.shape:
        raise IntegrityError(
            f"Contributions of {contributions.shape[1]:,} cells do not fit sums of {total.size:,} and {others.size:,}."
        )
    parts = contributions.astype(np.float64)
    left = total - others - np.asarray(parts.sum(axis=0)).reshape(-1) / 2
    seen = np.asarray(parts @ left).reshape(-1)
    gram = np.asarray((parts @ parts.T).todense())
    return np.asarray(np.linalg.solve(gram + (4 * sigma**2 + 1e-9) * np.eye(len(seen)), seen), np.float64)
