"""Attacks on released noisy sequences: which text's sampler a sample is of, and which words it holds.

The attacker knows the encoder and the layer, the texts that the layer was trained on, and in the first attack the
samplers of all candidates: the likeliest sampler is then the best guess there is, by Neyman & Pearson. In the second it
samples texts that it has, and fits to every vector of these the token that it was made of. What an attack finds is a
lower bound on what a sample tells; what it misses proves nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from aggregation.errors import ConclaveError
from learning.audits.inversion import Found, Ints, ranked
from learning.bottleneck.posterior import Posterior, Sample
from learning.bottleneck.states import TokenStates

Floats = NDArray[np.float64]

LEAST_TEXTS: Final = 5
"""In how many of the attacker's texts a token must be to be guessed."""
FREQUENT: Final = 50
"""How many of the most frequent tokens, punctuation and function words, are not guessed: anybody guesses them."""
_RIDGE: Final = 1e-3
_SHRINKING: Final = 4.0
"""Made-up vectors at the mean of all that a token's mean is reckoned from, beside its own."""


def likeliest_samplers(sample: Sample, posterior: Posterior) -> Found:
    """Name each sample's own text by the likelihood under every text's sampler.

    sample: one of each text, in the order of the posterior. Both without a position that is not there
    (`Posterior.filled`): the others would not have densities over the same numbers. Raises `ConclaveError`.
    """
    texts = len(posterior)
    if len(sample) != texts:
        raise ConclaveError(f"{len(sample):,} samples of {texts:,} samplers: give one of each text.")
    return ranked(unlikeliness(sample, posterior), texts, texts, np.arange(texts))


def unlikeliness(sample: Sample, posterior: Posterior) -> Callable[[slice], Floats]:
    """A function from some of the samples to -2 ln density of each under every sampler, [some, samplers], but for a
    number that is the same for all samplers.

    sample and posterior: without a position that is not there, as of `likeliest_samplers`, of as many texts as one
    likes each. Raises `ConclaveError`. Memory: both in float64.
    """
    if not bool(posterior.mask.all()) or sample.vectors.shape[1:] != posterior.mean.shape[1:]:
        raise ConclaveError(
            "Samplers and samples of texts have the same positions, pads too. Fill the posterior first."
        )
    mean, logs, z = (
        each.detach().double().flatten(1).numpy() for each in (posterior.mean, posterior.log_variance, sample.vectors)
    )
    precision = np.exp(-logs)
    own, cross, squares = (mean**2 * precision + logs).sum(axis=1), (mean * precision).T, z**2
    counts = log_weights = None
    if posterior.log_counts is not None:
        counts = np.exp(posterior.log_counts.detach().double().numpy())
        log_weights = sample.log_weights.detach().double().numpy()
        own = own + 2 * (special.gammaln(counts).sum(axis=1) - special.gammaln(counts.sum(axis=1)))

    def apart(some: slice) -> Floats:
        found = squares[some] @ precision.T - 2 * z[some] @ cross + own
        if counts is not None and log_weights is not None:
            found -= 2 * log_weights[some] @ (counts - 1).T
        return np.asarray(found)

    return apart


@dataclass(frozen=True, slots=True)
class TokensRead:
    """How many of the tokens that are guessed of each text it holds.

    guesses: made for each. precision: the part of them that are right. recall: the part of the texts' tokens that are
    guessed. usual: the precision of guessing the most frequent tokens: what an attacker without samples has.
    """

    guesses: int
    precision: float
    recall: float
    usual: float


@dataclass(frozen=True, slots=True)
class TokenReader:
    """Says of a sample how likely its text holds each token.

    Of a sequence: every vector is of one token, by Gaussians around the tokens' means with one covariance (linear
    discriminant analysis, Fisher 1936), and a text holds a token unless none of its vectors is of it. Of one vector a
    text: the best linear guess. numbers: of the tokens in the tokenizer's vocabulary. frequencies: the part of the
    attacker's texts that hold each. before: vectors ahead of the first token's; None of one vector a text. weights
    [width, tokens], base [tokens]: the linear scores; of a sequence the last column is of all other tokens.
    """

    numbers: Ints
    frequencies: Floats
    before: int | None
    weights: Floats
    base: Floats

    @classmethod
    def fitted(cls, sample: Sample, posterior: Posterior, states: TokenStates) -> "TokenReader":
        """Fit to samples of the attacker's own texts, and to their samplers, in the same order.

        Tokens' means are those of the samplers, which the attacker knows, so that no noise is learned by heart; those
        of rare tokens are drawn to the mean of all, by `_SHRINKING`. The covariance is that of samples around them.
        Raises `ConclaveError` for texts of which no token is neither too frequent nor too rare to be guessed.
        """
        pieces = states.pieces.numpy().astype(np.int64)
        once = np.unique(np.stack([np.repeat(np.arange(len(pieces)), pieces.shape[1]), pieces.ravel()]), axis=1)[1]
        found, times = np.unique(once[once >= 0], return_counts=True)
        order = np.argsort(-times, kind="stable")[FREQUENT:]
        order = order[times[order] >= LEAST_TEXTS]
        numbers, frequencies = found[order], times[order] / len(pieces)
        if not len(numbers):
            raise ConclaveError(f"No token is in {LEAST_TEXTS} of the attacker's {len(pieces):,} texts. Give it more.")
        if sample.vectors.shape[1] == 1:
            vectors, held = sample.vectors[:, 0].detach().double().numpy(), _held(pieces, numbers)
            clean = posterior.mean[:, 0].detach().double().numpy()
            mean = clean.mean(axis=0)
            inner = _ridged((vectors - mean).T @ (vectors - mean) / len(vectors))
            weights = np.linalg.solve(inner, np.asarray((held.T @ (clean - mean)).T) / len(vectors))
            return cls(numbers, frequencies, None, np.asarray(weights), np.asarray(frequencies - mean @ weights))
        before = sample.vectors.shape[1] - pieces.shape[1]
        vectors = sample.vectors[:, before:].detach().double().flatten(0, 1).numpy()
        kinds = _kinds(pieces.ravel(), numbers)
        many = np.bincount(kinds, minlength=len(numbers) + 1).astype(np.float64)
        one = sparse.csr_matrix((np.ones(len(kinds)), (kinds, np.arange(len(kinds)))), (len(many), len(kinds)))
        clean = posterior.mean[:, before:].detach().double().flatten(0, 1).numpy()
        middle = clean.mean(axis=0)
        means = middle + np.asarray(one @ (clean - middle)) / (many + _SHRINKING)[:, None]
        off = vectors - means[kinds]
        weights = np.linalg.solve(_ridged(off.T @ off / len(off)), means.T)
        base = np.log(np.maximum(many, 1e-9) / many.sum()) - 0.5 * (means * weights.T).sum(axis=1)
        return cls(numbers, frequencies, before, np.asarray(weights), np.asarray(base))

    def scores(self, vectors: Floats) -> Floats:
        """How likely a text holds each token, [tokens], by its sample's vectors [positions, width]."""
        said: Floats = self.base + (vectors if self.before is None else vectors[self.before :]) @ self.weights
        if self.before is None:
            return np.asarray(said[0])
        shares = special.softmax(said, axis=1)[:, :-1]
        return np.asarray(-np.log1p(-np.minimum(shares, 1 - 1e-12)).sum(axis=0))

    def read(self, sample: Sample, states: TokenStates, guesses: int = 5) -> TokensRead:
        """Guess tokens of released samples, whose texts are `states`. Texts without a token that could be guessed are
        left out. Raises `ConclaveError` where none is left, or for more guesses than tokens.
        """
        held = _held(states.pieces.numpy().astype(np.int64), self.numbers)
        some = np.flatnonzero(np.asarray(held.sum(axis=1)).ravel() > 0)
        if not len(some) or not 1 <= guesses <= len(self.numbers):
            raise ConclaveError(f"{guesses} of {len(self.numbers):,} tokens cannot be guessed of {len(some):,} texts.")
        right = usual = there = 0
        for place in some:
            scores = self.scores(sample.vectors[place].detach().double().numpy())
            own = np.asarray(held[place].todense()).ravel() > 0
            right += int(own[np.argpartition(-scores, guesses - 1)[:guesses]].sum())
            usual += int(own[:guesses].sum())
            there += int(own.sum())
        made = guesses * len(some)
        return TokensRead(guesses, right / made, right / there, usual / made)


def _ridged(covariance: Floats) -> Floats:
    covariance[np.diag_indices_from(covariance)] += _RIDGE * max(1e-9, float(np.trace(covariance)) / len(covariance))
    return covariance


def _kinds(pieces: Ints, numbers: Ints) -> Ints:
    """The place of each token in `numbers`, their length for one that is not among them."""
    order = np.argsort(numbers)
    at = order[np.searchsorted(numbers, pieces, sorter=order).clip(max=len(numbers) - 1)]
    return np.where(numbers[at] == pieces, at, len(numbers))


def _held(pieces: Ints, numbers: Ints) -> sparse.csr_matrix:
    """Which tokens each text holds, [texts, tokens] of 0 and 1."""
    rows, columns = [], []
    at = {int(number): place for place, number in enumerate(numbers)}
    for row, text in enumerate(pieces):
        for column in sorted({at[int(piece)] for piece in text if int(piece) in at}):
            rows.append(row)
            columns.append(column)
    return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (len(pieces), len(numbers)))
