"""How the public projection of noisy vectors is best made: its class directions, and what part of the norm they take.

    python benchmarks/nvdp_projection.py [--out benchmarks/results/nvdp_projection.json]

ridges: accuracy of the public rule alone, 1 direction and 8 dimensions, where 2,000 public texts are of one kind and
800 or 872 tested ones of the same or another: reviews of imdb, phrases of SST-2.
settings: accuracy on SST-2's 872 sentences of what is learned from 20,000 noisy vectors and labels at epsilon 1, 4, 8,
mean, deviation and least of five draws of noise; of the public rule, and of the same vectors without noise. Features
are those of nvdp_certified.py.
strays: the same at 8 and 32 dimensions, by how far a private covariance is expected to stray from the public one.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvdp_certified import DATA, ROOT, encoded, features_of, split

from learning.noisy_vectors import moments
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.projection import EMPHASIS, RIDGE, Projection, class_directions
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.training import floor, learned, plain

RIDGES = (0.1, 0.3, 1.0, 2.0, 4.0, 10.0, 1000.0)
EMPHASES = (None, 0.3, 0.6, 0.8)
STRAYS = (1.0, 0.3, 0.1, 0.03)
DIMENSIONS, TEXTS, DRAWS, TESTED = (1, 2, 4, 8, 16, 32), 20_000, 5, 800

Floats = NDArray[Any]


def ridges(features: dict[str, Floats]) -> dict[str, Any]:
    """The public rule's accuracy under every ridge."""
    reviews = features["public"], features["public_labels"]
    phrases = features["private"][:2000], features["private_labels"][:2000]
    sentences = features["heldout"], features["heldout_labels"]
    others = features_of(DATA / "imdb/dev.jsonl", TESTED)
    found = {}
    for name, public, tested in (
        ("imdb to sst2", reviews, sentences), ("sst2 to imdb", phrases, others),
        ("imdb to imdb", reviews, others), ("sst2 to sst2", phrases, sentences),
    ):  # fmt: skip
        for ridge in RIDGES:
            right = []
            for dimensions in (1, 8):
                projection, statistics = made(*public, dimensions, ridge, 0.6 if dimensions > 1 else None)
                right.append(accuracy(floor(statistics), projection.applied(tested[0]), tested[1]))
            found[f"{name}, ridge {ridge:g}"] = right
            print(name, ridge, right, flush=True)
    return found


def settings(features: dict[str, Floats]) -> dict[str, Any]:
    """What is learned from noisy rows, by ridge, emphasis and dimensions."""
    found = {}
    for dimensions in DIMENSIONS:
        for ridge in (0.1, 1.0, 1000.0):
            for emphasis in EMPHASES if dimensions > 1 else (None,):
                name = f"{dimensions} dimensions, ridge {ridge:g}, emphasis {emphasis or 'as it is'}"
                found[name] = setting(features, dimensions, ridge, emphasis)
                print(name, found[name], flush=True)
    return found


def setting(features: dict[str, Floats], dimensions: int, ridge: float, emphasis: float | None) -> dict[str, Any]:
    """The figures of one projection."""
    projection, public = made(features["public"], features["public_labels"], dimensions, ridge, emphasis)
    vectors, own = projection.applied(features["private"][:TEXTS]), features["private_labels"][:TEXTS]
    heldout, answers = projection.applied(features["heldout"]), features["heldout_labels"]
    clean = plain(vectors, own, Noise(0.0, math.inf, 2), public)
    found: dict[str, Any] = {
        "floor": accuracy(floor(public), heldout, answers), "clean": accuracy(clean, heldout, answers)
    }  # fmt: skip
    for epsilon in (1.0, 4.0, 8.0):
        sigma, label_epsilon = split(epsilon)
        noise, right = Noise(sigma, label_epsilon, 2), []
        for seed in range(DRAWS):
            rng = np.random.default_rng([seed, dimensions])
            rows = vectors + sigma * rng.normal(size=vectors.shape)
            said = np.where(rng.random(TEXTS) < noise.kept, own, 1 - own)
            right.append(accuracy(learned(rows, said, noise, public), heldout, answers))
        found[f"epsilon {epsilon:g}"] = [round(float(np.mean(right)), 4), round(float(np.std(right)), 4), min(right)]
    return found


def strays(features: dict[str, Floats]) -> dict[str, Any]:
    """What is learned, by what is expected of the private covariance before rows are seen."""
    before, found = moments._STRAYS, {}
    try:
        for most in STRAYS:
            moments._STRAYS = most
            for dimensions in (8, 32):
                name = f"{dimensions} dimensions, strays {most:g}"
                found[name] = setting(features, dimensions, RIDGE, EMPHASIS)
                print(name, found[name], flush=True)
    finally:
        moments._STRAYS = before
    return found


def made(
    features: Floats, labels: Floats, dimensions: int, ridge: float, emphasis: float | None
) -> tuple[Projection, Public]:
    """A projection of public text and what that text says under it."""
    directions = class_directions(features, labels, ridge=ridge)
    projection = Projection.fitted(features, dimensions, directions=directions, emphasis=emphasis)
    return projection, Public.of(projection.applied(features), labels)


def accuracy(rule: Any, vectors: Floats, answers: Floats) -> float:
    """The part that a rule has right."""
    return round(float((rule.classes(vectors) == answers).mean()), 4)


def main() -> None:
    """Run all, and write the file."""
    parser = argparse.ArgumentParser(description="How the public projection of noisy vectors is best made.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/nvdp_projection.json")
    given = parser.parse_args()
    features = encoded()
    found = {"ridges": ridges(features), "settings": settings(features), "strays": strays(features)}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
