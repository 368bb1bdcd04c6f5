"""What public text says of vectors before a private one is seen: mean, covariance, and where the classes lie."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Public:
    """Statistics of public vectors, after the projection and its clipping.

    mean: [d]. covariance: [d, d], of all vectors together. square_spread: the deviation of their squared norms, 0 where
    all are normalised. class_means: [classes, d], None where no public text has labels. shares: of the classes,
    [classes], adding up to 1. with_scores: [d], the covariance of vectors with a score, None where public text has
    none. Raises `ConclaveError` for parts that do not fit or are not finite.
    """

    mean: Floats
    covariance: Floats
    square_spread: float = 0.25
    class_means: Floats | None = None
    shares: Floats | None = None
    with_scores: Floats | None = None

    def __post_init__(self) -> None:
        size = self.mean.shape
        fits = len(size) == 1 and self.covariance.shape == (*size, *size)
        fits = fits and (self.class_means is None) == (self.shares is None)
        if fits and self.class_means is not None and self.shares is not None:
            fits = self.class_means.shape == (len(self.shares), *size) and len(self.shares) > 1
        fits = fits and (self.with_scores is None or self.with_scores.shape == size)
        parts = (self.mean, self.covariance, self.square_spread, self.class_means, self.shares, self.with_scores)
        if not fits or not all(part is None or np.isfinite(part).all() for part in parts):
            raise ConclaveError(
                "The public statistics do not fit one another, or are not finite. Take them of the vectors that one "
                "projection makes of public text."
            )

    @classmethod
    def of(
        cls, vectors: Floats, labels: Ints | None = None, *, classes: int = 2, scores: Floats | None = None
    ) -> "Public":
        """The statistics of public vectors [texts, d], with the classes [texts] or scores [texts] that they may have.

        Raises `ConclaveError` for no vector, and a class that no text has.
        """
        if vectors.ndim != 2 or not len(vectors):
            raise ConclaveError(f"Public vectors of shape {vectors.shape} are not [texts, dimensions]. Give some.")
        mean, size = vectors.mean(axis=0), vectors.shape[1]
        covariance = np.cov(vectors, rowvar=False, bias=True).reshape(size, size)
        means, shares, along = None, None, None
        if labels is not None:
            counts = np.bincount(labels, minlength=classes)
            if labels.shape != (len(vectors),) or len(counts) != classes or not counts.all():
                raise ConclaveError(f"The public labels are not of {classes} classes, each with a text. Check them.")
            means = np.array([vectors[labels == each].mean(axis=0) for each in range(classes)])
            shares = counts / len(vectors)
        if scores is not None:
            if scores.shape != (len(vectors),):
                raise ConclaveError(f"{len(scores):,} public scores do not fit {len(vectors):,} vectors.")
            along = np.asarray((scores - scores.mean()) @ (vectors - mean) / len(vectors))
        return cls(mean, covariance, float((vectors**2).sum(axis=1).std()), means, shares, along)

    def leaning(self, weight: Floats) -> "Public":
        """The same, with two classes of which the second lies where `weight` [d] points: a guess where no public text
        has labels, such as that paraphrases have the higher cosine.

        The classes differ by one deviation of the scores that the weight gives.
        """
        toward = self.covariance @ weight
        spread = float(weight @ toward)
        if not spread > 0:
            raise ConclaveError("Public vectors do not differ along that weight. Give another.")
        half = toward / np.sqrt(spread) / 2
        return Public(
            self.mean, self.covariance, self.square_spread, self.mean + np.array([-half, half]), np.full(2, 0.5), toward
        )

    @property
    def within(self) -> Floats:
        """The covariance within classes, [d, d]; of all vectors where there are no labels."""
        if self.class_means is None or self.shares is None:
            return self.covariance
        off = self.class_means - self.shares @ self.class_means
        return np.asarray(self.covariance - (off.T * self.shares) @ off)
