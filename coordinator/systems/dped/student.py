"""Embeddings as they are published, in a folder that other libraries load, and the measurements of them.

The folder loads in `SentenceTransformer(folder)` as mean word embeddings, and its `vectors.txt` in
`KeyedVectors.load_word2vec_format`. `skipgram.safetensors` holds every parameter of the model.
"""

import json
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.page.exhibits import Exhibit, Points, Spot, Table
from coordinator.plan.plan import ProbeTable
from coordinator.plan.public_text import source_of
from coordinator.publishing.front_matter import front_matter
from coordinator.publishing.report import Statement, markdown
from coordinator.publishing.verdict import headline
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public
from coordinator.systems.dped.signals import Signals
from learning.text.source import Document, read
from learning.text.words import Vocabulary, tokenize

if TYPE_CHECKING:
    from learning.embeddings.evaluation import Labelled
    from learning.embeddings.skipgram import SkipGram

UNKNOWN = "[UNK]"
_STATIC: Final = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"


@dataclass(frozen=True, slots=True)
class EmbeddingStudent:
    """The embeddings that `dped` learned, ready to be published.

    vectors: float32 [words, dimension]. parameters: every array of the model by name. claimed: the epsilon that the
    paper's own formula gives for the same noise.
    """

    vocabulary: Vocabulary
    vectors: NDArray[np.float32]
    parameters: dict[str, NDArray[np.float32]]
    metrics: dict[str, Any]
    neighbours: dict[str, list[str]]
    claimed: float | None = None

    def write(self, folder: Path) -> None:
        """Write the model's files. Raises OSError."""
        _sentence_transformer(self, folder)
        (folder / "vectors.txt").write_text(word2vec(self.vocabulary.words, self.vectors), encoding="utf-8")
        _parameters(self, folder / "skipgram.safetensors")

    def card(self, statement: Statement) -> str:
        """The model card."""
        return card(self, statement)


def word2vec(words: tuple[str, ...], vectors: NDArray[np.float32]) -> str:
    """The word2vec text format: a line of counts, then one line per word. Nine digits restore every float32 exactly."""
    lines = [f"{len(words)} {vectors.shape[1]}"]
    lines += [f"{word} {' '.join(f'{value:.9g}' for value in row)}" for word, row in zip(words, vectors, strict=True)]
    return "\n".join(lines) + "\n"


def card(student: EmbeddingStudent, statement: Statement) -> str:
    """The model card: what the model is, its licence and language, how it was measured, and the whole guarantee."""
    front = front_matter(
        statement.plan,
        library="sentence-transformers",
        task="feature-extraction",
        tags=["differential-privacy", "word-embeddings"],
        metrics=student.metrics,
    )
    rows = "\n".join(f"- {word}: {', '.join(near)}" for word, near in student.neighbours.items())
    words, dimension = student.vectors.shape
    return f"""{front}
# {statement.plan.run.name}

**{headline(statement.privacy, student.metrics)}**

Embeddings of {words:,} words in {dimension} dimensions,
learned from the text of {len(statement.parties)} parties that did not show it to each other.
Made by Conclave, recipe `{statement.plan.run.recipe}`.

```python
from sentence_transformers import SentenceTransformer
from gensim.models import KeyedVectors

SentenceTransformer("this-folder").encode(["a sentence of words that the vocabulary knows"])
KeyedVectors.load_word2vec_format("this-folder/vectors.txt").most_similar("{student.vocabulary.words[0]}")
```

{markdown(statement)}
## Checking it

`coordinator verify this-folder --trust ca.pem`, with the `ca.pem` of the federation's authority, compares every file
with the coordinator's signature, and this promise with what the parties signed about its cost.

## Nearest words

{rows}
"""


def _sentence_transformer(student: EmbeddingStudent, folder: Path) -> None:
    """What `SentenceTransformer(modules=[StaticEmbedding(...)]).save` writes, byte for byte, without the library, which
    takes two seconds to import.
    """
    import torch
    from safetensors.numpy import save_file
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.normalizers import Lowercase, Replace, Sequence
    from tokenizers.pre_tokenizers import Split

    from learning.text.words import WORD

    index = {word: position for position, word in enumerate(student.vocabulary.words)}
    tokenizer = Tokenizer(WordLevel(index | {UNKNOWN: len(index)}, unk_token=UNKNOWN))
    tokenizer.normalizer = Sequence([Lowercase(), Replace("’", "'")])
    tokenizer.pre_tokenizer = Split(Regex(WORD), behavior="removed", invert=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    nothing = np.zeros((1, student.vectors.shape[1]), np.float32)
    save_file({"embedding.weight": np.vstack([student.vectors, nothing])}, folder / "model.safetensors")
    module = {"idx": 0, "name": "0", "path": "", "type": _STATIC}
    made_by = {
        "pytorch": str(torch.__version__),
        "sentence_transformers": version("sentence-transformers"),
        "transformers": version("transformers"),
    }
    about = {
        "__version__": made_by,
        "default_prompt_name": None,
        "model_type": "SentenceTransformer",
        "prompts": {"document": "", "query": ""},
        "similarity_fn_name": "cosine",
    }
    for name, content in (("modules.json", [module]), ("config_sentence_transformers.json", about)):
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _parameters(student: EmbeddingStudent, path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(value) for name, value in student.parameters.items()}, path)


PROBE_WORDS = 5
FREQUENT = 500
"""Nearest neighbours are sought among this many first words of the vocabulary: vectors of rare words are mostly noise.
"""


@dataclass(frozen=True, slots=True)
class Probes:
    """Public labelled tasks, read once: how well a linear classifier does on the mean embedding of each text.

    tasks: for each name, the bags of words [texts, words] and the labels, of the training and of the test texts.
    """

    tasks: dict[str, tuple["Labelled", "Labelled"]]

    @classmethod
    def read(cls, plan: DpedPlan, vocabulary: Vocabulary, base: Path, cache: Path) -> "Probes":
        """The plan's `[[evaluation.probes]]`. Raises `DataError` naming a source that cannot be read."""
        tasks = {}
        for table in [] if plan.evaluation is None else plan.evaluation.probes:
            train = _labelled(table, vocabulary, base, cache)
            tasks[table.name] = (
                train,
                _labelled(table.model_copy(update={"source": table.test}), vocabulary, base, cache),
            )
        return cls(tasks)

    def accuracies(self, vectors: NDArray[np.float32]) -> dict[str, float]:
        """Accuracy on each task's test texts."""
        from learning.embeddings.evaluation import probe_accuracy

        return {name: probe_accuracy(vectors, train, test) for name, (train, test) in self.tasks.items()}


def measured(model: "SkipGram", plan: DpedPlan, public: Public, signals: Signals) -> EmbeddingStudent:
    """The student with its metrics and with its baselines from the same released counts or moments."""
    vocabulary = public.vocabulary
    metrics = metrics_of(model, plan, public)
    if public.heldout:
        metrics |= floors(plan, public, signals)
    released = signals.counts or signals.moments
    if released is not None:
        metrics["noise_sigma"] = released.sigma
    parameters = {"inputs": model.inputs, "outputs": model.outputs, "bias": model.bias}
    return EmbeddingStudent(vocabulary, model.inputs, parameters, metrics, neighbours(model.inputs, vocabulary))


def metrics_of(model: "SkipGram", plan: DpedPlan, public: Public) -> dict[str, Any]:
    """Perplexity where there is held-out text, WordSim-353, analogies, and probe accuracy where there are labels."""
    from learning.embeddings import evaluation

    metrics: dict[str, Any] = {}
    if public.heldout:
        metrics["perplexity"] = evaluation.context_perplexity(model, public.heldout_counts(plan.dped.window))
    metrics["wordsim"] = asdict(evaluation.wordsim(model.inputs, public.vocabulary))
    metrics["analogies"] = asdict(evaluation.analogies(model.inputs, public.vocabulary))
    if plan.evaluation is not None and plan.evaluation.label is not None:
        metrics["sentiment"] = _probe(model.inputs, public.vocabulary, public.heldout, plan.evaluation.label)
    return metrics


def floors(plan: DpedPlan, public: Public, signals: Signals) -> dict[str, float]:
    """Perplexities of the baselines that cost nothing: the released and the public word frequencies, and the public
    model that the run began with, where there was one.
    """
    from learning.embeddings import evaluation, skipgram
    from learning.embeddings.prior import frequencies_of

    heldout = public.heldout_counts(plan.dped.window)
    known = {"public_unigram": skipgram.unigram(public.counts, 0)}
    if signals.counts is not None:
        known["unigram_floor"] = skipgram.unigram(signals.counts.values, signals.counts.sigma)
    if signals.moments is not None and public.moments is not None:
        known["unigram_floor"] = frequencies_of(signals.moments, public.moments[0])
    found = {name: evaluation.unigram_perplexity(floor, heldout) for name, floor in known.items()}
    if public.reference is not None:
        found["public_start"] = evaluation.context_perplexity(public.reference, heldout)
    return found


def neighbours(vectors: NDArray[np.float32], vocabulary: Vocabulary) -> dict[str, list[str]]:
    """The nearest words of a few common ones."""
    from learning.embeddings import evaluation

    return {
        word: [near for near, _ in evaluation.nearest(vectors, vocabulary, word, 5, among=FREQUENT)]
        for word in probes(vocabulary)
    }


def probes(vocabulary: Vocabulary) -> list[str]:
    """The words whose neighbours are shown: the most frequent content words of the public text."""
    return _content_words(vocabulary)[:PROBE_WORDS]


def _content_words(vocabulary: Vocabulary) -> list[str]:
    from learning.embeddings.evaluation import stop_words

    empty = stop_words()
    return [word for word in vocabulary.words if len(word) > 3 and word not in empty]


def _labelled(table: ProbeTable, vocabulary: Vocabulary, base: Path, cache: Path) -> "Labelled":
    """At most `rows` texts of a source, taken evenly from all of it, as bags of words, with their labels."""
    from learning.embeddings.evaluation import bags

    documents = list(read(source_of(table, base), cache))
    taken = documents[:: max(1, len(documents) // table.rows)][: table.rows]
    texts = [vocabulary.encode(tokenize(each.text)) for each in taken]
    return bags(texts, len(vocabulary)), [each.fields[table.label] for each in taken]


def _probe(vectors: NDArray[np.float32], vocabulary: Vocabulary, heldout: list[Document], label: str) -> float:
    """Accuracy of a linear classifier on mean embeddings: it is trained on every second text and tested on the
    others.
    """
    from learning.embeddings import evaluation

    texts = [each.text for each in heldout]
    labels = [each.fields[label] for each in heldout]
    train, test = (texts[::2], labels[::2]), (texts[1::2], labels[1::2])
    return evaluation.sentiment_probe(vectors, vocabulary, train, test)


MAPPED: Final = 120
"""The most words on the map: with more, no label would be read."""


def exhibits(student: EmbeddingStudent) -> list[Exhibit]:
    """A map of the most frequent content words, and the nearest words of a few."""
    from learning.embeddings.evaluation import flat_map

    chosen = _content_words(student.vocabulary)[:MAPPED]
    found = []
    if len(chosen) > 2:
        places = {word: number for number, word in enumerate(student.vocabulary.words)}
        spots, share = flat_map(student.vectors[[places[word] for word in chosen]])
        says = [
            f"The {len(chosen)} most frequent content words, each where its vector points, seen in the two directions "
            f"in which these words differ most. They hold {share:.0%} of the difference: words that are near here need "
            "not be near in all directions, and the table of nearest words goes by all of them."
        ]
        points = [Spot(label=word, x=float(x), y=float(y)) for word, (x, y) in zip(chosen, spots, strict=True)]
        found.append(Exhibit(title="A map of the words", says=says, content=Points(spots=points)))
    if student.neighbours:
        rows = [[word, ", ".join(near)] for word, near in student.neighbours.items()]
        says = [f"By the cosine of the angle between vectors, among the {FREQUENT} most frequent words."]
        table = Table(heads=["word", "nearest words"], rows=rows)
        found.append(Exhibit(title="Nearest words", says=says, content=table))
    return found
