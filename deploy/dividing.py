"""How parties are divided among actors: an actor a processor, which several parties share where there are more."""

import os
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Final

import psutil

from coordinator.transport.launchers import Cluster, Place

ACTOR_MIB: Final = 512
"""MiB of an actor, with a training process that has loaded a model."""


def divided(
    names: Sequence[str], parties_per_actor: int | None, cluster: Cluster | None = None
) -> list[tuple[str, ...]]:
    """The parties of each actor, in the given order.

    parties_per_actor: the most in one; where None, on a cluster one, and on this machine what `by_default` says. On a
    cluster parties share an actor only if they ask for the same of their machine, and for no GPU.
    """
    if cluster is None:
        most = parties_per_actor or by_default(len(names), os.cpu_count() or 1, psutil.virtual_memory().available)
        return _evenly(names, most)
    found: list[tuple[str, ...]] = []
    for place, group in groupby(names, lambda name: cluster.places.get(name, Place())):
        found += _evenly(list(group), 1 if place.gpus else parties_per_actor or 1)
    return found


def by_default(parties: int, cores: int, free: int) -> int:
    """How many parties share an actor on a machine with so many cores and so many free bytes of memory.

    As many as make an actor a core, as far as memory reaches: an actor more costs its imports and gains nothing.
    """
    actors = min(cores, max(1, free // (ACTOR_MIB * 2**20)))
    return -(-parties // actors)


def _evenly(names: Sequence[str], most: int) -> list[tuple[str, ...]]:
    """The names in as few groups of at most so many as there can be, of sizes that differ by one at most."""
    groups = -(-len(names) // most)
    ends = [len(names) * number // max(groups, 1) for number in range(groups + 1)]
    return [tuple(names[begin:end]) for begin, end in pairwise(ends)]
