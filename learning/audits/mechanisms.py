"""The shipped mechanisms as suspects: their own objects bound, noise and release, as they do at parties.

Canaries are worst cases: each moves the release as far as one unit can, in a direction that no other canary moves it
in. Noise is drawn as parties draw it: every party's share from a stream of its own, each release under a child of it;
sums are integers modulo 2^32. Scores are the likeliest distinguisher's, from the release and public values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy import sparse
from scipy.special import log_ndtr

from aggregation.accounting.library import DpEvent, SelfComposedDpEvent
from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.mechanism import Contribution
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.thresholded import ThresholdedAnswers, ThresholdedVotes
from aggregation.mechanisms.vectors import DifferencesMechanism, VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism
from aggregation.noise.stream import NoiseStream
from learning.audits.suspects import Coins, Floats, Suspect

PAST_CLIP: Final = 10.0
"""Of how many clips a canary's signal is, so that only clipping bounds it."""


def of_counts(mechanism: CountsMechanism, canaries: int) -> Suspect:
    """Counts, or moments as counts: each canary counts one cell of its own, far past the clip."""

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def part(own: IntArray) -> Contribution:
            rows = np.arange(len(own))
            units = (np.full(len(own), PAST_CLIP * mechanism.clip), (rows, own))
            return mechanism.contribute(sparse.csr_array(units, shape=(len(own), canaries)))

        total = _summed(mechanism, _shared(np.flatnonzero(coins), mechanism.shares, part), (1, canaries), stream)
        return np.asarray(mechanism.release(total, mechanism.shares).values[0])

    return Suspect("counts", canaries, [mechanism.event()], play)


def of_vectors(mechanism: VectorMechanism, canaries: int) -> Suspect:
    """Moments, and any certified vector: each canary points along a coordinate of its own, far past the clip."""

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def part(own: IntArray) -> Contribution:
            total = np.zeros(canaries, np.int64)
            for some in np.array_split(own, max(1, len(own) * canaries >> 21)):
                vectors = np.zeros((len(some), canaries))
                vectors[np.arange(len(some)), some] = PAST_CLIP * mechanism.clip
                total += mechanism.contribute(vectors)
            return total

        total = _summed(mechanism, _shared(np.flatnonzero(coins), mechanism.shares, part), (canaries,), stream)
        return np.asarray(mechanism.release(total, mechanism.shares).values)

    return Suspect("vectors", canaries, [mechanism.event()], play)


def of_differences(mechanism: DifferencesMechanism) -> Suspect:
    """What teachers say of tokens: each canary's teacher has one outcome of one token of its own, and is at one end of
    the ball with it and at the opposite one without it. There are tokens * outcomes canaries.
    """
    canaries = mechanism.tokens * mechanism.outcomes

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def said(some: IntArray) -> Contribution:
            found = np.zeros((len(some), canaries))
            found[np.arange(len(some)), some] = np.where(coins[some], 1, -1) * PAST_CLIP * mechanism.clip
            return mechanism.contribute(found.reshape(len(some), mechanism.tokens, mechanism.outcomes))

        def part(own: IntArray) -> Contribution:
            return _added(own, said)

        shape = (mechanism.tokens, mechanism.outcomes)
        total = _summed(mechanism, _shared(np.arange(canaries), mechanism.shares, part), shape, stream)
        return np.asarray(mechanism.release(total, mechanism.shares).values).reshape(-1)

    return Suspect("differences", canaries, [mechanism.event()], play)


def of_samples(mechanism: SamplesMechanism) -> Suspect:
    """Rows of a data set: every row is a canary's, at one end of the ball and of one class with it, at the opposite end
    and of another class without it. The attack is told which row is whose, so that the order protects nobody.
    """

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        vectors = np.zeros((mechanism.rows, mechanism.dimensions))
        vectors[:, 0] = np.where(coins, 1, -1) * PAST_CLIP
        rows = mechanism.drawn(mechanism.contribute(vectors), coins.astype(np.int64), stream)
        found = mechanism.released(rows[mechanism.order(stream.child("order"))])
        said = np.where(found.labels == 1, 1, np.where(found.labels == 0, -1, 0)) * mechanism.label_epsilon  # 0: public
        return np.asarray(2 * found.vectors[:, 0] / mechanism.sigma**2 + said)

    return Suspect("samples", mechanism.rows, [mechanism.event()], play)


def of_votes(mechanism: VotesMechanism, queries: int) -> Suspect:
    """Votes: each canary's teacher has two classes of its own, and votes for one with it and for the other without it.

    There are classes // 2 canaries, which is as many as teachers.
    """
    canaries = mechanism.classes // 2

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def part(own: IntArray) -> Contribution:
            return mechanism.contribute(_votes(coins, own, queries))

        shape = (queries, mechanism.classes)
        total = _summed(mechanism, _shared(np.arange(canaries), mechanism.shares, part), shape, stream)
        return _difference(mechanism.release(total, mechanism.shares).values, canaries)

    return Suspect("votes", canaries, _composed(mechanism.event(), queries), play)


def of_hidden(mechanism: HiddenMechanism, queries: int) -> Suspect:
    """Hidden states: each canary's teacher has a coordinate of its own in every layer, and answers with one end of the
    ball with it and with the opposite one without it. There are `width` canaries.
    """
    canaries = mechanism.width

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def part(own: IntArray) -> Contribution:
            return _added(own, lambda some: mechanism.contribute(_states(mechanism, coins, some, queries)))

        shape = (queries, mechanism.columns)
        total = _summed(mechanism, _shared(np.arange(canaries), mechanism.shares, part), shape, stream)
        values = mechanism.release(total, mechanism.shares).values
        return np.asarray(values.reshape(-1, canaries).sum(axis=0))

    return Suspect("hidden", canaries, _composed(mechanism.event(), queries), play)


def of_joint(mechanism: JointMechanism, queries: int) -> Suspect:
    """Votes and hidden states of the same teachers, as `of_votes` and `of_hidden` have them.

    Each part counts by what it says: its change over its variance. Raises `ConclaveError` without both parts, or with
    fewer than two classes a canary.
    """
    votes, hidden = mechanism.votes, mechanism.hidden
    if votes is None or hidden is None or votes.classes < 2 * hidden.width:
        raise ConclaveError(
            "This audit needs votes of at least twice as many classes as a hidden state has numbers. Audit a part "
            "alone with `of_votes` or `of_hidden`."
        )
    canaries = hidden.width

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        def signal(some: IntArray) -> Contribution:
            return mechanism.contribute(
                TeacherSignal(_votes(coins, some, queries), _states(hidden, coins, some, queries))
            )

        def part(own: IntArray) -> Contribution:
            return _added(own, signal)

        shape = (queries, mechanism.columns)
        total = _summed(mechanism, _shared(np.arange(canaries), mechanism.shares, part), shape, stream)
        released = mechanism.release(total, mechanism.shares)
        assert released.votes is not None
        assert released.hidden is not None
        first = _difference(released.votes.values, canaries) / votes.noise**2
        second = released.hidden.values.reshape(-1, canaries).sum(axis=0) * hidden.clip / hidden.noise**2
        return np.asarray(first + second)

    return Suspect("joint", canaries, _composed(mechanism.event(), queries), play)


def of_thresholded(mechanism: ThresholdedVotes, queries: int, canaries: int) -> Suspect:
    """Votes under a threshold: one teacher agrees with all others, or, without the canary, with none.

    Every query shows the same teacher, so that each canary has a release of its own, with its own noise, charged as one
    release: coins of separate releases are as independent as those of one. The other teachers are one less than
    announced and vote for class 0. Keep teachers few and the threshold between the two agreements.
    """
    others = np.zeros((queries, mechanism.teachers), np.int64)
    against = others.copy()
    against[:, 0] = 1

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        weights = _Weights(mechanism)
        return np.array(
            [
                weights.score(mechanism.answer(others if coin else against, stream.child(place)))
                for place, coin in enumerate(coins)
            ]
        )

    return Suspect("thresholded", canaries, [mechanism.event()], play)


def of_gradients(mechanism: GradientMechanism) -> Suspect:
    """Steps of DP-SGD: each canary's gradient points along a parameter of its own at every step, far past the clip.

    There are as many canaries as parameters. Sampling, clipping, rounding and noise are the mechanism's, from children
    of a party's stream as in `learning.private_training.dp_sgd.train_private`. A score is the log-likelihood ratio of
    all steps.
    """
    canaries = mechanism.parameters

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        units = np.flatnonzero(coins)
        scores = np.zeros(canaries)
        chance = mechanism.sampling_probability
        for step in range(mechanism.steps):
            noisy = np.zeros(canaries, np.int64)
            for party in range(mechanism.shares):
                own, words = units[party :: mechanism.shares], stream.child("party", party)
                taken = own[mechanism.batch(len(own), words.child("batch", step))]
                gradients = np.full(len(taken), PAST_CLIP * mechanism.clip)
                total = np.zeros(canaries)
                np.add.at(total, taken, gradients * mechanism.scales(gradients))
                noisy += mechanism.contribute(total)
                noisy += mechanism.noise_share(noisy.shape, words.child("noise", step))
            released = mechanism.release(_signed(noisy), mechanism.shares)
            scale = mechanism.clip / released.sigma
            ratios = released.values / released.sigma * scale - scale**2 / 2
            scores += np.logaddexp(np.log1p(-chance) if chance < 1 else -np.inf, math.log(chance) + ratios)
        return scores

    return Suspect("gradients", canaries, [mechanism.event()], play)


SUSPECTS: Final[Mapping[str, Callable[..., Suspect]]] = {
    CountsMechanism.kind: of_counts,
    VectorMechanism.kind: of_vectors,
    DifferencesMechanism.kind: of_differences,
    VotesMechanism.kind: of_votes,
    HiddenMechanism.kind: of_hidden,
    JointMechanism.kind: of_joint,
    ThresholdedVotes.kind: of_thresholded,
    GradientMechanism.kind: of_gradients,
    SamplesMechanism.kind: of_samples,
}
"""The audit of every mechanism that charges something, by its kind."""


class _Weights:
    """Log-likelihood ratios of what a thresholded query may answer, with the canary and without it."""

    def __init__(self, mechanism: ThresholdedVotes) -> None:
        most = np.array([mechanism.teachers, max(mechanism.teachers - 1, 1)])
        lead = np.array([mechanism.teachers, mechanism.teachers - 2])
        self.passed, self.failed = self._ratios((most - mechanism.threshold) / mechanism.threshold_noise)
        self.labels = [
            (0.0, 0.0) if noise is None else self._ratios(lead / (noise * math.sqrt(2)))
            for noise in (mechanism.noise, mechanism.larger_noise)
        ]

    @staticmethod
    def _ratios(places: Floats) -> tuple[float, float]:
        """Of a normal that is below the first place with the canary, below the second without: if below, if above."""
        below, above = log_ndtr(places), log_ndtr(-places)
        return float(below[0] - below[1]), float(above[0] - above[1])

    def score(self, answers: ThresholdedAnswers) -> float:
        asked = answers.passed[: answers.asked]
        total = self.passed * int(asked.sum()) + self.failed * int((~asked).sum())
        for passed, (agreed, other) in zip((True, False), self.labels, strict=True):
            labels = answers.labels[: answers.asked][asked == passed]
            total += agreed * int((labels == 0).sum()) + other * int((labels > 0).sum())
        return total


def _votes(coins: Coins, own: IntArray, queries: int) -> IntArray:
    """Votes [teachers, queries] of the canaries' teachers: class 2j with canary j, class 2j + 1 without it."""
    return np.repeat((2 * own + ~coins[own])[:, None], queries, axis=1)


def _states(mechanism: HiddenMechanism, coins: Coins, own: IntArray, queries: int) -> Floats:
    """States [teachers, queries, layers, width] of the canaries' teachers, far past the clip."""
    states = np.zeros((len(own), queries, mechanism.layers, mechanism.width))
    states[np.arange(len(own)), :, :, own] = np.where(coins[own], 1, -1)[:, None, None] * PAST_CLIP * mechanism.clip
    return states


def _difference(votes: Floats, canaries: int) -> Floats:
    """By how much the first of a canary's two classes leads, over all queries, [canaries]."""
    pairs = votes[:, : 2 * canaries].reshape(len(votes), canaries, 2).sum(axis=0)
    return np.asarray(pairs[:, 0] - pairs[:, 1])


def _added(own: IntArray, contribute: Callable[[IntArray], Contribution], at_once: int = 64) -> Contribution:
    """The contributions of all of some teachers, added up some teachers at a time."""
    total = contribute(own[:at_once])
    for start in range(at_once, len(own), at_once):
        total = total + contribute(own[start : start + at_once])
    return total


def _shared(units: IntArray, parties: int, part: Callable[[IntArray], Contribution]) -> list[Contribution]:
    """What each party contributes; units go round."""
    return [part(units[party::parties]) for party in range(parties)]


def _summed(mechanism: Any, parts: Sequence[Contribution], shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
    """The sum of all parties' contributions, each under its own share of the noise, modulo 2^32."""
    total = np.zeros(shape, np.int64)
    for party, part in enumerate(parts):
        noise = mechanism.noise_share(shape, stream.child("party", party))
        if isinstance(part, np.ndarray):
            total += noise + part
        else:
            cells = part.tocoo()
            np.add.at(noise, (cells.row, cells.col), cells.data)
            total += noise
    return _signed(total)


def _signed(cells: IntArray) -> IntArray:
    """Integers modulo 2^32, from -2^31."""
    return np.asarray(((cells + (1 << 31)) & ((1 << 32) - 1)) - (1 << 31))


def _composed(event: DpEvent, queries: int) -> list[DpEvent]:
    return [SelfComposedDpEvent(event, queries)]
