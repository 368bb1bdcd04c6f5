"""Membership inference against a plan's student: each shadow model is the plan's student in a simulation of its own.

Coins put every canary into half of the shadow runs. Each run in turn, the audited one among them, is attacked with all
others as its shadows (`learning.audits.membership.by_each`), so that rates at few false positives have enough examples.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal

import numpy as np

from coordinator.auditing.attacks import Attacks, Floats, Ran
from coordinator.auditing.canaries import Bools, Planted
from coordinator.progress.progress import Progress
from coordinator.published.audit import Kind, Membership, Rate
from learning.audits import membership, roc
from learning.text.source import Document

Simulate = Callable[[Sequence[Document]], AbstractContextManager[Ran]]

_ATTACKS: Final[tuple[tuple[Literal["lira", "rmia"], membership.Attack], ...]] = (
    ("lira", membership.lira),
    ("rmia", membership.rmia),
)
_POINTS: Final = 64
"""Points of a curve that are kept."""


def inferred(
    attacks: Attacks,
    planted: Planted,
    ran: Ran,
    left: Sequence[Document],
    shadows: int,
    simulate: Simulate,
    rng: np.random.Generator,
    progress: Progress,
) -> list[Membership]:
    """What LiRA and RMIA find of each kind of canaries; nothing without shadows, or for a student without losses.

    ran: the audited run. left: the records that are in every simulation. rng: of the shadows' coins, which an attacker
    knows. A run whose losses are not finite is left out. Time: that of so many runs of the recipe, without parties'
    nodes. Memory: [runs, canaries] losses; of the runs themselves one at a time.
    """
    if not shadows:
        return []
    canaries = planted.canaries
    own = attacks.losses(canaries, ran)
    if own is None:
        progress.say("  no shadow models are made: no canary has a loss under a student of this system")
        return []
    coins = membership.coins(shadows, len(canaries), rng)
    losses, members = [own], [planted.included]
    for number, coin in enumerate(coins):
        progress.say(f"  shadow model {number + 1} of {shadows}")
        rows = [row for canary, there in zip(canaries, coin, strict=True) if there for row in canary.rows]
        with simulate([*left, *rows]) as shadow:
            found = attacks.losses(canaries, shadow)
        assert found is not None
        losses.append(found)
        members.append(coin)
    finite = [place for place, each in enumerate(losses) if np.isfinite(each).all()]
    held, there = np.array([losses[place] for place in finite]), np.array([members[place] for place in finite])
    return [each for kind in planted.kinds for each in _of_kind(kind, held, there, planted.of(kind))]


def _of_kind(kind: Kind, losses: Floats, members: Bools, own: Bools) -> list[Membership]:
    """Both attacks on the canaries of one kind; nothing where too few runs are left of a kind."""
    losses, members = losses[:, own], members[:, own]
    fewest = min(int(members.sum(axis=0).min()), int((~members).sum(axis=0).min()))
    if fewest <= membership.LEAST_MODELS:  # the run that is attacked is none of its own shadows
        return []
    made = []
    for name, attack in _ATTACKS:
        curve = roc.roc(*membership.by_each(losses, members, attack))
        rates = [Rate(false=each, true=curve.at(each) if each * curve.negatives >= 1 else None) for each in roc.LOW]
        made.append(
            Membership(
                attack=name,
                canaries=kind,
                models=len(losses),
                members=curve.positives,
                others=curve.negatives,
                area=curve.area,
                rates=rates,
                curve=_thinned(curve),
            )
        )
    return made


def _thinned(curve: roc.Roc) -> list[list[float]]:
    """Points [false, true] of a curve, as dense at few false positives as at many."""
    wanted = np.append(0.0, np.geomspace(0.5 / curve.negatives, 1.0, _POINTS - 1))
    places = np.unique(np.searchsorted(curve.false, wanted * (1 + 1e-12), side="right") - 1)
    return [[float(curve.false[place]), float(curve.true[place])] for place in places]
