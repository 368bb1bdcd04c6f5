"""How good a student is, on public text and published word lists. Nothing here may see private text."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from learning.embeddings.skipgram import SkipGram
from learning.errors import DataError
from learning.text.words import Vocabulary, tokenize

_ROWS = 256
WORST: Final = 1e300
"""The largest perplexity that is reported, a finite number for programs that read it."""
Texts = tuple[Sequence[str], Sequence[str | int]]
Labelled = tuple[sparse.csr_array, Sequence[str | int]]
"""Texts as bags of words [texts, words], and their labels."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """spearman: rank correlation in -1..1, None under three pairs or where all similarities are equal."""

    spearman: float | None
    pairs_used: int
    pairs_total: int


@dataclass(frozen=True, slots=True)
class Accuracy:
    """accuracy: share of the questions used that were answered right, None if none could be used."""

    accuracy: float | None
    used: int
    total: int


def context_perplexity(model: SkipGram, heldout: sparse.csr_array) -> float:
    """exp of the mean -log p(context | centre) over all pairs of held-out counts [V, V]; lower is better.

    `WORST` stands for all that is larger. Memory: 256 rows of [V, V] at a time. Raises `DataError` where the held-out
    text has no pair of known words, or another vocabulary's size.
    """
    heldout = _heldout(heldout, len(model.bias))
    total = 0.0
    for first in range(0, heldout.shape[0], _ROWS):
        block = heldout[first : first + _ROWS].tocoo()
        logarithms = model.log_probabilities(np.arange(first, first + block.shape[0]))
        total += float(block.data @ logarithms[block.coords].astype(np.float64))
    return float(np.exp(min(-total / heldout.sum(), np.log(WORST))))


def unigram_perplexity(probabilities: NDArray[np.float64], heldout: sparse.csr_array) -> float:
    """The same for a model that ignores the centre: probabilities [V] > 0, summing to 1."""
    heldout = _heldout(heldout, len(probabilities))
    contexts = np.asarray(heldout.sum(axis=0))
    return float(np.exp(-(contexts @ np.log(probabilities)) / contexts.sum()))


def _heldout(counts: sparse.csr_array, size: int) -> sparse.csr_array:
    counts = sparse.csr_array(counts)
    if counts.shape != (size, size):
        raise DataError(f"The held-out counts are {counts.shape}, the model has {size} words.")
    if not counts.sum() > 0:
        raise DataError("The held-out text has no two words of the vocabulary near each other. Give more of it.")
    return counts


def wordsim(embeddings: NDArray[np.float32], vocabulary: Vocabulary) -> Correlation:
    """Compare cosines with people's judgement of similarity: WordSim-353, as gensim ships it.

    Only pairs with both words in the vocabulary count, so figures of different vocabularies do not compare.
    Source: WordSim-353 (Finkelstein et al. 2002).
    """
    unit = _unit(embeddings)
    judged, measured, total = [], [], 0
    for first, second, score in _wordsim_pairs():
        total += 1
        left, right = vocabulary.position(first), vocabulary.position(second)
        if left >= 0 and right >= 0:
            judged.append(score)
            measured.append(float(unit[left] @ unit[right]))
    if len(judged) < 3 or len(set(measured)) == 1 or len(set(judged)) == 1:
        return Correlation(None, len(judged), total)
    from scipy.stats import spearmanr  # its import takes a second

    return Correlation(float(spearmanr(judged, measured).statistic), len(judged), total)


def analogies(embeddings: NDArray[np.float32], vocabulary: Vocabulary) -> Accuracy:
    """Answer a : b = c : ? by the word nearest to b - a + c, none of the three.

    Questions are Google's, as gensim ships them; one counts only if its four words are in the vocabulary.
    Source: Mikolov et al. 2013.
    """
    questions, total = [], 0
    for words in _analogy_questions():
        total += 1
        places = [vocabulary.position(word) for word in words]
        if min(places) >= 0:
            questions.append(places)
    if not questions or not embeddings.any():
        return Accuracy(None, 0, total)
    unit, right = _unit(embeddings), 0
    for first in range(0, len(questions), _ROWS):
        asked = np.array(questions[first : first + _ROWS])
        likeness = (unit[asked[:, 1]] - unit[asked[:, 0]] + unit[asked[:, 2]]) @ unit.T
        np.put_along_axis(likeness, asked[:, :3], -np.inf, axis=1)
        right += int((likeness.argmax(axis=1) == asked[:, 3]).sum())
    return Accuracy(right / len(questions), len(questions), total)


def nearest(
    embeddings: NDArray[np.float32], vocabulary: Vocabulary, word: str, k: int = 5, among: int | None = None
) -> list[tuple[str, float]]:
    """The k words with the largest cosine to a word, and the cosines, the largest first.

    among: look at the first `among` words of the vocabulary only. Vectors of rare words are mostly noise at a small
    epsilon, and noise is near to anything now and then. Raises `DataError` for a word that the vocabulary lacks.
    """
    place = vocabulary.position(word)
    if place < 0:
        raise DataError(f"{word!r} is not in the vocabulary of {len(vocabulary):,} words.")
    unit = _unit(embeddings)
    likeness = unit[:among] @ unit[place]
    order = [int(other) for other in np.argsort(-likeness, kind="stable") if other != place][:k]
    return [(vocabulary.words[other], float(likeness[other])) for other in order]


def sentiment_probe(embeddings: NDArray[np.float32], vocabulary: Vocabulary, train: Texts, test: Texts) -> float:
    """`probe_accuracy` on texts as they are: train and test are (texts, labels)."""

    def counted(texts: Texts) -> Labelled:
        return bags([vocabulary.encode(tokenize(text)) for text in texts[0]], len(vocabulary)), texts[1]

    return probe_accuracy(embeddings, counted(train), counted(test))


def probe_accuracy(embeddings: NDArray[np.float32], train: Labelled, test: Labelled) -> float:
    """Accuracy of logistic regression on the mean vector of a text's known words; a text without any has the zero
    vector.

    Raises `DataError` when texts and labels do not pair up or training has one label only.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    for texts, labels in (train, test):
        if texts.shape[0] != len(labels) or not len(labels):
            raise DataError(f"A probe needs a label for every text: {texts.shape[0]} texts, {len(labels)} labels.")
    if len(set(train[1])) < 2:
        raise DataError("A probe needs training texts of two labels or more.")
    scaler = StandardScaler()
    classifier = LogisticRegression(max_iter=1000)
    classifier.fit(scaler.fit_transform(_means(embeddings, train[0])), list(train[1]))
    return float(classifier.score(scaler.transform(_means(embeddings, test[0])), list(test[1])))


def bags(texts: Sequence[NDArray[np.int32]], size: int) -> sparse.csr_array:
    """How often each text has each word, [texts, words], of word positions; -1 is no word."""
    known = [text[text >= 0] for text in texts]
    rows = np.repeat(np.arange(len(known)), [len(text) for text in known])
    words = np.concatenate([np.empty(0, np.int32), *known])
    return sparse.coo_array((np.ones(words.size, np.float32), (rows, words)), shape=(len(known), size)).tocsr()


def _means(embeddings: NDArray[np.float32], texts: sparse.csr_array) -> NDArray[np.float32]:
    lengths = np.asarray(texts.sum(axis=1)).reshape(-1, 1)
    return np.asarray((texts @ embeddings) / np.maximum(lengths, 1), dtype=np.float32)


def _unit(embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    return np.asarray(embeddings / np.where(lengths == 0, 1, lengths), dtype=np.float32)


def stop_words() -> frozenset[str]:
    """The English words without content of their own that scikit-learn knows."""
    with suppress(OSError, KeyError):
        return frozenset(run_path(str(_folder("sklearn") / "feature_extraction/_stop_words.py"))["ENGLISH_STOP_WORDS"])
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return frozenset(ENGLISH_STOP_WORDS)


def _shipped(name: str) -> Path:
    """A file that gensim ships for its own tests."""
    return _folder("gensim") / "test/test_data" / name


def _folder(package: str) -> Path:
    """Where a package lies, found without importing it, which takes two seconds."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (folder,) = spec.submodule_search_locations
    return Path(folder)


def _wordsim_pairs() -> Iterator[tuple[str, str, float]]:
    with _shipped("wordsim353.tsv").open(encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#") and line.strip():
                first, second, score = line.split("\t")[:3]
                yield first.lower(), second.lower(), float(score)


def _analogy_questions() -> Iterator[list[str]]:
    with _shipped("questions-words.txt").open(encoding="utf-8") as file:
        for line in file:
            if not line.startswith(":") and line.strip():
                yield line.lower().split()


def flat_map(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float64], float]:
    """Unit vectors [words, dimension] along their two principal directions, [words, 2], and the share of variance that
    these hold.

    Deterministic: the largest entry of each direction is positive.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units = np.divide(vectors, lengths, out=np.zeros(vectors.shape, np.float64), where=lengths > 0)
    centred = units - units.mean(axis=0)
    _, spread, directions = np.linalg.svd(centred, full_matrices=False)
    two = directions[:2]
    two = two * np.sign(two[np.arange(len(two)), np.abs(two).argmax(axis=1)])[:, None]
    found = np.zeros((len(units), 2))
    found[:, : len(two)] = centred @ two.T
    whole = float((spread**2).sum())
    return found, float((spread[:2] ** 2).sum()) / whole if whole else 0.0
