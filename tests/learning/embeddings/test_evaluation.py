import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from learning.embeddings import evaluation
from learning.embeddings.cooccurrence import counts_of
from learning.embeddings.evaluation import (
    WORST,
    analogies,
    context_perplexity,
    nearest,
    sentiment_probe,
    stop_words,
    unigram_perplexity,
    wordsim,
)
from learning.embeddings.skipgram import SkipGram, fit
from learning.errors import DataError
from learning.text.words import Vocabulary, tokenize


def _even(size: int) -> SkipGram:
    return SkipGram(np.zeros((size, 2), np.float32), np.zeros((size, 2), np.float32), np.zeros(size, np.float32))


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity() -> None:
    heldout = sparse.csr_array(np.random.default_rng(0).poisson(0.5, (700, 700)))
    assert context_perplexity(_even(700), heldout) == pytest.approx(700, rel=1e-4)
    assert unigram_perplexity(np.full(700, 1 / 700), heldout) == pytest.approx(700, rel=1e-4)


def test_perplexity_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(1)
    model = SkipGram(*(rng.normal(size=shape).astype(np.float32) for shape in ((300, 4), (300, 4), (300,))))
    heldout = rng.poisson(0.1, (300, 300)).astype(float)
    logits = model.inputs @ model.outputs.T + model.bias
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = np.exp(-(heldout * np.log(probabilities)).sum() / heldout.sum())
    assert context_perplexity(model, sparse.csr_array(heldout)) == pytest.approx(expected, rel=1e-4)


def test_a_model_that_is_sure_of_what_is_not_so_has_the_worst_perplexity_and_no_infinite_one() -> None:
    model = _even(3)
    sure = np.array([0.0, 0.0, 5000.0], np.float32)  # of the last word, which no context is
    found = context_perplexity(SkipGram(model.inputs, model.outputs, sure), sparse.csr_array(np.array([[0, 1, 0]] * 3)))
    assert found == pytest.approx(WORST, rel=1e-9)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_held_out_text_without_a_known_pair_is_refused() -> None:
    with pytest.raises(DataError, match="Give more of it"):
        context_perplexity(_even(5), sparse.csr_array((5, 5)))
    with pytest.raises(DataError, match=r"\(4, 4\).*5 words"):
        context_perplexity(_even(5), sparse.csr_array(np.ones((4, 4))))


def test_wordsim_uses_the_pairs_that_the_vocabulary_has() -> None:
    pairs = list(evaluation._wordsim_pairs())
    vocabulary = Vocabulary.from_public([f"{a} {b}" for a, b, _ in pairs], 1000)
    rng = np.random.default_rng(0)
    found = wordsim(rng.normal(size=(len(vocabulary), 20)).astype(np.float32), vocabulary)
    assert (found.pairs_used, found.pairs_total) == (353, 353)
    assert found.spearman is not None
    assert abs(found.spearman) < 0.2
    assert wordsim(np.ones((2, 3), np.float32), Vocabulary(("coast", "shore"))).spearman is None
    assert wordsim(np.ones((2, 3), np.float32), Vocabulary(("coast", "shore"))).pairs_used == 1


def test_vectors_that_agree_with_the_judgements_correlate_fully(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = [("a", "b", 9.0), ("a", "c", 5.0), ("a", "d", 1.0), ("a", "missing", 3.0)]
    monkeypatch.setattr(evaluation, "_wordsim_pairs", lambda: iter(judged))
    vectors = np.array([[1, 0], [3, 1], [1, 1], [0, 2]], np.float32)
    found = wordsim(vectors, Vocabulary(("a", "b", "c", "d")))
    assert (found.spearman, found.pairs_used, found.pairs_total) == (pytest.approx(1.0), 3, 4)
    assert wordsim(vectors[::-1], Vocabulary(("b", "c", "d", "a"))).spearman != pytest.approx(1.0)


def test_an_analogy_is_answered_by_the_word_that_completes_it() -> None:
    vocabulary = Vocabulary(("man", "woman", "king", "queen", "boy", "girl"))
    vectors = np.array(
        [[1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [0.5, 0, 0, 1], [0.5, 0, 1, 0]], np.float32
    )
    found = analogies(vectors, vocabulary)
    assert found.total > 19_000
    assert found.used > 2
    assert found.accuracy == 1.0
    assert analogies(vectors[:1], Vocabulary(("man",))).accuracy is None


def test_the_nearest_words_leave_out_the_word_itself() -> None:
    vocabulary = Vocabulary(("a", "b", "c", "d"))
    vectors = np.array([[1, 0], [2, 0.2], [0, 1], [0, 0]], np.float32)
    assert [word for word, _ in nearest(vectors, vocabulary, "a", 3)] == ["b", "c", "d"]
    assert nearest(vectors, vocabulary, "a", 1)[0][1] == pytest.approx(0.995, abs=1e-3)
    assert [word for word, _ in nearest(vectors, vocabulary, "c", 5, among=2)] == ["b", "a"]
    with pytest.raises(DataError, match="'zebra' is not in the vocabulary of 4 words"):
        nearest(vectors, vocabulary, "zebra")


def test_the_sentiment_probe_tells_good_from_bad() -> None:
    vocabulary = Vocabulary(("good", "great", "bad", "awful", "film"))
    vectors = np.array([[1, 0], [0.9, 0.1], [-1, 0], [-0.9, 0.2], [0, 1]], np.float32)
    train = (["good film", "great film", "bad film", "awful film"], ["1", "1", "0", "0"])
    assert sentiment_probe(vectors, vocabulary, train, (["a great one", "so awful", "good"], ["1", "0", "1"])) == 1.0
    assert sentiment_probe(vectors, vocabulary, train, (["unknown words"], ["1"])) in (0.0, 1.0)
    with pytest.raises(DataError, match="two labels"):
        sentiment_probe(vectors, vocabulary, (["good"], ["1"]), train)
    with pytest.raises(DataError, match="label for every text"):
        sentiment_probe(vectors, vocabulary, (["good", "bad"], ["1"]), train)


DATA = Path(os.environ.get("CONCLAVE_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "sst2").is_dir(), reason="needs sst2 in CONCLAVE_DATA or ../shared/data")
def test_vectors_of_real_reviews_know_more_of_sentiment_than_random_ones() -> None:
    def rows(name: str, most: int) -> tuple[list[str], list[int]]:
        lines = [json.loads(line) for line in (DATA / "sst2" / f"{name}.jsonl").open(encoding="utf-8")][:most]
        return [line["text"] for line in lines], [line["label"] for line in lines]

    train, test = rows("train", 30_000), rows("dev", 872)
    vocabulary = Vocabulary.from_public(train[0], 2000)
    counts = counts_of([vocabulary.encode(tokenize(each)) for each in train[0]], len(vocabulary), 5)
    learned = fit(counts, dimension=50, seed=0, steps=40).inputs
    random = np.random.default_rng(0).normal(size=(len(vocabulary), 50)).astype(np.float32)
    accuracy = sentiment_probe(learned, vocabulary, train, test)
    assert accuracy > sentiment_probe(random, vocabulary, train, test)
    assert accuracy > 0.6


@pytest.mark.parametrize("place", ["", "moved"])
def test_stop_words_are_those_of_scikit_learn_wherever_it_keeps_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str
) -> None:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    if place:
        monkeypatch.setattr(evaluation, "_folder", lambda package: tmp_path / place)
    assert stop_words() == ENGLISH_STOP_WORDS


def test_what_a_student_without_labels_is_measured_by_imports_neither_scikit_learn_nor_statistics() -> None:
    program = (
        "import sys, numpy as np\n"
        "from learning.embeddings.evaluation import stop_words, wordsim\n"
        "from learning.text.words import Vocabulary\n"
        "stop_words(), wordsim(np.eye(2, dtype=np.float32), Vocabulary(('tiger', 'cat')))\n"
        "print(*{'sklearn', 'scipy.stats'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    assert found.stdout.split() == []
