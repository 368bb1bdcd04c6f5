"""Attacks on noisy vectors of texts: on the rows that all parties released together, and on the student.

Whose row is whose nobody is told, and most rows may be noise alone. So the attack asks of each canary how much likelier
all rows are if one of them is its own.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.systems.nvdp.pooling import rows_of
from coordinator.systems.nvdp.public import features_of
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.nvdp.releases import SAMPLES, mechanism_of
from coordinator.systems.nvdp.row_attacks import RowAttacks
from coordinator.systems.nvdp.rules import noise_of
from coordinator.text_models.auditing.trained import (
    STUDENT,
    labelled_units,
    loss_scores,
)
from learning.text.source import Document

if TYPE_CHECKING:
    from learning.noisy_vectors.noise import Noise

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_AT_ONCE: Final = 1 << 22
"""Likelihoods of rows and texts in memory at a time, 32 MiB of them."""
_LEAST: Final = 1e-3
_HOW: Final = (
    "Knew all other texts' vectors, and compared how likely the rows are with each canary's own among them and without."
)


@dataclass(frozen=True, slots=True)
class NvdpAttacks(RowAttacks[Nvdp]):
    """A `coordinator.auditing.attacks.Attacks`."""

    def scores(self, seen: Seen) -> Iterator[Scores]:
        from safetensors.numpy import load

        plan, public = self.recipe.plan, self.recipe.read
        units = seen.units(plan)
        yield Scores(SAMPLES, _HOW, self._in_rows(seen, units))
        known = labelled_units(plan, public, units)
        point = load(seen.ran.run.content)["point"]
        yield Scores("student", STUDENT, loss_scores(known, seen, public.start, point))

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        from safetensors.numpy import load

        units = labelled_units(self.recipe.plan, self.recipe.read, [canary.rows for canary in canaries])
        return units.losses_at(load(ran.run.content)["point"])

    def _in_rows(self, seen: Seen, units: Sequence[Sequence[Document]]) -> Floats:
        """Of every canary the log of how much likelier the rows are if its texts are among them, [canaries]."""
        recipe, canaries = self.recipe, len(seen.planted.canaries)
        mechanism = mechanism_of(seen.ran.run.priced.releases)
        rows = rows_of(seen.ran.run.store, mechanism)
        owner, found = self.examples(units)
        vectors = recipe.read.projection.applied(features_of(recipe.plan, recipe.read, tuple(found)))
        labels = self.classes(found, mechanism.classes)
        own = np.flatnonzero(owner < canaries)
        there = np.where(owner < canaries, 0.5, 1.0)
        noise = replace(noise_of(mechanism), sigma=seen_noise(rows.vectors, vectors, there, mechanism.sigma))
        values = in_rows(rows.vectors, rows.labels, vectors, labels, own, there, noise)
        return np.asarray(np.bincount(owner[own], values, minlength=canaries), np.float64)


def seen_noise(released: Floats, vectors: Floats, there: Floats, charged: float) -> float:
    """The standard deviation of the rows' noise as their lengths show it, a thousandth of the charged one at least.

    Given as `in_rows`. A party that adds other noise than it says is attacked as what it is.
    """
    texts = float(there @ (vectors**2).sum(axis=1))
    left = (float((released**2).sum()) - texts) / released.size
    return math.sqrt(max(left, (_LEAST * charged) ** 2))


def in_rows(
    released: Floats, said: Ints, vectors: Floats, labels: Ints, own: Ints, there: Floats, noise: "Noise"
) -> Floats:
    """For each text at the places `own`, the log of how much likelier released rows are with it than without, [own].

    released: [rows, d], and their labels `said` [rows]. vectors: of all texts that an attacker knows, [texts, d], with
    their classes [texts]; there: how sure it is that each is among the rows, [texts], 1 for others than canaries. Rows
    that no text has are noise alone. A row z is as likely of a text with vector x, where 1 is a row of noise alone, as

        f_x(z) = exp((<x, z> - |x|^2 / 2) / sigma^2) P(label of z | class of x) classes,

    and the result is the log of the mean over rows of f_x(z) / p(z), with p the mean of all f, weighted by how sure
    they are: what one more text adds to the likelihood of a mixture.
    """
    variance = noise.sigma**2
    empty = max(1e-9, len(released) - float(there.sum()))
    halves = (vectors**2).sum(axis=1) / 2
    found, size = np.full(len(own), -np.inf), max(1, _AT_ONCE // len(vectors))
    with np.errstate(divide="ignore"):
        classes, sure = np.log(noise.response * noise.classes), np.log(there)
        for start in range(0, len(released), size):
            some = slice(start, start + size)
            logs = (released[some] @ vectors.T - halves) / variance + classes[said[some]][:, labels]
            whole = np.logaddexp(np.logaddexp.reduce(logs + sure, axis=1), np.log(empty))
            found = np.logaddexp(found, np.logaddexp.reduce(logs[:, own] - whole[:, None], axis=0))
    return found
