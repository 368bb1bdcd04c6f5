"""How long the divergences of all pairs of texts take, and how much memory, against a loop over pairs.

    python benchmarks/nvdp_divergence.py [--texts 2000] [--positions 32] [--width 384] [--pairs 1000]

Samplers are made up: means of deviation 0.3, logarithms of variances even over a range about -1. How wide that range is
decides how they are summed (`learning.bottleneck.gaussian_pairs`); "beyond" is wider than the order admits, so that
most pairs are infinite and the loop, which must look, can stop at the first. The loop is numpy's and torch's, in
float32 and in float64, of some random pairs, scaled to all; the quickest is what is compared. One thread. A case runs
in a process of its own; memory is the most it held over what it held with its samplers. Kept in
benchmarks/results/nvdp_divergence.json.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
ORDER = 1.5
CASES = {"short": 0.05, "middle": 0.15, "wide": 0.5, "beyond": 1.0}
"""How far logarithms of variances are from their middle, either way; finite for sure to ln(order / (order - 1)) / 2."""


def main() -> None:
    """Measure every case and keep it."""
    parser = argparse.ArgumentParser(description="Time the divergences of all pairs of texts against a loop.")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--positions", type=int, default=32)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--pairs", type=int, default=1000, help="of the loop")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sizes = {"texts": options.texts, "positions": options.positions, "width": options.width, "order": ORDER}
    cases: dict[str, Any] = {}
    for name, spread in CASES.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cases[name] = pool.apply(measured, (spread, options.texts, options.positions, options.width, options.pairs))
        print(name, json.dumps(cases[name]), flush=True)
        (RESULTS / "nvdp_divergence.json").write_text(json.dumps(sizes | {"cases": cases}, indent=1) + "\n")


def measured(spread: float, texts: int, positions: int, width: int, pairs: int) -> dict[str, Any]:
    """One case."""
    import torch

    from learning.bottleneck.divergences import divergences
    from learning.bottleneck.posterior import Posterior

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shape = (texts, positions, width)
    posterior = Posterior(
        torch.randn(shape, generator=generator).mul_(0.3),
        torch.rand(shape, generator=generator).mul_(2).sub_(1).mul_(spread).sub_(1),
        torch.rand(shape[:2], generator=generator).mul_(0.2),
        torch.ones(shape[:2], dtype=torch.bool),
    )
    small = posterior.of(slice(8))
    divergences(small, ORDER)  # what is loaded and built once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    found = divergences(posterior, ORDER)
    seconds = time.process_time() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    loops = {name: looped(posterior, pairs, name) for name in ("numpy32", "numpy64", "torch32", "torch64")}
    whole = {name: round(each * found.pairs, 1) for name, each in loops.items()}
    return {
        "log_variances_from_middle": spread,
        "seconds": round(seconds, 2),
        "extra_mebibytes": round(memory / 1024),
        "loop_seconds_of_all_pairs": whole,
        "times_faster": round(min(whole.values()) / seconds, 1),
        "infinite_pairs": found.infinite,
        "pairs": found.pairs,
        "mean_finite": found.mean_finite,
        "largest_finite": found.largest_finite,
        "expansion_error": found.error,
        "worst_relative_difference": worst(posterior, 60),
    }


def looped(posterior: Any, pairs: int, name: str) -> float:
    """Seconds a pair of a loop."""
    import numpy as np
    import torch

    places = np.random.default_rng(1).integers(0, len(posterior), (pairs, 2)).tolist()
    means, variances = posterior.mean.flatten(1), posterior.log_variance.flatten(1).exp()
    if name.endswith("64"):
        some = sorted({place for pair in places[: pairs // 4] for place in pair})
        at = {place: number for number, place in enumerate(some)}
        places = [(at[one], at[other]) for one, other in places[: pairs // 4]]
        means, variances = means[some].double(), variances[some].double()
        counts = posterior.log_counts[some].double().exp()
    else:
        counts = posterior.log_counts.exp()
    if name.startswith("numpy"):
        means, variances, counts = means.numpy(), variances.numpy(), counts.numpy()
    of = by_numpy if name.startswith("numpy") else by_torch
    begun = time.process_time()
    with torch.inference_mode():
        for one, other in places:
            of(means[one], means[other], variances[one], variances[other], counts[one], counts[other])
    return (time.process_time() - begun) / len(places)


def by_numpy(m1: Any, m2: Any, v1: Any, v2: Any, a: Any, b: Any) -> float:
    """A pair's divergence by numpy and scipy."""
    import numpy as np
    from scipy.special import gammaln

    s, mixed = (1 - ORDER) * v1 + ORDER * v2, ORDER * a + (1 - ORDER) * b
    if s.min() <= 0 or mixed.min() <= 0:
        return math.inf
    apart = m1 - m2
    logs = np.log(s / v2).sum() - (1 - ORDER) * np.log(v1 / v2).sum()
    found = ORDER / 2 * float((apart * apart / s).sum()) - float(logs) / (2 * (ORDER - 1))
    beta, own, other = (gammaln(each).sum() - gammaln(each.sum()) for each in (mixed, a, b))
    return found + float(other - own + (beta - own) / (ORDER - 1))


def by_torch(m1: Any, m2: Any, v1: Any, v2: Any, a: Any, b: Any) -> float:
    """A pair's divergence by torch."""
    s, mixed = (1 - ORDER) * v1 + ORDER * v2, ORDER * a + (1 - ORDER) * b
    if s.min() <= 0 or mixed.min() <= 0:
        return math.inf
    apart = m1 - m2
    logs = (s / v2).log().sum() - (1 - ORDER) * (v1 / v2).log().sum()
    found = ORDER / 2 * float((apart * apart / s).sum()) - float(logs) / (2 * (ORDER - 1))
    beta, own, other = (each.lgamma().sum() - each.sum().lgamma() for each in (mixed, a, b))
    return found + float(other - own + (beta - own) / (ORDER - 1))


def worst(posterior: Any, texts: int) -> float:
    """The greatest relative difference from the loop in float64 over the finite pairs of some texts."""
    from learning.bottleneck.divergences import blocks

    some = posterior.of(slice(texts))
    means, variances = some.mean.double().flatten(1).numpy(), some.log_variance.double().exp().flatten(1).numpy()
    counts = some.log_counts.double().exp().numpy()
    largest = 0.0
    for block in blocks(some, ORDER):
        for one in range(texts):
            for other in set(range(texts)) - {one}:
                wanted = by_numpy(*(each[place] for each in (means, variances, counts) for place in (one, other)))
                if math.isfinite(wanted):
                    largest = max(largest, abs(float(block.values[one, other]) / wanted - 1))
    return largest


if __name__ == "__main__":
    main()
