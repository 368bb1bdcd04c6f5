"""What public text lets one expect of private text: a stand-in for it, stand-in teachers, their votes, right labels.

Nothing of the parties is read, their sources included, even where the plan names them: a forecast may be shown to
anyone and costs nothing. So every figure supposes that the parties' text is like the plan's public text. Of that,
`[evaluation]` is taken where the plan has it: its documents are as long as those the run is for, which clipping makes
important, and no reference was fitted to them. Otherwise it is the text of `[vocabulary]`.
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
"""Stand-in teachers that are trained however large they are, where the plan has as many."""

_TEACHER_WORK = 6e8  # words^2 * dimension of all stand-in teachers together, beyond the first few
_PIECES_A_TEACHER = 10
_UNITS_AT_ONCE = 512
_DRAWS = 200
_FLOOR = 1e-9

Counts: TypeAlias = sparse.csr_array


@dataclass(frozen=True, slots=True)
class StandIn:
    """Public text in the place of all parties' text.

    texts: one a unit; where a pair is the unit, one a document. source: as the plan names it. size: how many units the
    parties are supposed to hold together; None for as many as here. A user is taken for one document.
    """

    texts: tuple[str, ...]
    source: str
    size: int | None
    pairs: bool

    @classmethod
    def of(cls, plan: DpedPlan, public: Public, base: Path, cache: Path) -> "StandIn":
        """The stand-in for a plan's parties, their declared size with it. Raises `DataError` like `read`."""
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
        """Pair counts of the units, some hundred texts at a time: [units, words * words]."""
        size = len(public.vocabulary)
        for start in range(0, len(self.texts), _UNITS_AT_ONCE):
            passages = _encoded(self.texts[start : start + _UNITS_AT_ONCE], public)
            if self.pairs:
                yield pair_counts(passages, size, window)
            else:
                yield unit_counts([[each] for each in passages], size, window)


def teach(plan: DpedPlan, public: Public, stand_in: StandIn, units: int) -> TeacherSignal:
    """Train stand-in teachers on disjoint parts of the public text and ask them what parties' teachers are asked.

    units: of the stand-in. votes int64 [teachers, queries]; states float32 [teachers, queries, layers, width]. Each
    learns from as much text as a party's teacher, or as there is: never from less text counted often, which would make
    it surer than it ought to be. Teachers are the plan's, or as many as are cheap, `FEW_TEACHERS` at least.
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
    """Votes of each query's classes, most first, [queries, teachers], where so many teachers vote as these ones do.

    votes: [trained, queries]. Each further teacher votes as a trained one picked at random. Where nobody else shared
    that one's vote it names any class instead: the share of votes that are alone estimates how often a further teacher
    names something new (Good and Turing).
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
    """How votes become labels under noise. noise: standard deviation on a class, in votes, all parties' shares in it.

    threshold: of the noisy histogram, free post-processing. tested: the trusted coordinator's test, if it makes one.
    """

    classes: int
    noise: float
    threshold: float | None = None
    tested: ThresholdedVotes | None = None

    def louder(self, factor: float) -> "Voting":
        """The same with all noise so much larger; that of q queries in place of Q is sqrt(q / Q) of it."""
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
        """From votes [queries, classes with votes]: the expected share of right answers, and that of queries answered.

        Right is a class that no other has more votes than.
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
        """By drawing: the noisy maximum of the classes with votes, and of the others as one maximum of many normals."""
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
    """Root mean square, of each query [queries], of the numbers in the sum of so many teachers' clipped vectors."""
    norms = np.linalg.norm(states, axis=-1, keepdims=True)
    clipped = states * np.minimum(1, mechanism.clip / np.maximum(norms, _FLOOR))
    mean = clipped.mean(axis=0, dtype=np.float64)
    return np.asarray(teachers * np.sqrt((mean**2).mean(axis=(1, 2))))


def _encoded(texts: tuple[str, ...] | list[str], public: Public) -> list[Passage]:
    return [public.vocabulary.encode(tokenize(text)) for text in texts]


def _log_frequencies(reference: "SkipGram") -> NDArray[np.float64]:
    """Log-frequencies [words] of the reference, its own mean prediction, as a party's teachers take them."""
    total = np.zeros(len(reference.bias))
    for start in range(0, len(total), _UNITS_AT_ONCE):
        centres = np.arange(start, min(start + _UNITS_AT_ONCE, len(total)))
        total += np.exp(reference.log_probabilities(centres).astype(np.float64)).sum(axis=0)
    return np.asarray(np.log(total / len(total) + _FLOOR))
