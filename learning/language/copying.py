"""How much of what a model wrote stands word for word in the text that it learned from: a measurement, no guarantee.

Only simulated parties' text can be measured so. What copying there is by chance, or because people copy each other, is
seen where text is measured that the model never wrote: public text of the same kind.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

RUN: Final = 16
"""Tokens in a row that make a copy: about a dozen words."""

Ids: TypeAlias = NDArray[np.int32]
Hashes: TypeAlias = NDArray[np.uint64]

_BASE: Final = 0x9E3779B97F4A7C15
"""Odd, so that no factor of a polynomial's hash is lost modulo 2^64."""


@dataclass(frozen=True, slots=True)
class Copied:
    """texts: share of the texts with at least one copied run. tokens: share of the tokens that are part of one."""

    texts: float
    tokens: float


def copied(texts: Sequence[Ids], learned: Iterable[Ids], run: int = RUN) -> Copied:
    """How much of some texts stands in what was learned: runs of so many tokens that are in both.

    texts, learned: token numbers of each text, without openings and end tokens. Runs are compared by 64-bit hashes: two
    different ones are taken for equal with a chance of about one in 10^12 among ten million. Memory: 8 bytes for every
    token that was learned. Raises `ConclaveError` for a run below 1.
    """
    if run < 1:
        raise ConclaveError(f"A run of {run} tokens is none. Use for example {RUN}.")
    known = np.unique(np.concatenate([np.empty(0, np.uint64), *(_runs(each, run) for each in learned)]))
    with_copy = of_copy = tokens = 0
    for each in texts:
        found = _among(_runs(each, run), known)
        part = np.zeros(len(each), bool)
        for place in np.flatnonzero(found):
            part[place : place + run] = True
        with_copy, of_copy, tokens = with_copy + bool(found.any()), of_copy + int(part.sum()), tokens + len(each)
    return Copied(with_copy / max(1, len(texts)), of_copy / max(1, tokens))


def _among(hashes: Hashes, known: Hashes) -> NDArray[np.bool_]:
    """Which hashes are among sorted ones, bool [hashes]; the sorted ones are looked at by halves, not all of them."""
    if not len(known):
        return np.zeros(len(hashes), bool)
    places = np.searchsorted(known, hashes).clip(max=len(known) - 1)
    return np.asarray(known[places] == hashes)


def _runs(ids: Ids, run: int) -> Hashes:
    """A hash of every run of a text: a polynomial modulo 2^64 of mixed token numbers, uint64 [tokens - run + 1]."""
    if len(ids) < run:
        return np.empty(0, np.uint64)
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    factors = np.array([pow(_BASE, place, 1 << 64) for place in range(run)], np.uint64)
    hashes: Hashes = np.lib.stride_tricks.sliding_window_view(mixed, run) @ factors
    return hashes
