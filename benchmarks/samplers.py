"""How fast a party bounds its counts and draws its noise, on one core.

    python benchmarks/samplers.py [--out FILE]

Prints samples per second, by the processor's time, and the time to build what they are drawn from, at several standard
deviations (grid units): rounded and discrete Gaussian noise by a table of all thresholds and by bins, Skellam noise,
and the sum of rounded Gaussians of up to 16,384 by which wider noise was drawn before there were bins. The ways of one
standard deviation take turns. Then the time of `CountsMechanism.contribute` for 7,000 units of 100 cells each among
1,000,000. FILE receives the same as JSON.
"""

import argparse
import json
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.noise import discrete_gaussian, rounded_gaussian
from aggregation.noise.bins import LARGEST_TABLE, of_mass
from aggregation.noise.skellam import LARGEST_TABLE as LARGEST_SKELLAM
from aggregation.noise.skellam import MOST_PARTS, Skellam
from aggregation.noise.stream import NoiseStream

SIGMAS = (4.0, 1000.0, 2.0**14, 2.0**16, 5 * 2.0**14, 2.0**20, 2.0**26, 2.0**31)
LAWS = {"rounded Gaussian": rounded_gaussian, "discrete Gaussian": discrete_gaussian}
FEWEST = 64.0  # of bins a standard deviation
MOST_DRAWS = 1 << 16  # more were refused
SAMPLES = 1 << 22
UNITS, CELLS_A_UNIT, CELLS = 7_000, 100, 1_000_000
REPEATS = 5


def seconds(work):
    """Processor time of `work`."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Way:
    """One way to draw: `make` gives an object with `fill` and `total_variation`; a value is the sum of `draws`."""

    sampler: Any

    def __init__(self, noise, way, make, draws=1):
        self.noise, self.way, self.draws, self.times = noise, way, draws, []
        self.samples = max(1 << 12, SAMPLES // draws)
        self.build = seconds(lambda: setattr(self, "sampler", make()))
        self.total_variation = draws * self.sampler.total_variation

    def once(self, stream):
        def work():
            out = np.empty(self.samples, np.int64)
            self.sampler.fill(out, stream)
            if self.draws > 1:
                more = np.empty_like(out)
                for _ in range(self.draws - 1):
                    self.sampler.fill(more, stream)
                    np.add(out, more, out=out)

        self.times.append(seconds(work))

    def row(self, sigma):
        times = sorted(self.times)
        return {
            "sigma": sigma,
            "noise": self.noise,
            "way": self.way,
            "samples_per_second": self.samples / statistics.median(times),
            "slowest": self.samples / times[-1],
            "fastest": self.samples / times[0],
            "build_seconds": self.build,
            "total_variation_per_sample": self.total_variation,
        }


class SkellamWay:
    """`Skellam` with the face of the other samplers."""

    def __init__(self, variance):
        self.noise = Skellam(variance)
        self.total_variation = self.noise.total_variation  # makes the table

    def fill(self, out, stream):
        out[:] = self.noise.sample(out.shape, stream)


def uncached(cached: Any) -> Any:
    """A function that keeps what it made, without what it kept."""
    return cached.__wrapped__


def ways(sigma):
    for name, law in LAWS.items():
        if sigma <= LARGEST_TABLE:
            yield Way(name, "table", lambda law=law: uncached(law._table)(sigma))
        if sigma >= FEWEST:  # of a rounded Gaussian below the longest table: its time alone, the proof asks for more
            yield Way(name, "bins", lambda law=law: of_mass(sigma, lambda k: law._mass(sigma, k)))
    if sigma**2 <= MOST_PARTS * LARGEST_SKELLAM:
        parts = math.ceil(sigma**2 / LARGEST_SKELLAM)
        yield Way("Skellam", f"sum of {parts} tables" if parts > 1 else "table", lambda: SkellamWay(sigma**2))
    draws = math.ceil((sigma / LARGEST_TABLE) ** 2)
    if 1 < draws <= MOST_DRAWS:
        each = sigma / math.sqrt(draws)
        yield Way(
            "rounded Gaussian", f"sum of {draws:,} tables", lambda: uncached(rounded_gaussian._table)(each), draws
        )


def sampling():
    for sigma in SIGMAS:
        compared, stream = list(ways(sigma)), NoiseStream.from_system()
        for _ in range(REPEATS):
            for way in compared:
                way.once(stream)
        yield from (way.row(sigma) for way in compared)


def contributing():
    rng = np.random.default_rng(0)
    size = UNITS * CELLS_A_UNIT
    units = sparse.csr_array(
        (rng.integers(1, 9, size), rng.integers(0, CELLS, size), np.arange(0, size + 1, CELLS_A_UNIT)),
        shape=(UNITS, CELLS),
    )
    mechanism = CountsMechanism(clip=16.0, levels=256, noise_multiplier=0.7, shares=4)
    times = sorted(seconds(lambda: mechanism.contribute(units)) for _ in range(REPEATS))
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
    for row in sampling():
        rows.append(row)
        print(
            f"sigma {row['sigma']:>13,.0f}   {row['noise']:<17} {row['way']:<19} "
            f"{row['samples_per_second'] / 1e6:8.3f} M samples/s ({row['slowest'] / 1e6:.3f} to "
            f"{row['fastest'] / 1e6:.3f})   built in {row['build_seconds']:.2f} s",
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
