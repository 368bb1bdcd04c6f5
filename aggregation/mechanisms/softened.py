"""What a party's own language model says of given texts, softened by rules that no proof covers: a heuristic."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import HEURISTIC, Form, Priced
from aggregation.mechanisms.said import Outcomes
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

UNPROTECTED: Final = "none"
TOP: Final = "top"
ALL: Final = "all"
PROTECTIONS: Final = (UNPROTECTED, TOP, ALL)
"""Which probabilities get Laplace noise: none, those of a token's likeliest outcomes, or those of all tokens."""


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
