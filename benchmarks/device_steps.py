"""What a private step on a device waits for: seconds of a step of many short texts, over how they are put together.

    python benchmarks/device_steps.py [--device cuda] [--steps 5] [--adapt lora-all] [--batch 2048]
        [--out benchmarks/results/device_steps.json]

The packaged MiniLM as a classifier, phrases of SST-2, and a step of so many of them at four parties one after another.
Texts are padded to multiples of some length and go through the model in micro-batches of some tokens: fewer lengths and
larger micro-batches are fewer calls, and more padding. Each pair is tried on a model of its own, after the trial of
which batch sizes agree. It needs ../shared/data.
"""

import argparse
import json
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from placing import placed

ROOT = Path(__file__).resolve().parents[1]
PHRASES = ROOT.parent / "shared/data/sst2/train.jsonl"
PARTIES = 4
TRIED = ((16, 8192), (32, 8192), (32, 16384), (64, 16384), (32, 32768))
"""Multiples that texts are padded to, and tokens of a micro-batch."""


def main() -> int:
    """Every pair in turn."""
    parser = argparse.ArgumentParser(description="Time a private step on a device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--adapt", default="lora-all", choices=("head", "lora", "lora-all", "full"))
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    from learning.models.compute import Compute, running

    places = placed(asked.device)
    if not places:
        return 0
    (place,) = places
    rows = []
    for multiple, tokens in TRIED:
        with running(Compute(asked.device)):
            rows.append(timed(asked, multiple, tokens))
        print(rows[-1], flush=True)
    if asked.out:
        told = {"on": place.described, "adapt": asked.adapt, "batch": asked.batch, "parties": PARTIES, "rows": rows}
        asked.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


def timed(asked: argparse.Namespace, multiple: int, tokens: int) -> dict[str, Any]:
    """Seconds of a step, micro-batches in it, and the device's peak memory."""
    import torch

    from aggregation.mechanisms.gradients import GradientMechanism
    from learning.models import agreement
    from learning.models.adapting import Lora, adapt
    from learning.models.batching import encode, losses
    from learning.models.checkpoints import PACKAGED
    from learning.models.compute import current, on_device
    from learning.models.encoders import classifier
    from learning.private_training import clipped_sum as sums
    from learning.private_training.per_example import PerExample
    from learning.private_training.text_units import TextUnits
    from learning.text.labelled import LabelMap

    agreement.STEP_ON_DEVICE = multiple  # type: ignore[misc]
    device = current().device
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    model, tokenizer = classifier(PACKAGED, LabelMap(("negative", "positive")), seed=0)
    adapt(model, asked.adapt, seed=0, lora=Lora(8, 16.0))
    on_device(model).train()
    with PHRASES.open(encoding="utf-8") as lines:
        phrases = [json.loads(line)["text"] for _, line in zip(range(8 * asked.batch), lines, strict=False)]
    rows = encode(tokenizer, phrases, longest=64).rows
    units = TextUnits(
        model.config, rows, torch.zeros(len(rows), dtype=torch.long), tokens_at_once=tokens, device=device.type
    )
    gradients, counted = PerExample(model), Counter[str]()
    mechanism = GradientMechanism(1.0, 1 << 20, 1.0, asked.batch / len(units), asked.steps, gradients.count)
    record = sums._record

    def recorded(*given: Any) -> Any:
        counted["micro_batches"] += 1
        return record(*given)

    sums._record = cast(Any, recorded)
    rng, seconds = np.random.default_rng(0), []
    total = partial(sums.clipped_sum, gradients, losses=losses, mechanism=mechanism)
    try:
        began = time.perf_counter()
        for step in range(asked.steps + 1):
            if step == 1:
                first, began_steps = time.perf_counter() - began, counted["micro_batches"]
            start = time.perf_counter()
            for _ in range(PARTIES):
                taken = np.flatnonzero(rng.random(len(units)) < asked.batch / PARTIES / len(units))
                total(batches=units.micro_batches(taken))
            seconds.append(time.perf_counter() - start)
    finally:
        sums._record = record
    return {
        "multiple": multiple,
        "tokens": tokens,
        "seconds": round(float(np.median(seconds[1:])), 4),
        "micro_batches": (counted["micro_batches"] - began_steps) / asked.steps,
        "with_the_trial": round(first, 1),
        "peak_mebibytes": round(torch.cuda.max_memory_allocated(device) / 2**20) if device.type == "cuda" else None,
    }


if __name__ == "__main__":
    sys.exit(main())
