"""`audit.json`: what attacks on a simulated run of a plan found, beside what the plan claims."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from coordinator.published.manifest import Digest
from protos.console.settings import Settings

AUDIT: Final = "audit.json"
MOST_ATTACKS: Final = 64
MOST_CANARIES: Final = 100_000
DELTA: Final = 1e-5
"""Delta at which epsilon is bounded where a plan claims none."""

Kind = Literal["worst", "natural", "numbers"]
Sentence = Annotated[str, Field(min_length=1, max_length=2000)]
Count = Annotated[int, Field(ge=0, le=MOST_CANARIES)]


class Attacked(Settings):
    """One attack. attacked: the release, or "student". canaries: of which kind; count: how many of them.

    how: what the attacker did, as a sentence. guesses, right: at the best of `tried` numbers of guesses. lower: the
    largest epsilon that they refute, 0 where none.
    """

    attacked: Annotated[str, Field(min_length=1, max_length=100)]
    canaries: Kind
    count: Annotated[int, Field(ge=2, le=MOST_CANARIES)]
    how: Sentence
    guesses: Count
    right: Count
    tried: Annotated[int, Field(ge=1, le=100)]
    lower: Annotated[float, Field(ge=0, le=100)]

    @model_validator(mode="after")
    def _counts_agree(self) -> "Attacked":
        if not self.right <= self.guesses <= self.count:
            raise ValueError(f"{self.right} right of {self.guesses} guesses about {self.count} canaries cannot be.")
        return self


class Exposed(Settings):
    """How far canaries' numbers stand out under a student: by so many bits more than under one that never saw them.

    low, high: the bootstrap interval of the mean at 95%. p: of ranks as small as these if nothing leaked.
    """

    attacked: Annotated[str, Field(min_length=1, max_length=100)]
    count: Annotated[int, Field(ge=2, le=MOST_CANARIES)]
    digits: Annotated[int, Field(ge=1, le=8)]
    mean: float
    low: float
    high: float
    p: Annotated[float, Field(ge=0, le=1)]


class Audit(Settings):
    """The whole file.

    run: the run that is audited, None for a plan that was not run; plan_hash: of it. claimed: the epsilon that the plan
    promises, None for one that promises nothing. delta: at which epsilon is bounded, the plan's own or, where it has
    none, `DELTA`. confidence: at which all lower bounds hold together. records: of the simulated shards, canaries
    apart; source: of the plan's own. coins: whether they came from the system, or from a seed. says: what else a reader
    has to know.
    """

    format: Literal[1]
    run: Annotated[str, Field(min_length=1, max_length=200)] | None
    plan_hash: Digest
    claimed: Annotated[float, Field(gt=0)] | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Annotated[str, Field(min_length=1, max_length=100)]
    confidence: Annotated[float, Field(gt=0, lt=1)]
    records: Annotated[int, Field(ge=1)]
    source: Annotated[int, Field(ge=1)]
    coins: Literal["system", "seed"]
    attacks: Annotated[list[Attacked], Field(min_length=1, max_length=MOST_ATTACKS)]
    exposures: Annotated[list[Exposed], Field(max_length=MOST_ATTACKS)] = Field(default_factory=list)
    says: Annotated[list[Sentence], Field(max_length=16)] = Field(default_factory=list)

    @property
    def lower(self) -> float:
        """The largest of the lower bounds."""
        return max(each.lower for each in self.attacks)

    @property
    def broken(self) -> bool:
        """Whether an attack refutes the claim; never where nothing is claimed."""
        return self.claimed is not None and self.lower > self.claimed

    @property
    def each(self) -> float:
        """The confidence of one attack, at which all together have the file's."""
        return 1 - (1 - self.confidence) / len(self.attacks)
