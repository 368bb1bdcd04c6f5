"""The vector that a party masks: its sum with its noise, no part of which has the noise of another."""

from types import SimpleNamespace

import numpy as np
import pytest

from party.releasing.masked_vectors import vector

CELLS = (6, 6)


@pytest.fixture
def parts(terms):
    """`parts(rows, key=...)`: the vector of a sum of zeros, so many rows at a time."""

    def makes(rows, key=bytes(32), **privacy):
        told = terms(**privacy)
        run = SimpleNamespace(terms=told)
        return list(vector(run, told.releases[0], np.zeros(CELLS, np.int32), "north", key, rows))

    return makes


@pytest.mark.parametrize("privacy", [{}, {"insecure_reproducible_noise": True}])
def test_every_part_has_noise_of_its_own(parts, privacy):
    """Parts of the same noise would show the difference of their sums."""
    one, two = parts(3, **privacy)
    assert len(one) == len(two) == 18
    assert (one != two).sum() > 12  # of a deviation of 45, two are equal once in 160
    assert np.count_nonzero(np.concatenate([one, two])) > 30


def test_the_noise_is_the_keys_and_no_other_keys(parts):
    (whole,), (again,), (other,) = parts(6), parts(6), parts(6, key=bytes(31) + b"x")
    assert np.array_equal(whole, again)
    assert (whole != other).sum() > 30
