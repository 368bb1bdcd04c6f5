"""Provided files about words: a vocabulary, the skip-gram that teachers start from, the directions of moments."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from learning.embeddings.moments import Directions
from learning.errors import DataError
from learning.text.words import Vocabulary
from party.errors import TrainingError

if TYPE_CHECKING:
    from learning.embeddings.skipgram import SkipGram

MOST_BYTES: Final = 64 * 2**20
"""The most bytes of a vocabulary: a million words of sixty letters."""
LARGEST: Final = 2.0**24
"""The largest number. Numbers of public text are under a million; sums over products of larger ones overflow for units
that have such a word.
"""


def vocabulary_in(path: Path) -> Vocabulary:
    """The vocabulary in a file; each word consists of letters only. Raises `TrainingError`."""
    if path.stat().st_size > MOST_BYTES:
        raise TrainingError(f"the vocabulary that was provided has more than {MOST_BYTES:,} bytes. Use fewer words.")
    try:
        return Vocabulary.from_bytes(path.read_bytes())
    except DataError as error:
        raise TrainingError(f"the vocabulary that was provided cannot be used: {error}") from None


def reference_in(path: Path, size: int) -> "SkipGram":
    """The public skip-gram in a file, finite and bounded. size: number of words it must know. Raises
    `TrainingError`.
    """
    from learning.embeddings.weights import from_bytes  # it needs torch, which counting does not

    try:
        reference = from_bytes(path.read_bytes())
    except IntegrityError as error:
        raise TrainingError(f"the reference that was provided cannot be used: {error}") from None
    if len(reference.bias) != size:
        raise TrainingError(
            f"the reference that was provided knows {len(reference.bias):,} words, the vocabulary has {size:,}."
        )
    _check_size("reference", reference.inputs, reference.outputs, reference.bias)
    return reference


def directions_in(path: Path, size: int) -> Directions:
    """The public directions in a file, finite and bounded. size: number of words. Raises `TrainingError`."""
    try:
        directions = Directions.from_bytes(path.read_bytes())
    except IntegrityError as error:
        raise TrainingError(f"the directions that were provided cannot be used: {error}") from None
    if directions.size != size:
        raise TrainingError(
            f"the directions that were provided are of {directions.size:,} words, the vocabulary has {size:,}."
        )
    _check_size("directions", directions.vectors, directions.strengths, directions.weights)
    return directions


def _check_size(what: str, *parts: NDArray[np.float32]) -> None:
    if any(part.size and float(np.abs(part).max()) >= LARGEST for part in parts):
        raise TrainingError(f"numbers of the {what} that were provided are {LARGEST:,.0f} and more. Make them anew.")
