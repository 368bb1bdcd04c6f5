"""What is learned from one noisy vector a text, beside its floor, its controls, an attack and private training.

    python benchmarks/nvdp_certified.py [--until HH:MM] [--out benchmarks/results/nvdp_certified.json]

Texts are phrases of SST-2 as private text, and imdb reviews as public text, under $CONCLAVE_DATA or ../shared/data; the
encoder is the packaged MiniLM. Features are made once and kept in benchmarks/work. A cell is one number of texts,
dimensions, epsilon and seed; those that the file holds are not run again, and none begins after --until.

The epsilon of a cell is that of vector and label together under replace-one, delta 1e-5, divided as a run divides it
(`coordinator.systems.nvdp.splitting`). With `labels` "true" it is the vector's, and the label leaves as it is.
Accuracies are of 872 sentences without noise. floor: public text alone. naive: logistic regression of the released
rows. corrected, learned: `learning.noisy_vectors.training`. alone: `learned` where public labels made the projection
only, so that the rule comes from released rows. clean: logistic regression of the same texts' vectors without noise.
attack: the part of released rows whose own text is the nearest among all. exposed: the same attack where the noise is
0.13, which protects nothing: there it must succeed. words: five words guessed of each of 3,000 texts by whoever has
2,000 other texts of the same kind (f1, against f1 where every text gets the most frequent words), from released rows,
from vectors without noise, and from all 384 numbers of the encoder. private: logistic regression of the 384 features by
noisy gradient descent over all texts, at the same epsilon, delta and relation.
"""

import argparse
import json
import math
import os
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from coordinator.systems.nvdp import splitting
from learning.audits.inversion import WordReader, nearest_texts, read_words, words_of
from learning.models.checkpoints import PACKAGED
from learning.noisy_vectors.features import sentence_encoder, text_features
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.projection import EMPHASIS, Projection, class_directions
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.training import Rule, corrected, floor, learned, plain
from learning.text.words import Vocabulary, tokenize

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data")
WORK = ROOT / "benchmarks/work"
DELTA = 1e-5
MOST, PUBLIC, ATTACKED, OTHERS = 67_000, 2_000, 3_000, 2_000
STEPS, RATE = 60, 6.0
SEEDS, WORDS = (0, 1, 2), 500
LITTLE = 0.13

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def encoded() -> dict[str, NDArray[Any]]:
    """Features and labels of private, held-out and public texts, from the file of an earlier call if there is one."""
    kept = WORK / "nvdp_certified.npz"
    if not kept.exists():
        found: dict[str, NDArray[Any]] = {}
        for name, path, most in (
            ("public", "imdb/train.jsonl", PUBLIC),
            ("heldout", "sst2/dev.jsonl", 872),
            ("private", "sst2/train.jsonl", MOST),
        ):
            began = time.perf_counter()
            found[name], found[name + "_labels"] = features_of(DATA / path, most)
            print(f"{name}: {len(found[name]):,} texts in {time.perf_counter() - began:.0f} s", flush=True)
        WORK.mkdir(parents=True, exist_ok=True)
        np.savez(kept, **found)
    with np.load(kept) as whole:
        return {name: whole[name] for name in whole.files}


def features_of(path: Path, most: int) -> tuple[NDArray[Any], Ints]:
    """Features [texts, features] and labels of so many texts of a file, drawn by seed 0."""
    rows = drawn(path, most)
    labels = np.array([row["label"] for row in rows], np.int64)
    return text_features(*sentence_encoder(PACKAGED), [row["text"] for row in rows]), labels


def drawn(path: Path, most: int) -> list[dict[str, Any]]:
    """So many rows of a file, drawn by seed 0."""
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:most]]


@cache
def deviation(epsilon: float) -> float:
    """The standard deviation of the noise on a vector of norm at most 1, whose replacement moves it by 2 at most."""
    return 2 * calibrate(GaussianDpEvent, epsilon, DELTA)


@cache
def split(epsilon: float) -> tuple[float, float]:
    """(sigma, label epsilon) that together cost epsilon, as a run divides it."""
    label = splitting.label_epsilon(epsilon, DELTA, 2)
    return 2 * splitting.deviation(epsilon, DELTA, label, 2), label


def cell(
    features: dict[str, NDArray[Any]], texts: int, dimensions: int, epsilon: float, seed: int, labels: str
) -> dict[str, float]:
    """The figures of one cell. labels: "changed" or "true"."""
    projection, public = projected(features["public"], features["public_labels"], dimensions)
    rng = np.random.default_rng([seed, texts])
    taken = rng.permutation(len(features["private"]))[:texts]
    vectors, own = projection.applied(features["private"][taken]), features["private_labels"][taken]
    sigma, label_epsilon = split(epsilon) if labels == "changed" else (deviation(epsilon), math.inf)
    noise = Noise(sigma, label_epsilon, 2)
    rows = vectors + sigma * rng.normal(size=vectors.shape)
    said = np.where(rng.random(texts) < noise.kept, own, 1 - own)
    heldout, answers = projection.applied(features["heldout"]), features["heldout_labels"]

    def right(rule: Rule) -> float:
        return float((rule.classes(heldout) == answers).mean())

    some = np.arange(min(ATTACKED, texts))
    told = None if math.isinf(label_epsilon) else (said[some], own, 2 * sigma**2 * label_epsilon)
    attack = nearest_texts(rows[some], vectors, some, told)
    return {
        "sigma": sigma,
        "label_epsilon": label_epsilon if math.isfinite(label_epsilon) else -1.0,
        "floor": right(floor(public)),
        "naive": right(plain(rows, said, noise, public)),
        "corrected": right(corrected(rows, said, noise, public)),
        "learned": right(learned(rows, said, noise, public)),
        "alone": right(learned(rows, said, noise, Public.of(projection.applied(features["public"])))),
        "clean": right(plain(vectors, own, Noise(0.0, math.inf, 2), public)),
        "attack": attack.first,
        "attack_among_ten": attack.among_ten,
        "attack_chance": attack.chance,
    }


def exposed(features: dict[str, NDArray[Any]], texts: int, dimensions: int, seed: int) -> dict[str, float]:
    """The attack of `cell` where the noise is far too small to protect."""
    projection, _ = projected(features["public"], features["public_labels"], dimensions)
    rng = np.random.default_rng([seed, texts])
    vectors = projection.applied(features["private"][rng.permutation(len(features["private"]))[:texts]])
    some = np.arange(min(ATTACKED, texts))
    attack = nearest_texts(vectors[some] + LITTLE * rng.normal(size=(len(some), dimensions)), vectors, some)
    return {"sigma": LITTLE, "attack": attack.first, "attack_among_ten": attack.among_ten}


_FITTED: dict[int, tuple[Projection, Public]] = {}


def projected(features: NDArray[Any], labels: Ints, dimensions: int) -> tuple[Projection, Public]:
    """The projection of public text, the classes' direction first, and the statistics of what it makes of it."""
    if dimensions not in _FITTED:
        directions = class_directions(features, labels)
        projection = Projection.fitted(features, dimensions, directions=directions, emphasis=EMPHASIS)
        _FITTED[dimensions] = projection, Public.of(projection.applied(features), labels)
    return _FITTED[dimensions]


def words_read(features: dict[str, NDArray[Any]], dimensions: int, epsilon: float) -> dict[str, float]:
    """The word attack: on released rows, on vectors without noise, and on the encoder's own. It takes no other seed."""
    projection, _ = projected(features["public"], features["public_labels"], dimensions)
    texts = [row["text"] for row in drawn(DATA / "sst2/train.jsonl", ATTACKED + OTHERS)]
    seen, known = slice(0, ATTACKED), slice(ATTACKED, ATTACKED + OTHERS)
    counted = Counter(word for text in texts[known] for word in tokenize(text))
    vocabulary = Vocabulary(tuple(word for word, _ in counted.most_common(WORDS)))
    held = words_of(texts, vocabulary)
    own = features["private"][: len(texts)].astype(np.float64)
    vectors, sigma = projection.applied(own), split(epsilon)[0]
    rows = vectors[seen] + sigma * np.random.default_rng(0).normal(size=vectors[seen].shape)
    found = {}
    for name, clean, released, noise in (
        ("released", vectors, rows, sigma), ("without_noise", vectors, vectors[seen], 0.0),
        ("encoder", own, own[seen], 0.0),
    ):  # fmt: skip
        read = read_words(WordReader.fitted(clean[known], held[known], noise), released, held[seen])
        found[name], found["usual"] = read.f1, read.usual
    return found


def trained_privately(features: dict[str, NDArray[Any]], texts: int, epsilon: float, seed: int) -> dict[str, float]:
    """Logistic regression of all features by gradient descent over all texts, with and without noise.

    Every text's gradient is clipped to norm 1, so that replacing one moves the sum by 2 at most; the noise of each step
    is that of one release times the root of the steps: together they are one Gaussian release at epsilon.
    """
    rng = np.random.default_rng([seed, texts])
    taken = rng.permutation(len(features["private"]))[:texts]
    centre = features["public"].mean(axis=0)
    size = float(np.linalg.norm(features["public"] - centre, axis=1).mean())

    def ready(rows: NDArray[Any]) -> Floats:
        return np.hstack([(rows - centre) / size, np.ones((len(rows), 1))]).astype(np.float64)

    inputs, own = ready(features["private"][taken]), features["private_labels"][taken]
    heldout, answers = ready(features["heldout"]), features["heldout_labels"]
    lengths = np.linalg.norm(inputs, axis=1)
    found = {}
    for name, wide in (("private", deviation(epsilon) * math.sqrt(STEPS)), ("without_noise", 0.0)):
        weights, later = np.zeros(inputs.shape[1]), np.zeros(inputs.shape[1])
        for step in range(STEPS):
            off = 1 / (1 + np.exp(-inputs @ weights)) - own
            off /= np.maximum(1.0, np.abs(off) * lengths)
            total = off @ inputs + wide * rng.normal(size=len(weights))
            weights = weights - RATE * total / texts
            later += weights * (step >= STEPS // 2)
        found[name] = float(((heldout @ later > 0) == answers).mean())
    return found


def drawn_cells(found: dict[str, Any], folder: Path) -> None:
    """A picture: accuracy over epsilon, a panel for each number of texts, and the attack beside them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    numbers, epsilons = (3_000, 20_000, 67_000), (1, 2, 4, 8)
    figure, panels = plt.subplots(1, 4, figsize=(17, 4), layout="constrained")
    for panel, texts in zip(panels, numbers, strict=False):

        def mean(key: str, labels: str = "changed", texts: int = texts) -> list[float]:
            return [
                float(np.mean([
                    found["cells"][f"{labels} labels, {texts} texts, 8 dimensions, epsilon {epsilon}, seed {seed}"][key]
                    for seed in SEEDS
                ]))
                for epsilon in epsilons
            ]  # fmt: skip

        private = [
            float(np.mean([
                found["private_training"][f"{texts} texts, epsilon {epsilon}, seed {seed}"]["private"] for seed in SEEDS
            ]))
            for epsilon in epsilons
        ]  # fmt: skip
        panel.plot(epsilons, private, label="private training of one model", color="tab:gray", marker="s")
        panel.plot(epsilons, mean("floor"), label="public text's own rule", color="black", linestyle=":")
        panel.plot(epsilons, mean("learned"), label="learned from rows and public text", color="tab:blue", marker="o")
        panel.plot(epsilons, mean("learned", "true"), label="the same, labels public", color="tab:cyan", marker="o")
        panel.plot(epsilons, mean("alone"), label="learned without public classes", color="tab:green", marker="^")
        panel.plot(epsilons, mean("naive"), label="ordinary training on the rows", color="tab:red", marker="x")
        panel.set(title=f"{texts:,} rows", xlabel="epsilon", xscale="log", ylim=(0.4, 0.85))
        panel.set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
        panel.minorticks_off()
    panels[0].set_ylabel("accuracy on 872 sentences")
    panels[0].legend(fontsize=7, loc="lower right")
    for size in (8, 16, 32):
        ends = f"3000 texts, {size} dimensions, epsilon"
        named = [
            float(np.mean([found["cells"][f"changed labels, {ends} {one}, seed {seed}"]["attack"] for seed in SEEDS]))
            for one in epsilons
        ]
        open_ = found["exposed"][f"3000 texts, {size} dimensions, seed 0"]["attack"]
        panels[3].plot(epsilons, named, marker="o", label=f"{size} dimensions (noise of {LITTLE}: {open_:.0%})")
    panels[3].axhline(1 / ATTACKED, color="black", linestyle=":", label="a guess")
    panels[3].set(title="nearest of 3,000 texts is the own one", xlabel="epsilon", xscale="log", yscale="log")
    panels[3].set_xticks(epsilons, [str(epsilon) for epsilon in epsilons])
    panels[3].minorticks_off()
    panels[3].set_yticks([3e-4, 1e-3, 3e-3], ["0.03%", "0.1%", "0.3%"])
    panels[3].legend(fontsize=7)
    figure.savefig(folder / "nvdp_certified.png", dpi=150)
    figure.savefig(folder / "nvdp_certified.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Run the cells that are not yet in the file, and print a line each."""
    parser = argparse.ArgumentParser(description="What is learned from one noisy vector a text.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/nvdp_certified.json")
    parser.add_argument("--until", default="", help="the local time HH:MM after which no cell begins")
    given = parser.parse_args()
    features = encoded()
    about = {"delta": DELTA, "relation": "replace-one", "public_texts": PUBLIC, "steps": STEPS, "rate": RATE}
    found: dict[str, Any] = {"about": about, "cells": {}, "exposed": {}, "words": {}, "private_training": {}}
    if given.out.exists():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    plan: list[tuple[str, str, tuple[Any, ...]]] = []
    for seed in SEEDS:
        for labels in ("changed", "true"):
            for texts in (20_000, 67_000, 3_000):
                plan += [
                    ("cells", f"{labels} labels, {texts} texts, {size} dimensions, epsilon {epsilon}, seed {seed}",
                     (texts, size, float(epsilon), seed, labels))
                    for epsilon in (4, 8, 2, 1) for size in (8, 16, 32)
                ]  # fmt: skip
        plan += [
            ("private_training", f"{texts} texts, epsilon {epsilon}, seed {seed}", (texts, float(epsilon), seed))
            for texts in (20_000, 67_000, 3_000)
            for epsilon in (4, 8, 2, 1)
        ]
    plan += [
        ("exposed", f"{texts} texts, {size} dimensions, seed 0", (texts, size, 0))
        for texts in (20_000, 3_000)
        for size in (8, 16, 32)
    ]
    plan += [("words", f"{size} dimensions, epsilon {epsilon}", (size, float(epsilon)))
             for size in (8, 16, 32) for epsilon in (1, 2, 4, 8)]  # fmt: skip
    ways = {"words": words_read, "cells": cell, "exposed": exposed, "private_training": trained_privately}
    for part, name, what in plan:
        if name in found[part] or (given.until and time.strftime("%H:%M") >= given.until):
            continue
        made = ways[part](features, *what)
        found[part][name] = {key: round(value, 5) for key, value in made.items()}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(part, name, found[part][name], flush=True)
    if all(name in found[part] for part, name, _ in plan):
        drawn_cells(found, given.out.parent)


if __name__ == "__main__":
    main()
