"""How near audits of the shipped mechanisms come to what these claim: lower bounds of epsilon at 95% beside the claim.

    [CONCLAVE_JAX=PYTHON] python benchmarks/audits.py [--runs 3] [--quick] [--out benchmarks/results]

Every mechanism is calibrated to epsilon 1 and 8 at delta 1e-5 by the project's own accounting, and audited as
`learning.audits.suspects.audited_mechanism` does, so many times under keys of their own; at 95% some bounds are above
honest claims, and `refutes` asks once more at 1 - 1e-4. PYTHON is an interpreter with
jax-privacy in it (`jax_auditing.py` says how to make one): with it, the same scores are audited by that, too. Then
models that overfit, and the same models under DP-SGD, are attacked by LiRA and RMIA. DIRECTORY receives audits.json,
audits.png and audits-roc.png.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from aggregation.accounting.library import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent  # noqa: E402
from aggregation.accounting.price import GaussianFilter, calibrate, price  # noqa: E402
from aggregation.mechanisms.counts import CountsMechanism  # noqa: E402
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels  # noqa: E402
from aggregation.mechanisms.hidden import HiddenMechanism  # noqa: E402
from aggregation.mechanisms.joint import JointMechanism  # noqa: E402
from aggregation.mechanisms.thresholded import ThresholdedVotes  # noqa: E402
from aggregation.mechanisms.vectors import DifferencesMechanism, VectorMechanism  # noqa: E402
from aggregation.mechanisms.votes import VotesMechanism  # noqa: E402
from aggregation.noise.stream import NoiseStream  # noqa: E402
from learning.audits.mechanisms import (  # noqa: E402
    of_counts,
    of_differences,
    of_gradients,
    of_hidden,
    of_joint,
    of_thresholded,
    of_vectors,
    of_votes,
)
from learning.audits.membership import by_each, coins, lira, lira_offline, rmia  # noqa: E402
from learning.audits.one_run import SHARES, counted, lower_bound  # noqa: E402
from learning.audits.one_run_fdp import audited_gaussian, refuted  # noqa: E402
from learning.audits.roc import LOW, Roc, draw, roc  # noqa: E402
from learning.audits.suspects import GATE, Suspect, audited_mechanism, refutes, runs  # noqa: E402
from learning.audits.trade_offs import Gaussian  # noqa: E402
from learning.classification.chart import page, save  # noqa: E402

EPSILONS = (1.0, 8.0)
DELTA = 1e-5
CONFIDENCE = 0.95
PARTIES, QUERIES = 3, 4
STEPS, SAMPLING = 8, 0.25
BOUNDS = {"plain": "one run, epsilon at delta", "one_run": "one run, f-DP", "many": "many runs"}


def suspects(epsilon: float, quick: bool) -> dict[str, tuple[Suspect, int]]:
    """Every mechanism at this epsilon, and how many releases of each kind the audit by many runs gets."""
    few = 10 if quick else 1
    alone = calibrate(GaussianDpEvent, epsilon, DELTA)
    asked = calibrate(lambda noise: SelfComposedDpEvent(GaussianDpEvent(noise), QUERIES), epsilon, DELTA)
    skellam = calibrate(lambda noise: CountsMechanism(10.0, 100, noise, PARTIES, "skellam").event(), epsilon, DELTA)
    sampled = calibrate(
        lambda noise: SelfComposedDpEvent(PoissonSampledDpEvent(SAMPLING, GaussianDpEvent(noise)), STEPS),
        epsilon,
        DELTA,
    )
    sparse, dense, parameters = 100_000 // few, 2000 // few, 20_000 // few
    votes = VotesMechanism(2 * sparse, 16, asked * math.sqrt(2), PARTIES)
    hidden = HiddenMechanism(2, dense, 1.0, 1000, asked * 2 * math.sqrt(2), PARTIES)
    both = asked * math.sqrt(2)
    joint = JointMechanism(
        VotesMechanism(2 * dense, 16, both * math.sqrt(2), PARTIES),
        HiddenMechanism(1, dense, 1.0, 1000, both * 2, PARTIES),
    )
    cap = GaussianFilter.within(epsilon, DELTA).cap
    noises = math.sqrt(2 * QUERIES / cap), math.sqrt(4 * QUERIES / cap)
    thresholded = ThresholdedVotes(2, 2, 1.5, *noises, None, cap * (1 + 1e-9))
    gradients = GradientMechanism(1.0, fine_levels(sampled, parameters), sampled, SAMPLING, STEPS, parameters)
    return {
        "counts": (of_counts(CountsMechanism(10.0, 1000, alone, PARTIES), sparse), 4),
        "counts, Skellam": (of_counts(CountsMechanism(10.0, 100, skellam, PARTIES, "skellam"), sparse), 4),
        "moments": (of_vectors(VectorMechanism(1.0, 1000, alone, PARTIES), dense), 10),
        "differences of language models": (
            of_differences(DifferencesMechanism(1.0, 1000, alone, PARTIES, tokens=dense // 8, outcomes=8)),
            10,
        ),
        "votes": (of_votes(votes, QUERIES), 4),
        "hidden states": (of_hidden(hidden, QUERIES), 4),
        "votes and hidden states": (of_joint(joint, QUERIES), 4),
        "votes under a threshold": (of_thresholded(thresholded, QUERIES, dense), 2),
        "gradients": (of_gradients(gradients), 10),
    }


def stream_of(*labels: str | int) -> NoiseStream:
    """A stream of fixed words, so that the figures can be made again; nobody here is protected by it."""
    return NoiseStream.from_key(bytes(32)).child(*labels)


def audit(name: str, epsilon: float, suspect: Suspect, repeats: int, times: int) -> dict[str, Any]:
    """All runs of one mechanism's audit, and the median of each bound."""
    found, seconds = [], []
    for run in range(times):
        begun = time.perf_counter()
        found.append(
            audited_mechanism(
                suspect,
                stream_of(name, str(epsilon), run),
                np.random.default_rng(run),
                delta=DELTA,
                confidence=CONFIDENCE,
                repeats=repeats,
            )
        )
        seconds.append(round(time.perf_counter() - begun, 2))
    first = found[0]
    row = {
        "mechanism": name,
        "claimed": first.claimed,
        "delta": DELTA,
        "confidence": CONFIDENCE,
        "form": first.form,
        "canaries": first.canaries,
        "runs_of_each_kind": first.canaries * repeats,
        "median": {bound: statistics.median(getattr(each, bound) for each in found) for bound in (*BOUNDS, "lower")},
        "above_the_claim": sum(each.caught for each in found),
        "refuted_at_the_gate": refutes(
            suspect, stream_of(name, str(epsilon), "gate"), np.random.default_rng(times), delta=DELTA, repeats=repeats
        ),
        "seconds": statistics.median(seconds),
        "runs": [asdict(each) for each in found],
    }
    shown = ", ".join(f"{bound} {row['median'][bound]:.3f}" for bound in BOUNDS)
    print(f"{name}: claimed {first.claimed:.4g}; {shown}; {row['seconds']:.1f} s", flush=True)
    return row


def beside_jax(interpreter: str, name: str, epsilon: float, suspect: Suspect) -> dict[str, Any]:
    """The same scores by ours and by jax-privacy: on the same counts, and by its own choice of threshold."""
    included = np.random.default_rng(0).random(suspect.canaries) < 0.5
    stream = stream_of(name, str(epsilon), 0)
    scores = suspect.play(included, stream.child("coins"))
    share = (1 - CONFIDENCE) / len(SHARES)
    some = counted(scores, included)
    ours = [
        {
            "plain": lower_bound(len(scores), *one, delta=DELTA, confidence=1 - share),
            "fdp": Gaussian(_mu(len(scores), *one, 1 - share)).epsilon(DELTA),
        }
        for one in some
    ]
    question = {
        "inside": scores[included].tolist(),
        "outside": scores[~included].tolist(),
        "delta": DELTA,
        "significance": 1 - CONFIDENCE,
        "counts": [(len(scores), *one, share) for one in some],
    }
    said = subprocess.run(
        [interpreter, str(HERE / "jax_auditing.py")], input=json.dumps(question), capture_output=True, text=True
    )
    if said.returncode:
        raise SystemExit(f"jax-privacy's process has ended: {said.stderr[-800:]}")
    theirs = json.loads(said.stdout)
    off = {
        kind: max(abs(one[kind] - other[kind]) for one, other in zip(ours, theirs["counts"], strict=True))
        for kind in ("plain", "fdp")
    }
    apart = runs(suspect, stream, delta=DELTA, confidence=CONFIDENCE)
    return {
        "version": theirs["version"],
        "largest_difference_on_the_same_counts": off,
        "one_run": theirs["one_run"],
        "one_run_fdp": theirs["one_run_fdp"],
        "clopper_pearson": theirs["clopper_pearson"],
        "ours": {
            "one_run": max(each["plain"] for each in ours),
            "one_run_fdp": Gaussian(audited_gaussian(scores, included, confidence=CONFIDENCE).lower).epsilon(DELTA),
            "many_runs": Gaussian(apart.mu).epsilon(DELTA),
        },
    }


def _mu(canaries: int, guesses: int, right: int, confidence: float) -> float:
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(Gaussian(middle), canaries, guesses, right, confidence) else (low, middle)
    return low


def membership(quick: bool) -> tuple[dict[str, Any], dict[str, Roc], float]:
    """LiRA and RMIA against logistic regressions of random labels, open and under DP-SGD, and the private claim."""
    import torch

    models, examples, width, noise, steps = (16 if quick else 64), 400, 300, 6.0, 30
    rng = np.random.default_rng(0)
    inputs = rng.normal(0, 1, (examples, width)) / np.sqrt(width)
    labels = rng.integers(0, 2, examples).astype(np.float64)
    members = coins(models, examples, rng)
    features, wanted = torch.tensor(inputs), torch.tensor(labels).expand(models, -1)
    weights = torch.zeros(models, width, dtype=torch.float64, requires_grad=True)
    optimiser, inside = torch.optim.Adam([weights], lr=0.3), torch.tensor(members, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(weights @ features.T, wanted, reduction="none")

    for _ in range(150):
        optimiser.zero_grad()
        (loss() * inside).sum().backward()
        optimiser.step()
    overfit = loss().detach().numpy()

    mechanism = GradientMechanism(1.0, fine_levels(noise, width), noise, 0.5, steps, width)
    private = np.zeros((models, width))
    for model in range(models):
        stream, own = stream_of("membership", model), np.flatnonzero(members[model])
        for step in range(steps):
            taken = own[mechanism.batch(len(own), stream.child("batch", step))]
            gradients = (1 / (1 + np.exp(-inputs[taken] @ private[model])) - labels[taken])[:, None] * inputs[taken]
            scales = mechanism.scales(np.linalg.norm(gradients, axis=1))
            noisy = mechanism.contribute((gradients * scales[:, None]).sum(axis=0))
            noisy += mechanism.noise_share(noisy.shape, stream.child("noise", step))
            private[model] -= 0.5 * mechanism.release(noisy).values
    epsilon = price([mechanism.event()], DELTA).epsilon
    losses = {"open": overfit, "DP-SGD": np.logaddexp(0, (1 - 2 * labels) * (private @ inputs.T))}
    curves = {
        f"{attack}, {kind}": roc(*by_each(each, members, act))
        for kind, each in losses.items()
        for attack, act in {"LiRA": lira, "LiRA offline": lira_offline, "RMIA": rmia}.items()
    }
    rows = {name: {"area": each.area, **{str(rate): each.at(rate) for rate in LOW}} for name, each in curves.items()}
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{kind} {value:.4f}" for kind, value in row.items()), flush=True)
    return {"models": models, "examples": examples, "epsilon": epsilon, "curves": rows}, curves, epsilon


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    """The bounds beside the claims."""
    with page(11.0, 5.2) as figure:
        for axes, epsilon in zip(figure.subplots(1, len(EPSILONS), sharey=True), EPSILONS, strict=True):
            some = [row for row in rows if row["epsilon"] == epsilon][::-1]
            places = np.arange(len(some))
            for shift, (bound, label) in zip((0.26, 0.0, -0.26), BOUNDS.items(), strict=True):
                axes.barh(places + shift, [row["median"][bound] for row in some], 0.24, label=label)
            axes.plot([row["claimed"] for row in some], places, "k|", markersize=18, markeredgewidth=2, label="claimed")
            axes.set_yticks(places, [row["mechanism"] for row in some])
            axes.set_xlabel(f"epsilon at delta {DELTA:g}, calibrated to {epsilon:g}")
            axes.set_xlim(0, 1.15 * epsilon)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        save(figure, path)


def replaced(rows: list[dict[str, Any]], out: Path, quick: bool) -> None:
    """Put some mechanisms' rows into the results of an earlier run, in the order of all, and draw these again."""
    result = json.loads((out / "audits.json").read_bytes())
    kept = {(row["epsilon"], row["mechanism"]): row for row in [*result["mechanisms"], *rows]}
    order = [(epsilon, name) for epsilon in EPSILONS for name in suspects(epsilon, quick)]
    result["mechanisms"] = [kept[each] for each in order if each in kept]
    result["audits"] = sum(len(row["runs"]) for row in result["mechanisms"])
    result["above_the_claim"] = sum(row["above_the_claim"] for row in result["mechanisms"])
    (out / "audits.json").write_text(json.dumps(result, indent=1) + "\n")
    picture(result["mechanisms"], out / "audits.png")


def main() -> int:
    """Measure, draw and write; returns how many claims were refuted at 1 - 1e-4, the confidence of a build."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the canaries")
    parser.add_argument("--jax", default=os.environ.get("CONCLAVE_JAX"), help="an interpreter with jax-privacy")
    parser.add_argument("--only", help="mechanisms, with commas: their rows take the place of those in the results")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    begun = time.perf_counter()
    rows: list[dict[str, Any]] = []
    only = None if options.only is None else options.only.split(",")
    for epsilon in EPSILONS:
        for name, (suspect, repeats) in suspects(epsilon, options.quick).items():
            if only is not None and name not in only:
                continue
            row = {"epsilon": epsilon, **audit(name, epsilon, suspect, repeats, options.runs)}
            if options.jax and row["form"] == "gaussian":
                row["jax_privacy"] = beside_jax(options.jax, name, epsilon, suspect)
            rows.append(row)
    if only is not None:
        replaced(rows, options.out, options.quick)
        return sum(row["refuted_at_the_gate"] for row in rows)
    attacked, curves, claim = membership(options.quick)
    result = {
        "command": ("CONCLAVE_JAX=PYTHON " if options.jax else "")
        + f"python benchmarks/audits.py --runs {options.runs}"
        + (" --quick" if options.quick else ""),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seconds": round(time.perf_counter() - begun, 1),
        "gate": GATE,
        "audits": len(rows) * options.runs,
        "above_the_claim": sum(row["above_the_claim"] for row in rows),
        "mechanisms": rows,
        "membership": attacked,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "audits.json").write_text(json.dumps(result, indent=1) + "\n")
    picture(rows, options.out / "audits.png")
    draw(curves, options.out / "audits-roc.png", epsilon=claim, delta=DELTA)
    print(f"{result['seconds']:.0f} s", flush=True)
    return sum(row["refuted_at_the_gate"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
