"""Which public texts a student is distilled on: adjusted importance sampling (PrivDistil, section 3.4) and baselines.

Everything here is public: a public corpus' row numbers, their clusters, and scores that follow from released domain
classifiers. Choosing is post-processing and costs no privacy.

A choice is *path independent*: what is chosen of A and B together is what is chosen of (what is chosen of A) and B. So
a stream is chosen from with no more than the choice so far and a buffer in memory. For adjusted importance sampling:
let cluster c have n_c rows so far, and let r be the least number of turns with sum_c min(n_c, r) >= m. More rows only
raise n_c, so r never grows, and a row's place in its cluster only gets worse: one past place r is never chosen later.
In turn r the first clusters that still have a row are served; more rows only put more clusters before a given one, and
leave fewer picks for that turn: one not served now is not served later. The m rows chosen so far are thus all that can
matter.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import DataError

Method = Literal["ais", "classifier", "random", "all"]
METHODS: Final = get_args(Method)

LEAST_BUFFER: Final = 1 << 16
"""The least number of rows that are gathered before the choice is made again."""

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of a public corpus' rows.

    numbers: the first row's number, for rows that follow each other, or every row's, int64 [rows]. Each number is
    offered once. scores: how private-like a text is, larger is more, float [rows]. clusters: int [rows], from 0; only
    "ais" asks for them.
    """

    numbers: int | NDArray[np.int64]
    scores: NDArray[np.floating]
    clusters: NDArray[np.integer] | None = None


class Selector:
    """Chooses m rows of a stream; blocks of any sizes in any order give the same choice.

    method: "ais" takes the best unused row of every cluster in turn, clusters that have run out passed over, by
    merging k sorted streams in O(n log m) for n rows; "classifier" the m best rows;
    "random" m rows uniformly, without replacement; "all" every row. Equal scores go by the lower row number.
    m: how many, not used by "all". clusters: how many there are, for "ais". seed: for "random".
    Memory: m rows at most and a buffer of max(m, `LEAST_BUFFER`), however many are offered; 20 bytes each, and about 40
    more while a choice is made. For "all" 8 bytes a row.
    Raises `ConclaveError` for an unknown method, m below 1 or none, or no cluster.
    Source: PrivDistil, section 3.4 and algorithm 1, lines 11 to 20; the merge is our own.
    """

    def __init__(self, method: Method, m: int | None = None, *, clusters: int = 1, seed: int = 0):
        if method not in METHODS:
            raise ConclaveError(f"There is no way of selecting {method!r}. Use {', '.join(METHODS)}.")
        if method != "all" and (m is None or m < 1):
            raise ConclaveError(f"{m} public texts are to be chosen by {method!r}. Choose one or more.")
        if clusters < 1:
            raise ConclaveError(f"There are {clusters} clusters of public texts. Ask for one or more.")
        self.method: Final = method
        self.m: Final = None if method == "all" else m
        self.clusters: Final = clusters if method == "ais" else 1
        self.seed: Final = seed
        self._offered = 0
        self._held = 0
        self._limit = np.iinfo(np.int64).max if self.m is None else self.m + max(self.m, LEAST_BUFFER)
        self._floors: NDArray[np.float64] | None = None
        self._numbers = np.empty(0, np.int64)
        self._scores = np.empty(0, np.float64)
        self._clusters = np.empty(0, np.int32)

    @property
    def offered(self) -> int:
        """Rows offered so far."""
        return self._offered

    @property
    def candidates(self) -> int:
        """Rows held in memory now; never more than m + max(m, `LEAST_BUFFER`) unless all are chosen."""
        return self._held

    def offer(self, rows: Rows) -> None:
        """Take a run of rows into account.

        Raises `IntegrityError` for scores that are not finite, arrays of other lengths, a negative row number, a
        cluster that there is not, or clusters missing where they are needed; nothing of the run is then taken.
        """
        numbers, scores, clusters = self._checked(rows)
        self._offered += len(numbers)
        start = 0
        while start < len(numbers):
            part = slice(start, start + min(self._limit - self._held, len(numbers)))
            self._hold(numbers[part], scores[part], clusters[part])
            start = part.stop
            if self._held == self._limit:
                self._keep(self._choice())

    def choose(self) -> NDArray[np.int64]:
        """Row numbers of the choice, int64 [m], in the order in which they were picked; "all": in their own order.

        More may be offered afterwards. Raises `DataError` where fewer than m rows were offered, `IntegrityError` where
        one was offered twice.
        """
        if self.m is not None and self._offered < self.m:
            raise DataError(
                f"The public corpus has {self._offered:,} texts and {self.m:,} are to be chosen. Give a larger public "
                f"corpus, or choose {self._offered:,} or fewer.",
                code="C204",
            )
        if self.m is None:
            chosen = np.sort(self._numbers[: self._held])
            _distinct(chosen)
            return chosen
        self._keep(self._choice())
        chosen = self._numbers[: self.m].copy()
        _distinct(np.sort(chosen))
        return chosen

    def _checked(self, rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int32]]:
        scores = np.asarray(rows.scores, np.float64)
        if scores.ndim != 1:
            raise IntegrityError(f"Scores have the shape {scores.shape}; there is one for every row, [rows].")
        if isinstance(rows.numbers, int | np.integer):
            numbers = np.arange(rows.numbers, rows.numbers + len(scores), dtype=np.int64)
        else:
            numbers = np.asarray(rows.numbers)
            if numbers.shape != scores.shape or not np.issubdtype(numbers.dtype, np.integer):
                raise IntegrityError(f"{len(scores):,} scores need as many whole row numbers, not {numbers.shape}.")
            numbers = numbers.astype(np.int64, copy=False)
        if len(numbers) and numbers.min() < 0:
            raise IntegrityError(f"Row number {numbers.min()} is below 0. Rows of a public corpus count from 0.")
        if not np.isfinite(scores).all():
            place = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise IntegrityError(
                f"The score of public text {numbers[place]} is {scores[place]}, which is no number. See which domain "
                "classifier said so, and leave its party out or have it train again."
            )
        if self.method != "ais":
            return numbers, self._worth(numbers, scores), np.zeros(len(scores), np.int32)
        if rows.clusters is None:
            raise IntegrityError('"ais" asks for the cluster of every row. Give them, or select by "classifier".')
        clusters = np.asarray(rows.clusters)
        if clusters.shape != scores.shape or not np.issubdtype(clusters.dtype, np.integer):
            raise IntegrityError(f"{len(scores):,} scores need a whole cluster number each, not {clusters.shape}.")
        wrong = (clusters < 0) | (clusters >= self.clusters)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise IntegrityError(
                f"Public text {numbers[place]} is in cluster {clusters[place]}, and there are {self.clusters:,}, from "
                "0. Select with as many clusters as the clustering has."
            )
        return numbers, scores, clusters.astype(np.int32, copy=False)

    def _worth(self, numbers: NDArray[np.int64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """What rows are ordered by where there is one cluster: 53 bits of a keyed hash are a float64 exactly."""
        if self.method == "random":
            return (hashed(numbers, self.seed, "select") >> np.uint64(11)).astype(np.float64)
        return scores

    def _hold(self, numbers: NDArray[np.int64], scores: NDArray[np.float64], clusters: NDArray[np.int32]) -> None:
        if self._floors is not None:
            able = scores >= self._floors[clusters]
            numbers, scores, clusters = numbers[able], scores[able], clusters[able]
        end = self._held + len(numbers)
        if end > len(self._numbers):
            room = min(max(end, 2 * len(self._numbers), 1024), self._limit)
            self._numbers = _longer(self._numbers, room)
            if self.m is not None:
                self._scores, self._clusters = _longer(self._scores, room), _longer(self._clusters, room)
        self._numbers[self._held : end] = numbers
        if self.m is not None:
            self._scores[self._held : end], self._clusters[self._held : end] = scores, clusters
        self._held = end

    def _choice(self) -> NDArray[np.int64]:
        """Places of the rows chosen of those held, in the order in which they are picked.

        The row at place t of cluster c's sorted stream is picked in turn t as the c-th, so ordering by (t, c) merges
        the k streams at once.
        """
        assert self.m is not None
        numbers, scores = self._numbers[: self._held], self._scores[: self._held]
        clusters = self._clusters[: self._held]
        streams = np.lexsort((numbers, -scores, clusters))
        sizes = np.bincount(clusters, minlength=self.clusters)
        turns = np.arange(self._held) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if self._held > self.m:
            early = turns < _turns(sizes, self.m)
            streams, turns = streams[early], turns[early]
        return streams[np.lexsort((clusters[streams], turns))[: self.m]]

    def _keep(self, places: NDArray[np.int64]) -> None:
        """Hold these rows alone, in this order, and know which rows cannot be chosen any more."""
        for held in (self._numbers, self._scores, self._clusters):
            held[: len(places)] = held[places]
        self._held = len(places)
        if self._held != self.m:
            return
        scores, clusters = self._scores[: self._held], self._clusters[: self._held]
        sizes = np.bincount(clusters, minlength=self.clusters)
        last = sizes.max()
        # A cluster that was served in the last turn, or comes after all served ones, gets no further pick.
        full = (sizes == last) | ((sizes == last - 1) & (np.arange(self.clusters) > np.flatnonzero(sizes == last)[-1]))
        self._floors = np.full(self.clusters, -np.inf)
        worst = np.full(self.clusters, np.inf)
        np.minimum.at(worst, clusters, scores)
        self._floors[full] = worst[full]


def hashed(numbers: NDArray[np.int64], seed: int, purpose: str) -> NDArray[np.uint64]:
    """A keyed hash of row numbers, uint64 [rows]: uniform, and the same however rows are cut into blocks.

    SplitMix64's output function twice, under two words of the SHA-256 of seed and purpose.
    It is for sampling public rows; it keeps no secret.
    Source: SplitMix64 (Steele, Lea & Flood 2014).
    """
    digest = hashlib.sha256(f"conclave rows {seed}\n{purpose}".encode()).digest()
    first, second = (np.uint64(int.from_bytes(digest[at : at + 8], "big")) for at in (0, 8))
    with np.errstate(over="ignore"):
        return _mixed(_mixed(numbers.astype(np.uint64) * _GOLDEN + first) ^ second)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    for shift, factor in _MIX:
        words = (words ^ (words >> np.uint64(shift))) * factor
    return words ^ (words >> np.uint64(31))


def _turns(sizes: NDArray[np.int64], m: int) -> int:
    """The least r with sum_c min(n_c, r) >= m, where there are that many rows."""
    low, high = 1, int(sizes.max())
    while low < high:
        middle = (low + high) // 2
        if int(np.minimum(sizes, middle).sum()) >= m:
            high = middle
        else:
            low = middle + 1
    return low


def _longer(values: NDArray[Any], room: int) -> NDArray[Any]:
    longer = np.empty(room, values.dtype)
    longer[: len(values)] = values
    return longer


def _distinct(ordered: NDArray[np.int64]) -> None:
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(again):
        raise IntegrityError(
            f"Public text {ordered[again[0]]} was offered twice. Begin anew, and offer every row once."
        )
