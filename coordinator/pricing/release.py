"""A release, which parties make together, and a plan whose mechanisms are chosen and priced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Generic, TypeVar

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.accounting.calibration import honest_shares
from aggregation.accounting.price import Guarantee, calibrate, price
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import HEURISTIC, Form, Mechanism
from aggregation.secure_sum.graph import failing
from coordinator.plan.plan import Plan
from protos.conclave.v1 import plan_pb2
from protos.steps import step_name

SAMPLER_SHARE = 1e-3
"""The part of a plan's delta that covers the distance of the noise sampler from ideal noise, and graphs that fail."""
NO_GUARANTEE: Final = Guarantee(math.inf, 1.0, "none", math.inf)
"""What holds of releases without a guarantee: of anything at all. Nobody shows it: `PricedPlan.private` is False."""

PlanT_co = TypeVar("PlanT_co", bound=Plan, covariant=True)
MechanismT = TypeVar("MechanismT")


@dataclass(frozen=True, slots=True)
class Release:
    """One matrix that parties release together, with its mechanism and its cost.

    rows, columns: shape of the released matrix; [0, 0] where nothing is sent. charges: how many times the mechanism's
    event is charged. attempts: how many times the whole release may be attempted; each attempt is charged. form: what
    leaves the party, who adds the noise, and when the release is charged. For a stepped release, the sum of every step
    is [rows, columns]. parties: who takes part in it and is charged for it, sorted; empty where all do.

    Raises `ValueError` for a form that the mechanism does not have.
    """

    name: str
    mechanism: Mechanism
    rows: int
    columns: int
    charges: int = 1
    attempts: int = 1
    form: Form = Form.SUMMED
    parties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.form not in self.mechanism.forms:
            raise ValueError(f"{self.mechanism.kind} are never {self.form}; {self.name} needs another form")

    def under(self, kind: type[MechanismT]) -> MechanismT:
        """The release's mechanism, as the type its caller expects. Raises `TypeError` where it is of another type."""
        if not isinstance(self.mechanism, kind):
            raise TypeError(f"release {self.name} is under {self.mechanism.kind}, not {kind.__name__}")
        return self.mechanism

    def concerns(self, party: str) -> bool:
        """Whether a party takes part in it."""
        return not self.parties or party in self.parties

    @property
    def steps(self) -> int:
        """How many sums the release takes."""
        return self.under(GradientMechanism).steps if self.form == Form.STEPPED else 1

    def step(self, number: int) -> "Release":
        """One step of a stepped release, as parties name it."""
        one = replace(self.under(GradientMechanism), steps=1)
        return replace(self, name=step_name(self.name, number), mechanism=one)

    @property
    def event(self) -> DpEvent:
        """The cost of one attempt at the whole release."""
        event = self.mechanism.event()
        return event if self.charges == 1 else SelfComposedDpEvent(event, self.charges)

    @property
    def at_most(self) -> DpEvent:
        """The cost when every attempt that the plan allows is made: this is what the plan's epsilon has to cover."""
        return self.event if self.attempts == 1 else SelfComposedDpEvent(self.event, self.attempts)

    def slack(self, epsilon: float) -> float:
        """The part of delta that covers the distance between the noise sampler and its ideal distribution."""
        return self.mechanism.slack(self.rows, self.columns, epsilon, self.attempts)

    @property
    def described(self) -> str:
        """The release, its bounds and its noise in one sentence."""
        return self.mechanism.described(self.rows, self.columns, self.form)


@dataclass(frozen=True, slots=True)
class PricedPlan(Generic[PlanT_co]):
    """A plan with its mechanisms chosen.

    guarantee: what the run costs at every party, at the plan's delta, which includes `slack`; `NO_GUARANTEE` where no
    proof covers its releases. binding: the message that
    every party is asked to join under. graphs: the part of delta that covers failing graphs of its secure sums.
    """

    plan: PlanT_co
    releases: tuple[Release, ...]
    guarantee: Guarantee
    binding: plan_pb2.Plan
    graphs: float = 0.0

    @property
    def slack(self) -> float:
        """The part of delta outside the accountant: for noise samplers that are not ideal, and for graphs that fail."""
        return sum(release.slack(self.guarantee.epsilon) for release in self.releases) + self.graphs

    @property
    def private(self) -> bool:
        """Whether the guarantee holds. It never does when the noise can be reproduced from the plan, and where there is
        none.
        """
        return self.plan.privacy.guarantee and not self.plan.privacy.insecure_reproducible_noise

    def release(self, name: str) -> Release | None:
        """The release with that name, or None where the plan makes no such release."""
        return next((release for release in self.releases if release.name == name), None)


def graphs_delta(releases: Sequence[Release], parties: int, colluders: int, dropouts: int) -> float:
    """The part of delta for the graphs of all secure sums of these releases. Raises `ConclaveError` where no graph
    fits.
    """
    return sum(
        failing(len(release.parties) or parties, colluders, dropouts) * release.steps
        for release in releases
        if release.form.gives
    )


def borne(releases: Sequence[Release]) -> list[tuple[Release, ...]]:
    """What a party may have to bear: the releases that one takes part in, once for each such list that there is.

    Parties whose records no release touches bear nothing, and are not listed. What a plan costs is what the dearest of
    these lists costs: shards are disjoint, and who takes part is public.
    """
    rosters = {release.parties for release in releases if release.parties}
    named = sorted({party for each in rosters for party in each})
    lists = {tuple(release for release in releases if release.concerns(party)) for party in named}
    everyones = tuple(release for release in releases if not release.parties)
    if everyones or not lists:
        lists.add(everyones)
    return sorted(lists, key=lambda each: [release.name for release in each])


def dearest(releases: Sequence[Release], delta: float) -> Guarantee:
    """The guarantee of the party that bears most, where every attempt is made that the plan allows."""
    return max((at_most(each, delta) for each in borne(releases)), key=lambda each: each.epsilon)


def at_most(releases: Sequence[Release], delta: float) -> Guarantee:
    """The guarantee of a party that bears all of these releases, where every attempt is made that the plan allows."""
    return price([release.at_most for release in releases], delta)


def rounded_up(epsilon: float, decimals: int = 3) -> str:
    """An epsilon as it is shown to a person, rounded up so that it is never understated.

    One below the last decimal has two digits, and 15 decimals at most: a stated one may be any number.
    """
    if math.isinf(epsilon):
        return "infinity"
    if 0 < epsilon < 10**-decimals:
        decimals = min(15, math.ceil(-math.log10(epsilon)) + 1)
    grid = 10**decimals
    return f"{math.ceil(epsilon * grid) / grid:.{decimals}f}"


def unpromised(plan: Plan) -> str:
    """What is said beside a progress bar of a plan that promises nothing; empty of one that does: what it has spent so
    far is shown as it grows.
    """
    if not plan.privacy.guarantee:
        return HEURISTIC
    return "no guarantee: reproducible noise" if plan.privacy.insecure_reproducible_noise else ""


def shares(plan: Plan) -> int:
    """How many parties' noise the guarantee counts on: all but those that may be lost or that know their own noise."""
    return honest_shares(len(plan.summing), plan.privacy.dropouts, plan.privacy.colluders)


@lru_cache(maxsize=64)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of the one Gaussian release that has this price."""
    return calibrate(GaussianDpEvent, epsilon, delta)
