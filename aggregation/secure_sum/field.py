"""Shamir's secret sharing of 32 bytes over the prime field of 2^256 + 297 (Shamir 1979)."""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache

PRIME = (1 << 256) + 297
SECRET_BYTES = 32
SHARE_BYTES = 33
_COEFFICIENT_BYTES = 48  # reduced modulo PRIME: within 2^-127 of uniform


def split(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    """One share for each point: the values there of a random polynomial of degree threshold - 1 with f(0) = secret.

    points: distinct, from 1. Fewer than `threshold` shares reveal nothing of the secret; any `threshold` give it.
    Raises `ValueError` for a secret that has not 32 bytes, or a threshold or point out of range. Source: Shamir 1979.
    """
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= len(points) or len(set(points)) < len(points):
        raise ValueError("a secret has 32 bytes, a threshold lies between 1 and the number of distinct points")
    if min(points) < 1:
        raise ValueError("the value at 0 is the secret")
    random = os.urandom(_COEFFICIENT_BYTES * (threshold - 1))
    coefficients = [
        int.from_bytes(random[at : at + _COEFFICIENT_BYTES], "big") % PRIME
        for at in range(0, len(random), _COEFFICIENT_BYTES)
    ]
    coefficients.append(int.from_bytes(secret, "big"))
    shares = []
    for point in points:
        value = 0
        for coefficient in coefficients:
            value = (value * point + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE_BYTES, "big"))
    return shares


def value_at(shares: Mapping[int, bytes], point: int) -> int:
    """The value at `point` of the polynomial of least degree through the shares (Lagrange)."""
    weights = _weights(tuple(shares), point)
    return sum(w * int.from_bytes(share, "big") for w, share in zip(weights, shares.values(), strict=True)) % PRIME


def combine(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret that exactly these shares give, by point; None where the value does not fit 32 bytes and so is no
    secret.
    """
    value = value_at(shares, 0)
    return value.to_bytes(SECRET_BYTES, "big") if value >> (8 * SECRET_BYTES) == 0 else None


@lru_cache(maxsize=256)
def _weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """What each share counts for in the value at `at`: prod_(j != i) (at - x_j) / (x_i - x_j)."""
    if at in points:
        return tuple(int(point == at) for point in points)
    whole = 1
    for point in points:
        whole = whole * (at - point) % PRIME
    own = _own_weights(points)
    return tuple(
        whole * w * inverse % PRIME for w, inverse in zip(own, _inverses([at - x for x in points]), strict=True)
    )


@lru_cache(maxsize=256)
def _own_weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """The part of the weights that is the same wherever the value is wanted: prod_(j != i) 1 / (x_i - x_j)."""
    below = []
    for i in points:
        product = 1
        for j in points:
            if j != i:
                product = product * (i - j) % PRIME
        below.append(product)
    return tuple(_inverses(below))


def _inverses(values: Sequence[int]) -> list[int]:
    """The inverses modulo PRIME of values that are not 0, by one inversion: an inversion costs as much as many products
    (Montgomery's trick).
    """
    before, product = [], 1
    for value in values:
        before.append(product)
        product = product * value % PRIME
    inverse = pow(product, -1, PRIME)
    found = []
    for value, above in zip(reversed(values), reversed(before), strict=True):
        found.append(inverse * above % PRIME)
        inverse = inverse * value % PRIME
    return found[::-1]
