"""Three ways to fit a skip-gram to the same public text, and how good each is after how many seconds.

    python benchmarks/fitting.py [--out FOLDER] [--seeds 5] [--seconds 20] [--vocabulary 1000]
                                 [--source documentation --heldout documentation-heldout]

full softmax: `learning.embeddings.skipgram.fit` on the co-occurrence matrix. pair by pair: a torch loop over shuffled
mini-batches of 256 pairs, softmax over the whole vocabulary, Adam. word2vec: gensim, skip-gram with five negative
samples. A point of the first and the last is a whole fit of so many steps or epochs, counting included; the loop is
looked at as it runs. Evaluation is not timed. For word2vec, which is not trained to give probabilities, p(context |
centre) is proportional to noise(context) exp(centre . context), what its objective has as optimum; it also closes up
around words outside the vocabulary, where the others keep their place. Few of the docstrings' words are in WordSim-353:
it is left out there, and shown for a --source of general text. Writes fitting.json, fitting.png and fitting.svg.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gensim
import matplotlib as mpl
import numpy as np
import torch
from gensim.models import Word2Vec
from scipy import sparse

from learning.embeddings.cooccurrence import WINDOW, Passage, counts_of
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity, wordsim
from learning.embeddings.skipgram import SkipGram, fit, unigram
from learning.text.source import Source, read
from learning.text.words import Vocabulary, tokenize

DIMENSION = 100
STEPS = (5, 10, 20, 40, 80)
EPOCHS = (1, 2, 4, 8, 16)
LOOKS = 8
MINIMUM_PAIRS = 30
"""Under so many pairs of WordSim-353 in the vocabulary a correlation says nothing, and none is given."""
BATCH = 256


@dataclass(frozen=True, slots=True)
class Corpus:
    """Public text, its vocabulary, and the same vocabulary's counts [V, V] in held-out text."""

    texts: list[list[str]]
    passages: list[Passage]
    vocabulary: Vocabulary
    heldout: sparse.csr_array


Fitted = Iterator[tuple[float, SkipGram]]


def full_softmax(corpus: Corpus, seed: int, seconds: float) -> Fitted:
    """A whole fit for each number of steps, the counting included in its time."""
    for steps in STEPS:
        began = time.perf_counter()
        counts = counts_of(corpus.passages, len(corpus.vocabulary))
        model = fit(counts, dimension=DIMENSION, seed=seed, steps=steps)
        yield time.perf_counter() - began, model


def pair_by_pair(corpus: Corpus, seed: int, seconds: float) -> Fitted:
    """One loop, looked at `LOOKS` times; its clock stands still meanwhile."""
    size = len(corpus.vocabulary)
    torch.manual_seed(seed)
    began = time.perf_counter()
    counts = counts_of(corpus.passages, size).tocoo()
    centres, contexts = (
        torch.from_numpy(np.repeat(axis, counts.data.astype(int)).astype(np.int64)) for axis in counts.coords
    )
    inputs, outputs = torch.nn.Embedding(size, DIMENSION), torch.nn.Linear(DIMENSION, size)
    torch.nn.init.normal_(inputs.weight, std=0.1)
    optimiser = torch.optim.Adam([*inputs.parameters(), *outputs.parameters()], lr=3e-3)
    spent, look = time.perf_counter() - began, 1
    marks = seconds * 2.0 ** np.arange(1 - LOOKS, 1)
    while look <= LOOKS:
        began = time.perf_counter()
        order = torch.randperm(len(centres))
        for batch in order.split(BATCH):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(outputs(inputs(centres[batch])), contexts[batch])
            loss.backward()
            optimiser.step()
            if spent + time.perf_counter() - began >= marks[look - 1]:
                spent += time.perf_counter() - began
                values = (part.detach().numpy().copy() for part in (inputs.weight, outputs.weight, outputs.bias))
                yield spent, SkipGram(*values)
                look += 1
                began = time.perf_counter()
                if look > LOOKS:
                    return
        spent += time.perf_counter() - began


def word2vec(corpus: Corpus, seed: int, seconds: float) -> Fitted:
    """A whole training for each number of epochs: the step size falls over all of them."""
    kept = [[word for word in words if word in corpus.vocabulary] for words in corpus.texts]
    for epochs in EPOCHS:
        began = time.perf_counter()
        model = Word2Vec(
            kept,
            vector_size=DIMENSION,
            window=WINDOW,
            shrink_windows=False,
            min_count=1,
            sg=1,
            negative=5,
            sample=0,
            epochs=epochs,
            seed=seed + 1,
            workers=os.cpu_count() or 1,
        )
        spent = time.perf_counter() - began
        size = len(corpus.vocabulary)
        inputs, outputs = (np.zeros((size, DIMENSION), np.float32) for _ in range(2))
        frequency = np.full(size, 0.5)
        for place, word in enumerate(corpus.vocabulary.words):
            if word in model.wv:
                at = model.wv.key_to_index[word]
                inputs[place], outputs[place] = model.wv.vectors[at], model.syn1neg[at]
                frequency[place] = model.wv.get_vecattr(word, "count")
        yield spent, SkipGram(inputs, outputs, (model.ns_exponent * np.log(frequency)).astype(np.float32))


METHODS = {"full softmax (ours)": full_softmax, "pair by pair (torch)": pair_by_pair, "word2vec (gensim)": word2vec}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="for the pair-by-pair loop, each seed")
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--source", default="documentation")
    parser.add_argument("--heldout", default="documentation-heldout")
    given = parser.parse_args()

    corpus = _corpus(given.source, given.heldout, given.vocabulary)
    fit(counts_of(corpus.passages, len(corpus.vocabulary)), dimension=DIMENSION, seed=0, steps=2)  # first use is slower
    curves: dict[str, list[list[dict[str, float | None]]]] = {}
    for name, method in METHODS.items():
        curves[name] = []
        for seed in range(given.seeds):
            points = [_judged(spent, model, corpus) for spent, model in method(corpus, seed, given.seconds)]
            curves[name].append(points)
            last = points[-1]
            print(f"{name}, seed {seed}: perplexity {last['perplexity']:.1f} after {last['seconds']:.1f} s", flush=True)
    counts = counts_of(corpus.passages, len(corpus.vocabulary))
    floor = unigram_perplexity(unigram(counts.toarray(), 0), corpus.heldout)
    pairs = wordsim(np.eye(len(corpus.vocabulary), dtype=np.float32), corpus.vocabulary).pairs_used
    result = {
        "what": "perplexity of held-out contexts and WordSim-353 over seconds of fitting",
        "corpus": {
            "source": Path(given.source).name,
            "heldout": Path(given.heldout).name,
            "words": sum(map(len, corpus.texts)),
            "vocabulary": len(corpus.vocabulary),
            "pairs": int(counts.sum()),
            "window": WINDOW,
        },
        "dimension": DIMENSION,
        "unigram_perplexity": floor,
        "wordsim_pairs": pairs,
        "machine": {
            "cores": os.cpu_count(),
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "gensim": gensim.__version__,
        },
        "curves": curves,
        "summary": {name: _summary(runs) for name, runs in curves.items()},
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "fitting.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    _draw(curves, floor, pairs, given.out)
    print(f"{'':24}{'seconds':>10}{'perplexity':>18}{'WordSim':>18}   (unigram {floor:.1f})")
    for name, runs in curves.items():
        summary = _summary(runs)
        best = min(summary, key=lambda point: point["perplexity"][0])
        similar = "-" if best["wordsim"] is None else "{:.2f} ± {:.2f}".format(*best["wordsim"])
        print(f"{name:24}{best['seconds'][0]:>10.1f}{'{:.1f} ± {:.1f}'.format(*best['perplexity']):>18}{similar:>18}")


def _corpus(source: str, heldout: str, size: int) -> Corpus:
    with tempfile.TemporaryDirectory() as cache:
        texts = [tokenize(document.text) for document in read(Source(source), Path(cache))]
        other = [tokenize(document.text) for document in read(Source(heldout), Path(cache))]
    vocabulary = Vocabulary.from_public((" ".join(words) for words in texts), size)
    passages = [vocabulary.encode(words) for words in texts]
    return Corpus(
        texts, passages, vocabulary, counts_of([vocabulary.encode(words) for words in other], len(vocabulary))
    )


def _judged(spent: float, model: SkipGram, corpus: Corpus) -> dict[str, float | None]:
    similarity = wordsim(model.inputs, corpus.vocabulary)
    return {
        "seconds": spent,
        "perplexity": context_perplexity(model, corpus.heldout),
        "wordsim": similarity.spearman if similarity.pairs_used >= MINIMUM_PAIRS else None,
    }


def _summary(runs: list[list[dict[str, float | None]]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over the seeds of each point of a curve."""

    def spread(key: str, points: tuple[dict[str, float | None], ...]) -> tuple[float, float] | None:
        values = [value for point in points if (value := point[key]) is not None]
        return (float(np.mean(values)), float(np.std(values))) if values else None

    return [{key: spread(key, points) for key in points[0]} for points in zip(*runs, strict=True)]


def _draw(curves: dict[str, list[list[dict[str, float | None]]]], floor: float, pairs: int, folder: Path) -> None:
    """Means over the seeds as lines, one standard deviation to either side as bands."""
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "fitting"
    from matplotlib import pyplot as plt

    titles = {"perplexity": "Held-out context perplexity"}
    if pairs >= MINIMUM_PAIRS:
        titles["wordsim"] = f"WordSim-353, {pairs} of its pairs"
    figure, grid = plt.subplots(1, len(titles), figsize=(5.5 * len(titles), 4), layout="constrained", squeeze=False)
    axes = list(grid[0])
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        for name, runs in curves.items():
            summary = [point for point in _summary(runs) if point[key] is not None]
            seconds = [point["seconds"][0] for point in summary]
            mean, deviation = (np.array([point[key][part] for point in summary], dtype=float) for part in (0, 1))
            (line,) = axis.plot(seconds, mean, marker="o", markersize=3, label=name)
            axis.fill_between(seconds, mean - deviation, mean + deviation, alpha=0.2, color=line.get_color())
        axis.set_xscale("log")
        axis.set_xlabel("seconds of fitting")
        axis.set_title(title)
    _within(axes[0], floor, curves)
    axes[0].axhline(floor, color="grey", linestyle="--", linewidth=1, label="unigram")
    axes[0].legend()
    figure.savefig(folder / "fitting.png", dpi=150)
    figure.savefig(folder / "fitting.svg", metadata={"Date": None})
    plt.close(figure)


def _within(axis: Any, floor: float, curves: dict[str, list[list[dict[str, float | None]]]]) -> None:
    """Leave out what is far above the floor, where no curve differs from another."""
    best = min(point["perplexity"] or floor for runs in curves.values() for run in runs for point in run)
    axis.set_ylim(best - 0.1 * (floor - best), floor + 1.5 * (floor - best))


if __name__ == "__main__":
    main()
