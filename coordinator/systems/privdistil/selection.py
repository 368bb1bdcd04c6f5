"""Chooses the public texts a student is distilled on: the corpus is embedded, scored by the classifiers, and clustered.

Everything here is public or was released, so choosing is post-processing. The corpus is streamed; what grows with it is
on disk, except for 20 bytes per text that may be chosen.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.federation.aside import Told
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import PublicCorpus
from coordinator.text_models.corpus_numbers import Rows as Stored
from coordinator.text_models.corpus_numbers import Streamer, blocks, find_streamer, written
from coordinator.text_models.federated_training import optimisation_of
from coordinator.text_models.public import PublicText
from learning.selection.clustering import Grouping, RandomClustering, k_means
from learning.selection.relevance import ROWS, Worth, direction, mean_scores, noise_deviation, worth
from learning.selection.selecting import Rows, Selector
from learning.selection.text_rows import TextRows

Floats = NDArray[np.float32]

_BLOCK: Final = 4096


@dataclass(frozen=True, slots=True)
class Said:
    """The output of the parties' domain classifiers: their parameters by party, the mean of their scores [texts], or
    nothing.
    """

    weights: Mapping[str, Floats] | None = None
    mean: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen texts, int64 [texts], in the order of choice, and the report's figures on the choice."""

    numbers: NDArray[np.int64]
    facts: dict[str, Any]


class _Scores(Protocol):
    """Scores of a block of texts, [parties, rows], by the number of its first text."""

    def __call__(self, first: int, end: int) -> NDArray[np.floating]: ...


def choose(plan: PrivDistilPlan, public: PublicCorpus, said: Said, noise: float | None, told: Told) -> Choice:
    """Choose texts as `[selection]` says.

    noise: standard deviation of the noise in one coordinate of a step's sum of a domain classifier, None where there is
    none. Memory: the models, one block of embeddings, and 20 bytes for each of at most twice as many texts as are
    chosen. Raises `ConclaveError` for texts that cannot be read or chosen.
    """
    table = plan.selection
    if table.method == "all":
        return Choice(np.arange(public.corpus.count(), dtype=np.int64), {"method": table.method})
    if not table.scored:
        selector = Selector(table.method, table.texts, seed=plan.run.seed)
        for first, end in _spans(public.corpus.count()):
            selector.offer(Rows(first, np.zeros(end - first)))
        return Choice(selector.choose(), {"method": table.method})
    streamer = find_streamer(table.streamer)
    facts: dict[str, Any] = {"method": table.method}
    with tempfile.TemporaryDirectory(dir=public.cache) as beside:
        scores = _scores(plan, public, said, streamer, Path(beside), told)
        grouping = _grouping(plan, public, streamer, told)
        selector = Selector(table.method, table.texts, clusters=1 if grouping is None else grouping.clusters)
        embedded = None
        if grouping is not None and table.by == "embedding":
            embedded = _worked(embedding(plan, public), public, streamer, told)
        for first, end in _spans(public.corpus.count()):
            block = np.empty((end - first, 0), np.float32) if embedded is None else embedded.read(first, end)
            clusters = None if grouping is None else grouping.assign(block, first)
            selector.offer(Rows(first, mean_scores(scores(first, end)), clusters))
        numbers = selector.choose()
        if grouping is not None:
            facts["clusters"] = grouping.clusters
        if said.weights is not None:
            facts |= _worth(plan, public, said.weights, scores, noise, streamer, Path(beside), told)
    return Choice(numbers, facts)


def seen(plan: PrivDistilPlan, public: PublicCorpus) -> TextRows:
    """The features that a linear domain classifier has of a text; with them one pass over the corpus serves all
    parties.
    """
    assert public.domain is not None
    assert public.embedder is not None
    model = public.embedder if plan.domain.model is None else public.domain
    return TextRows("embedding", _folder(model), longest=public.domain.longest, pool=plan.model.pooling)


def embedding(plan: PrivDistilPlan, public: PublicCorpus) -> TextRows:
    """The teacher's embedding of a text, by which the corpus is clustered.

    It is the input of a linear classifier on the teacher where there is one, so that it is computed once; otherwise the
    mean of the teacher's last hidden states.
    """
    assert public.embedder is not None
    if plan.domain.model is None and _heads(public):
        return seen(plan, public)
    return TextRows("mean", _folder(public.embedder), longest=plan.text.longest)


def _worked(work: TextRows, public: PublicCorpus, streamer: Streamer, told: Told) -> Stored:
    """Rows for every text, from the cache where they were computed before: they come from a public model."""
    on_block = partial(told, "embedding the corpus")
    return blocks(written(streamer, public.corpus, work, public.cache / "corpora", on_block=on_block), _BLOCK)


def _grouping(plan: PrivDistilPlan, public: PublicCorpus, streamer: Streamer, told: Told) -> Grouping | None:
    table = plan.selection
    if table.method != "ais":
        return None
    if table.by == "random":
        return RandomClustering(table.clusters, plan.run.seed)
    stored = _worked(embedding(plan, public), public, streamer, told)
    told("clustering the corpus", 0, 1)
    found = k_means(lambda: stored, table.clusters, seed=plan.run.seed, passes=table.passes)
    told("clustering the corpus", 1, 1)
    return found


def _scores(
    plan: PrivDistilPlan, public: PublicCorpus, said: Said, streamer: Streamer, beside: Path, told: Told
) -> _Scores:
    if said.weights is None:
        mean = said.mean
        assert mean is not None
        return lambda first, end: mean[None, first:end]
    if _heads(public):
        stored = _worked(seen(plan, public), public, streamer, told)
        heads = [_head(public, weights) for weights in said.weights.values()]
        return lambda first, end: _by_heads(heads, stored.read(first, end))
    found = []
    for number, (name, weights) in enumerate(said.weights.items(), 1):
        what = f"scoring the corpus, classifier {number} of {len(said.weights)}"
        found.append(_probabilities(plan, public, weights, beside / name, streamer, partial(told, what)))
    return lambda first, end: np.stack([each.read(first, end)[:, 0] for each in found])


def _probabilities(
    plan: PrivDistilPlan,
    public: PublicCorpus,
    weights: Floats,
    beside: Path,
    streamer: Streamer,
    on_block: Callable[[int, int], None],
) -> Stored:
    """Probabilities for every text, from a classifier of which more than the last layer was trained."""
    folder = _classifier(public, weights, beside / "model")
    work = TextRows("probability", str(folder), longest=plan.text.longest, column=0)
    return blocks(written(streamer, public.corpus, work, beside, on_block=on_block), _BLOCK)


def _worth(
    plan: PrivDistilPlan,
    public: PublicCorpus,
    said: Mapping[str, Floats],
    scores: _Scores,
    noise: float | None,
    streamer: Streamer,
    beside: Path,
    told: Told,
) -> dict[str, Any]:
    """How good the classifiers are, measured on texts taken evenly from the whole corpus."""
    count = public.corpus.count()
    step = -(-count // ROWS)
    looked = np.concatenate([scores(first, end)[:, (-first) % step :: step] for first, end in _spans(count)], axis=1)
    directions = features = deviation = None
    assert public.domain is not None
    if not _heads(public):
        what = "scoring the corpus by the classifiers' start"
        begin = _probabilities(plan, public, public.domain.start, beside / "start", streamer, partial(told, what))
        start = np.concatenate([begin.read(a, b)[(-a) % step :: step, 0] for a, b in _spans(count)])
    else:
        stored = _worked(seen(plan, public), public, streamer, told)
        features = np.concatenate([stored.read(a, b)[(-a) % step :: step] for a, b in _spans(count)])
        begun = _head(public, public.domain.start)
        directions = np.stack([direction(_head(public, each)[0], begun[0]) for each in said.values()])
        start = _by_heads([begun], features)[0]
        if noise is not None:
            deviation = noise_deviation(optimisation_of(plan.domain, plan.domain.batch), plan.domain.steps, noise)
    found: Worth = worth(looked, directions=directions, noise=deviation, features=features, start=start)
    facts: dict[str, Any] = {"agreement": None if found.agreement is None else found.agreement.value}
    facts |= {"reliability": found.reliability, "warnings": list(found.warnings())}
    return facts


def _by_heads(heads: Sequence[tuple[Floats, Floats]], vectors: Floats) -> NDArray[np.float64]:
    """The probability of the private class, [heads, texts]."""
    found = np.empty((len(heads), len(vectors)))
    for place, (weight, bias) in enumerate(heads):
        logits = vectors.astype(np.float64) @ weight.T + bias
        found[place] = 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))
    return found


def _head(public: PublicCorpus, parameters: Floats) -> tuple[Floats, Floats]:
    """A classifier's last layer, where only that was trained: weights [2, width] and biases [2]."""
    import torch

    from learning.models.adapting import unflatten
    from learning.models.features import head_alone

    assert public.domain is not None
    unflatten(public.domain.model, torch.from_numpy(parameters.copy()))
    head = head_alone(public.domain.model)
    assert head is not None
    weight = head.weight.detach().cpu().numpy().copy()
    return weight, np.zeros(2, np.float32) if head.bias is None else head.bias.detach().cpu().numpy().copy()


def _heads(public: PublicCorpus) -> bool:
    from learning.models.features import head_alone

    assert public.domain is not None
    return head_alone(public.domain.model) is not None


def _classifier(public: PublicCorpus, parameters: Floats, folder: Path) -> Path:
    import torch

    from learning.models.adapting import merged, unflatten
    from learning.models.checkpoints import save

    assert public.domain is not None
    unflatten(public.domain.model, torch.from_numpy(parameters.copy()))
    folder.mkdir(parents=True)
    save(merged(public.domain.model), public.domain.tokenizer, folder)
    return folder


def _folder(public: PublicText) -> str:
    """The folder with a public model's files."""
    return str(public.files["config.json"].parent)


def _spans(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _BLOCK):
        yield first, min(first + _BLOCK, count)
