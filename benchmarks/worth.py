"""What synthetic texts are worth: a classifier of topics that learned from them alone, beside some of real texts.

    python benchmarks/worth.py PUBLISHED [--seeds 3]

PUBLISHED is the folder that `coordinator run examples/distildp/plan.toml` wrote. A classifier is the packaged encoder,
frozen, and a last layer, trained on the synthetic texts with their codes as labels, on as many real ones, and on all
10,000 real ones. Each is tested on the whole development file. The synthetic texts are public, so training on them
spends nothing; training on the real ones so has no privacy. Results go to benchmarks/results/worth.json. It needs
../shared/data.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data").absolute() / "ag_news"
TOPICS = ["world", "sports", "business", "science"]
LONGEST = 64


def main() -> None:
    """Train the classifiers and write down how often each is right."""
    parser = argparse.ArgumentParser(description="Train classifiers on synthetic texts and on real ones.")
    parser.add_argument("published", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    folder = options.published / "student" if (options.published / "student").exists() else options.published
    said = json.loads((folder / "privacy.json").read_text())
    synthetic = [json.loads(line) for line in (folder / "texts/train.jsonl").read_text("utf-8").splitlines()]
    rows = [{"text": row["text"], "label": str(1 + TOPICS.index(row["category"]))} for row in synthetic]
    real = [json.loads(line) for line in (DATA / "train.jsonl").read_text("utf-8").splitlines()]
    dev = [json.loads(line) for line in (DATA / "dev.jsonl").read_text("utf-8").splitlines()]
    encoder = Encoder()
    tests, seen, read = encoder.of(dev), encoder.of(real), encoder.of(rows)
    found = {}
    size = len(rows)
    taught = {
        "synthetic": (rows, read),
        "as many real ones": (real[:size], seen[:size]),
        "all real ones": (real, seen),
    }
    for name, (own, vectors) in taught.items():
        right = [encoder.accuracy(own, vectors, dev, tests, seed) for seed in range(1, options.seeds + 1)]
        found[name] = {"texts": len(own), "accuracy": right}
        print(name, found[name], flush=True)
    result = {"epsilon": said["epsilon"], "delta": said["delta"], "encoder": "all-MiniLM-L6-v2", "trained_on": found}
    (ROOT / "benchmarks/results/worth.json").write_text(json.dumps(result, indent=1) + "\n")


class Encoder:
    """The packaged encoder, frozen, and last layers on what it says."""

    def __init__(self) -> None:
        from learning.models.adapting import adapt
        from learning.models.encoders import classifier
        from learning.text.labelled import LabelMap

        self.model, self.tokenizer = classifier("all-MiniLM-L6-v2", LabelMap(tuple(TOPICS)), seed=1)
        adapt(self.model, "head", seed=1)

    def of(self, rows: list[dict[str, Any]]) -> Any:
        """The vectors of texts, float32 [texts, width]."""
        from learning.models.batching import encode
        from learning.models.features import features

        return features(self.model, encode(self.tokenizer, [row["text"] for row in rows], longest=LONGEST).rows)

    def accuracy(
        self, rows: list[dict[str, Any]], vectors: Any, tests: list[dict[str, Any]], seen: Any, seed: int
    ) -> float:
        """The share of test texts whose topic a last layer, trained on rows' vectors, names."""
        import numpy as np
        import torch

        from learning.classification.training import Fit, fit_head, predict_head
        from learning.models.features import head_alone

        like = head_alone(self.model)
        assert like is not None
        torch.manual_seed(seed)
        head = torch.nn.Linear(like.in_features, like.out_features)
        labels, right = (np.array([int(row["label"]) - 1 for row in some]) for some in (rows, tests))
        fit_head(head, vectors, labels, Fit(epochs=10, learning_rate=3e-3), np.random.default_rng(seed))
        return float((predict_head(head, seen).argmax(axis=1) == right).mean())


if __name__ == "__main__":
    main()
