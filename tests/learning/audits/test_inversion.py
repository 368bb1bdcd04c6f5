"""Attacks on released vectors: they succeed where there is no noise, and end at a guess where there is much."""

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.audits.inversion import WordReader, match_pairs, nearest_texts, read_words, words_of
from learning.text.words import Vocabulary

SIZE = 8


def _vectors(count=2000, seed=0):
    made = np.random.default_rng(seed).normal(size=(count, SIZE)) / 4
    return made / np.maximum(1, np.linalg.norm(made, axis=1, keepdims=True))


def test_a_clean_vector_s_text_is_found_and_a_very_noisy_one_s_is_not():
    texts, rng = _vectors(), np.random.default_rng(1)
    own = rng.permutation(len(texts))[:500]
    clean = nearest_texts(texts[own], texts, own)
    assert (clean.first, clean.among_ten, clean.place) == (1.0, 1.0, 0.0)
    lost = nearest_texts(texts[own] + 100 * rng.normal(size=(500, SIZE)), texts, own)
    assert lost.first < 0.01
    assert lost.place == pytest.approx(0.5, abs=0.05)
    assert lost.chance == 1 / 2000


@pytest.mark.slow
def test_more_noise_finds_fewer_texts():
    texts, rng = _vectors(), np.random.default_rng(2)
    own = np.arange(len(texts))
    found = [nearest_texts(texts + s * rng.normal(size=texts.shape), texts, own).first for s in (0.05, 0.1, 0.3, 2.0)]
    assert found[0] > 0.9
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.01


def test_equal_texts_share_a_hit_and_blocks_change_nothing(monkeypatch):
    texts = np.repeat(_vectors(50), 2, axis=0)
    own = np.arange(100)
    whole = nearest_texts(texts, texts, own)
    assert whole.first == pytest.approx(0.5)
    assert whole.among_ten == 1.0
    monkeypatch.setattr("learning.audits.inversion._AT_ONCE", 250)
    assert nearest_texts(texts, texts, own) == whole


def test_a_label_helps_as_much_as_its_epsilon_allows():
    texts, rng = _vectors(400), np.random.default_rng(3)
    labels, own, sigma = rng.integers(0, 2, 400), np.arange(400), 0.5
    released = texts + sigma * rng.normal(size=texts.shape)
    plain = nearest_texts(released, texts, own).first
    told = nearest_texts(released, texts, own, (labels, labels, 2 * sigma**2 * 20.0)).first
    assert told > plain
    assert nearest_texts(released, texts, own, (labels, labels, 0.0)).first == plain


def test_words_that_a_vector_shows_are_read_and_under_noise_only_the_usual_ones():
    rng = np.random.default_rng(4)
    loads = rng.normal(size=(30, SIZE))

    def texts(count):
        held = rng.random((count, 30)) < np.linspace(0.05, 0.3, 30)
        vectors = held @ loads
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-9), held

    public, held = texts(4000)
    private, theirs = texts(1000)
    clean = read_words(WordReader.fitted(public, held, 0.0), private, theirs, 4)
    assert clean.gained > 0.15
    noisy = private + 5 * rng.normal(size=private.shape)
    read = read_words(WordReader.fitted(public, held, 5.0), noisy, theirs, 4)
    assert abs(read.gained) < 0.03
    # A reader that does not know of the noise does worse than one that does.
    assert read_words(WordReader.fitted(public, held, 0.0), noisy, theirs, 4).f1 < read.f1
    assert read.f1 == pytest.approx(2 * read.precision * read.recall / (read.precision + read.recall))


def test_words_are_those_of_the_vocabulary():
    held = words_of(["Good film, GOOD plot", "nothing here", ""], Vocabulary(("good", "plot", "bad")))
    assert held.tolist() == [[True, True, False], [False] * 3, [False] * 3]


def test_halves_of_a_pair_are_matched_without_noise_and_not_under_much():
    rng = np.random.default_rng(5)
    shared = _vectors(1000, seed=6)
    first, second = (shared + 0.02 * rng.normal(size=shared.shape) for _ in range(2))
    mean, covariance = shared.mean(axis=0), np.cov(shared, rowvar=False)
    clean = match_pairs(first, second, 0.02, mean, covariance)
    assert clean.first > 0.95
    assert clean.area > 0.999
    noisy = [each + 4 * rng.normal(size=each.shape) for each in (first, second)]
    lost = match_pairs(*noisy, 4.0, mean, covariance)
    assert lost.first < 0.01
    assert lost.area == pytest.approx(0.5, abs=0.05)


def test_arrays_that_do_not_fit_are_refused():
    texts = _vectors(10)
    reader = WordReader.fitted(texts, np.ones((10, 3), np.bool_), 1.0)
    for call in (
        lambda: nearest_texts(texts[:, :2], texts, np.arange(10)),
        lambda: nearest_texts(texts, texts, np.arange(10) + 1),
        lambda: nearest_texts(texts, texts, np.arange(9)),
        lambda: WordReader.fitted(texts, np.ones((9, 3), np.bool_), 1.0),
        lambda: read_words(reader, texts, np.zeros((10, 3), np.bool_)),
        lambda: read_words(reader, texts, np.ones((10, 3), np.bool_), 4),
        lambda: match_pairs(texts, texts[:5], 1.0, texts.mean(axis=0), np.cov(texts, rowvar=False)),
    ):
        with pytest.raises(ConclaveError):
            call()
