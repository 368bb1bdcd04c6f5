"""Whose contributions are in a run's sums, and whether a sum can be made again."""

from typing import Any

from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.said import FreeTexts
from coordinator.pricing.release import PricedPlan, Release
from coordinator.store.store import RunStore


def made_once(priced: PricedPlan[Any]) -> bool:
    """Whether a sum cannot be made again without a party that was lost after it.

    This holds for a step on which the next depends, for a sum of which the coordinator keeps only the noisy form, and
    for a secure sum, whose masks hide which part is whose.
    """
    kept = {Form.STEPPED, Form.WEIGHTS, Form.CLEAR_VOTES, Form.SAID, Form.SAMPLES}
    return priced.plan.privacy.trust == "secure-sum" or any(release.form in kept for release in priced.releases)


def parties_of(priced: PricedPlan[Any], store: RunStore) -> dict[str, tuple[str, ...]]:
    """Whose contributions are in each release, by its name.

    For a stepped release, the parties in any of its steps; for a training, the parties that answered after it.
    """
    found: dict[str, tuple[str, ...]] = {}
    for release in priced.releases:
        names = [release.name]
        if release.form == Form.STEPPED:
            names = [release.step(number).name for number in range(release.steps)]
        elif release.form == Form.TRAINING:
            names = [each.name for each in priced.releases if _after(each) == release.name]
        found[release.name] = tuple(sorted({party for name in names for party in store.summed(name)}))
    return found


def _after(release: Release) -> str | None:
    """The release that paid for what is free; None for what is not."""
    if isinstance(release.mechanism, FreeAnswers | FreeTexts):
        return release.mechanism.after
    return None
