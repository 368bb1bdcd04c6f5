"""A private step of short texts on a processor: its seconds, beside another tree of the project.

    OMP_NUM_THREADS=1 python benchmarks/short_steps.py [--beside FOLDER] [--precision bfloat16] [--adapt lora-all full]
        [--batch 1024] [--rounds 3] [--out benchmarks/results/short_steps.json]

The packaged MiniLM as a classifier, phrases of SST-2 of 13 tokens in the mean, at two parties one after the other:
norms, clipping and sums, without noise and optimiser. Every measurement is a process of its own; the trees take turns,
and what is told is the least processor time of the steps after the first, in which the trial of batch sizes is. It
needs ../shared/data.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PHRASES = ROOT.parent / "shared/data/sst2/train.jsonl"
PARTIES, STEPS = 2, 3


def main() -> int:
    """Every way of training in every tree, in turns."""
    parser = argparse.ArgumentParser(description="Time a private step of short texts on a processor.")
    parser.add_argument("--beside", type=Path, help="another tree of the project")
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--adapt", nargs="+", default=["lora-all", "full"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(steps(asked.one, asked.precision, asked.batch)))
        return 0
    trees = {"here": ROOT} | ({"beside": asked.beside.resolve()} if asked.beside else {})
    rows = []
    for adapt in asked.adapt:
        found: dict[str, list[float]] = {name: [] for name in trees}
        for _ in range(asked.rounds):
            for name, tree in trees.items():
                found[name].append(min(apart(tree, adapt, asked)))
        rows.append({"trained": adapt} | {name: min(each) for name, each in found.items()})
        print(rows[-1], flush=True)
    if asked.out:
        told = {"phrases": asked.batch, "precision": asked.precision, "threads": os.environ.get("OMP_NUM_THREADS")}
        asked.out.write_text(json.dumps(told | {"seconds": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def apart(tree: Path, adapt: str, asked: argparse.Namespace) -> list[float]:
    """The seconds of a tree's steps, in a process of its own with the settings that a party's training has."""
    sys.path.insert(0, str(ROOT))
    from party.tasks.worker import training_environment

    given = ["--one", adapt, "--precision", asked.precision, "--batch", str(asked.batch)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), *given],
        env=training_environment() | {"PYTHONPATH": str(tree)},
        cwd=tree,
        check=True,
        capture_output=True,
        text=True,
    )
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def steps(adapt: str, precision: str, batch: int) -> list[float]:
    """Processor seconds of the steps after the first."""
    import numpy as np
    import torch

    from aggregation.mechanisms.gradients import GradientMechanism
    from learning.models.adapting import Lora
    from learning.models.adapting import adapt as adapted
    from learning.models.batching import encode, losses
    from learning.models.checkpoints import PACKAGED
    from learning.models.compute import Compute, running
    from learning.models.encoders import classifier
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.per_example import PerExample
    from learning.private_training.text_units import TextUnits
    from learning.text.labelled import LabelMap

    with PHRASES.open(encoding="utf-8") as lines:
        phrases = [json.loads(line)["text"] for _, line in zip(range(16 * batch), lines, strict=False)]
    seconds = []
    with running(Compute("cpu", precision)):
        model, tokenizer = classifier(PACKAGED, LabelMap(("negative", "positive")), seed=0)
        adapted(model, adapt, seed=0, lora=Lora(8, 16.0))
        model.train()
        rows = encode(tokenizer, phrases, longest=64).rows
        units = TextUnits(model.config, rows, torch.zeros(len(rows), dtype=torch.long))
        gradients = PerExample(model)
        mechanism = GradientMechanism(1.0, 1 << 20, 1.0, batch / len(units), STEPS, gradients.count)
        for step in range(STEPS + 1):
            began, rng = time.process_time(), np.random.default_rng(step)
            for _ in range(PARTIES):
                taken = np.flatnonzero(rng.random(len(units)) < batch / PARTIES / len(units))
                clipped_sum(gradients, units.micro_batches(taken), losses, mechanism)
            seconds.append(time.process_time() - began)
    return seconds[1:]


if __name__ == "__main__":
    raise SystemExit(main())
