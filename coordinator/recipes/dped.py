"""Recipe `dped`: multi-layer noise distillation for embeddings (DPED), by its clipped co-occurrence counts.

Every unit's (word, context) counts over a public vocabulary are clipped to an L2 norm; the parties' matrices are
summed under noise, once; a skip-gram student is fitted to the noisy sum.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from aggregation.accounting import Guarantee
from coordinator.federation import Federation
from coordinator.plan import Plan, SourceTable
from coordinator.progress import Progress
from coordinator.store import RunStore
from coordinator.terms import COUNTS, Bound, rounded_up
from learning.cooccurrence import counts_of
from learning.text import DataError, Document, Source, read
from learning.words import Vocabulary, tokenize
from protos.conclave.v1 import party_pb2

PROBE_WORDS = 5
FREQUENT = 500
"""Neighbours are looked for among the vocabulary's first words: the vectors of rare ones are mostly noise."""


@dataclass(frozen=True, slots=True)
class Student:
    """What the recipe learned, ready to be published.

    vectors: float32 [words, dimension]. parameters: every array of the model by name.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]
    parameters: dict[str, NDArray[np.float32]]
    metrics: dict[str, Any]
    neighbours: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Public:
    """Everything public that the run uses; read before any party is asked, so that a mistake in it costs nothing."""

    vocabulary: Vocabulary
    heldout: list[Document]


def prepare(plan: Plan, base: Path, cache: Path) -> Public:
    """Read the public text. Raises `DataError` naming the source."""
    table = plan.vocabulary
    vocabulary = Vocabulary.from_public((each.text for each in read(source_of(table, base), cache)), table.size)
    if len(vocabulary.words) < table.size:
        raise DataError(
            f"[vocabulary] {table.source} has {len(vocabulary.words):,} different words; the plan asks for "
            f"{table.size:,}. Set size = {len(vocabulary.words)} or take more public text."
        )
    heldout = [] if plan.evaluation is None else list(read(source_of(plan.evaluation, base), cache))
    return Public(vocabulary, heldout)


def source_of(table: SourceTable, base: Path) -> Source:
    """A plan's table as a source; paths are relative to the plan."""
    local = (base / table.source).exists() or any(sign in table.source for sign in "*?[")
    return Source(
        source=str(base / table.source) if local else table.source,
        text=table.text,
        id=table.id,
        label=table.label,
        split=table.split,
        stream=table.stream,
    )


async def collect(bound: Bound, public: Public, federation: Federation, store: RunStore) -> int:
    """The private half: every party counts, clips and adds its noise; returns how many parties are in the sum."""
    plan, vocabulary = bound.plan, public.vocabulary
    content = vocabulary.to_bytes()
    store.write("artefacts/vocabulary.json", content)
    with store.stage("provide"):
        await federation.provide("vocabulary", content)
    with store.stage("train"):
        task = party_pb2.CooccurrenceTask(release=COUNTS, vocabulary_sha256=vocabulary.sha256, window=plan.dped.window)
        await federation.train(party_pb2.TrainRequest(operation_id=f"{COUNTS}-0", cooccurrence=task), doing="counting")
    with store.stage("aggregate") as result:
        size = len(vocabulary.words)
        present = await federation.aggregate(
            COUNTS, rows=size, columns=size, block_rows=plan.block_rows, store=store, note=budget(bound.guarantee, plan)
        )
        result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
    return present


def budget(guarantee: Guarantee, plan: Plan) -> str:
    """What stands beside a progress bar."""
    if plan.privacy.insecure_reproducible_noise:
        return "no guarantee: reproducible noise"
    return f"epsilon {rounded_up(guarantee.epsilon, 2)} / {plan.privacy.epsilon:g}"


def distil(bound: Bound, public: Public, present: int, store: RunStore, progress: Progress) -> Student:
    """The public half: fit the student to the noisy sum, then measure it on public text. Post-processing throughout."""
    from learning import evaluation, skipgram

    plan, vocabulary = bound.plan, public.vocabulary
    size = len(vocabulary.words)
    counts, sigma = np.empty((size, size)), 0.0
    for start, stop, block in store.blocks(COUNTS):
        released = bound.counts.release(block, present)
        counts[start:stop], sigma = released.values, released.sigma
    with store.stage("distil"):
        model = skipgram.fit_noisy(
            counts,
            sigma,
            dimension=plan.dped.dimension,
            seed=plan.run.seed,
            on_step=lambda done: progress.bar("student", round(100 * done), 100, "percent"),
        )
    with store.stage("evaluate") as result:
        metrics: dict[str, Any] = {"noise_sigma": sigma}
        if public.heldout:
            encoded = [vocabulary.encode(tokenize(each.text)) for each in public.heldout]
            heldout = counts_of(encoded, size, plan.dped.window)
            floor = skipgram.unigram(counts, sigma)
            metrics["perplexity"] = evaluation.context_perplexity(model, heldout)
            metrics["unigram_floor"] = evaluation.unigram_perplexity(floor, heldout)
        metrics["wordsim"] = asdict(evaluation.wordsim(model.inputs, vocabulary))
        metrics["analogies"] = asdict(evaluation.analogies(model.inputs, vocabulary))
        if plan.evaluation is not None and plan.evaluation.label is not None:
            metrics["sentiment"] = _probe(model.inputs, vocabulary, public.heldout, plan.evaluation.label)
        neighbours = {
            word: [near for near, _ in evaluation.nearest(model.inputs, vocabulary, word, 5, among=FREQUENT)]
            for word in probes(vocabulary)
        }
        result |= {"metrics": metrics, "neighbours": neighbours}
    parameters = {"inputs": model.inputs, "outputs": model.outputs, "bias": model.bias}
    return Student(vocabulary, model.inputs, parameters, metrics, neighbours)


def probes(vocabulary: Vocabulary) -> list[str]:
    """The words whose neighbours are shown: the most frequent of the public text that carry meaning of their own."""
    return [word for word in vocabulary.words if len(word) > 3 and word not in ENGLISH_STOP_WORDS][:PROBE_WORDS]


def _probe(vectors: NDArray[np.float32], vocabulary: Vocabulary, heldout: list[Document], label: str) -> float:
    """Accuracy of a linear classifier on mean embeddings: every second text trains it, the others test it."""
    from learning import evaluation

    texts = [each.text for each in heldout]
    labels = [each.fields[label] for each in heldout]
    train, test = (texts[::2], labels[::2]), (texts[1::2], labels[1::2])
    return evaluation.sentiment_probe(vectors, vocabulary, train, test)
