"""Audits of noisy vectors: rows and student; honest runs stand, broken ones are caught."""

import math
from dataclasses import replace

import numpy as np
import pytest

from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.systems.nvdp.audit import in_rows, seen_noise
from learning.audits import one_run
from learning.noisy_vectors.noise import Noise


@pytest.fixture
def audited_tables(classifier_tables, public_texts):
    def makes(epsilon=1.0, rows=60, **samples):
        tables = classifier_tables(
            "nvdp",
            privacy={"epsilon": epsilon, "noise_multiplier": None},
            model={"pooling": "mean"},
            public={"source": str(public_texts)},
            samples={"rows": rows, "dimensions": 4} | samples,
        )
        del tables["dp_sgd"]
        return tables

    return makes


@pytest.fixture
def quiet(monkeypatch):
    """Parties add almost no noise to vectors and change no label."""
    drawn = SamplesMechanism.drawn

    def less(mechanism, *given):
        return drawn(replace(mechanism, noise_multiplier=0.01, label_epsilon=15.0), *given)

    monkeypatch.setattr(SamplesMechanism, "drawn", less)


@pytest.mark.slow
def test_an_honest_run_is_not_refuted(audit, audited_tables):
    found = audit(audited_tables(), canaries=40, records=100)
    assert [(each.attacked, each.canaries) for each in found.attacks] == [
        ("samples", "worst"), ("samples", "natural"), ("student", "worst"), ("student", "natural"),
    ]  # fmt: skip
    assert not found.broken
    assert found.claimed == pytest.approx(1.0, abs=0.01)


@pytest.mark.slow
def test_rows_without_noise_are_refuted(audit, audited_tables, quiet):
    found = audit(audited_tables(epsilon=0.3), canaries=60, records=100, kinds=["worst"])
    assert found.broken
    (rows,) = [each for each in found.attacks if each.attacked == "samples"]
    assert rows.lower > found.claimed


@pytest.mark.slow
def test_a_run_of_users_and_of_public_labels_is_audited(audit, audited_tables):
    found = audit(audited_tables(labels="public"), canaries=10, records=60, kinds=["natural"])
    assert {each.attacked for each in found.attacks} == {"samples", "student"}
    assert all(np.isfinite(each.lower) for each in found.attacks)


@pytest.mark.parametrize("label_epsilon", [1.0, math.inf])
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_a_text_that_is_not_there_adds_nothing_on_average(sigma, label_epsilon):
    """The mean of a likelihood ratio is 1 where its denominator is the truth."""
    rng, noise, texts = np.random.default_rng(1), Noise(sigma, label_epsilon, 2), 40
    vectors = rng.normal(size=(texts, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels, there = rng.integers(0, 2, texts), np.ones(texts)
    own = np.arange(20)
    there[own] = 0.0
    found = []
    for _ in range(400):
        clean = np.vstack([vectors[20:], np.zeros((20, 5))])
        true = np.concatenate([labels[20:], rng.integers(0, 2, 20)])
        said = np.where(rng.random(texts) < noise.kept, true, 1 - true)
        released = clean + noise.sigma * rng.normal(size=clean.shape)
        found.append(np.exp(in_rows(released, said, vectors, labels, own, there, noise)))
    assert np.mean(found) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 7.0])
def test_noise_is_reckoned_with_as_the_rows_show_it(sigma):
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(200, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    released = np.vstack([vectors, np.zeros((200, 8))])
    released = released + sigma * rng.normal(size=released.shape)
    assert seen_noise(released, vectors, np.ones(200), charged=7.0) == pytest.approx(sigma, rel=0.2)


def test_a_text_among_the_rows_stands_out_where_there_is_little_noise():
    rng, noise = np.random.default_rng(2), Noise(0.2, 2.0, 2)
    vectors = rng.normal(size=(60, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels, coins = rng.integers(0, 2, 60), rng.integers(0, 2, 60).astype(bool)
    said = np.where(rng.random(60) < noise.kept, labels, 1 - labels)
    clean = np.where(coins[:, None], vectors, 0.0)
    scores = in_rows(
        clean + 0.2 * rng.normal(size=clean.shape), said, vectors, labels, np.arange(60), np.full(60, 0.5), noise
    )
    assert (scores[coins][:, None] > scores[~coins]).mean() > 0.95
    assert one_run.audited(scores, coins, delta=1e-5, confidence=0.95).lower > 1.5
