"""What a comparison takes, and what its cells say: of this tree, and beside it of an earlier one.

    python benchmarks/comparing.py [--before FOLDER] [--seeds 3] [--repeats 2] [--out FILE]

Three plans: counts, moments and teachers of Conclave's documentation; classifiers of made-up films on a tiny BERT; the
same classifiers on students that are distilled from it.
Both trees compare each in turn, in processes of their own on one thread, in new folders. seconds: of the processor,
from the call to the table, the fewest of all repeats; rows: of the first repeat, a row at an epsilon in both trees, and
by how many spreads over the seeds the two means are apart; rows without noise must be equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
GOOD, BAD = ("good", "great", "bright", "fast"), ("bad", "awful", "dull", "slow")
OTHER = ("the", "a", "film", "was", "plot", "actor")
EPSILONS = "[2.0, 8.0]"
ROWS = {
    "films": [],
    "distilled": [],
    "documentation": ["counts", "moments", "pate", "hidden", "unigram", "non-private"],
}
"""Rows that are compared; all where none are named."""
MEASURE = """
import json, sys, time
from coordinator import api
began = time.process_time()
found = api.compare("plan.toml", recipes=json.loads(sys.argv[4]), epsilons=json.loads(sys.argv[1]),
                    seeds=int(sys.argv[2]), output=sys.argv[3])
seconds = time.process_time() - began
cells = [[c.method, c.epsilon, c.seed, c.paid, c.metrics[found.view.metric], c.seconds] for c in found.cells]
print(json.dumps({"seconds": seconds, "cells": cells}))
"""
FILMS = """
[run]
name = "films"
recipe = "dp_sgd"
seed = 7
[privacy]
epsilon = 4.0
delta = 1e-5
record = "document"
dropouts = 1
declared_size = 400
[federation]
launch = "ray"
[federation.shards]
source = "films.jsonl"
label = "stars"
split = { by = "hash", parties = 4 }
[text]
labels = ["no", "yes"]
values = ["0", "1"]
longest = 32
[model]
name = "encoder"
[dp_sgd]
steps = 20
batch = 60
learning_rate = 0.05
[pate]
source = "public.jsonl"
queries = 60
teachers_per_party = 3
epochs = 10
learning_rate = 0.05
[fine_tune]
epochs = 5
learning_rate = 0.05
[evaluation]
source = "heldout.jsonl"
label = "stars"
"""
DISTILLED = """
[[corpus]]
source = "public.jsonl"
[domain]
epsilon = 0.5
texts = 40
steps = 10
batch = 60
clip = 1.0
[selection]
texts = 60
clusters = 4
[distil]
layers = 1
passes = 1
batch = 16
micro_batch = 16
longest = 16
mask = 0.0
"""


def films(folder: Path) -> None:
    """The plan of made-up films, and a tiny BERT beside it."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, BertTokenizerFast  # type: ignore[attr-defined]  # made when asked

    (folder / "plan.toml").write_text(FILMS)
    rng = np.random.default_rng(0)
    for name, count in (("films", 400), ("public", 300), ("heldout", 300)):
        rows = []
        for number in range(count):
            words = rng.permutation([*rng.choice(OTHER, 4), *rng.choice(GOOD if number % 2 else BAD, 1)])
            rows.append(json.dumps({"text": " ".join(words), "stars": number % 2}) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(rows))
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    numbers = {word: place for place, word in enumerate((*special, *GOOD, *BAD, *OTHER))}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    BertTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / "encoder")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(numbers), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "encoder")
    pooling = folder / "encoder/1_Pooling/config.json"
    pooling.parent.mkdir()
    pooling.write_text('{"pooling_mode_mean_tokens": true}')  # so that the last layer alone is trained


def distilled(folder: Path) -> None:
    """The plan of `films` with a smaller student, distilled on the public films."""
    films(folder)
    (folder / "plan.toml").write_text(FILMS.replace('recipe = "dp_sgd"', 'recipe = "privdistil"') + DISTILLED)


def documentation(folder: Path) -> None:
    """The plan that `coordinator init` writes, smaller."""
    from coordinator.systems.registry import template

    text = template("ray").replace("size   = 1000", "size   = 300").replace("dimension = 100", "dimension = 16")
    (folder / "plan.toml").write_text(text)


def compared(tree: Path, folder: Path, seeds: int, output: str, rows: list[str]) -> dict[str, Any]:
    """What a tree's comparison of the plan in a folder took and found."""
    environment = os.environ | {"PYTHONPATH": str(tree), "CONCLAVE_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEASURE, EPSILONS, str(seeds), output, json.dumps(rows)],
        cwd=folder, env=environment, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def apart(before: list[list[Any]], after: list[list[Any]]) -> list[dict[str, Any]]:
    """Every row at every epsilon in both trees: what was paid, means and spreads of the metric, seconds of a cell."""
    rows = []
    for method, epsilon in dict.fromkeys((cell[0], cell[1]) for cell in after):
        own = [[cell for cell in cells if cell[:2] == [method, epsilon]] for cells in (before, after)]
        values = [[cell[4] for cell in cells] for cells in own]
        spread = max(stdev(each) if len(each) > 1 else 0.0 for each in values)
        means = [fmean(each) for each in values]
        rows.append(
            {
                "row": method,
                "epsilon": epsilon,
                "paid": [cells[0][3] for cells in own],
                "means": means,
                "spread": spread,
                "spreads_apart": abs(means[0] - means[1]) / spread if spread else 0.0,
                "equal": values[0] == values[1],
                "seconds": [fmean(cell[5] for cell in cells) for cells in own],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    trees = {"after": ROOT} if asked.before is None else {"before": asked.before.absolute(), "after": ROOT}
    found: dict[str, Any] = {"cores": os.cpu_count(), "seeds": asked.seeds, "repeats": asked.repeats}
    for name, make in (("films", films), ("distilled", distilled), ("documentation", documentation)):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            make(folder)
            taken: dict[str, list[dict[str, Any]]] = {tree: [] for tree in trees}
            for number in range(asked.repeats):
                for tree, root in trees.items():
                    taken[tree].append(compared(root, folder, asked.seeds, f"{tree}-{number}", ROWS[name]))
            found[name] = {tree: {"seconds": min(each["seconds"] for each in runs)} for tree, runs in taken.items()}
            if "before" in trees:
                found[name]["rows"] = apart(taken["before"][0]["cells"], taken["after"][0]["cells"])
        print(json.dumps(found[name], indent=1), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
