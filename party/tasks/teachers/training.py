"""A party's teachers: skip-grams on disjoint units, their answers to public queries, and bounding those answers.

A teacher depends only on its own units and on public values, so adding or removing one unit changes one teacher.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from scipy import sparse

from aggregation.arrays import IntArray
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import TeacherSignal
from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.mechanisms.registry import of_teachers
from aggregation.noise.stream import NoiseStream
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.teachers import hidden_states, train_teacher, votes_of
from learning.text.words import Vocabulary
from party.errors import TrainingError
from party.provided.words import reference_in, vocabulary_in
from party.releasing.mechanisms import answering, mechanism_of
from party.shard.counted import counted_units, take_census
from party.shard.memory import Memory
from party.shard.reading import Reading
from party.shard.units import slot
from party.tasks.job import Job, Private, release_of
from party.tasks.ray_tasks import gathered
from party.tasks.teachers.request import TeachersWork

log = logging.getLogger("conclave.party")

_FLOOR = 1e-9


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which of the teachers' answers a mechanism takes."""

    votes: bool
    hidden: bool


def prepare(job: Job, work: TeachersWork, mechanism: Mechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units. Raises `ConclaveError` for a vocabulary, reference or words that do
    not fit each other.
    """
    wanted_by(mechanism)
    size = len(vocabulary_of(work))
    reference_of(work, size)
    _positions("a query", work.queries, size)
    _positions("a class", work.classes, size)
    return lambda job, progress: teach(job, mechanism, progress, kept)


def teach(
    job: Job, mechanism: Mechanism, progress: Callable[[int], None], memory: Memory | None = None
) -> sparse.csr_array:
    """Train this party's teachers, let them answer, and bound the answers: int64 `[queries, columns]`.

    Under a joint mechanism the sum over teachers; under thresholded votes one column a teacher.
    Memory: the teachers' counts (their non-zeros; one sparse matrix a teacher, or under DP-SGD one row a unit), one
    model at a time, and all answers in float32. Raises `ConclaveError` like `party.shard.counted.counted_units`, and
    for a reference that does not fit.
    """
    work = job.work
    assert isinstance(work, TeachersWork)
    if memory is not None:
        signal = _asked(mechanism, all_answers(job.reading, work, progress, memory))
        return sparse.csr_array(contribution(mechanism, signal))
    census = partial(take_census, job.reading)
    signal = gathered(job, work.teachers, progress, partial(some_answers, job, work), census)
    return sparse.csr_array(contribution(mechanism, signal))


def all_answers(reading: Reading, work: TeachersWork, progress: Callable[[int], None], memory: Memory) -> TeacherSignal:
    """Votes and hidden states of all teachers, in clear, kept for every release of them. Raises as `teach`."""

    def make() -> TeacherSignal:
        return answers(reading, work, Wanted(votes=True, hidden=True), progress, memory=memory)

    return memory.once("answers", (reading.whose, repr(work)), make)


def _asked(mechanism: Mechanism, signal: TeacherSignal) -> TeacherSignal:
    """The parts of the answers that a mechanism releases."""
    wanted = wanted_by(mechanism)
    return TeacherSignal(signal.votes if wanted.votes else None, signal.states if wanted.hidden else None)


def some_answers(job: Job, work: TeachersWork, numbers: range, progress: Callable[[int], None]) -> TeacherSignal:
    """The answers of the teachers with these numbers, unbounded and in clear. Raises as `teach`."""
    return answers(job.reading, work, wanted_by(answering(release_of(job.release))), progress, numbers)


def wanted_by(mechanism: Mechanism) -> Wanted:
    """The answers that the mechanism releases."""
    asked = of_teachers(mechanism)
    return Wanted(votes=asked.classes > 0, hidden=asked.layers > 0)


def contribution(mechanism: Mechanism, signal: TeacherSignal) -> IntArray | sparse.csr_array:
    """The bounded part of the answers. Raises `IntegrityError` for shapes that do not fit the mechanism."""
    asked = of_teachers(mechanism)
    return asked.contribute(signal.votes if Form.CLEAR_VOTES in asked.forms else signal)


def answers(
    reading: Reading,
    work: TeachersWork,
    wanted: Wanted,
    progress: Callable[[int], None],
    numbers: range | None = None,
    memory: Memory | None = None,
) -> TeacherSignal:
    """Teachers' answers, unbounded and in clear: they must not leave the party like this. numbers: whose, or all.

    votes int64 [teachers, queries], positions in the classes; states float32 [teachers, queries, layers, width]. A
    teacher without a unit answers as the public reference does. So does one whose training diverges; only the party's
    log says so, because a failure would reveal something of its units.
    """
    size = len(vocabulary_of(work))
    reference = reference_of(work, size)
    queries = _positions("a query", work.queries, size)
    classes = _positions("a class", work.classes, size)
    against = _log_frequencies(reference) if work.vote == "lift" else None
    votes, states, diverged = [], [], 0
    numbers = range(work.teachers) if numbers is None else numbers
    for count, trained in enumerate(_teachers(reading, work, numbers, reference, size, memory), 1):
        diverged += not trained.finite
        teacher = trained if trained.finite else reference
        if wanted.votes:
            votes.append(votes_of(teacher, queries, classes, relative_to=against))
        if wanted.hidden:
            states.append(hidden_states(teacher, queries, work.layers))
        progress(min(99, 100 * count // len(numbers)))
    if diverged:
        log.warning(
            "%s of %s teachers went to infinity and answer as the public reference does.",
            f"{diverged:,}",
            f"{len(numbers):,}",
        )
    return TeacherSignal(np.stack(votes) if votes else None, np.stack(states) if states else None)


def vocabulary_of(work: TeachersWork) -> Vocabulary:
    """The provided public vocabulary. Raises `TrainingError`."""
    return vocabulary_in(Path(work.vocabulary))


def reference_of(work: TeachersWork, size: int) -> SkipGram:
    """The provided public model. Raises `TrainingError` for an invalid one, or one of another vocabulary."""
    return reference_in(Path(work.reference), size)


def _teachers(
    reading: Reading, work: TeachersWork, numbers: range, reference: SkipGram, size: int, memory: Memory | None
) -> Iterator[SkipGram]:
    vocabulary = vocabulary_of(work)
    key = bytes.fromhex(work.slot_key)
    private = bool(work.training)
    shards: dict[int, list[sparse.csr_array]] = {number: [] for number in numbers}
    for ids, counted in counted_units(reading, vocabulary, work.window, memory):
        places = np.array([slot(key, unit, work.teachers) for unit in ids])
        for number in numbers:
            own = counted[np.flatnonzero(places == number)]
            if not own.shape[0]:
                continue
            if private:
                shards[number].append(own)
            else:
                shards[number] = [sum(shards[number], _summed(own))]
    for number, shard in shards.items():
        if private:
            yield _trained_privately(work, number, shard, reference, size)
        elif not shard:
            yield reference
        else:
            yield train_teacher(
                shard[0].reshape((size, size)).tocsr(), reference, alignment=work.alignment, seed=work.seed
            )


def _summed(units: sparse.csr_array) -> sparse.csr_array:
    """The sum of all rows, [1, cells]. Memory: their non-zeros.

    A product with ones would take a number for every cell, as would the sum of two rows whose cells are not in order;
    these are.
    """
    place = units.indices
    return sparse.coo_array((units.data, (np.zeros_like(place), place)), shape=(1, units.shape[1])).tocsr()


def _trained_privately(
    work: TeachersWork, number: int, shard: list[sparse.csr_array], reference: SkipGram, size: int
) -> SkipGram:
    from learning.embeddings.dp_sgd import train_private

    mechanism = mechanism_of(release_of(work.training))
    assert isinstance(mechanism, GradientMechanism)
    units = sparse.csr_array(sparse.vstack(shard)) if shard else sparse.csr_array((0, size * size))
    return train_private(
        units,
        mechanism,
        start=reference,
        expected_batch=work.expected_batch,
        learning_rate=work.learning_rate,
        stream=NoiseStream.from_key(bytes.fromhex(work.training_key)).child("teacher", number),
    )


def _positions(what: str, words: list[int], size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    positions = np.array(words, dtype=np.int64)
    if positions.size and positions.max() >= size:
        raise TrainingError(f"{what} is word {positions.max():,}; the vocabulary has {size:,} words.")
    return positions


def _log_frequencies(reference: SkipGram) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Log-frequencies [words] that the public reference predicts on average over its words."""
    total = np.zeros(len(reference.bias))
    for start in range(0, len(total), 256):
        centres = np.arange(start, min(start + 256, len(total)))
        total += np.exp(reference.log_probabilities(centres).astype(np.float64)).sum(axis=0)
    return np.asarray(np.log(total / len(total) + _FLOOR))
