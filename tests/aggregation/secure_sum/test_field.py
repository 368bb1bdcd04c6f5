"""Enough shares give the secret, one too few say nothing of it."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregation.secure_sum.field import PRIME, SHARE_BYTES, combine, split, value_at


def test_the_modulus_is_prime():
    """Miller-Rabin to the first forty primes as bases: a composite passes each random base with at most 1/4."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in [n for n in range(2, 180) if all(n % d for d in range(2, n))]:
        value = pow(base, odd, PRIME)
        assert value in (1, PRIME - 1) or any(pow(value, 2**k, PRIME) == PRIME - 1 for k in range(twos))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret, data):
    points = data.draw(st.lists(st.integers(1, 500), min_size=1, max_size=20, unique=True))
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split(secret, points, threshold), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert combine({point: shares[point] for point in chosen}) == secret
    for point in points:
        assert value_at({p: shares[p] for p in chosen}, point) == int.from_bytes(shares[point], "big")


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32])
def test_the_smallest_and_largest_secrets_come_back(secret):
    assert combine(dict(zip((1, 2, 3), split(secret, (1, 2, 3), 3), strict=True))) == secret


def test_one_share_too_few_is_uniform_whatever_the_secret():
    """Chi-square on the top byte but one of one share of two: at 20,000 shares it sees a bias of a tenth in any bin's
    share of 1/64 with power above 0.9."""
    for secret in (bytes(32), b"\xff" * 32):
        tops = [split(secret, (1, 2), 2)[0][1] >> 2 for _ in range(20_000)]
        assert stats.chisquare(np.bincount(tops, minlength=64)).pvalue > 1e-4


def test_one_share_too_few_does_not_combine_to_the_secret():
    secret = os.urandom(32)
    shares = dict(zip((1, 2, 3, 4), split(secret, (1, 2, 3, 4), 3), strict=True))
    assert combine({1: shares[1], 2: shares[2]}) != secret


def test_a_changed_share_gives_another_secret_or_none():
    secret = os.urandom(32)
    shares = dict(zip((1, 2, 3), split(secret, (1, 2, 3), 2), strict=True))
    wrong = (int.from_bytes(shares[2], "big") ^ 1).to_bytes(SHARE_BYTES, "big")
    assert combine({1: shares[1], 2: wrong}) != secret


@pytest.mark.parametrize(
    ("secret", "points", "threshold"),
    [
        (bytes(31), (1, 2), 2),
        (bytes(32), (1, 2), 3),
        (bytes(32), (1, 2), 0),
        (bytes(32), (1, 1), 1),
        (bytes(32), (0, 1), 1),
    ],
)
def test_what_cannot_be_shared_is_refused(secret, points, threshold):
    with pytest.raises(ValueError, match="secret"):
        split(secret, points, threshold)
