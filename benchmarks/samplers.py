"""How fast a party bounds its counts and draws its noise, on one core.

    python benchmarks/samplers.py [--out FILE]

Prints samples per second and the time to build the table of rounded Gaussian, Skellam and discrete Gaussian noise, side
by side at several standard deviations (grid units); Skellam noise past the longest table; and the time of
`CountsMechanism.contribute` for 7,000 units of 100 cells each among 1,000,000. FILE receives the same as JSON.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.noise.discrete_gaussian import DiscreteGaussian
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.skellam import Skellam
from aggregation.noise.stream import NoiseStream

SIGMAS = (2.0, 4.0, 32.0, 100.0, 1000.0, 4000.0, 10_000.0, 16_000.0)
PAST_ONE_TABLE = (25_000.0, 32_000.0)
SAMPLES = 4_000_000
UNITS, CELLS_A_UNIT, CELLS = 7_000, 100, 1_000_000
REPEATS = 5


def seconds(work, repeats=REPEATS):
    """Wall times of `work`, sorted."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)


def sampling(name, noise, sigma):
    stream = NoiseStream.from_system()
    (build,) = seconds(lambda: noise.sample((1,), stream), repeats=1)
    times = seconds(lambda: noise.sample((SAMPLES,), stream))
    return {
        "noise": name,
        "sigma": sigma,
        "table_seconds": build,
        "samples_per_second": SAMPLES / statistics.median(times),
        "slowest": SAMPLES / times[-1],
        "fastest": SAMPLES / times[0],
        "total_variation_per_sample": noise.total_variation,
    }


def samplers():
    for sigma in SIGMAS:
        if sigma >= 4:
            yield sampling("rounded Gaussian", RoundedGaussian(sigma), sigma)
        yield sampling("Skellam", Skellam(sigma**2), sigma)
        yield sampling("discrete Gaussian", DiscreteGaussian(sigma), sigma)
    for sigma in PAST_ONE_TABLE:
        yield sampling("Skellam", Skellam(sigma**2), sigma)


def contributing():
    rng = np.random.default_rng(0)
    size = UNITS * CELLS_A_UNIT
    units = sparse.csr_array(
        (rng.integers(1, 9, size), rng.integers(0, CELLS, size), np.arange(0, size + 1, CELLS_A_UNIT)),
        shape=(UNITS, CELLS),
    )
    mechanism = CountsMechanism(clip=16.0, levels=256, noise_multiplier=0.7, shares=4)
    times = seconds(lambda: mechanism.contribute(units))
    return {
        "units": UNITS,
        "cells_a_unit": CELLS_A_UNIT,
        "cells": CELLS,
        "seconds": statistics.median(times),
        "slowest": times[-1],
        "fastest": times[0],
    }


def main():
    parser = argparse.ArgumentParser(description="Time the samplers and the clipping of counts.")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    arguments = parser.parse_args()
    rows = []
    for row in samplers():
        rows.append(row)
        print(
            f"{row['noise']:<17} sigma {row['sigma']:>8,.0f}   {row['samples_per_second'] / 1e6:6.1f} M samples/s "
            f"({row['slowest'] / 1e6:.1f} to {row['fastest'] / 1e6:.1f})   table {row['table_seconds']:.2f} s",
            flush=True,
        )
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "sampling": rows,
        "contribute": contributing(),
    }
    row = result["contribute"]
    print(
        f"contribute {row['units']:,} units x {row['cells_a_unit']} cells of {row['cells']:,}: "
        f"{row['seconds']:.3f} s ({row['fastest']:.3f} to {row['slowest']:.3f})"
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
