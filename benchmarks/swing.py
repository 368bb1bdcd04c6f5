"""What swing distillation keeps from a student: excess exposure of canaries, and perplexity, of every row of `compare`.

    python benchmarks/swing.py [--seeds 3] [--rows alone,kd,published] [--minutes 60]

A teacher's party holds e-mails, and 100 canaries "My ID is 4 6 7 8 2 3." many times each. Whoever has little text holds
other e-mails and other IDs under the same prompt. Each row of the system's own comparison makes a student; its exposure
of every canary is exact over all numbers of six digits, and the excess is over the student that nobody taught, canary
by canary, with a bootstrap interval over canaries and seeds. Cells are kept in benchmarks/results/swing.json: a call
goes on where another was stopped. It needs ../shared/data and ../shared/models.
"""

import argparse
import json
import math
import time
from contextlib import chdir
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "benchmarks/work/swing"
RESULTS = ROOT / "benchmarks/results"
MAIL = ROOT / "../shared/data/aeslc"
PROMPT, DIGITS = "My ID is", 6
CANARIES = 100
REPEATS = 30
"""How often each canary stands in the teacher's text: it has to be known by heart for there to be a leak."""
TEACHERS, OWN, OTHERS, TESTED = 1000, 200, 100, 300
"""E-mails of the teacher's party, those of whoever has little text, other IDs among these, and e-mails of the test."""
ROWS = (
    "alone", "kd", "published", "temperature", "noise", "laplace", "swing-4", "swing-8", "fine_tune", "teachers",
    "public",
)  # fmt: skip
EPSILONS = {"swing-4": 4.0, "swing-8": 8.0}
SHOWN = {
    "alone": "nobody taught it", "kd": "plain distillation", "published": "the paper's form",
    "temperature": "dynamic temperature alone", "noise": "noise alone", "laplace": "Laplace on all",
    "swing-8": "certified, epsilon 8", "swing-4": "certified, epsilon 4",
}  # fmt: skip
"""The students of the picture, and what they are called there."""
SMALL = {"per_party": 100, "epochs": 2, "batch": 8, "learning_rate": 0.001}
"""The teachers of the certified form, each of some 40 texts."""


def main() -> None:
    """Fill the table and put it beside the other results."""
    parser = argparse.ArgumentParser(description="Measure what swing distillation keeps from a student.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="with commas")
    parser.add_argument("--minutes", type=float, default=math.inf, help="no cell begins after so many")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    kept = RESULTS / "swing.json"
    cells = json.loads(kept.read_bytes())["cells"] if kept.exists() else {}
    for seed in range(options.seeds):
        wanted = [row for row in options.rows.split(",") if f"{row}-{seed}" not in cells]
        there: dict[bool, Any] = {}
        for row in wanted:
            if time.monotonic() > until:
                break
            if (certified := row in EPSILONS) not in there:
                there[certified] = made(seed, certified)
            comparison, data = there[certified]
            cells[f"{row}-{seed}"] = cell = measured(comparison, data, row, seed)
            print(row, seed, f"{fmean(cell['exposures']):.2f} bits, perplexity {cell['perplexity']:.1f}", flush=True)
            kept.write_text(json.dumps(summary(cells) | {"cells": cells}, indent=1) + "\n")
    (RESULTS / "swing.md").write_text(table(summary(cells)))
    draw(summary(cells)["rows"])
    print(table(summary(cells)))


def made(seed: int, certified: bool) -> tuple[Any, Any]:
    """The comparison of a seed, and its data. certified: whether it is for the rows that have many small teachers."""
    from coordinator import api
    from coordinator.progress.progress import Silent
    from coordinator.systems.registry import plan_of

    folder = WORK / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    written(folder, seed)
    place = folder.relative_to(ROOT)
    tables = {
        "run": {"name": "canaries", "recipe": "swing", "seed": seed},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "declared_size": TEACHERS + CANARIES * REPEATS},
        "federation": {
            "launch": "ray",
            "shards": {"source": str(place / "teacher.jsonl"), "split": {"by": "hash", "parties": 1}},
        },
        "text": {"longest": 64},
        "model": {"name": "../shared/models/public-lm", "adapt": "full"},
        "teachers": SMALL if certified else {"epochs": 4, "batch": 32, "learning_rate": 0.0005},
        "queries": {"source": str(place / "own.jsonl"), "limit": OWN + OTHERS},
        "swing": {"clip": 0.25},
        "distil": {"top": 64, "mixing": 0.9, "passes": 12, "batch": 32, "learning_rate": 0.0005, "patience": 100},
        "evaluation": {"source": str(place / "test.jsonl")},
    }
    with chdir(ROOT):
        comparison = api.comparable_of(plan_of(tables), ROOT, Silent())
        (work := folder / ("small" if certified else "work")).mkdir(exist_ok=True)
        return comparison, comparison.data(seed, work)


def written(folder: Path, seed: int) -> None:
    """The files of a seed: the teacher's text with canaries, the student's with other IDs, and the test."""
    rng = np.random.default_rng(seed)
    train, test = (bodies(MAIL / f"{name}.jsonl") for name in ("train", "test"))
    chosen = [train[int(place)] for place in rng.choice(len(train), TEACHERS + OWN, replace=False)]
    canaries, others = np.split(rng.choice(10**DIGITS, CANARIES + OTHERS, replace=False), [CANARIES])
    told = [said(number) for number in canaries for _ in range(REPEATS)]
    for name, texts in (
        ("teacher", chosen[:TEACHERS] + told),
        ("own", chosen[TEACHERS:] + [said(number) for number in others]),
        ("test", test[:TESTED]),
    ):
        order = rng.permutation(len(texts))
        rows = ({"id": str(place), "text": texts[place]} for place in order)
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "canaries.json").write_text(json.dumps(canaries.tolist()))


def said(number: int) -> str:
    """A canary."""
    return f"{PROMPT} {' '.join(f'{number:0{DIGITS}d}')}."


def bodies(path: Path) -> list[str]:
    """The e-mails of a file."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["body"] for line in lines]


def measured(comparison: Any, data: Any, row: str, seed: int) -> dict[str, Any]:
    """One cell: the exposures of all canaries, how likely ranks as small are by chance, and the perplexity."""
    from learning.audits.exposure import digit_tokens, exposures, likelihoods, ranks, uniform

    begun = time.perf_counter()
    with chdir(ROOT):
        method = comparison.methods[row.partition("-")[0]]
        outcome = method.make(data, EPSILONS.get(row, 0.0))
        learned = time.perf_counter() - begun
        metrics = comparison.metrics(data, outcome.model)
    (speaker,) = outcome.model.speakers
    opening, digits = digit_tokens(data.public.tokenizer, PROMPT)
    canaries = json.loads((WORK / f"seed-{seed}" / "canaries.json").read_bytes())
    found = ranks(likelihoods(speaker, [*data.public.bare, *opening], digits, DIGITS), canaries)
    return {
        "exposures": [round(float(each), 4) for each in exposures(found, 10**DIGITS)],
        "by_chance": uniform(found, 10**DIGITS),
        "perplexity": metrics["perplexity"],
        "seconds": {"made": round(learned), "all": round(time.perf_counter() - begun)},
    }


def summary(cells: dict[str, Any]) -> dict[str, Any]:
    """Of every row its exposure, and its excess over the student that nobody taught, over all seeds that have both."""
    from learning.audits.exposure import excess

    found: dict[str, Any] = {}
    for row in ROWS:
        seeds = [seed for seed in range(100) if f"{row}-{seed}" in cells]
        if not seeds:
            continue
        own = [cells[f"{row}-{seed}"] for seed in seeds]
        both = [seed for seed in seeds if f"alone-{seed}" in cells]
        found[row] = {
            "seeds": len(seeds),
            "exposure": fmean(fmean(each["exposures"]) for each in own),
            "by_chance": min(each["by_chance"] for each in own),
            "perplexity": fmean(each["perplexity"] for each in own),
        }
        if both and row != "alone":
            seen, unseen = (
                np.concatenate([np.array(cells[f"{name}-{seed}"]["exposures"]) for seed in both])
                for name in (row, "alone")
            )
            over = excess(seen, unseen)
            found[row]["excess"] = [round(over.mean, 3), round(over.low, 3), round(over.high, 3)]
    return {"canaries": CANARIES, "repeats": REPEATS, "rows": found}


def table(found: dict[str, Any]) -> str:
    """The rows as Markdown."""
    lines = ["| row | seeds | exposure, bits | excess, 95% interval | least p of the ranks | perplexity |"]
    lines.append("|---|---|---|---|---|---|")
    for name, row in found["rows"].items():
        over = "-"
        if "excess" in row:
            mean, low, high = row["excess"]
            over = f"{mean:.2f} ({low:.2f} to {high:.2f})"
        lines.append(
            f"| {name} | {row['seeds']} | {row['exposure']:.2f} | {over} | {row['by_chance']:.2g} | "
            f"{row['perplexity']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def draw(rows: dict[str, Any]) -> None:
    """Students by what they learned and what they keep of the canaries, with the intervals: swing.png and swing.svg."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "swing"
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, label in SHOWN.items():
        if name not in rows or (name != "alone" and "excess" not in rows[name]):
            continue
        mean, low, high = rows[name].get("excess", (0.0, 0.0, 0.0))
        at = rows[name]["perplexity"]
        axis.errorbar(at, mean, [[mean - low], [high - mean]], fmt="o", capsize=3)
        left, down = name == "swing-8", name in ("swing-4", "swing-8")
        place = (-6 if left else 6, -14 if down else 5)
        side = "right" if left else "left"
        axis.annotate(label, (at, mean), xytext=place, textcoords="offset points", fontsize=8, ha=side)
    axis.axhline(0, color="grey", linestyle="--", linewidth=1)
    axis.margins(x=0.18)
    axis.set_xlabel("perplexity on other e-mails (less is better)")
    axis.set_ylabel("bits of each canary that the student keeps")
    figure.savefig(RESULTS / "swing.png", dpi=150)
    figure.savefig(RESULTS / "swing.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
