"""Which of a party's texts leave as rows of a data set, each text once."""

import hashlib
import hmac
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from learning.models.batching import Tokens
from learning.noisy_vectors.sides import sides, told_apart

Chosen: TypeAlias = NDArray[np.int64]
"""Positions of examples, in no order of their own."""


def chosen(
    rows: Sequence[Tokens],
    labels: NDArray[np.int64],
    members: Sequence[Sequence[int]] | None,
    *,
    key: bytes,
    each: int,
    most: int,
) -> Chosen:
    """The examples that leave: of every unit its first `each` texts, and of all units' texts the first `most`.

    rows: examples as tokens; two with the same tokens are one text, because they have the same vector, and so are two
    pairs of the same texts in whatever order. labels: [rows]. members: each unit's examples; None where every
    example is a unit. key: secret. Texts are in the order of their HMAC-SHA256 under the key, and of examples of one
    text the first by text and label stands for it.

    When one unit is added or removed, at most `each` texts enter or leave what units offer. So at most `each` of the
    chosen texts change: those, and as many that make room or take it. A text that several units offer stays while one
    of them does, possibly with another label: then too it is a change of that one row.
    """
    places = [hmac.digest(key, _name(row), "sha256") for row in rows]
    said = [int(label).to_bytes(4, "big") for label in labels]
    ties = [hmac.digest(key, place + label, "sha256") for place, label in zip(places, said, strict=True)]
    order = [(place, tie, number) for number, (place, tie) in enumerate(zip(places, ties, strict=True))]
    offered: dict[bytes, tuple[bytes, int]] = {}
    for unit in members if members is not None else ([number] for number in range(len(rows))):
        own: dict[bytes, tuple[bytes, int]] = {}
        for place, tie, number in sorted(order[example] for example in unit):
            own.setdefault(place, (tie, number))
            if len(own) == each:
                break
        for place, first in own.items():
            offered[place] = min(first, offered.get(place, first))
    return np.array([offered[place][1] for place in sorted(offered)[:most]], np.int64)


def _name(row: Tokens) -> bytes:
    """Bytes that only the same text has, or the same pair: its vector is the same in either order of its texts."""
    if not told_apart(row):
        return _digest(row) + row.second.to_bytes(4, "big")
    return b"".join(sorted(_digest(side) for side in sides(row)))


def _digest(row: Tokens) -> bytes:
    return hashlib.sha256(row.ids.astype("<i4").tobytes()).digest()
