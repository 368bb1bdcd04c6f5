"""A unit's matrix made in bfloat16, of what was recorded in it: how far it is off, and whether it is so here.

A product of two such numbers is exact in single precision, in which the products are added up; then the sum is rounded
to bfloat16, once. So a matrix is as far from the true one as one that is made in single precision
(`learning.private_training.term_norms.off`), and each of its numbers by `ROUNDING` of itself more. That is a
property of the processor and of its library, so every shape is tried on made-up numbers before it is relied on: how
they add up depends on the shape and not on the numbers (measured, not proven).
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

ROUNDING = 2.0**-8
"""Unit roundoff of bfloat16."""
_ADDED = 2.0**-23
"""More than products of single precision are off by, for each that is added, in parts of what is added."""
_SMALLEST = 2.0**-100
"""Numbers below single precision's range are nothing to this arithmetic; what that changes is below this."""


def made(left: Tensor, right: Tensor) -> Tensor:
    """sum_t left[t] (x) right[t], bfloat16 [p, q], of numbers that bfloat16 holds: left [t, p], right [t, q]."""
    return left.bfloat16().T @ right.bfloat16()


@lru_cache(maxsize=4096)
def relied_on(positions: int, p: int, q: int) -> bool:
    """Whether this processor multiplies in bfloat16, and makes matrices of this shape as precisely as is said here."""
    return _multiplies() and _precise(*_made_up(positions, p, q))


def _multiplies() -> bool:
    """Elsewhere the library converts, and takes longer than in single precision."""
    asked: Any = torch.cpu
    found = (getattr(asked, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(each is not None and each() for each in found)


def _precise(left: Tensor, right: Tensor) -> bool:
    found, true = made(left, right).double(), left.double().T @ right.double()
    added = left.double().abs().T @ right.double().abs()
    allowed = ROUNDING * true.abs() + _ADDED * (len(left) + 8) * added + _SMALLEST
    return bool(((found - true).abs() <= allowed).all())


def _made_up(positions: int, p: int, q: int) -> tuple[Tensor, Tensor]:
    """Positions of sizes far apart, and a second half that takes away nearly all that the first adds."""
    rng = torch.Generator().manual_seed(positions)
    left, right = torch.randn(positions, p, generator=rng), torch.randn(positions, q, generator=rng)
    left *= 2.0 ** torch.randint(-8, 9, (positions, 1), generator=rng)
    half = positions // 2
    left[half : 2 * half], right[half : 2 * half] = left[:half], -right[:half] * (1 + 2.0**-6)
    return left.bfloat16().float(), right.bfloat16().float()
