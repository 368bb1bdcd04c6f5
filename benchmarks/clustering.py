"""Our k-means over a corpus in blocks beside scikit-learn's `MiniBatchKMeans.partial_fit`, on the same rows.

    python benchmarks/clustering.py [--rows 20000] [--width 384] [--clusters 10 100] [--seeds 5] [--out FILE]

Corpora: made-up mixtures whose clusters touch, in an order by chance and sorted by cluster, as a corpus sorted by topic
is; one whose clusters are far apart; and the packaged encoder's embeddings of the standard library's docstrings, in
their own order, by module. All lie on disk and are read in blocks. For each way: the inertia a held-out row, over that
of `k_means` with the same seed; the spread of the clusters' sizes on the corpus (standard deviation over mean) and how
many are empty; processor seconds; the peak of traced memory, in a run of its own. Medians over seeds. JSON is written
after every corpus, and added to what the file has.
"""

import argparse
import itertools
import json
import platform
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans

from learning.models.checkpoints import PACKAGED
from learning.selection.clustering import SAMPLE, SAMPLE_A_CLUSTER, k_means
from learning.selection.text_rows import TextRows
from learning.text.source import Source, read

Floats = NDArray[np.float32]
Way = Callable[[Floats, int, int], NDArray[np.float64]]
"""A corpus [rows, width], a number of clusters and a seed to centres [clusters, width]."""

BLOCK = 4096
PASSES = 10
HELD_OUT = 0.1
MACHINE = f"{platform.machine()}, numpy {np.__version__}, scikit-learn {sklearn.__version__}"
CORPORA = ("mixture", "mixture, sorted", "mixture, apart", "docstrings")


def blocks(corpus: Floats, size: int = BLOCK) -> Iterator[Floats]:
    """The corpus as the run reads it: one block in memory at a time."""
    for at in range(0, len(corpus), size):
        yield np.array(corpus[at : at + size])


def ours(corpus: Floats, clusters: int, seed: int) -> NDArray[np.float64]:
    """`learning.selection.clustering.k_means`."""
    return k_means(lambda: blocks(corpus), clusters, seed=seed, passes=PASSES).centres


def mini_batch(passes: int, size: int, *, sampled: bool = False) -> Way:
    """`partial_fit` in blocks of a size; sampled: on a uniform sample first, of as many rows as `k_means` draws."""

    def way(corpus: Floats, clusters: int, seed: int) -> NDArray[np.float64]:
        model = MiniBatchKMeans(clusters, random_state=seed, batch_size=size)
        if sampled:
            count = min(max(SAMPLE, SAMPLE_A_CLUSTER * clusters), len(corpus))
            rows = np.sort(np.random.default_rng(seed).choice(len(corpus), count, replace=False))
            model.partial_fit(np.array(corpus[rows]))
        for _ in range(passes):
            for block in blocks(corpus, size):
                if len(block) >= clusters:
                    model.partial_fit(block)
        return np.asarray(model.cluster_centers_, np.float64)

    return way


WAYS: dict[str, Way] = {
    "k_means": ours,
    "partial_fit, 1 pass, blocks of 4096": mini_batch(1, BLOCK),
    "partial_fit, 10 passes, blocks of 4096": mini_batch(PASSES, BLOCK),
    "partial_fit, 10 passes, blocks of 1024": mini_batch(PASSES, 1024),
    "partial_fit, sample first, 10 passes, blocks of 4096": mini_batch(PASSES, BLOCK, sampled=True),
}


def mixture(rows: int, width: int, clusters: int, *, ordered: bool, spread: float) -> tuple[Floats, Floats]:
    """A corpus and held-out rows about centres of unequal numbers and widths."""
    rng = np.random.default_rng(clusters)
    held_out = int(rows * HELD_OUT)
    true = rng.choice(clusters, rows + held_out, p=rng.dirichlet(np.full(clusters, 3.0)))
    widths, centres = rng.uniform(0.5, 1.5, clusters), rng.normal(size=(clusters, width)) * spread
    texts = (centres[true] + rng.normal(size=(len(true), width)) * widths[true, None]).astype(np.float32)
    corpus, rest = texts[:rows], texts[rows:]
    return corpus[np.argsort(true[:rows], kind="stable")] if ordered else corpus, rest


def docstrings(cache: Path) -> tuple[Floats, Floats]:
    """Embeddings of the built-in corpus and of its held-out part."""
    work = TextRows("mean", PACKAGED, longest=64).load()

    def of(name: str) -> Floats:
        texts = [(document.text,) for document in read(Source(name), cache)]
        return np.concatenate([work(texts[at : at + 512]) for at in range(0, len(texts), 512)])

    return of("documentation"), of("documentation-heldout")


def nearest(rows: Floats, centres: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
    """Each row's nearest centre, and the mean squared distance to it."""
    texts = rows.astype(np.float64)
    squares = np.square(texts).sum(axis=1)[:, None] - 2 * texts @ centres.T + np.square(centres).sum(axis=1)
    return squares.argmin(axis=1), float(squares.min(axis=1).mean())


def peak(way: Way, corpus: Floats, clusters: int) -> float:
    """MiB of traced memory at most."""
    tracemalloc.start()
    try:
        way(corpus, clusters, 0)
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def measured(corpus: Floats, held_out: Floats, clusters: int, seeds: int) -> dict[str, Any]:
    """Every way on one corpus."""
    found: dict[str, Any] = {}
    least: list[float] = []
    for name, way in WAYS.items():
        inertia, spread, empty, seconds = [], [], [], []
        for seed in range(seeds):
            began = time.process_time()
            centres = way(corpus, clusters, seed)
            seconds.append(time.process_time() - began)
            sizes = np.bincount(nearest(corpus, centres)[0], minlength=clusters)
            inertia.append(nearest(held_out, centres)[1])
            spread.append(float(sizes.std() / sizes.mean()))
            empty.append(int((sizes == 0).sum()))
        least = least or inertia
        found[name] = {
            "inertia_over_k_means": round(float(np.median(np.divide(inertia, least))), 4),
            "worst_over_k_means": round(float(np.divide(inertia, least).max()), 4),
            "spread_of_sizes": round(float(np.median(spread)), 2),
            "empty": int(np.median(empty)),
            "seconds": round(float(np.median(seconds)), 1),
            "mebibytes": round(peak(way, corpus, clusters)),
        }
        told = found[name]
        print(
            f"  {name}: inertia x {told['inertia_over_k_means']:.4f} (worst {told['worst_over_k_means']:.4f}), sizes "
            f"{told['spread_of_sizes']:.2f}, empty {told['empty']}, {told['seconds']} s, "
            f"{told['mebibytes']} MiB",
            flush=True,
        )
    return found


def main() -> None:
    """Measure every way on every corpus with 10 and with 100 clusters."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--clusters", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=CORPORA)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    if given.out is not None and given.out.exists():
        results = json.loads(given.out.read_text())["results"]
    with tempfile.TemporaryDirectory() as folder:
        real = docstrings(Path(folder)) if "docstrings" in given.corpora else None
        for clusters, name in itertools.product(given.clusters, given.corpora):
            if name == "docstrings":
                assert real is not None
                corpus, held_out = real
            else:
                corpus, held_out = mixture(
                    given.rows,
                    given.width,
                    clusters,
                    ordered=name == "mixture, sorted",
                    spread=4.0 if name == "mixture, apart" else 0.5,
                )
            title = f"{name}, {len(corpus):,} x {corpus.shape[1]}, {clusters} clusters, {given.seeds} seeds"
            print(title, flush=True)
            np.save(Path(folder) / "corpus.npy", corpus)
            results[title] = measured(
                np.load(Path(folder) / "corpus.npy", mmap_mode="r"), held_out, clusters, given.seeds
            )
            if given.out is not None:
                result = {"command": "python benchmarks/clustering.py", "machine": MACHINE, "results": results}
                given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
