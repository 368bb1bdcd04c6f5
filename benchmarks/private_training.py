"""Private training beside the same training without privacy, and beside Opacus' per-sample gradients and its ghost
clipping.

    python benchmarks/private_training.py [--rounds 2] [--device cpu] [--only minilm] [--out FILE]

A packaged MiniLM encoder that classifies (22.7M parameters) and a GPT-2 of 6.9M that models language, each with its
head (a classifier's), with low-rank adapters, and whole. A step is 64 texts of 64 tokens (GPT-2: 32 of 128), in
micro-batches of 2,048 tokens: gradients, clipping, noise and AdamW. Every way runs in a process of its own, in turns,
so that a busy machine slows all alike; examples a second are the best of the rounds, by the processor's time where that
is the device, and memory is the peak above what the interpreter held before the model was loaded.

    python benchmarks/private_training.py --batch 4096 [--only minilm-full]

takes one private step of so many texts of 64 tokens instead, for each part of MiniLM that is trained, and says the peak
resident memory of the whole process.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

WAYS = ("plain", "conclave", "opacus-ghost", "opacus-hooks")
MODELS = {"minilm": ("head", "lora", "full"), "gpt2": ("lora", "full")}
TEXTS, LENGTHS = {"minilm": 64, "gpt2": 32}, {"minilm": 64, "gpt2": 128}
AT_ONCE = 2048
CLIP = 1.0


def model_of(name, how):
    """A model whose trainable parameters are marked."""
    from learning.models.adapting import Lora, adapt

    if name == "minilm":
        from learning.models.checkpoints import PACKAGED
        from learning.models.encoders import classifier
        from learning.text.labelled import LabelMap

        model, _ = classifier(PACKAGED, LabelMap(("negative", "positive")), seed=0)
    else:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=8192, n_positions=256, n_embd=256, n_layer=6, n_head=8, bos_token_id=1, eos_token_id=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )  # fmt: skip
        config._attn_implementation = "eager"
        model = GPT2LMHeadModel(config)
    adapt(model, how, seed=0, lora=Lora(8, 16.0))
    return model.train()


class Work:
    """One way of taking a step of training."""

    def __init__(self, name, how, way, device, texts=None):
        import numpy as np
        import torch

        from learning.models.batching import Tokens
        from learning.private_training.text_units import TextUnits

        self.torch, self.device, self.way = torch, device, way
        self.model = model_of(name, how).to(device)
        rng = np.random.default_rng(0)
        self.examples = texts or TEXTS[name]
        rows = [rng.integers(1000, 8000, LENGTHS[name]).astype(np.int32) for _ in range(self.examples)]
        labels = torch.from_numpy(rng.integers(0, 2, self.examples)) if name == "minilm" else None
        units = TextUnits(self.model.config, [Tokens(ids, len(ids)) for ids in rows], labels, tokens_at_once=AT_ONCE)
        self.batches = list(units.micro_batches(np.arange(self.examples)))
        getattr(self, f"_set_{way.replace('-', '_')}")()

    def loss(self, model, batch):
        from learning.models.batching import losses

        inputs = {name: each.to(self.device) for name, each in batch.inputs.items()}
        return losses(model, inputs, None if batch.labels is None else batch.labels.to(self.device))

    def _trained(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def _set_plain(self):
        optimiser = self.torch.optim.AdamW(self._trained(), 1e-4)

        def step():
            optimiser.zero_grad()
            for batch in self.batches:
                self.loss(self.model, batch).sum().backward()
            optimiser.step()

        self.step = step

    def _set_conclave(self):
        from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
        from aggregation.noise.stream import NoiseStream
        from learning.models.adapting import flatten, unflatten
        from learning.models.batching import losses
        from learning.private_training.clipped_sum import clipped_sum
        from learning.private_training.dp_sgd import noised
        from learning.private_training.optimisation import Optimisation, Training
        from learning.private_training.per_example import PerExample

        gradients = PerExample(self.model)
        mechanism = GradientMechanism(CLIP, fine_levels(1.0, gradients.count), 1.0, 0.01, 1000, gradients.count)
        training = Training(flatten(self.model).cpu(), Optimisation(self.examples, 1e-4), 1000)
        stream = NoiseStream.from_system()

        def step():
            total = clipped_sum(gradients, self.batches, losses, mechanism)
            began = time.process_time()
            noisy = noised(total, mechanism, stream)
            self.noising = time.process_time() - began
            training.step(noisy)
            unflatten(self.model, training.point)

        self.step = step

    def _untied(self):
        """Opacus' ghost clipping knows no tied weights, and its hooks are given the same model."""
        head = self.model.get_output_embeddings() if hasattr(self.model, "lm_head") else None
        if head is not None and head.weight.requires_grad:
            head.weight = self.torch.nn.Parameter(head.weight.detach().clone())

    def _noise(self, optimiser):
        for parameter in self._trained():
            parameter.grad += CLIP * self.torch.randn_like(parameter.grad)
            parameter.grad /= self.examples
        optimiser.step()

    def _set_opacus_hooks(self):
        from opacus.grad_sample import GradSampleModule

        self._untied()
        wrapped = GradSampleModule(self.model, strict=False, loss_reduction="sum")
        optimiser = self.torch.optim.AdamW(self._trained(), 1e-4)

        def step():
            optimiser.zero_grad()
            sums = [self.torch.zeros_like(p) for p in self._trained()]
            for batch in self.batches:
                self.loss(wrapped, batch).sum().backward()
                apart = [p.grad_sample for p in self._trained()]
                norms = self.torch.stack([each.flatten(1).norm(dim=1) for each in apart]).norm(dim=0)
                scales = (CLIP / norms).clamp(max=1.0)
                for total, p in zip(sums, self._trained(), strict=True):
                    total += self.torch.einsum("i,i...", scales, p.grad_sample)
                    p.grad_sample = p.grad = None
            for total, p in zip(sums, self._trained(), strict=True):
                p.grad = total
            self._noise(optimiser)

        self.step = step

    def _set_opacus_ghost(self):
        from opacus.grad_sample import GradSampleModuleFastGradientClipping

        self._untied()
        wrapped = GradSampleModuleFastGradientClipping(
            self.model, strict=False, loss_reduction="sum", max_grad_norm=CLIP
        )
        optimiser = self.torch.optim.AdamW(self._trained(), 1e-4)

        def step():
            optimiser.zero_grad()
            sums = [self.torch.zeros_like(p) for p in self._trained()]
            for batch in self.batches:
                wrapped.enable_hooks()
                each = self.loss(wrapped, batch)
                each.sum().backward(retain_graph=True)
                scales = wrapped.get_clipping_coef()
                optimiser.zero_grad()
                wrapped.disable_hooks()
                (each * scales).sum().backward()
                for total, p in zip(sums, self._trained(), strict=True):
                    total += p.grad
                    p.grad = None
            for total, p in zip(sums, self._trained(), strict=True):
                p.grad = total
            self._noise(optimiser)

        self.step = step


def worker(name, how, way, device):
    """Time and memory of a few steps, as one JSON line."""
    warnings.filterwarnings("ignore")
    import torch
    import transformers

    import learning.models.batching  # noqa: F401

    if way.startswith("opacus"):
        import opacus.grad_sample  # noqa: F401
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    if device == "cpu":
        before = _resident()
    else:
        torch.cuda.init()
    work = Work(name, how, way, device)
    began = time.perf_counter()
    work.step()
    first = time.perf_counter() - began  # with the trial of each shape of micro-batches
    gc.collect()
    seconds = []
    for _ in range(2 if device == "cpu" else 5):
        if device != "cpu":
            torch.cuda.synchronize()
        begins = time.perf_counter(), time.process_time()
        work.step()
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.process_time() - begins[1] if device == "cpu" else time.perf_counter() - begins[0])
    peak = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
        if device == "cpu"
        else torch.cuda.max_memory_allocated() / 2**20
    )
    told = {"examples_per_second": work.examples / min(seconds), "mebibytes": peak}
    print(json.dumps(told | ({"noise_seconds": work.noising, "first_seconds": first} if way == "conclave" else {})))


def one_step(name, how, texts):
    """Seconds of the processor and peak memory of the process for one private step, as one JSON line."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    work = Work(name, how, "conclave", "cpu", texts)
    began = time.process_time()
    work.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = {"seconds": round(time.process_time() - began, 1), "noise_seconds": round(work.noising, 1)}
    print(json.dumps({"texts": texts} | seconds | {"peak_mebibytes": round(peak)}))


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def main():
    """Every way in turns, and the ratios."""
    parser = argparse.ArgumentParser(description="Private training beside others.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--only", choices=[*MODELS, *(f"{name}-{how}" for name, hows in MODELS.items() for how in hows)]
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--batch", type=int, help="one private step of so many texts, and its peak memory")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker and asked.batch:
        name, how, _ = asked.worker
        one_step(name, how, asked.batch)
        return 0
    if asked.worker:
        name, how, way = asked.worker
        worker(name, how, way, asked.device)
        return 0
    if asked.batch:
        return _large(asked)
    found, failures = [], 0
    environment = os.environ | {"OMP_NUM_THREADS": "1"} if asked.device == "cpu" else dict(os.environ)
    for name, ways_of_adapting in MODELS.items():
        for how in ways_of_adapting:
            if asked.only not in (None, name, f"{name}-{how}"):
                continue
            runs = {way: [] for way in WAYS}
            for _ in range(asked.rounds):
                for way in WAYS:
                    command = [sys.executable, __file__, "--device", asked.device, "--worker", name, how, way]
                    done = subprocess.run(command, env=environment, capture_output=True, text=True)
                    if done.returncode:
                        runs[way].append({"why": (done.stderr.strip().splitlines() or ["killed"])[-1]})
                        failures += way == "conclave"
                        continue
                    runs[way].append(json.loads(done.stdout.strip().splitlines()[-1]))
            row: dict[str, Any] = {"model": name, "trained": how}
            for way, measured in runs.items():
                good = [each for each in measured if "why" not in each]
                row[way] = (
                    {
                        "examples_per_second": round(max(each["examples_per_second"] for each in good), 1),
                        "mebibytes": round(statistics.median(each["mebibytes"] for each in good)),
                    }
                    if good
                    else {"why": measured[0]["why"]}
                )
                if way == "conclave" and good:
                    for part in ("noise_seconds", "first_seconds"):
                        row[way][part] = round(min(each[part] for each in good), 2)
            found.append(row)
            print(_line(row), flush=True)
            if asked.out:
                told = {"device": asked.device, "rounds": asked.rounds, "tokens_at_once": AT_ONCE, "rows": found}
                asked.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return failures


def _large(asked):
    """One step of a large batch for each part of the encoder that is trained."""
    found = []
    for how in MODELS["minilm"]:
        if asked.only in (None, "minilm", f"minilm-{how}"):
            command = [sys.executable, __file__, "--batch", str(asked.batch), "--worker", "minilm", how, "conclave"]
            done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                return 1
            found.append({"model": "minilm", "trained": how} | json.loads(done.stdout.strip().splitlines()[-1]))
            print(json.dumps(found[-1]), flush=True)
            if asked.out:
                told = {"tokens_at_once": AT_ONCE, "rows": found}
                asked.out.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return 0


def _line(row):
    parts = [f"{row['model']} {row['trained']}:"]
    for way in WAYS:
        one = row[way]
        if "why" in one:
            parts.append(f"{way} failed ({one['why'][:80]})")
        else:
            speed = one["examples_per_second"] / row["plain"]["examples_per_second"]
            memory = one["mebibytes"] / max(1, row["plain"]["mebibytes"])
            told = f"{one['examples_per_second']} a second ({speed:.2f}x), {one['mebibytes']} MiB ({memory:.2f}x)"
            noise = f", {one['noise_seconds']} s of a step are its noise" if "noise_seconds" in one else ""
            parts.append(f"{way} {told}{noise}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
