"""Words that parties count in pairs, summed under noise once; the student is each word's share of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from dp_accounting import GaussianDpEvent

from aggregation.mechanisms.counts import CountsMechanism
from coordinator.plan.public_text import source_of
from coordinator.pricing.release import Release, shares, unpromised
from learning.text.source import read
from learning.text.words import Vocabulary, tokenize
from protos.conclave.v1 import party_pb2
from tally.student import Student

COUNTS, WINDOW, LEVELS = "counts", 2, 100


@dataclass(frozen=True, slots=True)
class Public:
    """The words, and each one's share of the public text [words], None without any."""

    vocabulary: Vocabulary
    shares: np.ndarray | None


def prepare(plan, base: Path, cache: Path) -> Public:
    """Read the public text. Raises `DataError`."""
    vocabulary = Vocabulary(tuple(plan.tally.words))
    if plan.evaluation is None:
        return Public(vocabulary, None)
    words = [vocabulary.encode(tokenize(each.text)) for each in read(source_of(plan.evaluation, base), cache)]
    return Public(vocabulary, shares_of(np.bincount(np.concatenate(words) + 1, minlength=len(vocabulary) + 1)[1:]))


def shares_of(counts) -> np.ndarray:
    """Counts [words] as shares of their sum; of what noise made negative, nothing is left."""
    kept = np.maximum(np.asarray(counts, float), 0.0)
    return kept / max(kept.sum(), 1.0)


def mechanism(plan, multiplier: float) -> CountsMechanism:
    """Counts at this noise multiplier."""
    return CountsMechanism(plan.tally.clip, LEVELS, multiplier, shares(plan), plan.privacy.noise)


@dataclass(frozen=True, slots=True)
class Tally:
    """A `coordinator.systems.system.Recipe`."""

    plan: object
    public: Public | None

    fewer_cells = "Use fewer words."
    finer_grid = "Leave noise out."
    labelled = None

    def total_event(self, multiplier):
        return GaussianDpEvent(multiplier)

    def releases(self, multiplier):
        size = len(self.plan.tally.words)
        attempts = self.plan.privacy.attempts
        return (Release(COUNTS, mechanism(self.plan, multiplier), size, size, attempts=attempts),)

    def doubts(self):
        return []

    async def collect(self, priced, federation, store, stage):
        (release,) = priced.releases
        with stage("provide"):
            await federation.provide("vocabulary", self.public.vocabulary.to_bytes())
        with stage("train"):
            request = party_pb2.TrainRequest(operation_id=f"{COUNTS}-0")
            request.cooccurrence.release, request.cooccurrence.window = COUNTS, WINDOW
            request.cooccurrence.vocabulary_sha256 = self.public.vocabulary.sha256
            await federation.train(request, "counting")
        with stage("aggregate") as result:
            shape = release.name, release.rows, release.columns
            if self.plan.privacy.trust == "secure-sum":
                count = await federation.sum_securely(release, priced.binding.terms, release.rows, store)
            else:
                note = unpromised(self.plan)
                count = await federation.aggregate(*shape, release.rows, store, note)
            present = {COUNTS: count}
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def learn(self, priced, present, store, progress):
        (release,) = priced.releases
        total = np.concatenate([block for _, _, block in store.blocks(COUNTS)])
        return shares_of(release.mechanism.release(total, present[COUNTS]).values.sum(axis=1)).tobytes()

    def student(self, content, priced, present, store, progress):
        return Student.of(self.plan.tally.words, np.frombuffer(content), self.public.shares)
