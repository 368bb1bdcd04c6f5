"""What a hundred federated steps cost beyond their computing: seconds by stage, processor seconds by what they are for.

    python benchmarks/hundred_steps.py [--runs 3] [--trust secure-sum] [--beside CHECKOUT ...] [--out FILE]

Four parties on this machine train the head of the packaged MiniLM on 2,000 made-up phrases. beside: checkouts of
earlier commits, whose runs alternate with this one's; on a busy machine only ratios of processor seconds say something.
The computing is what one process takes that has imported everything and holds the model: the vectors of all phrases and
of the test's, a hundred clipped sums of a sample at each of four parties, and their noise. Overhead is the processor
seconds of a run less these.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from demo import LOG, ROOT, measure
from federated_plan import federated_plan
from federated_step import write_texts

PARTIES, TEXTS, TESTED, BATCH, STEPS, PARAMETERS = 4, 2000, 200, 100, 100, 770
LONGEST = 64


def main() -> None:
    """Print one line a run; with --out write everything as JSON after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--trust", default="secure-sum", choices=["secure-sum", "trusted-aggregator"])
    parser.add_argument("--beside", type=Path, action="append", default=[], help="another checkout, measured in turn")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    checkouts = {"now": ROOT} | {each.name: each.absolute() for each in arguments.beside}
    results: dict[str, list[dict[str, Any]]] = {which: [] for which in checkouts}
    computing = []
    for number in range(arguments.runs):
        computing.append(computed())
        for which, checkout in checkouts.items():
            with tempfile.TemporaryDirectory(prefix="conclave-bench-") as folder:
                results[which].append(one_run(Path(folder), checkout, arguments.trust))
            last = results[which][-1]
            print(
                f"{which} {number + 1}: {last['seconds']:.1f} s, {last['processor_seconds']:.1f} of processors, of "
                f"which {computing[-1]['all']:.1f} compute",
                flush=True,
            )
            if arguments.out:
                told = {"trust": arguments.trust, "computing": computing, "runs": results} | table(results, computing)
                arguments.out.write_text(json.dumps(told, indent=1) + "\n")


def one_run(folder: Path, checkout: Path, trust: str) -> dict[str, Any]:
    """One run with the code of a checkout, as `demo.measure` measures it, with the first step and the others apart."""
    write_texts(folder / "labelled.jsonl", TEXTS)
    write_texts(folder / "tested.jsonl", TESTED)
    privacy = f'trust = "{trust}"\nnoise_multiplier = 2.0\n'
    if trust == "secure-sum":
        privacy += "dropouts = 1\ncolluders = 0\n"
    settings = {"epsilon": 8.0, "declared_size": TEXTS, "adapt": "head", "batch": BATCH, "learning_rate": 0.001}
    plan = federated_plan("labelled.jsonl", privacy=privacy, evaluation="tested.jsonl", steps=STEPS, **settings)
    (folder / "plan.toml").write_text(plan)
    found = measure(folder, folder / "plan.toml", checkout)
    events = [json.loads(line) for line in (folder / LOG).read_text().splitlines() if line.startswith("{")]
    stored = [datetime.fromisoformat(each["time"]).timestamp() for each in events if each.get("event") == "stored"]
    between = [later - earlier for earlier, later in pairwise(stored)]
    found["stages"] |= {
        "first step": round(found["stages"]["aggregate"] - sum(between), 3),
        "other steps": round(sum(between), 3),
    }
    return found


def computed() -> dict[str, float]:
    """Processor seconds of the same computing in this process, on one thread, with everything imported before."""
    import torch

    from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
    from aggregation.noise.stream import NoiseStream
    from learning.models.adapting import adapt
    from learning.models.batching import encode
    from learning.models.encoders import classifier
    from learning.models.features import features_apart, head_alone
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.feature_units import FeatureUnits, head_losses
    from learning.private_training.per_example import PerExample
    from learning.text.labelled import LabelMap

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder, "texts"), TEXTS + TESTED)
        texts = [json.loads(line)["text"] for line in Path(folder, "texts").read_text().splitlines()]
    model, tokenizer = classifier("all-MiniLM-L6-v2", LabelMap(("negative", "positive")), seed=7)
    adapt(model, "head", seed=7)
    head = head_alone(model)
    began = time.process_time()
    rows = encode(tokenizer, texts, None, longest=LONGEST).rows
    vectors = features_apart(model, rows, {})
    embedded = time.process_time()
    mechanism = GradientMechanism(
        clip=1.0,
        levels=fine_levels(2.0, PARAMETERS),
        noise_multiplier=2.0,
        sampling_probability=BATCH / TEXTS,
        steps=STEPS,
        parameters=PARAMETERS,
        shares=PARTIES,
    )
    units = FeatureUnits(vectors[: TEXTS // PARTIES], torch.zeros(TEXTS // PARTIES, dtype=torch.int64), members=None)
    gradients, stream = PerExample(head), NoiseStream.from_system()
    for _ in range(STEPS * PARTIES):
        taken = mechanism.batch(len(units), stream)
        total = clipped_sum(gradients, units.micro_batches(taken), head_losses, mechanism)
        mechanism.contribute(total) + mechanism.noise_share((PARAMETERS,), stream)
    stepped = time.process_time()
    return {"vectors": embedded - began, "steps": stepped - embedded, "all": stepped - began}


def table(results: dict[str, list[dict[str, Any]]], computing: list[dict[str, float]]) -> dict[str, Any]:
    """Medians by checkout, and the overhead."""
    need = statistics.median(each["all"] for each in computing)
    return {
        "median": {
            which: {
                "seconds": round(statistics.median(each["seconds"] for each in runs), 1),
                "processor_seconds": round(statistics.median(each["processor_seconds"] for each in runs), 1),
                "overhead_processor_seconds": round(
                    statistics.median(each["processor_seconds"] for each in runs) - need, 1
                ),
                "processor_seconds_by_role": {
                    name: round(statistics.median(each["processor_seconds_by_role"].get(name, 0.0) for each in runs), 1)
                    for name in runs[0]["processor_seconds_by_role"]
                },
                "stages": {
                    name: round(statistics.median(each["stages"][name] for each in runs), 2)
                    for name in runs[0]["stages"]
                },
            }
            for which, runs in results.items()
            if runs
        },
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    main()
