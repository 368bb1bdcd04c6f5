"""Compares what a party attests that a run has cost it with the releases that `privacy.json` states."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_accounting import DpEvent, SelfComposedDpEvent

from aggregation.accounting.events import from_json, to_json
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.published.statement import Attestation, Privacy, StatedRelease
from coordinator.reading import shown, some
from protos.steps import parsed


@dataclass(frozen=True, slots=True)
class Charged:
    """The charges that a party attests.

    events: its charges for stated releases. more: in words, how many charges it has beyond the stated number. beyond:
    in words, charges that belong to no release of the plan.
    """

    party: str
    events: tuple[DpEvent, ...]
    more: tuple[str, ...]
    beyond: tuple[str, ...] = ()


def charged(attestation: Attestation, privacy: Privacy) -> tuple[Charged, list[str]]:
    """A party's charges, and in sentences where they differ from `privacy.json`.

    More charges than stated (another attempt, a release that was begun and not finished) are no error: they are priced.
    A charge for something outside the plan is no error either: it is the party's own affair. A step of a release is
    charged as a release of its own.
    """
    party = attestation.party
    found, more, beyond = [], [], []
    whole: dict[str, tuple[StatedRelease, str | None, DpEvent | None]] = {}  # by name: the price of one, as JSON
    for each in privacy.releases:
        event, wrong = _stated_event(each)
        whole[each.name] = each, None if event is None else _as_text(event), event
        found += [f"{party}: {wrong}"] if wrong else []
    seen: set[tuple[str, int]] = set()
    times: Counter[str] = Counter()
    attested: dict[str, set[str]] = {name: set() for name in whole}
    for cost in attestation.releases:
        name = _release_of(cost.name, whole)
        if name is None:
            beyond.append(f"a charge for {shown(cost.name)}")
            continue
        if (cost.name, cost.attempt) in seen:
            found.append(f"{party} attests attempt {cost.attempt} of {shown(cost.name)} twice.")
            continue
        seen.add((cost.name, cost.attempt))
        attested[name].add(cost.name)
        try:
            same = _as_text(from_json(cost.event)) == whole[name][1]
        except IntegrityError as error:
            found.append(f"{party} attests an event of {shown(cost.name)} that cannot be read: {shown(error, 300)}")
            continue
        if same:
            times[name] += 1
        else:
            found.append(
                f"{party} attests another event for {shown(cost.name)} than privacy.json has: what is stated there is "
                "not what the party was charged."
            )
    events = []
    for name, (release, _, event) in whole.items():
        expected = _sums_with(party, release)
        if len(attested[name]) < expected:
            of = "" if release.steps is None else f" {expected:,} steps of"
            found.append(f"{party} is in the sum of{of} {shown(name)} and does not attest its cost.")
        extra = times[name] - expected
        if extra > 0:
            more.append(f"{party} was charged {shown(name)} {extra} more time{'s' * (extra > 1)}")
        if event is not None and times[name]:
            events.append(event if times[name] == 1 else SelfComposedDpEvent(event, times[name]))
    return Charged(party, tuple(events), tuple(more), tuple(some(beyond))), found


def _stated_event(release: StatedRelease) -> tuple[DpEvent | None, str]:
    """The event that a party is charged for one release or one of its steps; None, and the reason, where it cannot be
    known.
    """
    try:
        if release.steps is None:
            return from_json(release.event), ""
        return GradientMechanism(**release.mechanism | {"steps": 1}).event(), ""
    except (ConclaveError, TypeError, ValueError, ArithmeticError) as error:
        return None, f"privacy.json has an event of {shown(release.name)} that cannot be read: {shown(error, 300)}"


def _release_of(name: str, known: Mapping[str, tuple[StatedRelease, Any, Any]]) -> str | None:
    """The stated release that a charge belongs to: the one with its name, or with a step of its name."""
    if name in known:
        return name if known[name][0].steps is None else None
    base, number = parsed(name)
    if number is None or base not in known or known[base][0].steps is None:
        return None
    steps = known[base][0].mechanism.get("steps")
    return base if isinstance(steps, int) and number < steps else None


def _sums_with(party: str, release: StatedRelease) -> int:
    """The number of a release's sums that a party is in."""
    return int(party in release.parties) if release.steps is None else release.steps.parties.get(party, 0)


def _as_text(event: DpEvent) -> str:
    return json.dumps(to_json(event), sort_keys=True)
