"""The public projection: from a text's features to the vector of few dimensions and bounded norm that gets noise.

Noise falls on every dimension alike, so dimensions are few, and those that matter take more of the norm. The first are
directions that labelled public text is told apart by, where there is any; the others are the main directions of what is
left. A party reads the projection from a file that somebody else made: whatever the file says, a vector's norm is at
most 1, and what cannot be worked out is the zero vector.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from aggregation.errors import IntegrityError

MOST_DIMENSIONS: Final = 1024
"""Dimensions of a projection, at most: more would drown in the noise."""
MOST_FEATURES: Final = 65_536
LARGEST: Final = 1 << 30
"""Bytes of a projection's file, at most."""
QUANTILE: Final = 0.5
"""The part of public vectors whose norm is below 1 before it is clipped."""
EMPHASIS: Final = 0.6
"""The part of the mean square for directions that classes differ along: with more, what private text alone has is
drowned, and with less, what public text knows. benchmarks/nvdp_projection.py compares.
"""
RIDGE: Final = 1.0
"""Of class directions: private text is of another kind than public text, and what is best for the latter carries over
less. benchmarks/nvdp_projection.py compares.
"""

_AXES: Final = {"centre": 1, "covariance": 2, "matrix": 2, "mean": 1, "settings": 1}
_SLACK: Final = 1 - 2.0**-40  # covers the rounding of a norm of up to `MOST_DIMENSIONS` squares
_TOLERANCE: Final = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Projection:
    """A public map from features [features] to vectors [dimensions] of norm at most 1.

        x = clip(scale (f - centre) M),    clip(v) = v / max(1, |v|), or v / |v| where normalised

    centre: [features]. matrix: M, [features, dimensions]. scale: above 0. normalised: whether every vector is brought
    to norm 1. mean, covariance: of public vectors after all this, [dimensions] and [dimensions, dimensions]; they are
    published beside the samples. explained: the part of the public features' variance along M's columns.

    The L2 sensitivity of an applied vector under replace-one is 2. Raises `IntegrityError` for parts that are not
    finite, do not fit one another, or cannot be statistics of vectors of norm 1.
    """

    centre: Floats
    matrix: Floats
    scale: float
    normalised: bool
    mean: Floats
    covariance: Floats
    explained: float

    def __post_init__(self) -> None:
        _check(self)

    @property
    def features(self) -> int:
        """Numbers of a text before the projection."""
        return len(self.centre)

    @property
    def dimensions(self) -> int:
        """Numbers of a text after it."""
        return int(self.matrix.shape[1])

    @classmethod
    def fitted(
        cls,
        features: ArrayLike,
        dimensions: int,
        *,
        directions: Floats | None = None,
        emphasis: float | None = None,
        evenness: float = 0.0,
        quantile: float = QUANTILE,
        normalised: bool = False,
    ) -> "Projection":
        """Fit a projection to PUBLIC features [texts, features] alone.

        directions: [features, k], k at most `dimensions`; the first k dimensions are these, made orthonormal in order,
        and the others the principal components of what is left. emphasis: the part of the mean square that the first k
        take, None for the part that they have. evenness: 0 leaves each column the spread that public text has along it,
        1 gives all the same. quantile: the part of public norms that is at most 1. Raises `IntegrityError` for features
        that are not finite, too few texts, or a setting out of range.
        """
        rows = np.asarray(features, np.float64)
        if rows.ndim != 2 or not np.isfinite(rows).all():
            raise IntegrityError(f"Public features of shape {rows.shape} are no finite numbers [texts, features].")
        if not 1 <= dimensions <= min(rows.shape[1], len(rows) - 1, MOST_DIMENSIONS):
            raise IntegrityError(
                f"{len(rows):,} public texts of {rows.shape[1]:,} features make no projection to {dimensions:,} "
                "dimensions. Give more public text, or ask for fewer dimensions."
            )
        if not (0 < quantile <= 1 and 0 <= evenness <= 1 and (emphasis is None or 0 < emphasis < 1)):
            raise IntegrityError(
                f"Quantile {quantile}, evenness {evenness} or emphasis {emphasis} is out of range: all are parts of 1."
            )
        centre = rows.mean(axis=0)
        spread = np.cov(rows, rowvar=False, bias=True).reshape(rows.shape[1], rows.shape[1])
        first = _orthonormal(directions, rows.shape[1], dimensions)
        known = first.shape[1]
        others = _leading(spread, first, dimensions - known)
        matrix = np.hstack([first, others])
        variances = np.einsum("fd,fg,gd->d", matrix, spread, matrix)
        explained = float(min(1.0, variances.sum() / max(np.trace(spread), np.finfo(float).tiny)))
        held = np.maximum(variances, variances.max() * 1e-12)
        if not held.max() > 0:
            raise IntegrityError("All public texts have the same features. Give other public text.")
        gains = held ** (-evenness / 2)
        if emphasis is not None and 0 < known < dimensions:
            powers = held * gains**2
            gains[:known] *= math.sqrt(emphasis / (1 - emphasis) * powers[known:].sum() / powers[:known].sum())
        matrix = matrix * (gains / gains.max())
        norms = np.linalg.norm((rows - centre) @ matrix, axis=1)
        usual = float(np.quantile(norms, quantile))
        plain = cls(
            centre, matrix, 1 / max(usual, 1e-12), normalised, np.zeros(dimensions), np.zeros((dimensions, dimensions)),
            explained,
        )  # fmt: skip
        public = plain.applied(rows)
        covariance = np.cov(public, rowvar=False, bias=True).reshape(dimensions, dimensions)
        return cls(centre, matrix, plain.scale, normalised, public.mean(axis=0), covariance, explained)

    def applied(self, features: ArrayLike) -> Floats:
        """The vectors [texts, dimensions], each of norm at most 1 exactly, of features [texts, features].

        A vector's bits depend on its own features alone. Features that are NaN or infinite, or become so, make the zero
        vector. Raises `IntegrityError` for another number of features.
        """
        rows = np.asarray(features)
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise IntegrityError(f"Features of shape {rows.shape} are not [texts, {self.features:,}].")
        found = np.empty((len(rows), self.dimensions))
        with np.errstate(all="ignore"):
            # One by one: a product of many rows adds in an order that depends on how many there are.
            for place, row in enumerate(rows):
                found[place] = (row.astype(np.float64) - self.centre) @ self.matrix
            return clipped(found * self.scale, normalised=self.normalised)

    def to_bytes(self) -> bytes:
        """Safetensors of float64 tensors; the same projection gives the same bytes."""
        settings = np.array([self.scale, float(self.normalised), self.explained])
        tensors = {name: getattr(self, name) for name in ("centre", "covariance", "matrix", "mean")}
        tensors["settings"] = settings
        return bytes(save({name: np.ascontiguousarray(tensors[name], np.float64) for name in sorted(tensors)}))

    @classmethod
    def from_bytes(cls, content: bytes, *, features: int | None = None, dimensions: int | None = None) -> "Projection":
        """Read what `to_bytes` wrote, perhaps from somebody who is not trusted.

        features, dimensions: what they have to be, where that is known. Raises `IntegrityError`, in a sentence, for
        anything that is no projection.
        """
        tensors = _tensors(content)
        settings = tensors["settings"]
        if settings.shape != (3,) or settings[1] not in (0.0, 1.0):
            raise IntegrityError("The projection's settings are not its scale, how it is clipped and what it explains.")
        made = cls(
            tensors["centre"], tensors["matrix"], float(settings[0]), bool(settings[1]), tensors["mean"],
            tensors["covariance"], float(settings[2]),
        )  # fmt: skip
        for what, own, wanted in (("features", made.features, features), ("dimensions", made.dimensions, dimensions)):
            if wanted is not None and own != wanted:
                raise IntegrityError(f"The projection has {own:,} {what} where {wanted:,} were expected.")
        return made

    def save(self, path: Path) -> None:
        """Write the file that `read` reads."""
        path.write_bytes(self.to_bytes())

    @classmethod
    def read(cls, path: Path, *, features: int | None = None, dimensions: int | None = None) -> "Projection":
        """As `from_bytes`, of a file of at most 1 GiB. Raises `IntegrityError` where it cannot be read."""
        try:
            if path.stat().st_size > LARGEST:
                raise IntegrityError(f"The projection {path.name} is larger than {LARGEST:,} bytes.")
            content = path.read_bytes()
        except OSError as error:
            raise IntegrityError(f"The projection {path.name} cannot be read: {error.strerror}.") from error
        return cls.from_bytes(content, features=features, dimensions=dimensions)


def clipped(vectors: Floats, *, normalised: bool = False) -> Floats:
    """Vectors [texts, dimensions] brought to a norm of at most 1, exactly; normalised: all to 1 but the zero vector.

    A vector with NaN or infinity becomes the zero vector. Norms are brought to 1 - 2^-40, so that rounding
    never leaves one above 1. Sensitivity: 2 in L2 norm where one text is replaced.
    """
    with np.errstate(all="ignore"):
        sound = np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)
        largest = np.abs(sound).max(axis=1, keepdims=True, initial=0.0)
        unit = sound / np.where(largest > 0, largest, 1.0)  # squares that neither overflow nor vanish
        lengths = np.sqrt((unit**2).sum(axis=1, keepdims=True))
        short = (largest * lengths <= _SLACK) & (not normalised)
        ends = unit / np.where(lengths > 0, lengths, 1.0) * _SLACK
        return np.asarray(np.where(short, sound, ends))


def class_directions(features: ArrayLike, labels: NDArray[np.int64], *, ridge: float = RIDGE) -> Floats:
    """The directions [features, classes - 1] that tell the classes of PUBLIC text apart, for `Projection.fitted`.

    Linear discriminants: the within-class covariance, `ridge` of its mean variance added to each, inverse, times the
    classes' means less their mean; in the order of how much they tell. A large ridge gives the differences of the
    means themselves. Raises `IntegrityError` for fewer than two classes or labels that do not fit.
    """
    rows = np.asarray(features, np.float64)
    if rows.ndim != 2 or labels.shape != (len(rows),) or len(np.unique(labels)) < 2:
        raise IntegrityError(f"Features {rows.shape} and labels {labels.shape} of two classes or more do not fit.")
    if not ridge > 0:
        raise IntegrityError(f"A ridge of {ridge} is not above 0.")
    kinds = np.unique(labels)
    means = np.array([rows[labels == each].mean(axis=0) for each in kinds])
    inner = rows - means[np.searchsorted(kinds, labels)]
    within = inner.T @ inner / len(rows)
    within[np.diag_indices_from(within)] += ridge * np.trace(within) / len(within)
    found = np.linalg.solve(within, (means - means.mean(axis=0)).T)
    left, strengths, _ = np.linalg.svd(found, full_matrices=False)
    told = left[:, : min(len(kinds) - 1, int((strengths > strengths[0] * 1e-9).sum()))]
    signs = np.sign((told * found[:, -1:]).sum(axis=0))  # towards the last class, so that the file is reproducible
    return np.asarray(told * np.where(signs == 0, 1.0, signs))


def _orthonormal(directions: Floats | None, features: int, dimensions: int) -> Floats:
    """Directions [features, k] made orthonormal in their order, signs kept."""
    if directions is None:
        return np.zeros((features, 0))
    if directions.ndim != 2 or len(directions) != features or not 1 <= directions.shape[1] <= dimensions:
        raise IntegrityError(
            f"Directions of shape {directions.shape} are not [{features:,}, at most {dimensions:,}] of this projection."
        )
    if not np.isfinite(directions).all():
        raise IntegrityError("The directions hold NaN or infinity.")
    made, triangle = np.linalg.qr(directions)
    own = np.diag(triangle)
    if (np.abs(own) <= 1e-9 * np.linalg.norm(directions, axis=0)).any():
        raise IntegrityError("One of the directions follows from the others. Leave it out.")
    return np.asarray(made * np.sign(own))


def _leading(spread: Floats, without: Floats, count: int) -> Floats:
    """The first `count` principal components [features, count] of a covariance, orthogonal to other directions."""
    if count == 0:
        return np.zeros((len(spread), 0))
    rest = spread - without @ (without.T @ spread)
    rest = rest - (rest @ without) @ without.T
    # What lies along the directions is put last, under variances that are 0 by rounding.
    rest = (rest + rest.T) / 2 - without @ without.T * max(1.0, float(np.trace(spread)))
    _, vectors = np.linalg.eigh(rest)
    leading = vectors[:, ::-1][:, :count]
    signs = np.sign(leading[np.abs(leading).argmax(axis=0), np.arange(count)])
    return np.asarray(leading * signs)


def _tensors(content: bytes) -> dict[str, Floats]:
    if len(content) > LARGEST:
        raise IntegrityError(f"The projection is larger than {LARGEST:,} bytes.")
    try:
        tensors: dict[str, Floats] = load(content)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # unknown types raise one of the latter
        raise IntegrityError("The projection is not in the safetensors format, or was cut short.") from error
    if tensors.keys() != _AXES.keys():
        raise IntegrityError(
            f"A projection is {', '.join(_AXES)}, not {', '.join(sorted(tensors))[:200] or 'nothing'}."
        )
    for name, axes in _AXES.items():
        if tensors[name].dtype != np.float64 or tensors[name].ndim != axes:
            raise IntegrityError(f"The projection's {name} is not float64 with {axes} axes.")
    return tensors


def _check(made: Projection) -> None:
    features, dimensions = made.matrix.shape if made.matrix.ndim == 2 else (0, 0)
    if not (1 <= dimensions <= min(features, MOST_DIMENSIONS) and features <= MOST_FEATURES):
        raise IntegrityError(
            f"The projection's matrix {made.matrix.shape} is not [features, dimensions] with at most "
            f"{MOST_FEATURES:,} features and {MOST_DIMENSIONS:,} dimensions."
        )
    shapes = {"centre": (features,), "mean": (dimensions,), "covariance": (dimensions, dimensions)}
    for name, shape in shapes.items():
        if getattr(made, name).shape != shape:
            raise IntegrityError(f"The projection's {name} has shape {getattr(made, name).shape}, not {shape}.")
    for name in ("matrix", *shapes):
        part = getattr(made, name)
        if part.dtype != np.float64 or not np.isfinite(part).all():
            raise IntegrityError(f"The projection's {name} is not finite float64 numbers. Fit it again.")
    if not (math.isfinite(made.scale) and made.scale > 0 and 0 <= made.explained <= 1):
        raise IntegrityError(f"A scale of {made.scale} or an explained part of {made.explained} is out of range.")
    covariance = made.covariance
    with np.errstate(all="ignore"):
        whole = float(np.trace(covariance) + made.mean @ made.mean)
        even = bool(np.abs(covariance - covariance.T).max() <= _TOLERANCE)
    # Only then the eigenvalues: numbers near the largest of their type would make them fail.
    if not (even and np.abs(covariance).max() <= 1 + _TOLERANCE and whole <= 1 + _TOLERANCE):
        raise IntegrityError("The projection's mean and covariance are not those of vectors of norm 1 or less.")
    if float(np.linalg.eigvalsh((covariance + covariance.T) / 2)[0]) < -_TOLERANCE:
        raise IntegrityError("The projection's covariance has a negative variance. Fit it again.")
