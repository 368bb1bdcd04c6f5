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
Against = Literal["gaussian", "sampled", "renyi"]
"""What attacks are held to: a form of `learning.audits.trade_offs.claimed`."""
Sentence = Annotated[str, Field(min_length=1, max_length=2000)]
Count = Annotated[int, Field(ge=0, le=MOST_CANARIES)]
Pair = Annotated[list[Count], Field(min_length=2, max_length=2)]


def units_of_canary(unit: str, record: str) -> int:
    """How many units of a plan's guarantee a canary is. unit, record: of its `[privacy]`.

    A text is one, except where pairs of words are records: a text of two words has its pair from either end.
    """
    return 2 if (unit, record) == ("record", "pair") else 1


class Attacked(Settings):
    """One attack. attacked: the release, or "student". canaries: of which kind; count: how many of them.

    how: what the attacker did, as a sentence. guesses, right: at the best of `tried` numbers of guesses. lower: the
    largest epsilon that they refute, 0 where none. counted: all of these numbers, and how many were right. refuted:
    whether any of them refutes the claim (`learning.audits.gate`).
    """

    attacked: Annotated[str, Field(min_length=1, max_length=100)]
    canaries: Kind
    count: Annotated[int, Field(ge=2, le=MOST_CANARIES)]
    how: Sentence
    guesses: Count
    right: Count
    tried: Annotated[int, Field(ge=1, le=100)]
    lower: Annotated[float, Field(ge=0, le=100)]
    counted: Annotated[list[Pair], Field(max_length=16)] = Field(default_factory=list)
    refuted: bool = False

    @model_validator(mode="after")
    def _counts_agree(self) -> "Attacked":
        for guesses, right in [(self.guesses, self.right), *self.counted]:
            if not right <= guesses <= self.count:
                raise ValueError(f"{right} right of {guesses} guesses about {self.count} canaries cannot be.")
        return self


class Extracted(Settings):
    """How many of canaries' numbers are among the `most` likeliest after their prompt, of which there are 10**digits.

    present, absent: canaries that are in, and that are not; student, public: of these, numbers that are found under the
    published student, and under the public model, which saw none.
    """

    most: Annotated[int, Field(ge=1, le=MOST_CANARIES)]
    present: Count
    present_student: Count
    present_public: Count
    absent: Count
    absent_student: Count
    absent_public: Count

    @model_validator(mode="after")
    def _counts_agree(self) -> "Extracted":
        if max(self.present_student, self.present_public) > self.present:
            raise ValueError("More numbers are found than canaries are present.")
        if max(self.absent_student, self.absent_public) > self.absent:
            raise ValueError("More numbers are found than canaries are absent.")
        return self


class Exposed(Settings):
    """How far canaries' numbers stand out under a student: by so many bits more than under one that never saw them.

    low, high: the bootstrap interval of the mean at 95%. p: of ranks as small as these if nothing leaked. extracted:
    how many are found; None in files of before it was looked for.
    """

    attacked: Annotated[str, Field(min_length=1, max_length=100)]
    count: Annotated[int, Field(ge=2, le=MOST_CANARIES)]
    digits: Annotated[int, Field(ge=1, le=8)]
    mean: float
    low: float
    high: float
    p: Annotated[float, Field(ge=0, le=1)]
    extracted: Extracted | None = None


Share = Annotated[float, Field(ge=0, le=1)]
Point = Annotated[list[Share], Field(min_length=2, max_length=2)]


class Rate(Settings):
    """A rate of false positives, and that of true ones at it; None where too few canaries are out to show it."""

    false: Share
    true: Share | None


class Membership(Settings):
    """Membership inference against the student by shadow models. models: runs, each attacked with the others as its
    shadows. members, others: canaries of all these runs that are in, and that are not. area: under the curve, 0.5 for
    guesses. curve: points [rate of false positives, rate of true positives].
    """

    attack: Literal["lira", "rmia"]
    canaries: Kind
    models: Annotated[int, Field(ge=2, le=1000)]
    members: Annotated[int, Field(ge=1)]
    others: Annotated[int, Field(ge=1)]
    area: Share
    rates: Annotated[list[Rate], Field(max_length=8)]
    curve: Annotated[list[Point], Field(min_length=2, max_length=64)]


class Audit(Settings):
    """The whole file.

    run: the run that is audited, None for a plan that was not run; plan_hash: of it. claimed: the epsilon that the plan
    promises, None for one that promises nothing. delta: at which epsilon is bounded, the plan's own or, where it has
    none, `DELTA`. confidence: at which all lower bounds hold together. records: of the simulated shards, canaries
    apart; source: of the plan's own. coins: whether they came from the system, or from a seed. says: what else a reader
    has to know.

    against: the form of what attacks are held to, None where nothing is claimed. gate: the confidence of that, for all
    attacks together. Format 1, of before there was a gate, has neither: there a lower bound above the claim refutes it.
    """

    format: Literal[1, 2]
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
    memberships: Annotated[list[Membership], Field(max_length=MOST_ATTACKS)] = Field(default_factory=list)
    says: Annotated[list[Sentence], Field(max_length=16)] = Field(default_factory=list)
    against: Against | None = None
    gate: Annotated[float, Field(gt=0, lt=1)] | None = None

    @model_validator(mode="after")
    def _has_what_its_format_has(self) -> "Audit":
        gated = self.format > 1 and self.claimed is not None
        if (self.against is not None, self.gate is not None) != (gated, gated):
            raise ValueError("`against` and `gate` are of format 2, and of an audit that holds a claim.")
        for each in self.attacks:
            if bool(each.counted) != (self.format > 1) or (each.refuted and not gated):
                raise ValueError("`counted` is of format 2, and `refuted` of an audit that holds a claim.")
        return self

    @property
    def lower(self) -> float:
        """The largest of the lower bounds."""
        return max(each.lower for each in self.attacks)

    @property
    def broken(self) -> bool:
        """Whether an attack refutes the claim; never where nothing is claimed."""
        if self.format == 1:
            return self.claimed is not None and self.lower > self.claimed
        return any(each.refuted for each in self.attacks)

    @property
    def each(self) -> float:
        """The confidence of one attack, at which all together have the file's."""
        return 1 - (1 - self.confidence) / len(self.attacks)
