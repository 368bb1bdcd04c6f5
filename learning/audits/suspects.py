"""A mechanism under audit: canaries that a coin puts in or leaves out, scores from the release alone, and the claim.

A new mechanism needs one function that returns a `Suspect` (`learning.audits.mechanisms`). All audits take that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.accounting.library import DpEvent
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from learning.audits.gate import GATE
from learning.audits.many_runs import Distinguished, distinguished
from learning.audits.one_run import SHARES, audited, counted
from learning.audits.one_run_fdp import FdpAudit, audited_family, audited_gaussian, refuted
from learning.audits.trade_offs import Gaussian, TradeOff, louder, trade_off

LOUDEST: Final = 8.0
"""The most by which noise is assumed to be too little, where no formula gives the epsilon."""
_STEPS: Final = 10

Coins = NDArray[np.bool_]
Floats = NDArray[np.float64]
Play = Callable[[Coins, NoiseStream], Floats]


@dataclass(frozen=True, slots=True)
class Suspect:
    """A mechanism, its worst-case canaries and its claim.

    name: of the mechanism. canaries: how many; each is a unit whose bounded contribution has a direction of its own.
    events: what all that `play` releases is charged, for one unit, under add-or-remove. play: from coins [canaries],
    True for a canary that is in, and a noise stream to scores [canaries], higher where a canary seems to be in,
    computed from what is released and from public values alone. Other canaries' coins have no part in a canary's score.
    """

    name: str
    canaries: int
    events: Sequence[DpEvent]
    play: Play

    def __post_init__(self) -> None:
        if self.canaries < 2:
            raise ConclaveError(f"An audit of {self.name} with {self.canaries} canaries shows nothing. Use 1,000.")


@dataclass(frozen=True, slots=True)
class MechanismAudit:
    """What the audits of one mechanism found; its three bounds hold together at the confidence.

    claimed: epsilon at delta by the project's own accounting. one_run: no epsilon below it is compatible with what was
    seen, where the trade-off has the claim's form (`form`); 0 where nothing was refuted. plain: the same whatever the
    form of the trade-off. many: the same with each canary taken for a run of its own, which it is as long as noise is
    independent from one number to the next. guesses, right: of the audit behind `one_run`.
    """

    name: str
    claimed: float
    delta: float
    one_run: float
    plain: float
    many: float
    form: str
    confidence: float
    canaries: int
    guesses: int
    right: int

    @property
    def lower(self) -> float:
        """The best of the three bounds."""
        return max(self.one_run, self.plain, self.many)

    @property
    def caught(self) -> bool:
        """Whether the lower bound is above the claim: the mechanism is not what it says it is."""
        return self.lower > self.claimed


def audited_mechanism(
    suspect: Suspect,
    stream: NoiseStream,
    rng: np.random.Generator,
    *,
    delta: float,
    confidence: float = 0.95,
    repeats: int = 1,
) -> MechanismAudit:
    """Audit a mechanism in one release under fair coins, and in others with all canaries in and all out.

    Each bound gets a third of what is left of the confidence. `one_run` and `many` are of the claim's form: a Gaussian
    for what is Gaussian only; the same events under less noise for what is Poisson-sampled; an epsilon alone for any
    other. repeats: as of `runs`. Raises `ConclaveError` as `aggregation.accounting.price.price` and the audits do.
    """
    each = 1 - (1 - confidence) / 3
    coins, scores = _played(suspect, stream, rng)
    claimed = price(suspect.events, delta).epsilon
    plain = audited(scores, coins, delta=delta, confidence=each)
    claim = trade_off(suspect.events)
    apart = runs(suspect, stream, delta=delta, confidence=each, by_mu=claim is not None, repeats=repeats)
    if isinstance(claim, Gaussian):
        found, form = audited_gaussian(scores, coins, confidence=each), "gaussian"
        one_run, many = Gaussian(found.lower).epsilon(delta), Gaussian(apart.mu).epsilon(delta)
    elif claim is not None:
        form, members = "sampled", _Members(suspect.events)
        found = audited_family(scores, coins, members.at, largest=1.0, confidence=each, steps=_STEPS)
        one_run, many = members.epsilon(found.lower, delta), members.epsilon(members.refuted(apart), delta)
    else:
        form, one_run, many = "epsilon", plain.lower, apart.lower
        found = FdpAudit(plain.lower, each, plain.canaries, plain.guesses, plain.right, plain.tried)
    about = suspect.name, claimed, delta, one_run, plain.lower, many, form, confidence, suspect.canaries
    return MechanismAudit(*about, found.guesses, found.right)


def refutes(
    suspect: Suspect,
    stream: NoiseStream,
    rng: np.random.Generator,
    *,
    delta: float,
    confidence: float = GATE,
    repeats: int = 1,
) -> bool:
    """Whether the audits refute a mechanism's claim: as `audited_mechanism`, without finding the bounds.

    This is what a build or a run fails by: quick also for a claim whose bound takes many prices.
    """
    each = 1 - (1 - confidence) / 3
    coins, scores = _played(suspect, stream, rng)
    claimed, claim = price(suspect.events, delta).epsilon, trade_off(suspect.events)
    apart = runs(suspect, stream, delta=delta, confidence=each, by_mu=claim is not None, repeats=repeats)
    if audited(scores, coins, delta=delta, confidence=each).lower > claimed:
        return True
    if claim is None:
        return apart.lower > claimed
    share = 1 - (1 - each) / len(SHARES)
    return apart.refutes(claim) or any(
        refuted(claim, suspect.canaries, *some, share) for some in counted(scores, coins)
    )


def runs(
    suspect: Suspect,
    stream: NoiseStream,
    *,
    delta: float,
    confidence: float = 0.95,
    by_mu: bool = True,
    repeats: int = 1,
) -> Distinguished:
    """The audit by many runs: a release with all canaries in against one with all of them out.

    A canary's score has its own noise and depends on no other canary's coin, so that each canary is a run. by_mu: as of
    `learning.audits.many_runs.distinguished`. repeats: releases of each kind, each under noise of its own.
    """
    every = np.ones(suspect.canaries, np.bool_)
    present, absent = (
        np.concatenate([suspect.play(coins, stream.child(name, time)) for time in range(repeats)])
        for name, coins in (("in", every), ("out", ~every))
    )
    return distinguished(present, absent, delta=delta, confidence=confidence, by_mu=by_mu)


def replayed(suspect: Suspect, known: NoiseStream) -> Suspect:
    """The same mechanism under an attacker who knows the stream of its noise, or believes to.

    He makes the release again from that stream, without any canary, and scores by what differs from it.
    """

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        return suspect.play(coins, stream) - suspect.play(np.zeros_like(coins), known)

    return replace(suspect, name=f"{suspect.name}, stream known", play=play)


def _played(suspect: Suspect, stream: NoiseStream, rng: np.random.Generator) -> tuple[Coins, Floats]:
    coins = rng.random(suspect.canaries) < 0.5
    return coins, suspect.play(coins, stream.child("coins"))


class _Members:
    """Events under less and less noise, by a place in (0, 1]; at 1 it is an eighth. The trade-offs are kept."""

    def __init__(self, events: Sequence[DpEvent]) -> None:
        self._events, self._made = events, dict[float, TradeOff]()

    def at(self, place: float) -> TradeOff:
        if place not in self._made:
            made = trade_off(louder(self._events, self._factor(place)))
            assert made is not None
            self._made[place] = made
        return self._made[place]

    def refuted(self, apart: Distinguished) -> float:
        """The largest place whose trade-off two rates refute, 0 for none; by the halvings of `audited_family`."""
        low, high = 0.0, 1.0
        if apart.refutes(self.at(high)):
            return high
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if apart.refutes(self.at(middle)) else (low, middle)
        return low

    def epsilon(self, place: float, delta: float) -> float:
        return price(louder(self._events, self._factor(place)), delta).epsilon if place else 0.0

    @staticmethod
    def _factor(place: float) -> float:
        return float(LOUDEST ** (2 * place - 1))
