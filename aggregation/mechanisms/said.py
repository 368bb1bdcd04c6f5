"""What language models say that parties trained alone and keep: texts, and what might stand in every token's place.

Their training paid for it, or it is softened by rules that no proof covers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import HEURISTIC, Form, Free, Priced
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

SHORT: Final = 1 << 16
"""Tokens whose number takes 2 bytes."""
MOST: Final = 1 << 20
"""The most tokens of a text, and outcomes of a token."""
UNPROTECTED: Final = "none"
TOP: Final = "top"
ALL: Final = "all"
PROTECTIONS: Final = (UNPROTECTED, TOP, ALL)
"""Which probabilities get Laplace noise: none, those of a token's likeliest outcomes, or those of all tokens."""


@dataclass(frozen=True, slots=True)
class FreeTexts(Free):
    """Texts that a party's own language model wrote, one a row.

    It holds only if the model is the result of the release `after`, whose event was charged before its training began,
    and the texts depend on it and on public values alone. Sensitivity: none is charged.

    after: the name of that release. longest: tokens of a text, its end included. Raises `ConclaveError` for a number
    out of range.
    """

    kind: ClassVar[str] = "texts"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAID,)

    after: str
    longest: int

    def __post_init__(self) -> None:
        _check_after(self.after)
        check_many(self.longest, "tokens a text")

    @property
    def columns(self) -> int:
        """Columns of the released matrix."""
        return self.longest

    def contribute(self, signal: Sequence[NDArray[np.int32]]) -> IntArray:
        """Texts as tokens: integers [texts, longest], a token's number plus 1, and 0 where a text has ended. Raises
        `IntegrityError` for a longer text.
        """
        made = np.zeros((len(signal), self.longest), np.int64)
        for row, ids in zip(made, signal, strict=True):
            if len(ids) > self.longest:
                raise IntegrityError(f"A text has {len(ids):,} tokens, and {self.longest:,} may leave.")
            row[: len(ids)] = np.asarray(ids, np.int64) + 1
        return made

    def texts(self, rows: IntArray) -> list[NDArray[np.int32]]:
        """The texts of received rows [texts, longest]. Raises `IntegrityError` for rows that are no texts."""
        lengths = (rows != 0).sum(axis=1)
        whole = np.arange(rows.shape[1]) < lengths[:, None]
        if rows.shape[1] != self.longest or (rows < 0).any() or ((rows != 0) != whole).any():
            raise IntegrityError("They are no texts.")
        return [(row[:length] - 1).astype(np.int32) for row, length in zip(rows, lengths, strict=True)]

    def described(self, rows: int, columns: int, form: Form) -> str:
        """The release that paid for it."""
        return f"texts of what {self.after} paid for: post-processing, no noise, no charge"


class Outcomes:
    """The wire form of what a language model says might stand in the place of every token of given texts.

    A row is one token; `top` outcomes are kept of it, with their probabilities. tokens: that the model has; below
    65,536 an outcome takes one cell: its number in the upper 16 bits, its probability on its grid in the lower
    (`learning.language.soft_targets`); otherwise two, first all numbers and then all probabilities.
    """

    __slots__ = ()
    top: int
    tokens: int

    @property
    def columns(self) -> int:
        """Columns of the released matrix."""
        return self.top if self.tokens <= SHORT else 2 * self.top

    def contribute(self, signal: tuple[NDArray[Any], NDArray[np.uint16]]) -> IntArray:
        """Numbers of tokens and probabilities on their grid, both [places, top], as integers [places, columns]; a place
        is that of one token of the texts. Raises `IntegrityError` for another shape.
        """
        ids, codes = (np.asarray(each).astype(np.int64) for each in signal)
        if ids.shape != codes.shape or ids.ndim != 2 or ids.shape[1] != self.top:
            raise IntegrityError(f"Of each token {self.top:,} outcomes leave, not {ids.shape[-1:]}.")
        return (ids << 16) | codes if self.tokens <= SHORT else np.hstack([ids, codes])

    def targets(self, rows: IntArray) -> tuple[NDArray[np.uint32], NDArray[np.uint16]]:
        """The same of received rows, modulo 2**32. Raises `IntegrityError` for numbers that no token has, and for a
        token that is named twice in one place.
        """
        cells = rows & 0xFFFFFFFF
        if self.tokens <= SHORT:
            ids, codes = cells >> 16, cells & 0xFFFF
        else:
            ids, codes = cells[:, : self.top], cells[:, self.top :]
        ordered = np.sort(ids, axis=1)
        twice = bool((ordered[:, 1:] == ordered[:, :-1]).any())
        if rows.shape[1] != self.columns or twice or ids.max(initial=0) >= self.tokens or codes.max(initial=0) >= SHORT:
            raise IntegrityError("They are no outcomes of tokens.")
        return ids.astype(np.uint32), codes.astype(np.uint16)

    def _check_outcomes(self) -> None:
        """Raises `ConclaveError` for a number out of range."""
        check_many(self.top, "outcomes a token")
        if not self.top <= self.tokens < 1 << 31:
            raise ConclaveError(f"The best {self.top:,} of {self.tokens:,} tokens make no sense.")


@dataclass(frozen=True, slots=True)
class FreeTargets(Outcomes, Free):
    """What a party's own language model says might stand in the place of every token of given texts, one token a row.

    Its condition is that of `FreeTexts`, with the model that wrote the release `after`. top, tokens: as of `Outcomes`.
    Raises `ConclaveError` for a number out of range.
    """

    kind: ClassVar[str] = "targets"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAID,)

    after: str
    top: int
    tokens: int

    def __post_init__(self) -> None:
        _check_after(self.after)
        self._check_outcomes()

    def described(self, rows: int, columns: int, form: Form) -> str:
        """The release whose model says it."""
        return (
            f"of every token of the texts the {self.top:,} likeliest outcomes, by what wrote {self.after}: "
            "post-processing, no noise, no charge"
        )


@dataclass(frozen=True, slots=True)
class SoftenedTargets(Outcomes, Priced):
    """Of every token of given texts a teacher's likeliest outcomes, softened; one token a row. It has no guarantee.

    Two rules soften, and each may be left out. The temperature of a place grows near a privacy clue word:
    T + alpha n / d, at most `cap`, for a text of n tokens whose nearest clue word on either side is d tokens away
    (T: `temperature`; alpha: `strength`, 0 where it does not grow). And Laplace noise of scale b (`scale`, on
    probabilities) is added to the `protected` likeliest outcomes, or to all tokens; 0 where there is none.

    Why there is no guarantee: which tokens are the likeliest is read from the teacher without noise, so that noise on
    them alone shows which they are; and a temperature bounds nothing, because a teacher that knows a text by heart is
    as sure of it as it likes. Noise on all tokens would cost epsilon 2/b a token under add-or-remove of one unit, since
    a unit may change the whole distribution (L1 sensitivity 2); it is not charged, because the rows of all texts
    together cost more than any use. So no sensitivity is claimed under any relation, and `event` is a
    `NonPrivateDpEvent`. An audit measures what such rows tell.

    top, tokens: as of `Outcomes`. protection: one of `PROTECTIONS`. Raises `ConclaveError` for a number out of range,
    and for numbers that contradict each other.
    Source: Swing Distillation, the published form (dynamic temperature, and soft-target protection).
    """

    kind: ClassVar[str] = "softened"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAID,)
    guaranteed: ClassVar[bool] = False
    shares: ClassVar[int] = 0

    top: int
    tokens: int
    protection: str
    scale: float
    protected: int
    temperature: float
    strength: float
    cap: float

    def __post_init__(self) -> None:
        self._check_outcomes()
        if self.protection not in PROTECTIONS:
            raise ConclaveError(f"{self.protection[:40]!r} is no protection of outcomes. Use {', '.join(PROTECTIONS)}.")
        if not all(math.isfinite(each) for each in (self.scale, self.temperature, self.strength, self.cap)):
            raise ConclaveError("A scale, temperature, strength or cap of softened outcomes is not a finite number.")
        noisy = self.protection != UNPROTECTED
        if noisy != (self.scale > 0) or self.scale < 0:
            raise ConclaveError(
                f"Laplace noise of scale {self.scale:g} on {self.protection} of the outcomes: it needs a scale above 0 "
                "on some of them, and is 0 on none."
            )
        if not (1 <= self.protected <= self.top if self.protection == TOP else self.protected == 0):
            raise ConclaveError(
                f"{self.protected:,} of {self.top:,} outcomes get noise under protection {self.protection}. Use 1 to "
                f"{self.top:,} under {TOP}, and 0 otherwise."
            )
        if not 0 < self.temperature <= self.cap or self.strength < 0:
            raise ConclaveError(
                f"A temperature of {self.temperature:g} that grows by {self.strength:g} up to {self.cap:g} makes no "
                "sense: it is above 0 and at most its cap, and does not fall."
            )

    @property
    def softens(self) -> bool:
        """Whether anything is softened: without noise, and at temperature 1 throughout, the teacher speaks plainly."""
        return self.protection != UNPROTECTED or self.strength > 0 or self.temperature > 1

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """Zeros: the softening, its noise included, comes before the outcomes are put on their grid."""
        return np.zeros(shape, dtype=np.int64)

    def event(self) -> "DpEvent":
        """A release that no accountant can bound."""
        from dp_accounting import NonPrivateDpEvent

        return NonPrivateDpEvent()

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """Zero: nothing is claimed that a sampler could miss."""
        return 0.0

    def described(self, rows: int, columns: int, form: Form) -> str:
        """How the outcomes were softened, and that this is a heuristic."""
        return (
            f"of every token of the texts the {self.top:,} likeliest outcomes of a party's own model, {self._how()}: "
            f"{HEURISTIC}, which no proof covers"
        )

    def _how(self) -> str:
        if not self.softens:
            return "not softened at all"
        if self.strength:
            warm = f"at temperatures from {self.temperature:g}, which grow near privacy clue words up to {self.cap:g}"
        else:
            warm = f"at temperature {self.temperature:g}"
        noise = f"Laplace noise of scale {self.scale:g} on"
        match self.protection:
            case "top":
                return f"{warm}, with {noise} the {self.protected:,} likeliest"
            case "all":
                return f"{warm}, with {noise} all tokens"
        return f"{warm}, without noise"


def check_many(many: int, what: str) -> None:
    """Raises `ConclaveError` for a number of tokens or outcomes that is none, or too large."""
    if not 1 <= many <= MOST:
        raise ConclaveError(f"{many:,} {what} make no sense. Use 1 to {MOST:,}.")


def _check_after(after: str) -> None:
    if not after:
        raise ConclaveError("What a model says comes after a release that paid for it, and none is named.")
