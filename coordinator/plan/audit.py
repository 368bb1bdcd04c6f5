"""`[audit]` of a plan: attacks on a simulation of it, before its student is published."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator

from coordinator.errors import PlanError
from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, check_settings

CANARIES: Final = 500
TEXTS: Final = 2000
FEWEST: Final = 6
"""The fewest shadow models."""
MOST_SHADOWS: Final = 256
KINDS: Final[tuple[Literal["worst", "natural"], ...]] = ("worst", "natural")


class AuditTable(Settings):
    """`[audit]`: whether a run attacks a simulation of itself, and publishes only if its claim stands.

    canaries: units of each kind, which coins put in or leave out. kinds: "worst", units that a mechanism hides least,
    and "natural", the source's own. confidence: of all lower bounds together; what refutes a claim is held to
    `learning.audits.gate.GATE`, whatever this is. records: of the source, at the most, that are divided among the
    simulated parties; by default all. shadows: simulations more, whose students are shadow models for membership
    inference; 0 for none. texts: that a simulated teacher writes for its student, at the most; by default `TEXTS`.
    """

    canaries: Annotated[int, Field(ge=2, le=20_000)] = CANARIES
    kinds: Annotated[list[Literal["worst", "natural"]], Field(min_length=1)] = Field(
        default_factory=lambda: list(KINDS)
    )
    confidence: Annotated[float, Field(ge=0.5, lt=1)] = 0.95
    records: Annotated[int, Field(ge=10)] | None = None
    texts: Annotated[int, Field(ge=10)] | None = None
    shadows: Annotated[int, Field(ge=0, le=MOST_SHADOWS)] = 0

    @classmethod
    def checked(cls, settings: dict[str, Any]) -> Self:
        """The table with these settings. Raises `PlanError` for one that is out of range."""
        try:
            return check_settings(settings, cls, "the audit")
        except SettingsError as error:
            raise PlanError(str(error)) from None

    @field_validator("shadows")
    @classmethod
    def _enough(cls, shadows: int) -> int:
        if 0 < shadows < FEWEST:
            raise ValueError(
                f"{shadows} shadow models are too few: each canary needs two with it and two without it beside the one "
                f"that is attacked. Use {FEWEST} or more, for example 16, or 0."
            )
        return shadows

    @field_validator("kinds")
    @classmethod
    def _each_once(cls, kinds: list[str]) -> list[str]:
        if len(set(kinds)) != len(kinds):
            raise ValueError('[audit] kinds names one twice. Use ["worst", "natural"], or one of them.')
        return kinds
