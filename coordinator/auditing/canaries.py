"""Canaries: units of their own, each of which a fair coin puts into the simulated shards or leaves out."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coordinator.published.audit import Kind
from learning.text.source import Document

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Canary:
    """One unit of the guarantee. rows: its records: one, or all of a user's."""

    kind: Kind
    rows: tuple[Document, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The unit's passages."""
        return tuple(row.text for row in self.rows)


@dataclass(frozen=True, slots=True)
class Planted:
    """Canaries and their coins. included: which of them are in the shards, [canaries].

    Only the auditor has the coins, and no score may depend on them: a score that did would guess nothing.
    """

    canaries: tuple[Canary, ...]
    included: Bools

    def of(self, kind: Kind) -> Bools:
        """Which canaries are of a kind, [canaries]."""
        return np.array([canary.kind == kind for canary in self.canaries], np.bool_)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that there are, in order of appearance."""
        return tuple(dict.fromkeys(canary.kind for canary in self.canaries))

    @property
    def rows(self) -> list[Document]:
        """The records of the canaries that are in."""
        pairs = zip(self.canaries, self.included, strict=True)
        return [row for canary, there in pairs if there for row in canary.rows]


def flipped(canaries: Sequence[Canary], seed: int | None) -> Planted:
    """The canaries with fair coins: of the system's cryptographic stream, or of a seed for a run that can be repeated.

    Coins from a seed are an audit's own; whoever knows the seed beforehand could make scores that fit it.
    """
    count = len(canaries)
    if seed is None:
        coins = np.unpackbits(np.frombuffer(secrets.token_bytes(-(-count // 8) or 1), np.uint8))[:count]
    else:
        coins = np.random.default_rng([seed, 1]).integers(0, 2, count, dtype=np.uint8)
    return Planted(tuple(canaries), coins.astype(np.bool_))


def named(document: Document, number: int, user: str | None) -> Document:
    """A made record as one unit of its own: with an id, and a user where a column names one, that nobody else has."""
    own = f"canary-{number}"
    fields: Mapping[str, str] = document.fields if user is None else {**document.fields, user: own}
    return replace(document, id=own, fields=fields)
