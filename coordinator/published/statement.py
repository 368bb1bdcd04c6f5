"""The parts of a published folder's statements that are checked: `privacy.json`, and what a party attests."""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from coordinator.published.manifest import Digest, PartyName, Seconds
from protos.console.settings import Settings


class Stated(Settings):
    """An object in a published file; keys that are not checked may be present."""

    model_config = ConfigDict(extra="ignore")


MOST_COSTS: Final = 100_000
"""The most charges that one party attests: one for every step of a run and every attempt."""


class StatedSteps(Stated):
    """Of a stepped release: the number of parties in the smallest sum, and in how many sums each party is."""

    fewest: int = Field(ge=0)
    parties: dict[PartyName, Annotated[int, Field(ge=1)]]


class StatedRelease(Stated):
    """A release in `privacy.json`. values: rows times columns. parties: those in its sum, or in that of any step.
    among: the parties that take part in it by the plan, where these are not all.
    """

    name: str
    parties: list[PartyName]
    charges: int = Field(ge=1)
    values: int = Field(ge=0)
    mechanism: dict[str, Any]
    event: dict[str, Any]
    steps: StatedSteps | None = None
    among: list[PartyName] | None = None

    def concerns(self, party: str) -> bool:
        """Whether a party takes part in it by the plan."""
        return self.among is None or party in self.among

    @property
    def throughout(self) -> frozenset[str]:
        """The parties in all of its sums: for a stepped release, in every step's."""
        if self.steps is None:
            return frozenset(self.parties)
        every = self.mechanism.get("steps")
        return frozenset(name for name, count in self.steps.parties.items() if count == every)


class StatedParties(Stated):
    """The number of parties, in `privacy.json`."""

    planned: int
    in_the_sum: int
    shares_needed: int


class Privacy(Stated):
    """`privacy.json`, as far as it can be checked.

    guarantee: False where no proof covers the releases; then nothing is stated of epsilon, delta and the sampler, and
    audited says whether their leak was measured. epsilon and delta: None where there is no guarantee.
    """

    format: Literal[1]
    run: str
    plan_hash: Digest
    unit: Literal["record", "user"]
    record: Literal["document", "sentence", "pair"]
    relation: str
    guarantee: bool = True
    audited: bool = False
    epsilon: float | None = Field(gt=0)
    delta: float | None = Field(gt=0, lt=1)
    sampler_delta: float | None = Field(ge=0)
    attempts: int = Field(default=1, ge=1)
    trust: str
    insecure_reproducible_noise: bool
    parties: StatedParties
    left_out: dict[PartyName, str] = Field(default_factory=dict)
    releases: list[StatedRelease] = Field(min_length=1, max_length=64)

    def throughout(self, party: str) -> bool:
        """Whether a party is in every sum that it takes part in by the plan, and takes part in any."""
        own = [each for each in self.releases if each.concerns(party)]
        return bool(own) and all(party in each.throughout for each in own)


class Cost(Stated):
    """One event that a party's ledger was charged."""

    name: str
    attempt: int = Field(ge=0)
    event: dict[str, Any]


class Attestation(Stated):
    """What a party signed about a run."""

    party: str
    run: str
    plan_hash: str
    unit: str
    record: str
    relation: str
    guarantee: bool = True
    insecure_reproducible_noise: bool
    simulation: bool
    releases: list[Cost] = Field(max_length=MOST_COSTS)
    signed_at: Seconds
