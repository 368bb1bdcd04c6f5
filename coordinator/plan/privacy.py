"""`[privacy]` of a plan: the guarantee, the trust model, and the noise."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from protos.console.settings import Settings

LARGEST_DELTA = 1e-3


class PrivacyTable(Settings):
    """`[privacy]`: the guarantee, under add-or-remove of one unit at one party.

    declared_size: approximate number of units of all parties together, a public figure; only `coordinator forecast`
    uses it. trust: "secure-sum", under which the coordinator learns only noisy sums, or "trusted-aggregator". dropouts:
    number of parties that may be lost without weakening the noise. colluders: number of parties that may pool what they
    know with the coordinator. attempts: how many times a secure sum may be attempted, each attempt charged, where more
    than `dropouts` parties are lost during one. noise: the distribution of each party's part of the noise.
    """

    epsilon: Annotated[float, Field(gt=0, le=100)]
    delta: float
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

    @field_validator("delta")
    @classmethod
    def _delta_is_small(cls, delta: float) -> float:
        if delta <= 0:
            raise ValueError("delta must be above 0, for example 1e-6.")
        if delta > LARGEST_DELTA:
            raise ValueError(
                f"this is too large: a mechanism with it may publish one record in {1 / delta:.0f} outright. "
                f"Use at most {LARGEST_DELTA:g}, better well below 1 / number of records."
            )
        return delta

    @model_validator(mode="after")
    def _some_settings_need_the_secure_sum(self) -> "PrivacyTable":
        if self.trust == "secure-sum":
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
