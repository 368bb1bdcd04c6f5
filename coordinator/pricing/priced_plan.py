"""Prices a plan before anything runs: chooses the noise of its mechanisms so that they fit the privacy budget."""

import math
from typing import Protocol, TypeVar

from dp_accounting import DpEvent, GaussianDpEvent

from aggregation.accounting.price import Guarantee, calibrate
from aggregation.errors import ConclaveError
from aggregation.mechanisms.registry import message_of
from aggregation.noise.shares import GAUSSIAN
from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import (
    NO_GUARANTEE,
    SAMPLER_SHARE,
    PricedPlan,
    Release,
    dearest,
    gaussian_multiplier,
    graphs_delta,
    rounded_up,
)
from protos.conclave.v1 import plan_pb2
from protos.fields import fill, number

_STEPS, _MOST_TIMES = 1024, 16
"""For Skellam and discrete Gaussian noise: the step of the search, as a part of the Gaussian's noise, and the most
times that noise.
"""

PlanT_co = TypeVar("PlanT_co", bound=Plan, covariant=True)


class Priceable(Protocol[PlanT_co]):
    """What pricing needs to know of a recipe.

    fewer_cells, finer_grid: what to change in a plan that releases too many numbers for its delta, or on too coarse a
    grid.
    """

    @property
    def plan(self) -> PlanT_co: ...

    @property
    def fewer_cells(self) -> str: ...

    @property
    def finer_grid(self) -> str: ...

    @property
    def labelled(self) -> plan_pb2.LabelledText | None:
        """How the parties' rows are read where they have labels."""
        ...

    def total_event(self, multiplier: float) -> DpEvent:
        """An event that costs no less than all releases together at this noise multiplier, if their noise is
        Gaussian.
        """
        ...

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        """The releases whose joint noise multiplier is this one. Raises `PlanError`."""
        ...


def price_plan(recipe: Priceable[PlanT_co]) -> PricedPlan[PlanT_co]:
    """Choose the noise multiplier and price the plan. Raises `PlanError` when its budget cannot pay for its releases,
    and when it has releases without a guarantee and promises one, or the reverse.

    A plan without a guarantee has no noise multiplier: its recipe is asked for the releases at 0.
    """
    plan = recipe.plan
    privacy = plan.privacy
    if not privacy.guarantee:
        releases = recipe.releases(0.0)
        _check_proven(releases, False)
        return PricedPlan(plan, releases, NO_GUARANTEE, _message(recipe, releases))
    spare = privacy.delta * (1 - SAMPLER_SHARE)
    releases = recipe.releases(privacy.noise_multiplier or _calibrated(recipe, spare))
    _check_proven(releases, True)
    graphs = _graphs(plan, releases)
    sampled = sum(release.slack(privacy.epsilon) for release in releases)
    if graphs > privacy.delta * SAMPLER_SHARE:
        raise PlanError(
            f"[privacy] delta = {privacy.delta:g} is too small for secure sums of {len(plan.federation.names)} parties "
            f"against {privacy.colluders} colluders and {privacy.dropouts} drop-outs: that a graph of who masks with "
            f"whom fails takes {graphs:.1e} of it. Plan for fewer of either. Nothing ran.",
            code="C602",
        )
    if sampled + graphs > privacy.delta * SAMPLER_SHARE:
        cells = sum(release.rows * release.columns * release.steps for release in releases)
        raise PlanError(
            f"[privacy] delta = {privacy.delta:g} is too small for {cells:,} noisy cells: the noise sampler's own "
            f"error takes {sampled:.1e} of it. {recipe.fewer_cells} Nothing ran.",
            code="C602",
        )
    guarantee = dearest(releases, spare)
    if guarantee.epsilon > privacy.epsilon:
        assert privacy.noise_multiplier is not None
        needed = _calibrated(recipe, spare)
        raise PlanError(
            f"[privacy] noise_multiplier = {privacy.noise_multiplier:g} costs epsilon {rounded_up(guarantee.epsilon)} "
            f"at delta {privacy.delta:g}, over the plan's {privacy.epsilon:g}. Use at least {needed:g}, or leave it "
            "out and it is calibrated. Nothing ran.",
            code="C602",
        )
    guarantee = Guarantee(guarantee.epsilon, privacy.delta, guarantee.accountant, guarantee.rdp_epsilon)
    return PricedPlan(plan, releases, guarantee, _message(recipe, releases), graphs)


def _check_proven(releases: tuple[Release, ...], promised: bool) -> None:
    """Raises `PlanError` for a release that has no guarantee in a plan that promises one, or the reverse."""
    odd = [release.name for release in releases if release.mechanism.guaranteed != promised]
    if odd and promised:
        raise PlanError(
            f"[privacy] the plan promises epsilon and delta, and no proof covers its release {' and '.join(odd)}. Say "
            "guarantee = false, without epsilon and delta, or choose releases that have a guarantee. Nothing ran."
        )
    if odd:
        raise PlanError(
            f"[privacy] guarantee = false, and its release {' and '.join(odd)} has a guarantee. Leave guarantee out, "
            "and say epsilon and delta, or choose releases that have none. Nothing ran."
        )


def _graphs(plan: Plan, releases: tuple[Release, ...]) -> float:
    privacy, parties = plan.privacy, len(plan.summing)
    if privacy.trust != "secure-sum":
        return 0.0
    try:
        return graphs_delta(releases, parties, privacy.colluders, privacy.dropouts)
    except ConclaveError as error:
        raise PlanError(f"[privacy] {error}") from None


def _calibrated(recipe: Priceable[Plan], delta: float) -> float:
    plan, epsilon = recipe.plan, recipe.plan.privacy.epsilon
    if isinstance(recipe.total_event(1.0), GaussianDpEvent):
        gaussian = gaussian_multiplier(epsilon, delta)
    else:
        gaussian = calibrate(recipe.total_event, epsilon, delta)
    if plan.privacy.noise == GAUSSIAN:
        return gaussian
    # No other noise costs less than a Gaussian of its variance, and on a fine grid little more: a little more of it is
    # enough. On a coarse grid, which has no room for the share that a party would draw, the search says so.
    refused: list[PlanError] = []

    def affordable(steps: int) -> bool:
        try:
            made = recipe.releases(gaussian * steps / _STEPS)
        except PlanError as error:
            refused.append(error)
            return False
        return dearest(made, delta).epsilon <= epsilon

    low, high = _STEPS - 1, _STEPS
    while not affordable(high):
        low, high = high, 2 * high
        if high > _STEPS * _MOST_TIMES:
            raise (
                refused[-1]
                if refused
                else PlanError(
                    f'[privacy] noise = "{plan.privacy.noise}" costs over epsilon {epsilon:g} on this grid even at '
                    f"{_MOST_TIMES} times the Gaussian noise. {recipe.finer_grid}",
                    code="C602",
                )
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return math.ceil(gaussian * high / _STEPS * 1000) / 1000


def _message(recipe: Priceable[Plan], releases: tuple[Release, ...]) -> plan_pb2.Plan:
    plan, privacy = recipe.plan, recipe.plan.privacy
    return plan_pb2.Plan(
        document=plan.document(),
        terms=plan_pb2.Terms(
            recipe=plan.run.recipe,
            seed=plan.run.seed,
            parties=plan.federation.names,
            minimum_parties=plan.minimum_parties,
            privacy=plan_pb2.Privacy(
                epsilon=privacy.epsilon if privacy.guarantee else 0.0,
                delta=privacy.delta if privacy.guarantee else 0.0,
                unproven=None if privacy.guarantee else True,
                unit=number(plan_pb2.Unit, privacy.unit),
                record=number(plan_pb2.Record, privacy.record),
                trust=number(plan_pb2.Trust, privacy.trust),
                dropouts=privacy.dropouts,
                colluders=privacy.colluders,
                insecure_reproducible_noise=privacy.insecure_reproducible_noise,
                attempts=privacy.attempts,
            ),
            releases=[_release(each) for each in releases],
            labelled=recipe.labelled,
            coded=plan.coded,
            paired=plan.paired,
        ),
    )


def _release(release: Release) -> plan_pb2.Release:
    """The protocol message of a release, its mechanism's parameters number by number."""
    form = number(plan_pb2.Form, release.form)
    message = plan_pb2.Release(name=release.name, charges=release.charges, form=form)
    if release.parties:
        message.roster.parties.extend(release.parties)
    try:
        kind, values = message_of(release.mechanism)
    except ConclaveError as error:
        raise PlanError(f"release {release.name} cannot be asked of parties: {error}") from None
    fill(getattr(message, kind), values)
    return message
