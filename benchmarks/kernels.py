"""Whether other kernels gain on the processor: scaled-dot-product attention, fused optimisers, `torch.compile`.

    python benchmarks/kernels.py [--rounds 3] [--only attention] [--out benchmarks/results/kernels.json]

attention: a packaged MiniLM with the library's "sdpa" in place of "eager", for encoding, for the gradient of all of it
and for the clipped sum of a private step, of 2,048 tokens in texts of 64 and of 256. optimiser: AdamW on one vector of
22.7 million numbers, as a loop, "foreach" and "fused". compile: the encoder under `torch.compile`, and what compiling
takes. Two ways of the same work take turns in one process; what is compared is the processor's time, its median over
the rounds, for other work on the machine slows both clocks alike. ratio: of the usual way's time to this one's; above 1
it gains. apart: the largest difference of the two results, relative to the largest number.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from learning.models.adapting import Lora, adapt
from learning.models.batching import Tokens, losses
from learning.models.checkpoints import PACKAGED
from learning.models.encoders import classifier
from learning.models.features import features
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits
from learning.text.labelled import LabelMap

NUMBERS = 22_700_000
TOKENS = 2048


def turns(rounds, **ways):
    """Median seconds of the processor of each way, after one that is not counted; and what the last gave."""
    seconds, gave = {name: [] for name in ways}, {}
    for each in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            gave[name] = way()
            if each:
                seconds[name].append(time.process_time() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}, gave


def apart(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max() / np.abs(np.asarray(one)).max())


def beside(seconds, before):
    return {
        name: {"seconds": round(each, 3), "ratio": round(seconds[before] / each, 3)} for name, each in seconds.items()
    }


def model_of(how, attention="eager"):
    model, _ = classifier(PACKAGED, LabelMap(("negative", "positive")), seed=0)
    adapt(model, how, seed=0, lora=Lora(8, 16.0))
    model.set_attn_implementation(attention)
    return model.eval()


def rows_of(length):
    rng = np.random.default_rng(0)
    return [Tokens(rng.integers(1000, 8000, length).astype(np.int32), length) for _ in range(TOKENS // length)]


def sums_of(model, length, private):
    """A function that gives the sum of clipped gradients of some texts, or of plain ones."""
    rows = rows_of(length)
    labels = torch.arange(len(rows)) % 2
    units = TextUnits(model.config, rows, labels, tokens_at_once=TOKENS)
    gradients = PerExample(model)
    gradients.sizes[len(rows), 1, length] = (len(rows),)  # what agrees is not looked for
    mechanism = GradientMechanism(1.0, fine_levels(1.0, gradients.count), 1.0, 0.01, 1000, gradients.count)
    parameters = list(gradients.parameters.values())

    def clipped():
        return clipped_sum(gradients, units.micro_batches(np.arange(len(rows))), losses, mechanism)

    def plain():
        for each in parameters:
            each.grad = None
        for batch in units.micro_batches(np.arange(len(rows))):
            losses(model, batch.inputs, batch.labels).sum().backward()
        return torch.cat([each.grad.reshape(-1) for each in parameters]).numpy()

    return clipped if private else plain


def encoding_of(model, length):
    """A function that gives the texts' vectors."""
    rows = rows_of(length)
    return lambda: features(model, rows, TOKENS)


def attention(rounds):
    works = {
        "encoding": lambda which, length: encoding_of(model_of("head", which), length),
        "full plain": lambda which, length: sums_of(model_of("full", which), length, private=False),
        "full private": lambda which, length: sums_of(model_of("full", which), length, private=True),
    }
    found = {}
    for length in (64, 256):
        for name, work in works.items():
            seconds, gave = turns(rounds, eager=work("eager", length), sdpa=work("sdpa", length))
            here = beside(seconds, "eager") | {"apart": float(f"{apart(gave['eager'], gave['sdpa']):.1e}")}
            found[f"{name}, {length} tokens"] = here
            print(f"{name}, {length} tokens: {here}", file=sys.stderr, flush=True)
    return found


def optimiser(rounds):
    start = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(0)) / 50
    slope = torch.randn(NUMBERS, generator=torch.Generator().manual_seed(1)) / 1000
    kept = {}

    def way(name, **settings):
        point = kept[name] = torch.nn.Parameter(start.clone())
        made = torch.optim.AdamW([point], 1e-4, weight_decay=0.01, **settings)

        def step():
            point.grad = slope
            made.step()
            return point.detach()

        return step

    seconds, gave = turns(
        rounds, loop=way("loop", foreach=False), default=way("default"), foreach=way("foreach", foreach=True),
        fused=way("fused", fused=True),
    )  # fmt: skip
    found = beside(seconds, "default")
    for name, each in gave.items():
        found[name]["bits differ at"] = int((each.view(torch.int32) != gave["default"].view(torch.int32)).sum())
    return found


def compiled(rounds):
    """The encoder compiled, for encoding and for the clipped sum of a private step."""
    works = {
        "encoding": lambda model: encoding_of(model, 64),
        "full private": lambda model: sums_of(model, 64, private=True),
    }
    found = {}
    for name, work in works.items():
        model, other = model_of("full"), model_of("full")
        other.bert.encoder.forward = torch.compile(other.bert.encoder.forward)
        usual, made = work(model), work(other)
        began, clock = sum(os.times()[:4]), time.perf_counter()
        try:
            made()
        except Exception as error:  # noqa: BLE001  whatever fails is the finding
            found[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
            continue
        cost = {"compiling, processor seconds": round(sum(os.times()[:4]) - began, 1)}
        seconds, gave = turns(rounds, eager=usual, compiled=made)
        found[name] = beside(seconds, "eager") | cost | {"apart": float(f"{apart(*gave.values()):.1e}")}
        print(f"{name}: {found[name]}, {time.perf_counter() - clock:.0f} s by the clock", file=sys.stderr, flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["attention", "optimiser", "compile"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    parts = {
        "attention": lambda: attention(given.rounds),
        "optimiser": lambda: optimiser(given.rounds),
        "compile": lambda: compiled(given.rounds),
    }
    found = {name: part() for name, part in parts.items() if given.only in (None, name)}
    found = {"command": "python benchmarks/kernels.py", "torch": torch.__version__} | found
    print(json.dumps(found, indent=1))
    if given.out:
        before = json.loads(given.out.read_text()) if given.out.exists() else {}
        given.out.write_text(json.dumps(before | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
