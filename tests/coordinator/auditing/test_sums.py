"""Scores in a noisy sum are higher for canaries that are in, also where their parts overlap."""

import numpy as np
import pytest
from scipy import sparse

from aggregation.errors import IntegrityError
from coordinator.auditing.sums import scores_in_sum

RNG = np.random.default_rng(0)


def test_parts_that_overlap_are_told_apart():
    common = RNG.normal(size=200)
    parts = common + 0.3 * RNG.normal(size=(40, 200))
    included = RNG.integers(0, 2, 40).astype(bool)
    others = RNG.normal(size=200) * 1000
    total = others + parts[included].sum(axis=0)
    scores = scores_in_sum(total, others, sparse.csr_array(parts), 0.0)
    assert (scores > 0).tolist() == included.tolist()


def test_under_noise_scores_are_guesses():
    parts = np.eye(2000)[:1000] * 3.0
    included = RNG.integers(0, 2, 1000).astype(bool)
    total = parts[included].sum(axis=0) + RNG.normal(size=2000) * 3
    right = (scores_in_sum(total, np.zeros(2000), sparse.csr_array(parts), 3.0) > 0) == included
    assert 0.64 < right.mean() < 0.74  # Phi(1/2) is 0.69


def test_parts_of_another_size_are_refused():
    with pytest.raises(IntegrityError, match="Contributions of 3 cells"):
        scores_in_sum(np.zeros(4), np.zeros(4), sparse.csr_array(np.ones((2, 3))), 1.0)
