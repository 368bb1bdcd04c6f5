"""Who takes part in a release: all parties of a run, or those that the release names.

A party is asked for nothing of a release that it has no part in, and is not charged for it. So what its records cost is
what its own releases cost together, whatever others release (parallel composition: shards are disjoint, and rosters are
public).
"""

from collections.abc import Sequence
from typing import Final

from protos.conclave.v1 import plan_pb2

ALONE: Final = frozenset({plan_pb2.FORM_WEIGHTS, plan_pb2.FORM_SAID, plan_pb2.FORM_TRAINING, plan_pb2.FORM_SAMPLES})
"""Forms of what one party makes alone, which is in no sum."""


def roster_of(release: plan_pb2.Release, terms: plan_pb2.Terms) -> tuple[str, ...]:
    """The parties that take part in a release, sorted."""
    return tuple(release.roster.parties or terms.parties)


def fewest_of(release: plan_pb2.Release, terms: plan_pb2.Terms) -> int:
    """How many parties of a release are there at the least while the run goes on."""
    return fewest(len(terms.parties), terms.minimum_parties, len(roster_of(release, terms)))


def fewest(parties: int, minimum: int, some: int) -> int:
    """How many of some parties are left, where of all of a run so many are; 1 or more, unless they are all."""
    return minimum if some == parties else max(1, minimum - (parties - some))


def summing(terms: plan_pb2.Terms) -> tuple[str, ...]:
    """The parties of the smallest sum; all parties where nothing is summed."""
    rosters = [roster_of(each, terms) for each in terms.releases if each.form not in ALONE]
    return min(rosters, key=len, default=tuple(terms.parties))


def odd_roster(terms: plan_pb2.Terms) -> str | None:
    """Why the releases of these terms cannot be divided among parties as they are; None where they can."""
    for release in terms.releases:
        if not release.HasField("roster"):
            continue
        named = list(release.roster.parties)
        if not named or named != sorted(set(named)) or not set(named) < set(terms.parties):
            return f"the parties of release {release.name[:64]} are not some of the plan's, sorted and each once"
    return None


def own_terms(terms: plan_pb2.Terms, name: str) -> plan_pb2.Terms:
    """The terms as one party takes part in them: with the releases that it has a part in, in their order."""
    if not any(release.HasField("roster") for release in terms.releases):
        return terms
    own = plan_pb2.Terms()
    own.CopyFrom(terms)
    kept = [release for release in terms.releases if name in roster_of(release, terms)]
    del own.releases[:]
    own.releases.extend(kept)
    return own


def among(terms: plan_pb2.Terms, names: Sequence[str]) -> plan_pb2.Terms:
    """The terms as the parties of one roster have them: its parties alone, and how many of these have to stay."""
    if len(names) == len(terms.parties):
        return terms
    seen = plan_pb2.Terms()
    seen.CopyFrom(terms)
    seen.minimum_parties = fewest(len(terms.parties), terms.minimum_parties, len(names))
    del seen.parties[:]
    seen.parties.extend(names)
    return seen
