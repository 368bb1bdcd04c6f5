"""What synthetic texts are worth: a classifier of topics that learned from them alone, beside some of real texts.

    python benchmarks/worth.py PUBLISHED [--seeds 3]

PUBLISHED is the folder that `coordinator run examples/distildp/plan.toml` wrote. A classifier is the packaged encoder,
frozen, and a last layer, trained by the recipe `fine_tune`: on the synthetic texts with their codes as labels, on as
many real ones, and on all 10,000 real ones. Each is tested on the whole development file. The synthetic texts are
public, so training on them spends nothing; training on the real ones so has no privacy. Results go to
benchmarks/results/worth.json. It needs ../shared/data.
"""

import argparse
import json
import os
import tempfile
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
    found = {}
    for name, some in (("synthetic", rows), ("as many real ones", real[: len(rows)]), ("all real ones", real)):
        found[name] = {"texts": len(some), "accuracy": [accuracy(some, seed) for seed in range(1, options.seeds + 1)]}
        print(name, found[name], flush=True)
    result = {"epsilon": said["epsilon"], "delta": said["delta"], "encoder": "all-MiniLM-L6-v2", "trained_on": found}
    (ROOT / "benchmarks/results/worth.json").write_text(json.dumps(result, indent=1) + "\n")


def accuracy(rows: list[dict[str, Any]], seed: int) -> float:
    """The share of the development file's texts whose topic a classifier of these rows names."""
    from coordinator import api
    from coordinator.systems.registry import plan_of

    with tempfile.TemporaryDirectory() as beside:
        source = Path(beside) / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        tables = {
            "run": {"name": "worth", "recipe": "fine_tune", "seed": seed},
            "privacy": {"epsilon": 1.0, "delta": 1e-6, "record": "document", "declared_size": len(rows)},
            "federation": {
                "launch": "ray",
                "shards": {
                    "source": str(source), "text": "text", "label": "label", "split": {"by": "hash", "parties": 1},
                },
            },
            "text": {"labels": TOPICS, "values": ["1", "2", "3", "4"], "longest": LONGEST},
            "model": {"name": "all-MiniLM-L6-v2", "adapt": "head"},
            "fine_tune": {"epochs": 5},
            "evaluation": {"source": str(DATA / "dev.jsonl"), "text": "text", "label": "label"},
        }  # fmt: skip
        result = api.run(plan_of(tables), output=Path(beside) / "classifier")
        return float(result.metrics["accuracy"])


if __name__ == "__main__":
    main()
