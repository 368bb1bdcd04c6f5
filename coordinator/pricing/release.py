"""What parties release together, priced, and a plan whose mechanisms are chosen."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.accounting.calibration import honest_shares
from aggregation.accounting.price import Guarantee, calibrate
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form, Mechanism
from aggregation.secure_sum.graph import failing
from coordinator.plan.plan import Plan
from protos.conclave.v1 import plan_pb2
from protos.steps import step_name

SAMPLER_SHARE = 1e-3
"""The part of a plan's delta that is kept for the noise sampler's distance from its ideal and for graphs that fail."""

PlanT_co = TypeVar("PlanT_co", bound=Plan, covariant=True)
MechanismT = TypeVar("MechanismT")


@dataclass(frozen=True, slots=True)
class Release:
    """One thing that parties release together, as the plan's budget allows it.

    rows, columns: shape of the released matrix; [0, 0] where nothing travels. charges: how often the mechanism's event
    is paid. attempts: how often the whole release may be made anew, each time charged. form: what leaves, who adds
    noise, when it is paid for. Of a stepped release every step's sum is [rows, columns].

    Raises `ValueError` for a form that the mechanism does not have.
    """

    name: str
    mechanism: Mechanism
    rows: int
    columns: int
    charges: int = 1
    attempts: int = 1
    form: Form = Form.SUMMED

    def __post_init__(self) -> None:
        if self.form not in self.mechanism.forms:
            raise ValueError(f"{self.mechanism.kind} are never {self.form}; {self.name} needs another form")

    def under(self, kind: type[MechanismT]) -> MechanismT:
        """Its mechanism, where its planner knows which it is. Raises `TypeError` where it is another."""
        if not isinstance(self.mechanism, kind):
            raise TypeError(f"release {self.name} is under {self.mechanism.kind}, not {kind.__name__}")
        return self.mechanism

    @property
    def steps(self) -> int:
        """How many sums are taken of it."""
        return self.under(GradientMechanism).steps if self.form == Form.STEPPED else 1

    def step(self, number: int) -> "Release":
        """One step of a stepped release, as parties know it."""
        one = replace(self.under(GradientMechanism), steps=1)
        return replace(self, name=step_name(self.name, number), mechanism=one)

    @property
    def event(self) -> DpEvent:
        """What all of it costs, made once."""
        event = self.mechanism.event()
        return event if self.charges == 1 else SelfComposedDpEvent(event, self.charges)

    @property
    def at_most(self) -> DpEvent:
        """What it costs when every attempt that the plan allows is made: what the plan's epsilon has to pay for."""
        return self.event if self.attempts == 1 else SelfComposedDpEvent(self.event, self.attempts)

    def slack(self, epsilon: float) -> float:
        """Delta that the noise sampler's distance from its ideal takes."""
        return self.mechanism.slack(self.rows, self.columns, epsilon, self.attempts)

    @property
    def described(self) -> str:
        """What it is, bounds and noise, in one sentence."""
        return self.mechanism.described(self.rows, self.columns, self.form)


@dataclass(frozen=True, slots=True)
class PricedPlan(Generic[PlanT_co]):
    """A plan with its mechanisms chosen.

    guarantee: what the run costs at every party, delta being the plan's; `slack` is inside it. binding: the message
    that every party is asked to join under. graphs: of delta, what the graphs of its secure sums take.
    """

    plan: PlanT_co
    releases: tuple[Release, ...]
    guarantee: Guarantee
    binding: plan_pb2.Plan
    graphs: float = 0.0

    @property
    def slack(self) -> float:
        """Delta that the accountant does not see: of noise samplers that are not ideal, and of graphs that fail."""
        return sum(release.slack(self.guarantee.epsilon) for release in self.releases) + self.graphs

    @property
    def private(self) -> bool:
        """Whether the guarantee holds: never when the noise can be reproduced from the plan."""
        return not self.plan.privacy.insecure_reproducible_noise

    def release(self, name: str) -> Release | None:
        """The release of that name, or None where the plan has no use for it."""
        return next((release for release in self.releases if release.name == name), None)


def graphs_delta(releases: Sequence[Release], parties: int, colluders: int, dropouts: int) -> float:
    """Delta that the graphs of all secure sums of these releases take. Raises `ConclaveError` where there is none."""
    return failing(parties, colluders, dropouts) * sum(release.steps for release in releases if release.form.gives)


def rounded_up(epsilon: float, decimals: int = 3) -> str:
    """An epsilon as a person reads it, never less than it is."""
    grid = 10**decimals
    return "infinity" if math.isinf(epsilon) else f"{math.ceil(epsilon * grid) / grid:.{decimals}f}"


def budget(guarantee: Guarantee, plan: Plan) -> str:
    """What stands beside a progress bar."""
    if plan.privacy.insecure_reproducible_noise:
        return "no guarantee: reproducible noise"
    return f"epsilon {rounded_up(guarantee.epsilon, 2)} / {plan.privacy.epsilon:g}"


def shares(plan: Plan) -> int:
    """How many parties' noise the guarantee counts on: not of those that may be lost, nor that know their own."""
    return honest_shares(len(plan.federation.names), plan.privacy.dropouts, plan.privacy.colluders)


@lru_cache(maxsize=64)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one Gaussian release of that price."""
    return calibrate(GaussianDpEvent, epsilon, delta)
