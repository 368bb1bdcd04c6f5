"""Attacks on released vectors: which text a vector is of, which words it holds, and which two vectors belong together.

The attacker knows everything but the noise: the encoder, the projection, how much noise there is, public text, and in
the first attack the private texts themselves, of which it only has to say which is which. So no attacker who has to
find a text without a list does better there. None of these figures is a guarantee: that is the mechanism's.
Sources: texts and words from embeddings, Song & Raghunathan 2020, "Information Leakage in Embedding Models"; pairs, the
likelihood ratio of Neyman & Pearson.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.audits.roc import roc
from learning.text.words import Vocabulary, tokenize

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_AT_ONCE: Final = 1 << 22
"""Distances in memory at a time, 32 MiB of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """How often an attack names a released row's own text among candidates.

    rows: attacked. candidates: texts on the list. first: the part of rows whose own text is the likeliest, texts of the
    same likelihood sharing it. among_ten: whose own is among the ten likeliest. place: the mean place of the own text
    on the list, from 0 for always the first to 1 for always the last; 0.5 is a guess.
    """

    rows: int
    candidates: int
    first: float
    among_ten: float
    place: float

    @property
    def chance(self) -> float:
        """What `first` is for a guess."""
        return 1 / self.candidates


def nearest_texts(
    released: Floats, candidates: Floats, own: Ints, told: tuple[Ints, Ints, float] | None = None
) -> Found:
    """Look for each released row's text among candidates: the nearest is the likeliest, as noise is normal.

    released: [rows, d]. candidates: clean vectors of all texts on the list, [texts, d]. own: the place of each row's
    text on the list, [rows]. told: released labels [rows], candidates' labels [texts] and what a candidate with
    another label loses, 2 sigma^2 label_epsilon, where labels leave under randomised response. Raises `ConclaveError`
    for arrays that do not fit.
    """
    if released.ndim != 2 or candidates.ndim != 2 or released.shape[1] != candidates.shape[1] or not len(released):
        raise ConclaveError(f"Released vectors {released.shape} and candidates {candidates.shape} do not fit.")
    squares = (candidates**2).sum(axis=1)

    def apart(some: slice) -> Floats:
        found = squares - 2 * released[some] @ candidates.T
        if told is not None:
            found += told[2] * (told[0][some, None] != told[1][None, :])
        return np.asarray(found)

    return ranked(apart, len(released), len(candidates), own)


def ranked(apart: Callable[[slice], Floats], rows: int, candidates: int, own: Ints) -> Found:
    """How often rows' own texts come first, where apart(rows) says how unlikely each candidate is, [rows, candidates].

    own: the place of each row's text among the candidates, [rows]; else `ConclaveError` is raised.
    """
    if own.shape != (rows,) or not 0 <= own.min() <= own.max() < candidates:
        raise ConclaveError("A released row's own text is none of the candidates. Give its place for every row.")
    shared, before = np.empty(rows), np.empty(rows)
    size = max(1, _AT_ONCE // candidates)
    for start in range(0, rows, size):
        some = slice(start, start + size)
        found = apart(some)
        mine = found[np.arange(len(found)), own[some]][:, None]
        # One text twice on the list has one vector, and its distances differ by rounding only.
        edge = 1e-9 * (1 + np.abs(mine))
        before[some] = (found < mine - edge).sum(axis=1)
        shared[some] = (np.abs(found - mine) <= edge).sum(axis=1)
    places = before + (shared - 1) / 2
    first = np.where(before == 0, 1 / shared, 0.0)
    ten = np.clip((10 - before) / shared, 0.0, 1.0)
    place = float(places.mean() / max(1, candidates - 1))
    return Found(rows, candidates, float(first.mean()), float(ten.mean()), place)


def words_of(texts: Sequence[str], vocabulary: Vocabulary) -> Bools:
    """Which words of a vocabulary each text holds, [texts, words]."""
    held = np.zeros((len(texts), len(vocabulary)), np.bool_)
    for place, text in enumerate(texts):
        found = vocabulary.encode(tokenize(text))
        held[place, found[found >= 0]] = True
    return held


@dataclass(frozen=True, slots=True)
class WordReader:
    """Says from a noisy vector which words its text holds: the best linear guess under the known noise.

    Fitted to clean public vectors x and words y, with the noise integrated out,

        E[y | z] = mean(y) + (z - mean(x))' (cov(x) + sigma^2 I)^-1 cov(x, y).

    mean: [d]. weights: [d, words]. frequencies: the part of public texts that hold a word, [words].
    """

    mean: Floats
    weights: Floats
    frequencies: Floats

    @classmethod
    def fitted(cls, vectors: Floats, held: Bools, sigma: float) -> "WordReader":
        """Fit to public vectors [texts, d] and the words that the texts hold [texts, words].

        Raises `ConclaveError` for arrays that do not fit.
        """
        if vectors.ndim != 2 or held.ndim != 2 or len(vectors) != len(held) or len(vectors) < 2:
            raise ConclaveError(f"Public vectors {vectors.shape} and words {held.shape} do not fit.")
        mean, frequencies = vectors.mean(axis=0), held.mean(axis=0)
        off = vectors - mean
        inner = off.T @ off / len(off)
        inner[np.diag_indices_from(inner)] += sigma**2 + 1e-9
        return cls(mean, np.linalg.solve(inner, off.T @ held / len(off)), frequencies)

    def scores(self, released: Floats) -> Floats:
        """How likely a released vector's text holds each word, [rows, words]."""
        return np.asarray(self.frequencies + (released - self.mean) @ self.weights)


@dataclass(frozen=True, slots=True)
class WordsRead:
    """How many words of a text are among the `guesses` that are made for each.

    precision: the part of guesses that are right. recall: the part of the texts' words that are guessed. f1: of these.
    usual: the same f1 where every text gets the most frequent public words: what an attacker without the vectors has.
    """

    guesses: int
    precision: float
    recall: float
    f1: float
    usual: float

    @property
    def gained(self) -> float:
        """What the vectors add to f1."""
        return self.f1 - self.usual


def read_words(reader: WordReader, released: Floats, held: Bools, guesses: int = 5) -> WordsRead:
    """Guess words of released rows [rows, d] whose texts hold `held` [rows, words].

    Rows whose texts hold none of the words are left out. Raises `ConclaveError` where none is left, or for a number of
    guesses that there are no words for.
    """
    some = held.any(axis=1)
    if not some.any() or not 1 <= guesses <= held.shape[1]:
        raise ConclaveError(f"{guesses} words cannot be guessed of {held.shape[1]:,}, of {int(some.sum()):,} texts.")
    held = held[some]
    guessed = np.argpartition(-reader.scores(released[some]), guesses - 1, axis=1)[:, :guesses]
    right = np.take_along_axis(held, guessed, axis=1).sum()
    usual = held[:, np.argsort(-reader.frequencies, kind="stable")[:guesses]].sum()
    made, there = guesses * len(held), int(held.sum())
    return WordsRead(
        guesses, float(right / made), float(right / there), float(2 * right / (made + there)),
        float(2 * usual / (made + there)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Matched:
    """How well two vectors are recognised as those of one pair.

    pairs: how many there were. first: the part of first halves whose own second half is the likeliest of all. area:
    the chance that a true pair seems likelier than one of two strangers; 0.5 is a guess.
    """

    pairs: int
    first: float
    area: float


def match_pairs(first: Floats, second: Floats, sigma: float, mean: Floats, covariance: Floats) -> Matched:
    """Match released first halves [pairs, d] to released second halves [pairs, d] of pairs in the same order.

    The score is the log-likelihood ratio of two noisy sights of one vector against those of two, vectors being normal
    with the public mean [d] and covariance [d, d]. Strangers are each first half with the next pair's second one.
    Raises `ConclaveError` for fewer than two pairs or arrays that do not fit.
    """
    if first.ndim != 2 or first.shape != second.shape or len(first) < 2 or mean.shape != first.shape[1:]:
        raise ConclaveError(f"First halves {first.shape} and second halves {second.shape} are no pairs.")
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    values = np.maximum(values, 1e-12)
    whole = values + sigma**2
    shared = np.minimum(values / whole, 1 - 1e-6)
    one, other = (((each - mean) @ axes) / np.sqrt(whole) for each in (first, second))
    bend = shared**2 / (1 - shared**2) / 2
    alone = (other**2) @ bend
    size = max(1, _AT_ONCE // len(first))
    right = np.empty(len(first), np.bool_)
    for start in range(0, len(first), size):
        some = slice(start, start + size)
        scores = (one[some] * shared / (1 - shared**2)) @ other.T - alone
        right[some] = scores.argmax(axis=1) == np.arange(len(first))[some]

    def likeliness(theirs: Floats) -> Floats:
        return np.asarray((one * theirs) @ (shared / (1 - shared**2)) - (one**2 + theirs**2) @ bend)

    judged = np.concatenate([likeliness(other), likeliness(np.roll(other, -1, axis=0))])
    truth = np.arange(2 * len(first)) < len(first)
    return Matched(len(first), float(right.mean()), roc(judged, truth).area)
