"""Regression on noisy vectors: made-up scores that are linear in clean vectors."""

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.regression import (
    binned,
    centres,
    corrected_scores,
    floor_scores,
    learned_scores,
    plain_scores,
)

SIZE, BINS = 5, 6
SPREADS = np.geomspace(0.5, 0.15, SIZE)
TRUE = np.array([1.0, -2.0, 1.0, 3.0, 2.0])


def _texts(rng, count, weight):
    vectors = rng.normal(size=(count, SIZE)) * SPREADS
    return vectors, np.clip(2.5 + vectors @ weight + 0.3 * rng.normal(size=count), 0, 5)


def _released(rng, vectors, scores, noise, null=0):
    bins = binned(scores, 0, 5, BINS)
    others = (bins + rng.integers(1, BINS, len(bins))) % BINS
    said = np.where(rng.random(len(bins)) < noise.kept, bins, others)
    whole = np.vstack([vectors, np.zeros((null, SIZE))])
    whole = whole + noise.sigma * rng.normal(size=whole.shape)
    return whole, np.concatenate([said, rng.integers(0, BINS, null)])


def _fits(rule, rng):
    vectors, scores = _texts(rng, 10_000, TRUE)
    return float(np.corrcoef(rule.scores(vectors), scores)[0, 1])


def test_scores_fall_into_equal_bins_and_strange_ones_into_some():
    assert centres(0, 5, 5) == pytest.approx([0.5, 1.5, 2.5, 3.5, 4.5])
    assert list(binned(np.array([0.0, 0.9, 1.0, 5.0, 9.0, -1.0, np.nan, np.inf]), 0, 5, 5)) == [0, 0, 1, 4, 4, 0, 0, 4]
    for bins, high in ((1, 5), (3, 0)):
        with pytest.raises(ConclaveError):
            centres(0, high, bins)
        with pytest.raises(ConclaveError):
            binned(np.zeros(2), 0, high, bins)


def test_clean_rows_give_the_weights_themselves():
    rng = np.random.default_rng(0)
    public = Public.of(_texts(rng, 5000, TRUE)[0])
    vectors, scores = _texts(rng, 50_000, TRUE / 3)
    noise = Noise(0.0, np.inf, 40)
    rule = learned_scores(vectors, binned(scores, 0, 5, 40), noise, public, centres(0, 5, 40))
    assert rule.weights == pytest.approx(TRUE / 3, abs=0.05)
    assert rule.bias == pytest.approx(2.5, abs=0.05)


def test_noise_on_vectors_and_bins_is_corrected_in_size_too():
    rng = np.random.default_rng(1)
    public = Public.of(_texts(rng, 20_000, TRUE)[0])
    noise = Noise(0.6, 2.0, BINS)
    rows = _released(rng, *_texts(rng, 100_000, TRUE / 3), noise)
    middles = centres(0, 5, BINS)
    for trainer in (learned_scores, corrected_scores):
        assert trainer(*rows, noise, public, middles).weights == pytest.approx(TRUE / 3, abs=0.45)
    assert np.linalg.norm(plain_scores(*rows, noise, public, middles).weights) < np.linalg.norm(TRUE / 3) / 2


def test_under_much_noise_public_scores_lead_and_beat_both_controls():
    noise, middles = Noise(4.0, 1.5, BINS), centres(0, 5, BINS)
    found = {each: [] for each in (learned_scores, corrected_scores, plain_scores)}
    floors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        near = TRUE + rng.normal(size=SIZE) * 1.5
        vectors, scores = _texts(rng, 5000, near)
        public = Public.of(vectors, scores=scores)
        rows = _released(rng, *_texts(rng, 4000, TRUE), noise, null=1000)
        floors.append(_fits(floor_scores(public, 2.5), rng))
        for trainer, fits in found.items():
            fits.append(_fits(trainer(*rows, noise, public, middles), rng))
    assert np.mean(found[learned_scores]) > np.mean(floors) - 0.1
    assert np.mean(found[learned_scores]) > np.mean(found[corrected_scores]) + 0.1
    assert np.mean(found[learned_scores]) > np.mean(found[plain_scores]) + 0.1


def test_what_does_not_fit_is_refused():
    rng = np.random.default_rng(2)
    vectors, scores = _texts(rng, 20, TRUE)
    public, noise = Public.of(vectors), Noise(1.0, 1.0, BINS)
    with pytest.raises(ConclaveError, match="6 bins"):
        learned_scores(vectors, binned(scores, 0, 5, BINS), noise, public, centres(0, 5, 4))
    with pytest.raises(ConclaveError, match="without scores"):
        floor_scores(public, 2.5)
