"""DistilDP with a teacher of 12 layers and about 90 million parameters, and a student of 6: what a device is for.

    python benchmarks/larger_model.py [--device cuda] [--epsilons 8] [--minutes 1.5] [--rows "teacher,distildp dp_sgd"]
        [--layers 12] [--width 768] [--batch 1024] [--steps 60] [--texts 6000]

First a public GPT-2 of that size is trained, in bfloat16, on the novels and a part of Wikipedia for so many minutes; it
has the tokenizer of ../shared/models/public-lm and is kept in benchmarks/work. Then examples/distildp/plan.toml is
compared with other ways, with this model in place of its own and batches of 1,024 records. Kept of every row, in
benchmarks/results/larger_model.json: perplexity, seconds, and the device's peak memory of the rows computed together.
Without the device that is asked for it says so, and that is no failure. It needs ../shared/data and ../shared/models.
"""

import argparse
import json
import sys
import time
import tomllib
from contextlib import chdir, closing
from pathlib import Path
from typing import Any

import distildp
from distildp import BENCHMARKS, MEASURED, PLAN, ROOT
from placing import placed

DATA = ROOT.parent / "shared/data"
SEQUENCE, SEQUENCES = 128, 256
"""Tokens of a sequence of the public training, and sequences of a step."""
ROWS = "public,floor teacher,distildp,texts dp_sgd"
"""Rows of one comparison, with commas: they share a teacher, and a peak of memory."""


def main() -> int:
    """The public model, then one comparison a row, so that each row's memory is its own."""
    import torch

    from coordinator import api
    from coordinator.progress.terminal import Terminal
    from coordinator.systems.registry import plan_of

    parser = argparse.ArgumentParser(description="Compare DistilDP with other ways at a larger size.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epsilons", default="8", help="with commas")
    parser.add_argument("--minutes", type=float, default=1.5, help="of the public training")
    parser.add_argument("--rows", default=ROWS)
    for name, usual in (("layers", 12), ("width", 768), ("batch", 1024), ("steps", 60), ("texts", 6000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    places = placed(asked.device)
    if not places:
        return 0
    (place,) = places
    work = BENCHMARKS / "work" / f"larger-{asked.layers}-{asked.width}"
    model = work / "public-model"
    record: dict[str, Any] = {"on": place.described, "batch": asked.batch, "steps": asked.steps, "texts": asked.texts}
    record["public"] = public_model(model, asked, place.device)
    print(record["public"], flush=True)
    tables = tomllib.loads(PLAN.read_text())
    heldout = distildp.some(PLAN.parent / tables["evaluation"]["source"], work / "heldout.jsonl")
    tables["evaluation"]["source"] = str(heldout.relative_to(ROOT))
    tables["run"]["device"] = asked.device
    tables["model"]["name"] = str(model.relative_to(ROOT))
    tables["federation"]["shards"]["source"] = distildp.from_root(tables["federation"]["shards"]["source"])
    tables["dp_sgd"] |= {"batch": asked.batch, "steps": asked.steps}
    tables["generation"]["texts"] = asked.texts
    tables["distil"]["layers"] = asked.layers // 2
    kept, rows = BENCHMARKS / "results/larger_model.json", []
    epsilons = tuple(float(each) for each in asked.epsilons.split(","))
    for together in asked.rows.split():
        if place.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(place.device)
        with chdir(ROOT), closing(Terminal()) as progress:
            found = api.compare(
                plan_of(tables),
                recipes=together.split(","),
                epsilons=epsilons,
                seeds=1,
                output=work / "compared",
                progress=progress,
            )
        peak = torch.cuda.max_memory_allocated(place.device) / 2**20 if place.device.type == "cuda" else None
        for cell in found.cells:
            made = {"method": cell.method, "epsilon": cell.epsilon, "metrics": cell.metrics, "seconds": cell.seconds}
            rows.append(made | {"peak_mebibytes": None if peak is None else round(peak)})
            print(rows[-1], flush=True)
        kept.write_text(json.dumps(record | {"heldout": MEASURED, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def public_model(folder: Path, asked: argparse.Namespace, device: Any) -> dict[str, Any]:
    """Train and keep a public model; what is known of it."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    told = folder / "told.json"
    if told.exists():
        kept: dict[str, Any] = json.loads(told.read_bytes())
        return kept
    tokenizer: Any = AutoTokenizer.from_pretrained(ROOT.parent / "shared/models/public-lm")
    texts = [
        json.loads(line)["text"] for name in ("novels/passages", "wikitext2/train_part") for line in lines_of(name)
    ]
    ids = [token for row in tokenizer(texts).input_ids for token in (*row, tokenizer.eos_token_id)]
    tokens = torch.tensor(np.array(ids, np.int64)[: len(ids) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE))
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=asked.width, n_layer=asked.layers, n_head=asked.width // 64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(config).to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), 6e-4, weight_decay=0.1, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    began, steps, losses = time.perf_counter(), 0, []
    while (passed := (time.perf_counter() - began) / (60 * asked.minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = 6e-4 * min(1, steps / 50, max(0.02, 2 * (1 - passed)))
        batch = tokens[torch.randint(len(tokens), (SEQUENCES,), generator=generator)].to(device)
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        steps += 1
    folder.mkdir(parents=True, exist_ok=True)
    model.cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    found = {
        "parameters": sum(each.numel() for each in model.parameters()),
        "tokens": tokens.numel(),
        "steps": steps,
        "tokens_a_second": round(steps * SEQUENCE * SEQUENCES / (time.perf_counter() - began)),
        "loss": round(float(np.mean(losses[-20:])), 3),
    }
    told.write_text(json.dumps(found))
    return found


def lines_of(name: str) -> list[str]:
    """The lines of one of the data files."""
    return (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
