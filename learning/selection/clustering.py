"""Clusters of a public corpus, so that what is chosen from it stays diverse (PrivDistil, section 3.4, figures 4 and 5).

`k_means` reads a corpus larger than memory several times over, in blocks; `RandomClustering` is the paper's comparison
(appendix D). Embeddings are of public texts by a public model: nothing here costs privacy.

scikit-learn's `MiniBatchKMeans.partial_fit` takes a quarter of the memory and a sixth of the time, and joins clusters
that are apart: held-out inertia is 1.00 to 1.16 times this module's in the median over seeds, 1.30 at worst
(`benchmarks/clustering.py`). Its centres also depend on how the corpus is cut into blocks and in which order it comes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from aggregation.arrays import FloatArray
from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import DataError
from learning.selection.selecting import hashed

Source = Callable[[], Iterable[NDArray[np.float32]]]
"""A function that returns a fresh iterator over the same blocks of embeddings, [texts, width], at every call. A block
is valid until the next is asked for: its memory may be used again.
"""

SAMPLE: Final = 8192
SAMPLE_A_CLUSTER: Final = 64
"""The sample for the start has this many texts for every cluster, and at least `SAMPLE`."""
STILL: Final = 1e-6
"""Centres count as settled when the squares of their moves sum to less than this part of a text's mean square distance.
"""

_PIECE: Final = 4096  # texts that distances are taken of at once, whatever the blocks are
_STARTS: Final = 4
_SAMPLE_PASSES: Final = 25


class Grouping(Protocol):
    """Public texts, each in one of some clusters."""

    @property
    def clusters(self) -> int:
        """How many clusters there are."""

    def assign(self, block: NDArray[np.float32], first: int) -> NDArray[np.int32]:
        """The cluster of each text of a block, int32 [texts]; `first`: the row number of its first text."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """Clusters by the nearest of some centres.

    centres: float64 [clusters, width]. sizes: texts in each, int64 [clusters]; 0 only where there were fewer different
    texts than clusters, or passes ended first. inertia: sum over the corpus of the squared distance to the nearest
    centre. passes: readings of the corpus besides the first. settled: whether the centres had stopped.
    """

    centres: FloatArray
    sizes: NDArray[np.int64]
    inertia: float
    passes: int
    settled: bool

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return len(self.centres)

    def assign(self, block: NDArray[np.float32], first: int = 0) -> NDArray[np.int32]:
        """The cluster of each text of a block [texts, width], int32 [texts]: the nearest centre, the first of equals.

        first: the row number of the block's first text, for messages. Memory: 4,096 texts in float64 at a time.
        Raises `IntegrityError` for another width or embeddings that are not finite.
        """
        found = np.empty(len(block), np.int32)
        for at in range(0, len(block), _PIECE):
            piece = _checked(block[at : at + _PIECE], first + at, self.centres.shape[1])
            found[at : at + _PIECE] = _nearest(piece.astype(np.float64), self.centres)[0]
        return found


@dataclass(frozen=True, slots=True)
class RandomClustering:
    """Clusters by chance, from a text's row number alone: the comparison of PrivDistil's figure 5.

    The paper takes the row number modulo k, which deals out a corpus that has an order of its own by that order; a
    keyed hash does not. Raises `ConclaveError` for no cluster.
    Source: PrivDistil, appendix D, with a keyed hash in place of the row number modulo k.
    """

    clusters: int
    seed: int

    def __post_init__(self) -> None:
        if self.clusters < 1:
            raise ConclaveError(f"{self.clusters} clusters hold no text. Ask for one or more.")

    def assign(self, block: NDArray[np.float32], first: int) -> NDArray[np.int32]:
        """The cluster of each text of a block, int32 [texts]; `first`: the row number of the block's first text."""
        numbers = np.arange(first, first + len(block), dtype=np.int64)
        return (hashed(numbers, self.seed, "cluster") % np.uint64(self.clusters)).astype(np.int32)


def k_means(source: Source, clusters: int, *, seed: int, passes: int = 10) -> Clustering:
    """Centres that make the sum of squared distances small: k-means++ on a sample, then Lloyd's steps over the corpus.

    source: see `Source`; blocks of any sizes, float32 [texts, width], finite. passes: readings of the corpus at most,
    besides a first that counts it and draws the sample; each but the last moves the centres. It stops earlier when
    nothing moves. Clusters left empty move to the texts farthest from their centres.
    Sums are float64, over pieces of a fixed size, in one thread: blocks and cores do not matter.
    Memory: a block; in float64 4,096 texts, the sample (the larger of 8,192 and 64 * clusters texts) twice, the centres
    and as many far texts, each a few times over.
    Raises `ConclaveError` for no cluster or no pass, `DataError` for fewer texts than clusters, `IntegrityError` for
    embeddings of different widths or that are not finite, and for a source that is not the same every time.
    Source: PrivDistil, section 3.4; greedy k-means++ (Arthur & Vassilvitskii 2007), `_STARTS` times, the best taken;
    Lloyd 1982.
    """
    if clusters < 1 or passes < 1:
        raise ConclaveError(f"{clusters} clusters in {passes} passes cluster nothing. Ask for one or more of each.")
    sample, texts = _sampled(source, max(SAMPLE, SAMPLE_A_CLUSTER * clusters), seed)
    if texts < clusters:
        raise DataError(
            f"The public corpus has {texts:,} texts and {clusters:,} clusters are wanted. Give more texts, or ask for "
            "fewer clusters.",
            code="C204",
        )
    width, start = sample.shape[1], _start(sample, clusters, np.random.default_rng([seed, clusters]))
    del sample

    def read() -> Iterator[FloatArray]:
        seen = 0
        for piece in _pieces(source, width):
            seen += len(piece)
            yield piece
        if seen != texts:
            raise IntegrityError(
                f"The public corpus had {texts:,} texts when it was first read and {seen:,} later. Give a source that "
                "starts anew, with the same texts, every time it is called."
            )

    return _lloyd(read, start, passes)


def _start(sample: FloatArray, clusters: int, rng: np.random.Generator) -> FloatArray:
    """The best centres of a few clusterings of a sample."""
    found = [_lloyd(lambda: iter([sample]), _plus_plus(sample, clusters, rng), _SAMPLE_PASSES) for _ in range(_STARTS)]
    return min(found, key=lambda each: each.inertia).centres


def _lloyd(pieces: Callable[[], Iterator[FloatArray]], centres: FloatArray, passes: int) -> Clustering:
    """Lloyd's steps from centres [clusters, width]; what is returned was measured at the centres that are returned."""
    for number in range(1, passes + 1):
        clusters = len(centres)
        sums, sizes = np.zeros_like(centres), np.zeros(clusters, np.int64)
        inertia, far = 0.0, _Far(clusters)
        for piece in pieces():
            nearest, squares = _nearest(piece, centres)
            chosen = np.zeros((len(piece), clusters))
            chosen[np.arange(len(piece)), nearest] = 1
            with _one_thread():
                sums += chosen.T @ piece
            sizes += np.bincount(nearest, minlength=clusters)
            inertia += float(squares.sum())
            far.see(piece, squares)
        moved = np.where(sizes[:, None] > 0, sums / np.maximum(sizes, 1)[:, None], centres)
        empty = np.flatnonzero(sizes == 0)
        for place, text in zip(empty, far.distinct(len(empty)), strict=False):
            moved[place] = text
        settled = float(np.square(moved - centres).sum()) <= STILL * inertia / max(int(sizes.sum()), 1)
        if settled or number == passes:
            break
        centres = moved
    return Clustering(centres, sizes, inertia, number, settled)


class _Far:
    """The texts farthest from their centres seen so far, as many as there are clusters."""

    def __init__(self, count: int):
        self._count = count
        self._texts: FloatArray | None = None
        self._squares = np.empty(0)

    def see(self, piece: FloatArray, squares: FloatArray) -> None:
        least = self._squares[-1] if len(self._squares) == self._count else 0.0
        able = np.flatnonzero(squares > least)
        able = able[np.argsort(-squares[able], kind="stable")[: self._count]]
        if not len(able):
            return
        before = piece[:0] if self._texts is None else self._texts
        squares, texts = np.concatenate([self._squares, squares[able]]), np.concatenate([before, piece[able]])
        order = np.argsort(-squares, kind="stable")[: self._count]
        self._squares, self._texts = squares[order], texts[order]

    def distinct(self, count: int) -> list[FloatArray]:
        """Up to `count` texts that differ, the farthest first."""
        every = {text.tobytes(): text for text in (() if self._texts is None else self._texts)}
        return list(every.values())[:count]


def _nearest(piece: FloatArray, centres: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Of texts [texts, width], the nearest centre [texts], the first of equals, and the squared distance [texts]."""
    with _one_thread():
        squares = _norms(centres) - 2 * (piece @ centres.T)
    nearest = squares.argmin(axis=1)
    return nearest, np.maximum(squares[np.arange(len(piece)), nearest] + _norms(piece), 0)


def _one_thread() -> Any:
    """For products: they are narrow, so more threads gain nothing, and sums are the same on any number of cores."""
    return _threads().limit(limits=1, user_api="blas")


_threads = cache(ThreadpoolController)


def _norms(vectors: FloatArray) -> FloatArray:
    """Squared norms, [vectors]."""
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors))


def _plus_plus(sample: FloatArray, clusters: int, rng: np.random.Generator) -> FloatArray:
    """Greedy k-means++ (Arthur and Vassilvitskii 2007): of a few texts drawn in proportion to their squared distance,
    the one that lessens the sum most is the next centre. Where all coincide with centres, any is.
    """
    tries, norms = 2 + int(np.log(clusters)), _norms(sample)
    places = np.empty(clusters, np.int64)
    drawn, least = rng.integers(len(sample), size=1), np.full(len(sample), np.inf)
    for place in range(clusters):
        if place:
            sums = np.cumsum(least)
            drawn = np.searchsorted(sums, rng.random(tries) * sums[-1], side="right").clip(0, len(sample) - 1)
        with _one_thread():
            squares = norms[:, None] + norms[drawn] - 2 * (sample @ sample[drawn].T)
        after = np.minimum(least[:, None], np.maximum(squares, 0))
        best = int(after.sum(axis=0).argmin())
        places[place], least = drawn[best], after[:, best]
    return sample[places]


def _sampled(source: Source, size: int, seed: int) -> tuple[FloatArray, int]:
    """A uniform sample of a corpus' texts, float64 [at most size, width], and the corpus' size.

    The texts whose row numbers have the least keyed hashes: a reservoir that does not depend on blocks.
    """
    texts, keys, kept = 0, np.empty(0, np.uint64), np.empty((0, 1))
    for piece in _pieces(source, None):
        new = hashed(np.arange(texts, texts + len(piece)), seed, "sample")
        texts += len(piece)
        room = min(size - len(keys), len(piece))
        if room:
            kept = np.concatenate([kept, piece[:room]]) if len(keys) else piece[:room].copy()
            keys = np.concatenate([keys, new[:room]])
            piece, new = piece[room:], new[room:]
        if not len(new):
            continue
        both = np.concatenate([keys, new])
        taken = np.zeros(len(both), bool)
        taken[np.argpartition(both, size)[:size]] = True
        out, into = np.flatnonzero(~taken[:size]), np.flatnonzero(taken[size:])
        keys[out], kept[out] = new[into], piece[into]
    return kept, texts


def _pieces(source: Source, width: int | None) -> Iterator[FloatArray]:
    """The corpus, checked, in pieces of `_PIECE` texts, the last one shorter, however its blocks are cut.

    Every piece is of the same memory: it is of use until the next is asked for.
    """
    buffer: FloatArray | None = None
    held = seen = 0
    for given in source():
        block = _checked(given, seen, width)
        if buffer is None and len(block):
            width = block.shape[1]
            buffer = np.empty((_PIECE, width))
        seen += len(block)
        while len(block) and buffer is not None:
            part = block[: _PIECE - held]
            buffer[held : held + len(part)] = part
            held, block = held + len(part), block[len(part) :]
            if held == _PIECE:
                yield buffer
                held = 0
    if buffer is not None and held:
        yield buffer[:held]


def _checked(block: NDArray[np.float32], first: int, width: int | None) -> NDArray[np.float32]:
    block = np.asarray(block)
    if block.ndim != 2 or (len(block) and not block.shape[1]) or not np.issubdtype(block.dtype, np.floating):
        raise IntegrityError(
            f"Embeddings from public text {first} on are {block.dtype} of the shape {block.shape}. They are numbers "
            "[texts, width]."
        )
    if len(block) and width is not None and block.shape[1] != width:
        raise IntegrityError(
            f"Embeddings from public text {first} on have {block.shape[1]} numbers, those before {width}. Embed the "
            "whole corpus by one model."
        )
    if not np.isfinite(block).all():
        row = first + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
        raise IntegrityError(
            f"The embedding of public text {row} is not finite. Leave the text out, or mend its model."
        )
    return block
