"""`[privacy]` of a plan: the guarantee or that there is none, the trust model, and the noise."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails

from coordinator.errors import PlanError
from protos.console.settings import Settings

LARGEST_DELTA = 1e-3
PROMISING: Final = ("epsilon", "delta", "noise_multiplier", "noise", "attempts")
"""The keys that only a plan with a guarantee has."""


class PrivacyTable(Settings):
    """`[privacy]`: the guarantee, under add-or-remove of one unit at one party.

    guarantee: false for a plan whose releases no proof covers. It has none of the keys `PROMISING`: from Python
    `epsilon` and `delta` then raise `PlanError`, so that nobody takes an absent number for one. epsilon, delta: the
    guarantee, of everything that the run releases; both have to be said where there is one. unit: what is added or
    removed: one record, or all text of a user. record: what one record is: a row, a sentence of it, or a (word,
    context) pair. declared_size: approximate number of units of all parties together, a public figure: forecasts use
    it, and under DP-SGD sampling rates follow from it. trust: "secure-sum", under which the coordinator learns only
    noisy sums, or "trusted-aggregator". dropouts: number of parties that may be lost without weakening the noise.
    colluders: number of parties that may pool what they know with the coordinator. attempts: how many times a secure
    sum may be attempted, each attempt charged, where more than `dropouts` parties are lost during one. noise: the
    distribution of each party's part of the noise. noise_multiplier: the noise of the sum over its sensitivity, in
    place of what epsilon allows; a plan whose epsilon it exceeds is refused. insecure_reproducible_noise: noise comes
    from the seed, for tests alone: nothing is promised.
    """

    guarantee: bool = True
    stated_epsilon: Annotated[float, Field(gt=0, le=100)] | None = Field(None, alias="epsilon")
    stated_delta: float | None = Field(None, alias="delta")
    unit: Literal["record", "user"] = "record"
    record: Literal["document", "sentence", "pair"] = "document"
    trust: Literal["trusted-aggregator", "secure-sum"] = "trusted-aggregator"
    dropouts: Annotated[int, Field(ge=0)] = 0
    colluders: Annotated[int, Field(ge=0)] = 0
    attempts: Annotated[int, Field(ge=1, le=10)] = 1
    noise: Literal["gaussian", "skellam", "discrete-gaussian"] = "gaussian"
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    declared_size: Annotated[int, Field(ge=1)] | None = None
    insecure_reproducible_noise: bool = False

    @property
    def epsilon(self) -> float:
        """The epsilon that the plan promises. Raises `PlanError` where it promises none."""
        if self.stated_epsilon is None:
            raise _promises_nothing("epsilon")
        return self.stated_epsilon

    @property
    def delta(self) -> float:
        """The delta that the plan promises. Raises `PlanError` where it promises none."""
        if self.stated_delta is None:
            raise _promises_nothing("delta")
        return self.stated_delta

    @field_validator("stated_delta")
    @classmethod
    def _delta_is_small(cls, delta: float | None) -> float | None:
        if delta is None:
            return None
        if delta <= 0:
            raise ValueError("delta must be above 0, for example 1e-6.")
        if delta > LARGEST_DELTA:
            raise ValueError(
                f"this is too large: a mechanism with it may publish one record in {1 / delta:.0f} outright. "
                f"Use at most {LARGEST_DELTA:g}, better well below 1 / number of records."
            )
        return delta

    @model_validator(mode="before")
    @classmethod
    def _promises_nothing_without_a_guarantee(cls, tables: Any) -> Any:
        if isinstance(tables, dict) and tables.get("guarantee") is False:
            for key in PROMISING:
                if tables.get(key) is not None:
                    raise ValueError(
                        f"[privacy] {key} belongs to a guarantee, and guarantee = false says that there is none. Leave "
                        "one of them out."
                    )
        return tables

    @model_validator(mode="after")
    def _a_guarantee_is_stated(self) -> "PrivacyTable":
        stated = {"epsilon": self.stated_epsilon, "delta": self.stated_delta}
        if self.guarantee and (missing := [key for key, value in stated.items() if value is None]):
            raise ValidationError.from_exception_data(
                "[privacy]", [InitErrorDetails(type="missing", loc=(key,), input=stated) for key in missing]
            )
        return self

    @model_validator(mode="after")
    def _some_settings_need_the_secure_sum(self) -> "PrivacyTable":
        if self.trust == "secure-sum":
            if not self.guarantee:
                raise ValueError(
                    '[privacy] trust = "secure-sum" hides what parties add up, and what leaves without a guarantee is '
                    "in no sum. Leave it out."
                )
            return self
        if self.colluders:
            raise ValueError(
                '[privacy] colluders has a meaning under trust = "secure-sum" alone. Leave it out, or set 0.'
            )
        if self.attempts > 1:
            raise ValueError(
                '[privacy] attempts has a meaning under trust = "secure-sum" alone. Leave it out, or set 1.'
            )
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The keys of the file. A plan with a guarantee does not say so, and one without has no key of `PROMISING`."""
        written = {key.removeprefix("stated_"): value for key, value in handler(self).items()}
        if self.guarantee:
            del written["guarantee"]
            return written
        return {key: value for key, value in written.items() if key not in PROMISING}


def _promises_nothing(key: str) -> PlanError:
    return PlanError(f"[privacy] guarantee = false: this plan promises nothing, and has no {key}.")
