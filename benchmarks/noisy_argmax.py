"""How much faster the noisy argmax is than noise on every class, and that its labels have the same distribution.

    python benchmarks/noisy_argmax.py [--out FILE]

10 teachers vote among 30,000 classes on 100,000 queries. `aggregation.mechanisms.argmax.noisy_argmax` answers all of
them; dense noise, drawn for every class, a sample of them, scaled to all: once with numpy's normals, which are not for
privacy, and once with normals made from a `NoiseStream` by the inverse distribution function, which could be. Then
chi-square tests of labels against those of dense noise. FILE receives the same as JSON.
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from scipy import stats
from scipy.special import ndtri

from aggregation.mechanisms.argmax import noisy_argmax
from aggregation.noise.stream import NoiseStream

TEACHERS, CLASSES, QUERIES, NAMED = 10, 30_000, 100_000, 50
NOISE = 20.0
SAMPLE = 200
REPEATS = 5
LEVEL = 1e-3


def seconds(work, repeats=REPEATS):
    """Wall times of `work`, sorted."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return sorted(times)


def numpy_normals(rng):
    return lambda shape: rng.standard_normal(shape)


def stream_normals(stream):
    """Normals `shape` from 64-bit words, through their nearer end: `ndtri` keeps the precision of small numbers."""

    def draw(shape):
        words = stream.uint64(int(np.prod(shape)))
        upper = words >> np.uint64(63) == 1
        tail = (np.where(upper, ~words, words).astype(np.float64) + 0.5) * 2.0**-64
        normals = ndtri(tail)
        return np.where(upper, -normals, normals).reshape(shape)

    return draw


def dense(votes, classes, noise, normals):
    """Labels of votes `[queries, teachers]` with a normal for every class, 20 queries at a time."""
    labels = np.empty(len(votes), dtype=np.int64)
    for start in range(0, len(votes), 20):
        rows = votes[start : start + 20]
        histogram = noise * normals((len(rows), classes))
        np.add.at(histogram, (np.arange(len(rows))[:, None], rows), 1.0)
        labels[start : start + 20] = np.argmax(histogram, axis=1)
    return labels


def timing(votes, stream, rng):
    ours = seconds(lambda: noisy_argmax(votes, CLASSES, NOISE, stream))
    rows = [
        {
            "method": "noisy_argmax, NoiseStream",
            "measured_queries": QUERIES,
            "seconds_for_all": statistics.median(ours),
            "fastest": ours[0],
            "slowest": ours[-1],
            "scaled": False,
        }
    ]
    for name, normals in (
        ("dense, numpy Generator", numpy_normals(rng)),
        ("dense, NoiseStream", stream_normals(stream)),
    ):
        times = [t * QUERIES / SAMPLE for t in seconds(lambda n=normals: dense(votes[:SAMPLE], CLASSES, NOISE, n))]
        rows.append(
            {
                "method": name,
                "measured_queries": SAMPLE,
                "seconds_for_all": statistics.median(times),
                "fastest": times[0],
                "slowest": times[-1],
                "scaled": True,
            }
        )
    for row in rows:
        row["times_slower"] = row["seconds_for_all"] / rows[0]["seconds_for_all"]
    return rows


def agreement(classes, noise, draws, stream, rng):
    """Chi-square of the labels of one set of votes, ours against dense: classes with a vote, the others in tenths."""
    votes = np.array([0, 0, 0, 0, 1, 1, 2, 3, classes // 2, classes - 1])
    named = np.unique(votes)
    rows = np.broadcast_to(votes, (draws, TEACHERS))

    def kinds(labels):
        place = np.searchsorted(named, labels)
        voted = named[np.minimum(place, named.size - 1)] == labels
        return np.bincount(np.where(voted, place, named.size + labels * 10 // classes), minlength=named.size + 10)

    ours = kinds(noisy_argmax(rows, classes, noise, stream))
    theirs = kinds(dense(rows, classes, noise, numpy_normals(rng)))
    table = np.array([ours, theirs])
    table = table[:, table.sum(axis=0) > 10]
    p = float(stats.chi2_contingency(table).pvalue)
    shift = visible(table.shape[1], draws)
    return {
        "classes": classes,
        "noise": noise,
        "draws_each": draws,
        "kinds_of_label": int(table.shape[1]),
        "p_value": p,
        "outside_votes": float(ours[named.size :].sum() / draws),
        "level": LEVEL,
        "found_with_probability_0.99": shift,
    }


def visible(kinds, draws):
    """The smallest total-variation distance that the test finds with probability 0.99 at its level, whatever its kind.

    A distance d adds at least 4 d^2 to chi-square a draw, and that much where half of all labels lose to the others.
    """
    edge = stats.chi2.isf(LEVEL, kinds - 1)
    for distance in np.geomspace(1e-4, 1, 400):
        if stats.ncx2.sf(edge, kinds - 1, draws / 2 * 4 * distance**2) > 0.99:
            return float(distance)
    return 1.0


def main():
    parser = argparse.ArgumentParser(description="Time the noisy argmax beside dense noise, and compare their labels.")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    arguments = parser.parse_args()
    rng, stream = np.random.default_rng(0), NoiseStream.from_system()
    votes = rng.integers(0, NAMED, (QUERIES, TEACHERS))
    labels = noisy_argmax(votes, CLASSES, NOISE, stream)
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "setting": {
            "teachers": TEACHERS,
            "classes": CLASSES,
            "queries": QUERIES,
            "classes_that_get_votes": NAMED,
            "noise": NOISE,
        },
        "timing": timing(votes, stream, rng),
        "labels_nobody_voted_for": float((labels[:, None] != votes).all(axis=1).mean()),
        "agreement": [
            agreement(CLASSES, 0.7, 4_000, stream, rng),
            agreement(60, 1.5, 400_000, stream, rng),
        ],
    }
    for row in result["timing"]:
        scaled = f"scaled from {row['measured_queries']:,} queries" if row["scaled"] else "all measured"
        print(
            f"{row['method']:<28} {row['seconds_for_all']:8.2f} s ({row['fastest']:.2f} to {row['slowest']:.2f}), "
            f"{scaled}; {row['times_slower']:,.0f} x"
        )
    print(f"labels nobody voted for, noise {NOISE:g}: {result['labels_nobody_voted_for']:.2%}")
    for row in result["agreement"]:
        print(
            f"{row['classes']:>6,} classes, noise {row['noise']:g}, {row['draws_each']:,} labels each: chi-square "
            f"p = {row['p_value']:.3f}; a distance of {row['found_with_probability_0.99']:.3f} would be found"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
