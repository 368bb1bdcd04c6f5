"""Private training on a device: beside plain training and Opacus there, in float32 and in bfloat16, with peak memory.

    python benchmarks/devices.py [--device cuda] [--precision float32 --precision bfloat16] [--rounds 2] [--texts 64]
        [--only minilm-lora --only minilm-full] [--attention eager] [--out benchmarks/results/devices.json]

The packaged MiniLM (22.7M parameters) as a classifier and a GPT-2 of the usual size and architecture (124M, parameters
made up) as a language model, each by its head (a classifier's), by low-rank adapters, and whole. A step is `--texts`
texts of 64 tokens (GPT-2: half as many of 128). The ways are those of `private_training.py`, in turns, in one process
for each model and part that is trained; a device is waited for before the clock is read, and its memory is emptied
between the ways. Without the device that is asked for it says so, and that is no failure. `--device cpu` shows that all
of it works where there is none: on a small GPT-2, once.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import private_training
from placing import placed
from private_training import MODELS, WAYS
from private_training import model_of as packaged

HOWS = {"minilm": MODELS["minilm"], "gpt2": MODELS["gpt2"]}
PRECISIONS = ("float32", "bfloat16", "float16")


def gpt2(device, attention):
    """A GPT-2 of the usual size; of two layers where there is only the processor."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    config._attn_implementation = attention
    if device == "cpu":
        config.n_layer, config.vocab_size, config.bos_token_id, config.eos_token_id = 2, 8192, 1, 2
    return GPT2LMHeadModel(config)


def model_of(name, how, device, attention):
    """A model on the device, its trainable parameters marked."""
    from learning.models.adapting import Lora, adapt
    from learning.models.compute import on_device

    if name == "minilm":
        model = packaged(name, how)
        model.set_attn_implementation(attention)
    else:
        model = gpt2(device, attention)
        adapt(model, how, seed=0, lora=Lora(8, 16))
    return on_device(model).train()


def worker(name, how, asked):
    """Examples a second and peak memory of every way in every precision, one JSON line each, in turns."""
    import warnings

    import torch
    import transformers

    from learning.models.compute import Compute, current, running
    from learning.private_training.text_units import tokens_at_once

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    private_training.TEXTS[name] = texts = asked.texts // (2 if name == "gpt2" else 1)
    private_training.AT_ONCE = tokens_at_once(asked.device.partition(":")[0])
    private_training.model_of = lambda name, how: model_of(name, how, current().device.type, asked.attention)
    torch.zeros(1, device=asked.device)
    for _ in range(asked.rounds):
        for precision in asked.precision:
            for way in WAYS:
                with running(Compute(asked.device, precision)):
                    try:
                        seconds, peak = timed(name, how, way, current().device)
                        told = {"examples_per_second": texts / min(seconds), "mebibytes": peak}
                    except Exception as error:  # noqa: BLE001 - of another library, too: it is the result of that way
                        told = {"why": f"{type(error).__name__}: {error}"[:160]}
                print(json.dumps({"way": way, "precision": precision} | told), flush=True)
                gc.collect()


def timed(name, how, way, device):
    """Seconds of a few steps of one way, and the device's peak memory in MiB, where it counts it."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    work = private_training.Work(name, how, way, device)
    work.step()  # with the trial of each shape of micro-batches
    seconds = []
    for _ in range(1 if device.type == "cpu" else 5):
        finish(device)
        began = time.perf_counter()
        work.step()
        finish(device)
        seconds.append(time.perf_counter() - began)
    return seconds, torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def finish(device):
    """Wait for what a device was given to do."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def main():
    """Every way in turns, and the ratios to plain training in the same precision."""
    parser = argparse.ArgumentParser(description="Private training on a device.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", default=None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument(
        "--only", choices=[f"{name}-{how}" for name, hows in HOWS.items() for how in hows], action="append"
    )
    parser.add_argument("--attention", choices=["eager", "sdpa"], default="eager")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.precision = asked.precision or ["float32", "bfloat16"]
    if asked.worker:
        name, how = asked.worker
        worker(name, how, asked)
        return 0
    if not (there := placed(asked.device, asked.precision)):
        return 0
    places = dict(zip(asked.precision, there, strict=True))
    rows, failures = [], 0
    for name, how in ((name, how) for name, hows in HOWS.items() for how in hows):
        if asked.only and f"{name}-{how}" not in asked.only:
            continue
        found = measured(name, how, asked)
        for precision, place in places.items():
            row = {"model": name, "trained": how, "on": place.described}
            row |= {
                way: best([each for each in found if (each["way"], each["precision"]) == (way, precision)])
                for way in WAYS
            }
            failures += "why" in row["conclave"]
            rows.append(row)
            print(line(row), flush=True)
        if asked.out:
            told = {"texts": asked.texts, "attention": asked.attention, "rounds": asked.rounds, "rows": rows}
            asked.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return failures


def measured(name, how, asked):
    """The lines of a worker of its own; where it ended early, why the rest is missing."""
    command = [sys.executable, __file__, "--device", asked.device, "--texts", str(asked.texts)]
    command += ["--rounds", str(asked.rounds), "--attention", asked.attention, "--worker", name, how]
    command += [word for precision in asked.precision for word in ("--precision", precision)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True)
    lines = [json.loads(each) for each in done.stdout.splitlines() if each.startswith("{")]
    there = {(each["way"], each["precision"]) for each in lines}
    why = (done.stderr.strip().splitlines() or ["killed"])[-1][:160]
    missing = [(way, precision) for way in WAYS for precision in asked.precision if (way, precision) not in there]
    return lines + [{"way": way, "precision": precision, "why": why} for way, precision in missing]


def best(found):
    """The fastest of some rounds."""
    good = [each for each in found if "why" not in each]
    if not good:
        return {"why": found[0]["why"]}
    fastest = max(good, key=lambda each: each["examples_per_second"])
    peak = fastest["mebibytes"]
    return {
        "examples_per_second": round(fastest["examples_per_second"], 1),
        "mebibytes": None if peak is None else round(peak),
    }


def line(row):
    """A row for a person."""
    parts = []
    plain = row["plain"].get("examples_per_second")
    for way in WAYS:
        one = row[way]
        if "why" in one:
            parts.append(f"{way} failed ({one['why']})")
            continue
        ratio = f" ({one['examples_per_second'] / plain:.2f}x)" if plain else ""
        memory = "" if one["mebibytes"] is None else f", {one['mebibytes']:,} MiB"
        parts.append(f"{way} {one['examples_per_second']:,} a second{ratio}{memory}")
    return f"{row['model']} {row['trained']} on {row['on']}: {'; '.join(parts)}"


if __name__ == "__main__":
    sys.exit(main())
