"""What the student makes of noisy counts: held-out context perplexity over epsilon, beside the floor and the ceiling.

    python benchmarks/noisy_student.py [--out FOLDER] [--draws 3]

Docstrings: `documentation`, a docstring as unit, vocabulary from `documentation-topics`, held out
`documentation-heldout`. WikiText-2 (where $CONCLAVE_DATA or ../shared/data has it): paragraphs of two of its files as
units, vocabulary from the novels, the test articles held out. Counts are clipped and noised by the mechanism that
parties use, all of it at once.
Writes noisy_student.json, .png and .svg.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray
from scipy import sparse

from aggregation.accounting.price import calibrate
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings.cooccurrence import counts_of, unit_counts
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity
from learning.embeddings.skipgram import fit, fit_noisy, unigram
from learning.text.source import Source, read
from learning.text.words import Vocabulary, tokenize

DATA = Path(os.environ.get("CONCLAVE_DATA") or Path(__file__).resolve().parents[2] / "shared/data")
EPSILONS = (0.2, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-6
SIZE, WINDOW, DIMENSION = 1000, 5, 100
CLIP, LEVELS = 10.0, 320
PUBLIC_PASSAGES = 6000
NAMES = ("student", "floor", "row sums")


def corpora() -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """(name, private units, held-out texts, public texts) of every corpus at hand."""
    with tempfile.TemporaryDirectory() as folder:

        def texts(name: str | Path) -> list[str]:
            return [document.text for document in read(Source(str(name)), Path(folder))]

        names = ("documentation", "documentation-heldout", "documentation-topics")
        yield "docstrings", *(texts(name) for name in names)
        wiki = DATA / "wikitext2"
        if wiki.is_dir():
            articles = texts(wiki / "valid.jsonl") + texts(wiki / "train_part.jsonl")
            paragraphs = [part for article in articles for part in article.split("\n") if part.strip()]
            novels = list(islice(texts(DATA / "novels/passages.jsonl"), PUBLIC_PASSAGES))
            yield "WikiText-2", paragraphs, texts(wiki / "test.jsonl"), novels


def measure(private: list[str], heldout: list[str], public: list[str], draws: int) -> dict[str, Any]:
    """Perplexities of one corpus: without privacy, and for every epsilon as mean and deviation over noise draws."""
    vocabulary = Vocabulary.from_public(public, SIZE)
    units = unit_counts([[vocabulary.encode(tokenize(text))] for text in private], SIZE, WINDOW)
    unseen = counts_of([vocabulary.encode(tokenize(text)) for text in heldout], SIZE, WINDOW)
    exact = sparse.csr_array(units.sum(axis=0).reshape(1, -1)).reshape((SIZE, SIZE)).tocsr()
    rows = []
    for epsilon in EPSILONS:
        multiplier = calibrate(GaussianDpEvent, epsilon, DELTA)
        mechanism = CountsMechanism(CLIP, LEVELS, multiplier, 1)
        clean = mechanism.contribute(units).reshape((SIZE, SIZE)).toarray()
        found: dict[str, list[float]] = {name: [] for name in NAMES}
        began = time.perf_counter()
        for draw in range(draws):
            noise = mechanism.noise_share((SIZE, SIZE), NoiseStream.insecure(draw, "noisy student"))
            released = mechanism.release(clean + noise, 1)
            for name, perplexity in judged(released.values, released.sigma, unseen).items():
                found[name].append(perplexity)
        spread = {name: (statistics.mean(all_), statistics.pstdev(all_)) for name, all_ in found.items()}
        rows.append({"epsilon": epsilon, "noise_multiplier": multiplier, **spread})
        shown = ", ".join(f"{name} {mean:,.1f} ± {deviation:.1f}" for name, (mean, deviation) in spread.items())
        print(f"  epsilon {epsilon:g}: {shown} ({(time.perf_counter() - began) / draws:.1f} s a draw)", flush=True)
    return {
        "units": len(private),
        "pairs": int(units.sum()),
        "exact_unigram": unigram_perplexity(unigram(exact.toarray(), 0), unseen),
        "non_private": context_perplexity(fit(exact, dimension=DIMENSION, seed=0), unseen),
        "rows": rows,
    }


def judged(counts: NDArray[np.float64], sigma: float, unseen: sparse.csr_array) -> dict[str, float]:
    """The student, the floor (the same without vectors), and plain row sums cut off at zero."""
    sums = np.maximum(counts.sum(axis=1), 0) + 0.5
    return {
        "student": context_perplexity(fit_noisy(counts, sigma, dimension=DIMENSION, seed=0), unseen),
        "floor": unigram_perplexity(unigram(counts, sigma), unseen),
        "row sums": unigram_perplexity(sums / sums.sum(), unseen),
    }


def draw(results: dict[str, Any], folder: Path) -> None:
    """Student and floor over epsilon, between the exact unigram and the non-private fit; one panel a corpus."""
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "noisy student"
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(1, len(results), figsize=(5.5 * len(results), 4), layout="constrained", squeeze=False)
    for axis, (name, found) in zip(grid[0], results.items(), strict=True):
        for what in ("student", "floor"):
            mean, deviation = np.array([row[what] for row in found["rows"]]).T
            (line,) = axis.plot(EPSILONS, mean, marker="o", markersize=3, label=what)
            axis.fill_between(EPSILONS, mean - deviation, mean + deviation, alpha=0.2, color=line.get_color())
        axis.axhline(found["exact_unigram"], color="grey", linestyle=":", linewidth=1, label="exact unigram")
        axis.axhline(found["non_private"], color="grey", linestyle="--", linewidth=1, label="no noise, no clip")
        axis.set(xscale="log", xlabel="epsilon (delta 1e-6)", title=f"{name}, {found['units']:,} units")
        axis.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axis.minorticks_off()
    grid[0][0].set_ylabel("held-out context perplexity")
    grid[0][0].legend()
    figure.savefig(folder / "noisy_student.png", dpi=150)
    figure.savefig(folder / "noisy_student.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Print a line an epsilon; with --out write the figures and the picture."""
    parser = argparse.ArgumentParser(description="What the student makes of noisy counts.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=3)
    given = parser.parse_args()
    results = {}
    for name, private, heldout, public in corpora():
        print(f"{name}: {len(private):,} units", flush=True)
        results[name] = measure(private, heldout, public, given.draws)
        ends = results[name]
        print(
            f"  exact unigram {ends['exact_unigram']:.1f}, no noise and no clip {ends['non_private']:.1f}", flush=True
        )
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"delta": DELTA, "words": SIZE, "clip": CLIP, "corpora": results}, indent=1)
        (given.out / "noisy_student.json").write_text(text + "\n", encoding="utf-8")
        draw(results, given.out)


if __name__ == "__main__":
    main()
