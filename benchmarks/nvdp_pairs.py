"""What is learned from one noisy vector a pair of texts, beside what costs nothing, its controls, and attacks.

    python benchmarks/nvdp_pairs.py [--until HH:MM] [--out benchmarks/results/nvdp_pairs.json]

Tasks: qqp and mrpc (do two texts say the same?), by the plan of examples/nvdp/pairs.toml, with pairs of the STS
Benchmark as public ones, which have no labels; and stsb (how alike are they, from 0 to 5?), by that of
examples/nvdp/scores.toml, with public pairs of MRPC, without scores. Data lie under $CONCLAVE_DATA or ../shared/data;
the encoder is the packaged MiniLM. Rows are drawn and learned from by the code that runs use, all at one party; vectors
are made once and kept in benchmarks/work. A cell is a task, an epsilon and a seed; those that the file holds are not
run again, and none begins after --until.

Classes are measured by accuracy and by F1 of the second class, scores by Pearson's correlation, on pairs without noise.
cosine: what the cosine alone says. floor: the rule of public pairs. naive: ordinary training on the rows. learned: what
a run learns. clean: the same without noise, and with labels as they are. attack: the part of 3,000 rows whose own pair
is the nearest of all. exposed: the same where the noise is 0.13. matched: both texts of 3,000 pairs released as single
texts, at the noise of a single text: how often a first text's own second one is the likeliest of all, and the chance
that a true pair seems likelier than strangers (0.5: a guess); matched_exposed: the same where the noise is 0.13.
"""

import argparse
import json
import math
import os
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import calibrate
from aggregation.noise.stream import NoiseStream
from coordinator.systems.nvdp import splitting
from coordinator.systems.nvdp.pair_student import pair_metrics
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import Rows
from coordinator.systems.nvdp.public import PublicVectors, features_of, prepare
from coordinator.systems.nvdp.releases import mechanism_of, releases
from coordinator.systems.nvdp.rules import Tensors, cosine_said, floor_of, naive_of, rule_of, said_by
from coordinator.systems.registry import plan_of
from learning.audits.inversion import match_pairs, nearest_texts
from learning.models.checkpoints import PACKAGED
from learning.noisy_vectors.features import sentence_encoder, text_features
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.projection import Projection
from learning.noisy_vectors.public import Public
from learning.noisy_vectors.regression import binned
from learning.noisy_vectors.training import plain
from learning.text.labelled import Example, LabelMap

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data")
WORK: Final = ROOT / "benchmarks/work"
PLANS: Final = ROOT / "examples/nvdp"
DELTA: Final = 1e-5
TASKS: Final = {
    "qqp": ("pairs.toml", "qqp/train.jsonl", "qqp/dev.jsonl", 20_000),
    "mrpc": ("pairs.toml", "mrpc/train.jsonl", "mrpc/test.jsonl", 4_000),
    "stsb": ("scores.toml", "stsb/train.jsonl", "stsb/dev.jsonl", 5_700),
}
EPSILONS: Final = (1.0, 2.0, 4.0, 8.0)
SEEDS: Final = (0, 1, 2)
ATTACKED: Final = 3000
LITTLE: Final = 0.13

Floats = NDArray[np.float64]


class Task:
    """A task's plan at any epsilon, its public data, and the private pairs' features and targets."""

    def __init__(self, name: str) -> None:
        file, private, heldout, self.most = TASKS[name]
        self.tables = tomllib.loads((PLANS / file).read_text())
        self.tables["federation"]["shards"]["source"] = str(DATA / private)
        self.tables["evaluation"]["source"] = str(DATA / heldout)
        self.tables["public"]["source"] = str(
            DATA / Path(self.tables["public"]["source"]).relative_to("../../../shared/data")
        )
        self.tables["samples"]["rows"] = self.most
        self.name = name
        self.halves: tuple[Floats, Floats, Public] | None = None
        self.public: PublicVectors = prepare(self.plan(4.0), PLANS, WORK)
        self.examples = examples(self.plan(4.0), DATA / private, self.most)
        self.targets = np.array([each.target for each in self.examples])
        kept = WORK / f"nvdp_pairs-{name}.npy"
        if not kept.exists():
            began = time.perf_counter()
            np.save(kept, features_of(self.plan(4.0), self.public, self.examples))
            print(f"{name}: {self.most:,} pairs in {time.perf_counter() - began:.0f} s", flush=True)
        self.vectors = self.public.projection.applied(np.load(kept))

    def plan(self, epsilon: float) -> NvdpPlan:
        self.tables["privacy"]["epsilon"] = epsilon
        found = plan_of(self.tables)
        assert isinstance(found, NvdpPlan)
        return found


def examples(plan: NvdpPlan, path: Path, most: int) -> tuple[Example, ...]:
    """So many pairs of a file with their targets, drawn by seed 0."""
    rows = [json.loads(line) for line in path.open(encoding="utf-8")]
    targets, found = plan.text.targets, []
    for place in np.random.default_rng(0).permutation(len(rows))[:most]:
        row = rows[place]
        said = row["label"] if isinstance(targets, LabelMap) else row["score"]
        found.append(
            Example(row["sentence1"], row["sentence2"], int(said) if isinstance(targets, LabelMap) else float(said))
        )
    return tuple(found)


def cell(task: Task, epsilon: float, seed: int) -> dict[str, float]:
    """The figures of one cell."""
    plan, public = task.plan(epsilon), task.public
    label = plan.label_epsilon
    multiplier = splitting.deviation(epsilon, DELTA, label, plan.classes)
    mechanism = mechanism_of(releases(plan, multiplier))
    targets = plan.text.targets
    classes = task.targets.astype(np.int64)
    if not isinstance(targets, LabelMap):
        classes = binned(task.targets, targets.low, targets.high, mechanism.classes)
    stream = NoiseStream.insecure(seed, task.name, f"{epsilon:g}")
    matrix = mechanism.drawn(mechanism.contribute(task.vectors.astype(np.float32)), classes, stream)
    vectors, labels = mechanism.released(matrix)
    rows = Rows(vectors, labels, 1)
    floor = floor_of(plan, public)
    assert floor is not None
    found = {"sigma": mechanism.sigma, "label_epsilon": label}
    told = {
        "floor": floor, "naive": naive_of(plan, public, mechanism, rows),
        "learned": rule_of(plan, public, mechanism, rows), "clean": without_noise(task, plan, classes),
    }  # fmt: skip
    for name, rule in told.items():
        found |= figures(name, pair_metrics(plan, public, said_by(plan, public, rule)))
    alone = cosine_said(plan, public)
    assert alone is not None
    found |= figures("cosine", pair_metrics(plan, public, alone))
    rng = np.random.default_rng([seed, len(task.vectors)])
    some = np.arange(min(ATTACKED, len(task.vectors)))
    for name, sigma in (("attack", mechanism.sigma), ("exposed", LITTLE)):
        attack = nearest_texts(
            task.vectors[some] + sigma * rng.normal(size=task.vectors[some].shape), task.vectors, some
        )
        found |= {name: attack.first, f"{name}_among_ten": attack.among_ten, f"{name}_chance": attack.chance}
    return found


def without_noise(task: Task, plan: NvdpPlan, classes: NDArray[np.int64]) -> Tensors:
    """The rule of ordinary training on the pairs' own vectors and targets."""
    targets, none = plan.text.targets, Noise(0.0, math.inf, plan.classes)
    if isinstance(targets, LabelMap):
        rule = plain(task.vectors, classes, none, task.public.statistics)
        return {"weights": rule.weights, "bias": rule.bias}
    inputs = np.hstack([task.vectors, np.ones((len(task.vectors), 1))])
    weights, *_ = np.linalg.lstsq(inputs, task.targets, rcond=None)
    return {"weights": weights[:-1, None], "bias": weights[-1:]}


def figures(name: str, metrics: dict[str, Any]) -> dict[str, float]:
    """A row's figures under its name."""
    return {f"{name}_{key}": metrics[key] for key in ("accuracy", "f1", "pearson") if metrics.get(key) is not None}


def halves(task: Task) -> tuple[Floats, Floats, Public]:
    """Both texts of the attacked pairs as single texts' vectors, and what public texts have."""
    if task.halves is None:
        model, tokenizer = sentence_encoder(PACKAGED)
        some = task.examples[:ATTACKED]
        public = [json.loads(line)["sentence1"] for line in (DATA / "mrpc/train.jsonl").open(encoding="utf-8")]
        known, first, second = (
            text_features(model, tokenizer, texts)
            for texts in (public, [each.first for each in some], [each.second or "" for each in some])
        )
        projection = Projection.fitted(known, 8)
        task.halves = projection.applied(first), projection.applied(second), Public.of(projection.applied(known))
    return task.halves


def matched(task: Task, epsilon: float) -> dict[str, float]:
    """Which first text belongs to which second one, where both leave as single texts with labels that are public."""
    first, second, public = halves(task)
    found, rng = {"pairs": float(len(first))}, np.random.default_rng(0)
    for name, sigma in (("matched", 2 * calibrate(GaussianDpEvent, epsilon, DELTA)), ("matched_exposed", LITTLE)):
        one, other = (side + sigma * rng.normal(size=side.shape) for side in (first, second))
        attack = match_pairs(one, other, sigma, public.mean, public.covariance)
        found |= {f"{name}_first": attack.first, f"{name}_area": attack.area}
    return found


def main() -> None:
    """Run the cells that are not yet in the file, and print a line each."""
    parser = argparse.ArgumentParser(description="What is learned from one noisy vector a pair of texts.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/nvdp_pairs.json")
    parser.add_argument("--until", default="", help="the local time HH:MM after which no cell begins")
    given = parser.parse_args()
    found: dict[str, Any] = {"about": {"delta": DELTA, "relation": "replace-one"}, "cells": {}, "matched": {}}
    if given.out.exists():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    WORK.mkdir(parents=True, exist_ok=True)
    for name in TASKS:
        cells = {f"{name}, epsilon {epsilon:g}, seed {seed}": (epsilon, seed) for epsilon in EPSILONS for seed in SEEDS}
        pairs = {f"{name}, epsilon {epsilon:g}": epsilon for epsilon in EPSILONS}
        if cells.keys() <= found["cells"].keys() and pairs.keys() <= found["matched"].keys():
            continue
        task = Task(name)
        for part, wanted in (("cells", cells), ("matched", pairs)):
            for title, what in wanted.items():
                if title in found[part] or (given.until and time.strftime("%H:%M") >= given.until):
                    continue
                made = cell(task, *what) if isinstance(what, tuple) else matched(task, what)
                found[part][title] = {key: round(value, 5) for key, value in made.items()}
                given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
                print(title, found[part][title], flush=True)


if __name__ == "__main__":
    main()
