"""The script of a data card, run alone on a data set's folder."""

import json
import subprocess
import sys

import numpy as np
import pytest

from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.regression import binned, centres, corrected_scores
from learning.noisy_vectors.script import SCRIPT
from learning.noisy_vectors.training import corrected

datasets = pytest.importorskip("datasets")

SPREADS = np.geomspace(0.5, 0.1, 6)
TOWARD = np.array([0.3, -0.2, 0.2, -0.1, 0.15, 0.1])


def texts(rng, count, toward=TOWARD):
    labels = rng.integers(0, 2, count)
    return (labels[:, None] - 0.5) * toward + rng.normal(size=(count, 6)) * SPREADS, labels


def released(rng, vectors, labels, noise, null=0):
    rows = np.vstack([vectors, np.zeros((null, 6))])
    rows = rows + noise.sigma * rng.normal(size=rows.shape)
    others = (labels + rng.integers(1, noise.classes, len(labels))) % noise.classes
    said = np.where(rng.random(len(labels)) < noise.kept, labels, others)
    return rows, np.concatenate([said, rng.integers(0, noise.classes, null)])


def trained(folder, rows, labels, known):
    """Weights and bias that the script saves; python's -I keeps the environment and this folder off its path."""
    data = datasets.Dataset.from_dict(
        {"vector": rows.astype(np.float32).tolist(), "label": labels.tolist()},
        features=datasets.Features(
            {"vector": datasets.List(datasets.Value("float32"), length=6), "label": datasets.Value("int64")}
        ),
    )
    data.save_to_disk(folder / "samples")
    (folder / "samples" / "known.json").write_text(json.dumps(known))
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-I", "script.py", "samples"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "[" in done.stdout
    return np.load(folder / "samples" / "weights.npy"), np.load(folder / "samples" / "bias.npy")


def known_of(noise, public, **more):
    true = np.isinf(noise.label_epsilon)
    return {
        "sigma": noise.sigma,
        "label_epsilon": None if true else noise.label_epsilon,
        "classes": noise.classes,
        "dimensions": 6,
        "mean": public.mean.tolist(),
        "covariance": public.covariance.tolist(),
        **more,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("label_epsilon", "null"), [(1.5, 0), (np.inf, 15_000)])
def test_the_script_learns_what_the_corrected_trainer_learns_and_classifies_clean_vectors(
    tmp_path, label_epsilon, null
):
    rng, noise = np.random.default_rng(1), Noise(1.0, label_epsilon, 2)
    vectors, own = texts(rng, 20_000, 0.5 * TOWARD[::-1])  # public text differs: nothing is to be had from it alone
    public = Public.of(vectors, own)
    clean, true = texts(rng, 30_000)
    rows, labels = released(rng, clean, true, noise, null)
    classes = {"class_means": public.class_means.tolist(), "shares": public.shares.tolist()}
    weights, bias = trained(tmp_path, rows, labels, known_of(noise, public, **classes))

    test, answers = texts(rng, 20_000)
    best = ((test * TOWARD / SPREADS**2).sum(axis=1) > 0) == answers
    right = (test @ weights + bias).argmax(axis=1) == answers
    assert right.mean() > best.mean() - 0.04
    ours = corrected(rows, labels, noise, public).classes(test) == answers
    assert abs(right.mean() - ours.mean()) < 0.01


@pytest.mark.slow
def test_the_script_learns_scores_from_bins(tmp_path):
    rng, noise, middles = np.random.default_rng(2), Noise(0.8, 3.0, 4), centres(0, 5, 4)
    vectors = rng.normal(size=(40_000, 6)) * SPREADS
    scores = 2.5 + vectors @ (TOWARD * 6)
    public = Public.of(rng.normal(size=(20_000, 6)) * SPREADS)
    rows, labels = released(rng, vectors, binned(scores, 0, 5, 4), noise)
    weights, bias = trained(tmp_path, rows, labels, known_of(noise, public, scores=middles.tolist()))
    assert weights.shape == (6, 1)
    assert bias.shape == (1,)
    said = vectors @ weights[:, 0] + bias
    assert np.corrcoef(said, scores)[0, 1] > 0.9
    ours = corrected_scores(rows, labels, noise, public, middles).scores(vectors)
    assert said == pytest.approx(ours, abs=0.3)


def test_the_script_is_short_and_needs_nothing_of_this_project():
    assert SCRIPT.count("\n") <= 25
    assert max(map(len, SCRIPT.splitlines())) <= 120
    assert not any(room in SCRIPT for room in ("aggregation", "learning", "party", "coordinator"))
