"""A public stand-in for the parties' text: stand-in teachers, their votes, and the labels that would be right.

A forecast reads nothing of the parties, not even sources that the plan names: it costs nothing and may be shown to
anyone. So every figure assumes that the parties' text is like the plan's public text. The text of `[evaluation]` is
preferred: its documents are as long as those the run is for, which matters for clipping, and no reference was fitted to
them. Without it, the text of `[vocabulary]` is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import ndtr, ndtri

from aggregation.arrays import FloatArray, IntArray
from aggregation.mechanisms.argmax import expected_accuracy
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import TeacherSignal
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.votes import tally
from coordinator.plan.public_text import source_of
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public
from learning.embeddings.cooccurrence import Passage, counts_of, pair_counts, unit_counts
from learning.text.source import read
from learning.text.words import sentences, tokenize

if TYPE_CHECKING:
    from learning.embeddings.skipgram import SkipGram

FEW_TEACHERS = 6
"""The least number of stand-in teachers, whatever their size, where the plan has as many."""

_TEACHER_WORK = 6e8  # words^2 * dimension of all stand-in teachers together, beyond the first few
_PIECES_A_TEACHER = 10
_UNITS_AT_ONCE = 512
_DRAWS = 200
_FLOOR = 1e-9

Counts: TypeAlias = sparse.csr_array


@dataclass(frozen=True, slots=True)
class StandIn:
    """Public text that stands in for all parties' text.

    texts: one per unit; where the unit is a pair, one per document. source: as the plan names it. size: how many units
    the parties are assumed to hold together; None for as many as here. A user is assumed to have one document.
    """

    texts: tuple[str, ...]
    source: str
    size: int | None
    pairs: bool

    @classmethod
    def of(cls, plan: DpedPlan, public: Public, base: Path, cache: Path) -> "StandIn":
        """The stand-in for a plan's parties, with their declared size. Raises `DataError` as `read` does."""
        if plan.evaluation is not None:
            source, documents = plan.evaluation.source, (each.text for each in public.heldout)
        else:
            source = plan.vocabulary.source
            documents = (each.text for each in read(source_of(plan.vocabulary, base), cache))
        if plan.privacy.record == "sentence" and plan.privacy.unit == "record":
            documents = (sentence for text in documents for sentence in sentences(text))
        size, privately = plan.privacy.declared_size, plan.dped.private_training
        if size is None and privately is not None:
            size = privately.units_per_teacher * plan.teachers
        return cls(tuple(documents), source, size, plan.privacy.record == "pair")

    def counted(self, public: Public, window: int) -> Iterator[Counts]:
        """Pair counts of the units, a few hundred texts at a time: [units, words * words]."""
        size = len(public.vocabulary)
        for start in range(0, len(self.texts), _UNITS_AT_ONCE):
            passages = _encoded(self.texts[start : start + _UNITS_AT_ONCE], public)
            if self.pairs:
                yield pair_counts(passages, size, window)
            else:
                yield unit_counts([[each] for each in passages], size, window)


def teach(plan: DpedPlan, public: Public, stand_in: StandIn, units: int) -> TeacherSignal:
    """Train stand-in teachers on disjoint parts of the public text and ask them the parties' queries.

    units: of the stand-in. Returns votes int64 [teachers, queries] and states float32 [teachers, queries, layers,
    width]. Each teacher learns from as much text as a party's teacher would, or from what there is; repeating the same
    text would make it too confident. Trains as many teachers as the plan has, or as many as are cheap, at least
    `FEW_TEACHERS`.
    """
    from learning.embeddings.teachers import hidden_states, train_teacher, votes_of

    assert public.reference is not None
    settings, size = plan.dped, len(public.vocabulary)
    share = (stand_in.size or units) / max(1, units) / plan.teachers
    cheap = int(_TEACHER_WORK / (size**2 * settings.dimension))
    teachers = min(plan.teachers, max(FEW_TEACHERS, min(cheap, int(1 / share + 1e-9))))
    pieces = list(stand_in.texts)
    if len(pieces) < _PIECES_A_TEACHER * teachers:
        pieces = [sentence for text in pieces for sentence in sentences(text)]
    teachers = max(1, min(teachers, len(pieces)))
    own = max(1, int(min(share, 1 / teachers) * len(pieces) + 1e-9))
    order = np.random.default_rng(plan.run.seed).permutation(len(pieces))
    against = _log_frequencies(public.reference) if settings.vote == "lift" else None
    votes, states = [], []
    for number in range(teachers):
        texts = [pieces[place] for place in order[number * own : (number + 1) * own]]
        counts = counts_of(_encoded(texts, public), size, settings.window)
        seed = plan.run.seed + number
        teacher = train_teacher(counts, public.reference, alignment=settings.alignment, seed=seed)
        votes.append(votes_of(teacher, public.queries, public.classes, relative_to=against))
        states.append(hidden_states(teacher, public.queries, settings.layers))
    return TeacherSignal(np.stack(votes), np.stack(states))


def ranked_votes(votes: IntArray, teachers: int, classes: int, seed: int) -> IntArray:
    """Votes on each query's classes, most first, [queries, teachers], expected of more teachers that vote like these.

    votes: [trained, queries]. Each further teacher votes as a trained one picked at random. Where that vote was the
    only one for its class, the further teacher votes for a new class instead: the share of such votes estimates the
    chance of an unseen class (Good and Turing).
    """
    given = votes.T
    trained = given.shape[1]
    if teachers <= trained:
        return tally(given[:, :teachers])
    rng = np.random.default_rng(seed)
    alone = (given[:, :, None] == given[:, None, :]).sum(axis=2) == 1
    picked = rng.integers(trained, size=(len(given), teachers - trained))
    further = np.take_along_axis(given, picked, axis=1)
    anything = rng.integers(classes, size=further.shape)
    further = np.where(np.take_along_axis(alone, picked, axis=1), anything, further)
    return tally(np.hstack([given, further]))


@dataclass(frozen=True, slots=True)
class Voting:
    """How votes become labels under noise. noise: standard deviation on one class, in votes, summed over all parties.

    threshold: on the noisy histogram, free post-processing. tested: the trusted coordinator's test, if it makes one.
    """

    classes: int
    noise: float
    threshold: float | None = None
    tested: ThresholdedVotes | None = None

    def louder(self, factor: float) -> "Voting":
        """The same with the noise multiplied by a factor; asking q queries instead of Q multiplies it by sqrt(q /
        Q).
        """
        test = self.tested
        if test is not None:
            test = replace(
                test,
                threshold_noise=test.threshold_noise * factor,
                noise=test.noise * factor,
                larger_noise=None if test.larger_noise is None else test.larger_noise * factor,
            )
        return replace(self, noise=self.noise * factor, tested=test)

    def labels(self, ranked: IntArray, seed: int) -> tuple[float, float]:
        """From votes [queries, classes with votes]: the expected shares of right answers and of answered queries.

        An answer is right where no other class has more votes.
        """
        if self.tested is not None:
            return self._tested_labels(self.tested, ranked)
        if self.threshold is None:
            return float(expected_accuracy(ranked, self.noise, self.classes).mean()), 1.0
        return self._kept_labels(self.threshold, ranked, np.random.default_rng(seed))

    def _tested_labels(self, test: ThresholdedVotes, ranked: IntArray) -> tuple[float, float]:
        passing = ndtr((ranked[:, 0] - test.threshold) / test.threshold_noise)
        failed, passed = (float(charge) for charge in test.charges)
        spent = np.cumsum(failed + passing * (passed - failed))
        asked = spent - spent[0] + passed <= test.cap * (1 + 1e-6)
        right = passing * expected_accuracy(ranked, test.noise, self.classes)
        answered = passing
        if test.larger_noise is not None:
            right = right + (1 - passing) * expected_accuracy(ranked, test.larger_noise, self.classes)
            answered = np.ones(len(ranked))
        total = float(answered[asked].sum())
        return (float(right[asked].sum()) / total if total else 0.0), total / len(ranked)

    def _kept_labels(self, threshold: float, ranked: IntArray, rng: np.random.Generator) -> tuple[float, float]:
        """By simulation: the noisy maximum over the classes with votes, and over the others as one maximum of
        normals.
        """
        others = np.maximum(self.classes - (ranked > 0).sum(axis=1), 1e-9)
        leading = ranked == ranked[:, :1]
        right = answered = 0
        for _ in range(_DRAWS):
            noisy = np.where(ranked > 0, ranked + self.noise * rng.normal(size=ranked.shape), -np.inf)
            best = noisy.argmax(axis=1)[:, None]
            highest = np.take_along_axis(noisy, best, axis=1)[:, 0]
            outside = self.noise * ndtri(rng.random(len(ranked)) ** (1 / others))
            answers = np.maximum(highest, outside) >= threshold
            answered += int(answers.sum())
            right += int((answers & (highest > outside) & np.take_along_axis(leading, best, axis=1)[:, 0]).sum())
        return (right / answered if answered else 0.0), answered / (_DRAWS * len(ranked))


def hidden_signal(states: FloatArray, mechanism: HiddenMechanism, teachers: int) -> NDArray[np.float64]:
    """Root mean square [queries] of the numbers in the sum of the given number of teachers' clipped vectors."""
    norms = np.linalg.norm(states, axis=-1, keepdims=True)
    clipped = states * np.minimum(1, mechanism.clip / np.maximum(norms, _FLOOR))
    mean = clipped.mean(axis=0, dtype=np.float64)
    return np.asarray(teachers * np.sqrt((mean**2).mean(axis=(1, 2))))


def _encoded(texts: tuple[str, ...] | list[str], public: Public) -> list[Passage]:
    return [public.vocabulary.encode(tokenize(text)) for text in texts]


def _log_frequencies(reference: "SkipGram") -> NDArray[np.float64]:
    """Log-frequencies [words] that the reference predicts on average, as a party's teachers use them."""
    total = np.zeros(len(reference.bias))
    for start in range(0, len(total), _UNITS_AT_ONCE):
        centres = np.arange(start, min(start + _UNITS_AT_ONCE, len(total)))
        total += np.exp(reference.log_probabilities(centres).astype(np.float64)).sum(axis=0)
    return np.asarray(np.log(total / len(total) + _FLOOR))
