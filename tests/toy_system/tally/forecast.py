"""What a run of this system costs, and how its noise compares with one unit's counts."""

from coordinator.forecasting.cost import COMMAND_SECONDS, COORDINATOR_MEMORY, NODE_MEMORY, VALUE_BYTES
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs

MEMORY = {"coordinator": COORDINATOR_MEMORY, "party node": NODE_MEMORY, "party training": NODE_MEMORY}


def needs(recipe, priced, base, cache):
    """What a run is expected to need."""
    return Needs.of(MEMORY, 0, len(recipe.plan.tally.words) ** 2)


def forecast(recipe, priced, base, cache, prepared):
    """Forecast a run; nothing is asked."""
    plan, (release,) = recipe.plan, priced.releases
    noise = release.mechanism.noise_multiplier * release.mechanism.clip
    return Forecast(
        plan=plan,
        rows=(Row(release.name, 1, release.mechanism.clip, noise, plan.privacy.declared_size or noise),),
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=VALUE_BYTES * release.rows * release.columns * len(plan.federation.names),
        seconds=prepared + COMMAND_SECONDS,
        memory=MEMORY,
        assumptions=(),
        warnings=(),
    )
