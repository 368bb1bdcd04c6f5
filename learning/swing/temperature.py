"""Dynamic temperature: the nearer a token to a privacy clue word, the flatter what a teacher says in its place.

For a text of n tokens, the token at place m and the nearest clue at place i, on either side,

    t_m = T + alpha n / |i - m|    (equation 5),

at most a cap; a clue itself, where the paper divides by 0, gets the cap; in a text without a clue t_m = T. t_m is the
temperature under which the teacher says token m: of the logits at the position before it. It is a heuristic: it has no
sensitivity and earns no guarantee. Where texts and clue words are public, so are the temperatures, and a guarantee of
what is released under them stands.

Source: Li et al., "Swing Distillation", section 3.2, equations 5 and 6. The cap is ours: without one the temperatures
of a clue's neighbours grow with the text's length.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError


@dataclass(frozen=True, slots=True)
class Temperature:
    """T, alpha and the cap of dynamic temperature. alpha 0 leaves a constant T where no token is a clue.

    base: T, above 0. alpha: 0 or more. cap: the highest temperature, `base` or more. Raises `ConclaveError` for a
    number out of range.
    """

    base: float
    alpha: float
    cap: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.base) and self.base > 0):
            raise ConclaveError(f"A temperature of {self.base:g} makes no sense. Give one above 0.")
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConclaveError(f"An alpha of {self.alpha:g} makes no sense. Give 0 or more.")
        if not (math.isfinite(self.cap) and self.cap >= self.base):
            raise ConclaveError(
                f"The highest temperature is {self.cap:g}, below the lowest, {self.base:g}. Give a higher cap."
            )

    @property
    def constant(self) -> bool:
        """Whether it is one temperature for all tokens, whatever the clues."""
        return self.cap == self.base


@dataclass(frozen=True, slots=True)
class Temperatures:
    """The temperature of every token, and what is worth a warning.

    each: float64 [tokens], in the order of the tokens. texts: how many. without: texts without a clue, all of whose
    tokens are at T. only: texts of clues alone, all at the cap. capped: tokens at the cap. clues: tokens that are
    clues.
    """

    each: NDArray[np.float64]
    texts: int
    without: int
    only: int
    capped: int
    clues: int

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for whoever chose the settings; empty where nothing is odd."""
        said = []
        tokens = len(self.each)
        if tokens and self.capped == tokens:
            said.append(
                "Every token is at the highest temperature: clue words make no difference. Use a smaller alpha, a "
                "higher cap, or fewer clue words."
            )
        elif self.only:
            said.append(
                f"{self.only:,} of {self.texts:,} texts have no token but clue words; all of these are at the cap."
            )
        if tokens and not self.clues:
            said.append("No text has a clue word: this is plain distillation. Give clue words that occur.")
        return tuple(said)


def temperatures(settings: Temperature, clues: NDArray[np.bool_], stops: NDArray[np.int64]) -> Temperatures:
    """The temperature of every token of some texts.

    clues: which tokens are clues, bool [tokens]. stops: where each text begins and the last ends, int64 [texts + 1],
    never falling. Memory: some arrays of the tokens. Raises `ConclaveError` where the two differ. Source: equation 5.
    """
    if stops.ndim != 1 or not len(stops) or stops[0] != 0 or stops[-1] != len(clues) or (np.diff(stops) < 0).any():
        raise ConclaveError(f"Clues of {len(clues):,} tokens are not those of these texts.")
    lengths = np.diff(stops)
    text = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(clues))
    begins, ends = stops[:-1][text], stops[1:][text]
    # The last clue up to each token and the first from it on; one of another text is none.
    before = np.maximum.accumulate(np.where(clues, place, -1))
    after = np.minimum.accumulate(np.where(clues, place, len(clues))[::-1])[::-1]
    far = np.iinfo(np.int64).max
    distance = np.minimum(
        np.where(before >= begins, place - before, far), np.where((after < ends) & (after >= 0), after - place, far)
    )
    n = lengths[text].astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        wanted = settings.base + settings.alpha * n / distance
    wanted[distance == far] = settings.base
    each = np.where(clues, settings.cap, np.minimum(wanted, settings.cap))
    of_text = np.bincount(text, clues, minlength=len(lengths)) if len(clues) else np.zeros(len(lengths))
    full = lengths > 0
    return Temperatures(
        each,
        texts=len(lengths),
        without=int(((of_text == 0) & full).sum()),
        only=int(((of_text == lengths) & full).sum()),
        capped=int((each >= settings.cap).sum()) if not settings.constant else 0,
        clues=int(clues.sum()),
    )
