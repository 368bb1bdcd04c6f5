"""Seconds and bytes of a federated step of DP-SGD: four parties that train a packaged MiniLM together on made-up text.

    python benchmarks/federated_step.py [--steps 12] [--only head,lora] [--out FILE]

`coordinator run` of a plan like that in examples/classifier, parties and coordinator on this machine, for each part of
the model that is trained ("full" is one more) and each kind of sum. A step goes from one stored sum to the next: the
parameters to every party, the party's sample and its clipped gradients, the sum under noise, the optimiser. Seconds are
the median of a run's steps but the first. Bytes are a party's, both ways, by the run's own count of what tensors and
messages of secure sums take, less the model that every party is sent once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from federated_plan import PARTIES, federated_plan

TEXTS, WORDS, BATCH = 800, 12, 32
TRUSTS = ("trusted-aggregator", "secure-sum")


def main() -> int:
    """Every kind of run, one after the other; returns the number of those that neither ended nor were refused."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default="head,lora", help="which parts of the model, with commas")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for adapt in options.only.split(","):
        for trust in TRUSTS:
            with tempfile.TemporaryDirectory(prefix="federated-step-") as folder:
                rows.append({"adapt": adapt, "trust": trust} | measured(Path(folder), adapt, trust, options.steps))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                told = {"parties": PARTIES, "batch": BATCH, "steps": options.steps, "rows": rows}
                options.out.write_text(json.dumps(told, indent=1) + "\n")
    return sum("why" in row for row in rows)


def measured(folder: Path, adapt: str, trust: str, steps: int) -> dict[str, Any]:
    """One run: seconds of its steps, bytes; or the coordinator's own words where it did not end."""
    from coordinator.store.store import RunStore
    from coordinator.systems.registry import read_plan
    from coordinator.text_models.public import prepare

    write_texts(folder / "labelled.jsonl")
    plan = folder / "plan.toml"
    privacy = f'trust = "{trust}"\nnoise_multiplier = 2.0\n'
    if trust == "secure-sum":
        privacy += "dropouts = 1\ncolluders = 0\n"
    settings = {"epsilon": 8.0, "declared_size": TEXTS, "adapt": adapt, "batch": BATCH, "learning_rate": 0.001}
    plan.write_text(federated_plan("labelled.jsonl", privacy=privacy, steps=steps, **settings))
    done = subprocess.run(
        [Path(sys.executable).with_name("coordinator"), "run", plan, "--output", folder / "run", "--log-json"],
        cwd=folder,
        env=os.environ | {"CONCLAVE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line and not line.startswith("{")]
        return {"why": " ".join(said)[-600:]}
    told = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    steps_stored = [each for each in told if each.get("event") == "stored" and each["release"] == "steps"]
    moments = [datetime.fromisoformat(each["time"]) for each in steps_stored]
    between = [(later - earlier).total_seconds() for earlier, later in pairwise(moments)]
    with closing(RunStore(folder / "run")) as store:
        began, _, result = store.stages()["aggregate"]
    public = prepare(read_plan(plan), folder, folder / "cache")
    model = PARTIES * sum(path.stat().st_size for path in public.files.values())
    return {
        "parameters": len(public.start),
        "seconds_a_step": round(statistics.median(between), 3),
        "fastest": round(min(between), 3),
        "slowest": round(max(between), 3),
        "first": round(moments[0].timestamp() - began, 2),
        "bytes_a_step_and_party": round((result["bytes"] - model) / (len(moments) * PARTIES)),
    }


def write_texts(path: Path, texts: int = TEXTS) -> None:
    """So many made-up phrases, half of either label."""
    rng = np.random.default_rng(0)
    known = ["good", "bad", "film", "plot", "actor", "scene", "dull", "warm", "long", "story", "song", "the", "a"]
    with path.open("w") as file:
        for number in range(texts):
            told = f"{' '.join(rng.choice(known, WORDS))} {number}"
            file.write(json.dumps({"text": told, "label": str(number % 2)}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
