"""What adjusted importance sampling costs: a merge of sorted streams, beside a scan at every pick and the paper's loop.

    python benchmarks/selecting.py [--rows 1000000] [--m 500000] [--clusters 10] [--out FILE]

Each way chooses m of the same made-up scored rows in a process of its own: seconds of its one thread, seconds by the
clock, and by how much the process' largest resident memory grew. "merge" is `learning.selection.selecting`, fed blocks
of 10,000 rows; "merge, ten times the rows" chooses as many of ten times the rows. "argmax" keeps every cluster's scores
as an array and scans it by numpy at every pick; it is run in full, and must choose the same, where it is expected to
take under a minute, and is scaled otherwise. "loop" is algorithm 1, lines 11 to 20, on Python lists: a pick is measured
at the first and at the last ones, when what was picked is gone, and the mean is multiplied by m. Making the rows is not
counted.
"""

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from learning.selection.selecting import Rows, Selector

BLOCK = 10_000
FULL_SECONDS = 60.0
TRIED = 2_000
TRIED_LOOP = 40


def blocks(rows: int, clusters: int) -> Iterator[Rows]:
    """Scored rows, the same at every call; the largest cluster is twice the smallest, and their scores differ."""
    shares = np.linspace(1, 2, clusters)
    for first in range(0, rows, BLOCK):
        rng = np.random.default_rng([1, first])
        count = min(BLOCK, rows - first)
        each = rng.choice(clusters, count, p=shares / shares.sum()).astype(np.int32)
        yield Rows(first, rng.beta(2, 5 + each).astype(np.float32), each)


class Watch:
    """Seconds of this process' own and by the clock, while it is entered."""

    def __init__(self) -> None:
        self.own = self.clock = 0.0

    def __enter__(self) -> "Watch":
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.own += time.process_time() - self._began[0]
        self.clock += time.perf_counter() - self._began[1]

    def times(self, factor: float, scaled: bool) -> dict[str, Any]:
        """What is reported."""
        return {"seconds": self.own * factor, "clock_seconds": self.clock * factor, "scaled": scaled}


def merge(rows: int, clusters: int, m: int) -> tuple[dict[str, Any], "np.ndarray[Any, Any] | None"]:
    selector, held, watch = Selector("ais", m, clusters=clusters), 0, Watch()
    for block in blocks(rows, clusters):
        with watch:
            selector.offer(block)
        held = max(held, selector.candidates)
    with watch:
        chosen = selector.choose()
    return {**watch.times(1, scaled=False), "rows_held": held}, chosen


def by_cluster(rows: int, clusters: int) -> list[tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]]:
    """Row numbers and scores of every cluster."""
    numbers: list[list[Any]] = [[] for _ in range(clusters)]
    scores: list[list[Any]] = [[] for _ in range(clusters)]
    for block in blocks(rows, clusters):
        for place in range(clusters):
            inside = block.clusters == place
            numbers[place].append(block.numbers + np.flatnonzero(inside))
            scores[place].append(block.scores[inside])
    return [(np.concatenate(n), np.concatenate(s)) for n, s in zip(numbers, scores, strict=True)]


def argmax(rows: int, clusters: int, m: int) -> tuple[dict[str, Any], "np.ndarray[Any, Any] | None"]:
    streams = by_cluster(rows, clusters)
    if any(len(numbers) <= m // clusters for numbers, _ in streams):
        raise SystemExit("A cluster would run out, which this comparison leaves out. Ask for a smaller m.")

    def picks(count: int) -> tuple[list[int], Watch]:
        chosen: list[int] = []
        with Watch() as watch:
            while len(chosen) < count:
                numbers, scores = streams[len(chosen) % clusters]
                best = scores.argmax()  # the first of equals, so the lowest row number
                scores[best] = -np.inf
                chosen.append(int(numbers[best]))
        return chosen, watch

    before = [scores.copy() for _, scores in streams]
    tried = min(TRIED, m)
    _, watch = picks(tried)
    if watch.own / tried * m > FULL_SECONDS:  # an array is as long at the last pick as at the first
        return {**watch.times(m / tried, scaled=True), "picks_measured": tried}, None
    for (_, scores), each in zip(streams, before, strict=True):
        scores[:] = each
    del before
    chosen, watch = picks(m)
    return watch.times(1, scaled=False), np.array(chosen)


def loop(rows: int, clusters: int, m: int) -> tuple[dict[str, Any], "np.ndarray[Any, Any] | None"]:
    every = [list(zip(s.tolist(), (-n).tolist(), strict=True)) for n, s in by_cluster(rows, clusters)]

    watch = Watch()

    def picks(left: list[list[tuple[float, int]]]) -> None:
        with watch:
            for pick in range(TRIED_LOOP):
                cluster = left[pick % clusters]
                cluster.remove(max(cluster))

    picks(every)
    for each in every:
        each.sort()
        del each[max(len(each) - m // clusters, 0) + TRIED_LOOP :]
        random.Random(0).shuffle(each)
    picks(every)
    return {**watch.times(m / (2 * TRIED_LOOP), scaled=True), "picks_measured": 2 * TRIED_LOOP}, None


WAYS = {"merge": merge, "argmax": argmax, "loop": loop}


def child(way: str, rows: int, clusters: int, m: int) -> None:
    """Choose in this process, and print what it took and a digest of the choice."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result, chosen = WAYS[way](rows, clusters, m)
    result["mebibytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    if chosen is not None:
        import hashlib

        result["choice"] = hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest()[:16]
    print(json.dumps(result))


def main() -> int:
    """Run every way in a process of its own, print a line for each, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--m", type=int, default=500_000)
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=3, help="of the merge; the median is reported")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        child(given.way, given.rows, given.clusters, given.m)
        return 0

    def run(way: str, rows: int) -> dict[str, Any]:
        command = [sys.executable, __file__, "--way", way, "--rows", str(rows), "--m", str(given.m)]
        command += ["--clusters", str(given.clusters)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def median(rows: int) -> dict[str, Any]:
        each = sorted((run("merge", rows) for _ in range(given.repetitions)), key=lambda found: found["seconds"])
        return {**each[len(each) // 2], "fastest": each[0]["seconds"], "slowest": each[-1]["seconds"]}

    ways = {"merge": median(given.rows), "argmax": run("argmax", given.rows), "loop": run("loop", given.rows)}
    ways["merge, ten times the rows"] = median(10 * given.rows)
    if not ways["argmax"]["scaled"] and ways["argmax"]["choice"] != ways["merge"]["choice"]:
        print("The merge and the scan chose differently.", file=sys.stderr)
        return 1
    for name, found in ways.items():
        scaled = ", scaled" if found["scaled"] else ""
        print(
            f"{name}: {found['seconds']:,.2f} s{scaled} ({found['clock_seconds']:,.2f} by the clock), "
            f"{found['mebibytes']:,.0f} MiB more"
        )
    result = {
        "command": f"python benchmarks/selecting.py --rows {given.rows} --m {given.m} --clusters {given.clusters}",
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
        "rows": given.rows,
        "m": given.m,
        "clusters": given.clusters,
        "same_choice_by_argmax": None if ways["argmax"]["scaled"] else True,
        "argmax_over_merge": ways["argmax"]["seconds"] / ways["merge"]["seconds"],
        "loop_over_merge": ways["loop"]["seconds"] / ways["merge"]["seconds"],
        "ways": ways,
    }
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
