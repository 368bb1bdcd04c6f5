"""The published form of NVDP and its ablations on four tasks: score, divergence, Bayesian figure and attacks, measured.

    python benchmarks/nvdp_published.py [--until HH:MM] [--seeds 0,1,2] [--out benchmarks/results/nvdp_published.json]
    python benchmarks/nvdp_published.py --table

Texts are those of mrpc, stsb, qqp and sst2 under $CONCLAVE_DATA or ../shared/data; the encoder is the packaged MiniLM,
frozen. Its token vectors are made once and kept in benchmarks/work. A cell is one task, form, weight of both
divergences and seed; those that the file holds are not run again, and none begins after --until. --table writes the
table and the plots beside the file, from the cells that it holds.

Of each task: 2,000 texts to train on, up to 1,000 others that are scored, and the first 500 of these whose samplers are
compared and attacked. Positions: 48 of mrpc, 32 of stsb and qqp, 24 of sst2; vectors of 64 coordinates. A cell trains
for 6 passes, 378 steps, and takes 5 to 40 seconds of one core; a few at weight 1 are trained for 30 passes, to see what
more training changes. Everything that is said of a text is said of samples (pads are sampled, too): scores are the mean
of five samples of every text. order 1.1 and delta 1e-5 are the paper's as far as its constant 10.46 tells them.

score: accuracy, or Pearson's correlation for stsb. balanced: balanced accuracy of the compared texts, for stsb of the
scores above their median. admitted: what the largest divergence admits of it (`learning.bottleneck.pinsker`); the run
stops where the accuracy is above that and three standard deviations. named: the part of samples whose own text's
sampler is the likeliest of the 500, where a guess is 0.002. tokens: the part of five tokens guessed of a text that it
holds, the 50 most frequent left out; usual: where the next most frequent ones are guessed. None of these figures is an
epsilon, and no form here has one.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from torch import Tensor

from learning.audits.noisy_sequences import TokenReader, likeliest_samplers
from learning.bottleneck.bayesian import bayesian
from learning.bottleneck.divergences import Divergences, divergences
from learning.bottleneck.fitting import Fitting, fitted, said, samplers
from learning.bottleneck.forms import Form
from learning.bottleneck.pinsker import check_accuracy, most_accurate
from learning.bottleneck.states import TokenStates, paired_states, token_states
from learning.models.checkpoints import PACKAGED
from learning.models.encoders import encoder

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("CONCLAVE_DATA") or ROOT.parent / "shared/data")
WORK = ROOT / "benchmarks/work"
ORDER, DELTA = 1.1, 1e-5
TRAINED, SCORED, COMPARED, DRAWS = 2000, 1000, 500, 5
WIDTH, HEADS, PASSES, MORE_PASSES = 64, 8, 6, 30
TASKS = {"mrpc": ("test", 24), "stsb": ("dev", 16), "qqp": ("dev", 16), "sst2": ("dev", 24)}
"""Of each task its held-out part, and the tokens of a text."""
FORMS = ("nvib", "vtdp", "vib-fixed", "vib-learned")
WEIGHTS = (1e-3, 1e-2, 1e-1, 1.0)


def encoded(task: str) -> dict[str, tuple[TokenStates, Tensor]]:
    """Texts and targets of a task, from the file of an earlier call if there is one."""
    kept = WORK / f"nvdp_published_{task}.pt"
    if not kept.exists():
        model, tokenizer = encoder(PACKAGED)
        heldout, tokens = TASKS[task]
        made = {}
        for part, most in (("train", TRAINED), (heldout, SCORED)):
            rows = [json.loads(line) for line in (DATA / task / f"{part}.jsonl").open(encoding="utf-8")]
            rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:most]]
            sides = [
                token_states(model, tokenizer, [row[key] for row in rows], tokens=tokens)
                for key in (("text",) if task == "sst2" else ("sentence1", "sentence2"))
            ]
            states = sides[0] if len(sides) == 1 else paired_states(*sides)
            if task == "stsb":
                targets = torch.tensor([row["score"] for row in rows], dtype=torch.float32) / 2.5 - 1
            else:
                targets = torch.tensor([row["label"] for row in rows])
            made["train" if part == "train" else "heldout"] = (states.vectors, states.mask, states.pieces, targets)
        WORK.mkdir(parents=True, exist_ok=True)
        torch.save(made, kept)
    return {part: (TokenStates(*each[:3]), each[3]) for part, each in torch.load(kept, weights_only=True).items()}


def cell(
    data: dict[str, tuple[TokenStates, Tensor]], name: Any, weight: float, seed: int, passes: int
) -> dict[str, Any]:
    """The figures of one cell. Raises `AboveBound` where they contradict each other."""
    (texts, targets), (others, truth) = data["train"], data["heldout"]
    regression = truth.is_floating_point()
    form = Form(name, texts.vectors.shape[2], WIDTH, texts.mask.shape[1], 1 if regression else 2, heads=HEADS)
    began = time.perf_counter()
    model = fitted(form, texts, targets, Fitting(weight, epochs=passes), seed)
    trained = time.perf_counter() - began
    posterior = samplers(model, others)
    source = torch.Generator().manual_seed(1000 + seed)
    answers = [said(model, posterior, source) for _ in range(DRAWS)]
    kl_d, kl_g = (float(each.mean()) for each in model.kl(posterior))
    found: dict[str, Any] = {name: float(np.mean(each)) for name, each in scores(answers, truth).items()}
    found |= {"kl_dirichlet": kl_d, "kl_gaussian": kl_g}
    classes = (truth[:COMPARED] > truth[:COMPARED].median()) if regression else truth[:COMPARED] == 1
    told = [(each[:COMPARED, 0] > truth[:COMPARED].median()) if regression else each[:COMPARED, 1] > each[:COMPARED, 0]
            for each in answers]  # fmt: skip
    recalls = [[float((each == kind)[classes == kind].float().mean()) for kind in (True, False)] for each in told]
    found["balanced"] = float(np.mean(recalls))
    sides = [int(classes.sum()), int((~classes).sum())]
    slack = 3 * 0.5 * math.sqrt(sum(0.25 / each for each in sides) / DRAWS)
    found["slack"] = slack
    compared, looked_at = posterior.of(slice(COMPARED)), others.of(slice(COMPARED))
    if form.noisy:
        apart, higher = (divergences(compared, order) for order in (ORDER, ORDER + 1))
        found |= summary(apart)
        bayes = bayesian(higher, DELTA)
        found["infinite_higher"] = higher.infinite / higher.pairs
        found["bayesian"] = {"reported": bayes.reported, "without_constant": bayes.largest, "mean": bayes.mean,
                             "constant": bayes.constant}  # fmt: skip
        check_accuracy(found["balanced"], apart.largest, slack)
        found["admitted"] = most_accurate(apart.largest)
        sample = model.sample(compared, source)
        attack = likeliest_samplers(sample, compared)
        found |= {"named": attack.first, "named_among_ten": attack.among_ten}
    else:
        sample = model.sample(compared, source)
        found |= {"named": 1.0, "named_among_ten": 1.0, "infinite": 1.0, "admitted": 1.0}
    own = samplers(model, texts)
    read = TokenReader.fitted(model.sample(own, source), own, texts).read(sample, looked_at)
    found |= {"tokens": read.precision, "usual": read.usual}
    found |= {"training_seconds": trained, "seconds": time.perf_counter() - began}
    return found


def scores(answers: list[Tensor], truth: Tensor) -> dict[str, list[float]]:
    """What a task is scored by, of every draw."""
    if truth.is_floating_point():
        return {
            "score": [_some(pearsonr(each[:, 0], truth)[0]) for each in answers],
            "spearman": [_some(spearmanr(each[:, 0], truth)[0]) for each in answers],
        }
    told = [each.argmax(dim=1) for each in answers]
    return {
        "score": [float((each == truth).float().mean()) for each in told],
        "f1": [float(2 * (each * truth).sum() / max(1, int(each.sum() + truth.sum()))) for each in told],
    }


def _some(value: float) -> float:
    """A correlation; that of a constant is none, and counts as 0."""
    return float(value) if math.isfinite(value) else 0.0


def summary(apart: Divergences) -> dict[str, Any]:
    """Divergences of all pairs."""
    return {
        "largest": apart.largest,
        "largest_finite": apart.largest_finite,
        "mean": apart.mean,
        "mean_finite": apart.mean_finite,
        "quantiles": {str(share): value for share, value in apart.quantiles.items()},
        "infinite": apart.infinite / apart.pairs,
    }


def kept(value: Any) -> Any:
    """A figure as the file has it: four significant digits, and "infinite"."""
    if isinstance(value, dict):
        return {key: kept(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else "infinite"
    return value


Cells = dict[tuple[str, str, float, int], dict[str, Any]]


def averaged(cells: dict[str, dict[str, Any]]) -> Cells:
    """The means over seeds of every task, form, weight and number of passes; "seeds" says how many there were. A mean
    with an infinite figure is infinite.
    """
    together: dict[tuple[str, str, float, int], list[dict[str, Any]]] = {}
    for key, found in cells.items():
        task, name, weight, _, *more = key.split(", ")
        passes = int(more[0].split()[0]) if more else PASSES
        together.setdefault((task, name, float(weight.split()[1]), passes), []).append(found)
    return {key: {"seeds": len(some)} | _mean(some) for key, some in together.items()}


def _mean(some: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, first in some[0].items():
        values = [each[name] for each in some]
        if isinstance(first, dict):
            found[name] = _mean(values)
        else:
            known = [math.inf if value == "infinite" else value for value in values if value is not None]
            found[name] = float(np.mean(known)) if known else None
    return found


def tables(cells: Cells) -> str:
    """Every cell, and which form has the best score at no more than so much success of an attack."""
    heads = ("form", "weight", "seeds", "score", "balanced", "admitted", "named", "tokens", "(usual)", "infinite pairs",
             "largest finite D", "mean finite D", "Bayesian, without ln(1/delta)/1.1", "with")  # fmt: skip
    lines = [
        "# The published form, measured",
        "",
        "Written by `python benchmarks/nvdp_published.py --table`; the head of that file says what is what. Means over "
        "seeds. D is of order 1.1, over all pairs of 500 texts.",
        "",
        "## The best score at equal success of an attack",
        "",
        *equal_attack(cells),
        "",
    ]
    for task in TASKS:
        lines += [f"## {task}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        for (of, name, weight, passes), each in sorted(cells.items(), key=lambda item: (_place(item[0]), item[0][2:])):
            if of == task:
                bayes = each.get("bayesian", {})
                label = name if passes == PASSES else f"{name}, {passes} passes"
                row = [label, f"{weight:g}" if weight else "", f"{each['seeds']}"]
                row += [f"{each[key]:.3f}" for key in ("score", "balanced", "admitted", "named", "tokens", "usual")]
                row += [
                    _said(value) for value in (each["infinite"], each.get("largest_finite"), each.get("mean_finite"))
                ]
                row += [_said(bayes.get("without_constant")), _said(bayes.get("reported"))]
                lines.append("| " + " | ".join(row) + " |")
        lines.append("")
    return "\n".join(lines)


def equal_attack(cells: Cells) -> list[str]:
    """Of each task and form, the best score over the weights at which an attack finds no more than a limit."""
    limits = (("named", 0.05, "at most 5% of texts named"), ("named", 0.5, "at most half named"),
              ("gained", 0.05, "at most 5 points of tokens more than usual"), ("gained", 1.0, "any"))  # fmt: skip
    lines = ["| attack | task | " + " | ".join(FORMS) + " | no noise |", "|---|---|" + "---|" * (len(FORMS) + 1)]
    for measure, limit, label in limits:
        for task in TASKS:
            row = [label, task]
            for name in (*FORMS, "plain"):
                some = [
                    each["score"]
                    for (of, form, _, passes), each in cells.items()
                    if (of, form, passes) == (task, name, PASSES)
                    and (each["named"] if measure == "named" else each["tokens"] - each["usual"]) <= limit
                ]
                row.append(f"{max(some):.3f}" if some else "none")
            lines.append("| " + " | ".join(row) + " |")
    return lines


def _place(key: tuple[str, str, float, int]) -> int:
    return ("plain", "regularised", *FORMS).index(key[1])


def _said(value: float | None) -> str:
    return "" if value is None else "infinite" if math.isinf(value) else f"{value:.3g}"


def plots(cells: Cells, path: Path) -> None:
    """The score over the success of each attack, a line a form over its weights, as PNG and SVG beside the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(TASKS), figsize=(14, 6.5), sharey="col")
    for column, task in enumerate(TASKS):
        for row, (measure, label) in enumerate((("named", "texts named"), ("tokens", "guessed tokens that are right"))):
            axis = axes[row][column]
            for name in FORMS:
                some = [
                    each
                    for (of, form, _, passes), each in sorted(cells.items(), key=lambda item: item[0][2])
                    if (of, form, passes) == (task, name, PASSES)
                ]
                axis.plot([each[measure] for each in some], [each["score"] for each in some], marker="o", label=name)
            clean = cells.get((task, "plain", 0.0, PASSES))
            if clean is not None:
                axis.axhline(clean["score"], color="grey", linestyle=":", label="no noise")
            axis.set_xlabel(f"{label}, less is better")
            axis.set_title(task if row == 0 else "")
            if measure == "named":
                axis.set_xscale("log")
        axes[0][column].set_ylabel("score" if column == 0 else "")
        axes[1][column].set_ylabel("score" if column == 0 else "")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)
    figure.savefig(path.with_suffix(".svg"))


def main() -> None:
    """Run the cells that are not yet in the file, and print a line each."""
    parser = argparse.ArgumentParser(description="The published form of NVDP and its ablations, measured.")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/nvdp_published.json")
    parser.add_argument("--until", default="", help="the local time HH:MM after which no cell begins")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--table", action="store_true", help="write the tables and plots of the file's cells")
    given = parser.parse_args()
    if given.table:
        cells = averaged(json.loads(given.out.read_text(encoding="utf-8"))["cells"])
        given.out.with_suffix(".md").write_text(tables(cells), encoding="utf-8")
        plots(cells, given.out)
        return
    torch.set_num_threads(1)
    about = {"order": ORDER, "delta": DELTA, "trained": TRAINED, "compared": COMPARED, "draws": DRAWS, "width": WIDTH,
             "passes": PASSES, "tokens": {task: tokens for task, (_, tokens) in TASKS.items()}}  # fmt: skip
    found: dict[str, Any] = {"about": about, "cells": {}}
    if given.out.exists():
        found = json.loads(given.out.read_text(encoding="utf-8"))
    rows = [("plain", 0.0), ("regularised", 0.0), *((name, weight) for weight in WEIGHTS for name in FORMS)]
    plan = [(seed, task, *row, PASSES) for seed in map(int, given.seeds.split(",")) for task in TASKS for row in rows]
    more = [(0, task, name, 1.0, MORE_PASSES) for task in ("stsb", "sst2") for name in ("nvib", "vtdp")]
    data: dict[str, Any] = {}
    for seed, task, name, weight, passes in sorted(plan + more, key=lambda row: (row[0], row[4])):
        key = f"{task}, {name}, weight {weight:g}, seed {seed}" + (f", {passes} passes" if passes != PASSES else "")
        if key in found["cells"] or (given.until and time.strftime("%H:%M") >= given.until):
            continue
        if task not in data:
            data = {task: encoded(task)}
        found["cells"][key] = kept(cell(data[task], name, weight, seed, passes))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(key, found["cells"][key], flush=True)


if __name__ == "__main__":
    main()
