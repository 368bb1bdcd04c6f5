"""Round 2, above 16 parties: the committed nonces are opened, and the graph is drawn from all of them.

The outcome of the round, or of round 1 where there is no graph, is the `Group`: its members, who masks with whom, and
the digest to which every later key, share and signature is bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn, neighbours, shape
from aggregation.secure_sum.keys import KEY_BYTES, commitment
from aggregation.secure_sum.wire import KEPT, digest, pack, pack_all, speaker, unpack, unpack_all

_TAG = "conclave secure sum opening v1"
_OPENINGS = "conclave secure sum openings v1"


@dataclass(frozen=True, slots=True)
class Opening:
    """A party's nonce, for the list of advertisements it was shown."""

    roster: bytes
    party: str
    nonce: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.roster, self.party, self.nonce)

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Opening":
        """Read what `who` sent. Raises `Cheated` where it is not an opening."""
        roster, name, nonce = unpack(data, _TAG, (32, None, KEY_BYTES), who)
        return cls(roster, speaker(name, who), nonce)


@dataclass(frozen=True)
class Openings:
    """The nonces that were opened, by party in order."""

    openings: tuple[Opening, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        return pack(_OPENINGS, pack_all(each.encode() for each in self.openings))

    @staticmethod
    def decode(data: bytes) -> "Openings":
        """Read what the coordinator showed. Raises `Cheated` where it is not a list of openings."""
        return _openings(data)


@lru_cache(maxsize=KEPT)
def _openings(data: bytes) -> Openings:
    (body,) = unpack(data, _OPENINGS, (None,), COORDINATOR)
    return Openings(tuple(Opening.decode(each, COORDINATOR) for each in unpack_all(body, COORDINATOR)))


@dataclass(frozen=True)
class Group:
    """The parties that take part from here on, and who masks with whom.

    members: in order. digest: binds context, advertisements and nonces; equal only where all of them are.
    near: each member's neighbours, without itself. threshold: shares that rebuild a member's secret.
    """

    context: Context
    roster: Roster
    members: tuple[str, ...]
    digest: bytes
    near: Mapping[str, frozenset[str]]
    threshold: int

    @cached_property
    def points(self) -> Mapping[str, int]:
        """Each member's point on the sharing polynomials: its place among the context's parties, from 1."""
        return {name: place for place, name in enumerate(self.context.parties, start=1)}

    def holders(self, owner: str) -> list[str]:
        """Who holds shares of the owner's secrets: its neighbours and itself, in order."""
        return sorted(self.near[owner] | {owner})


def check_opening(roster: Roster, opening: Opening) -> None:
    """Raises `Cheated` unless the opening is of a nonce committed in this list."""
    advertised = roster.by_party.get(opening.party)
    if advertised is None:
        raise Cheated(COORDINATOR, f"showed a nonce of {opening.party!r}, who advertised none.")
    if opening.roster != roster.digest:
        raise Cheated(
            opening.party, "opened its nonce for another list of advertisements: the lists shown are not all alike."
        )
    if commitment("nonce", opening.nonce) != advertised.nonce_hash:
        raise Cheated(opening.party, "opened another nonce than it committed to.")


def group_digest(context: Context, roster: bytes, openings: bytes) -> bytes:
    """The digest to which every later message is bound. roster: its digest. openings: encoded; empty where no graph is
    drawn.
    """
    return digest("conclave secure sum group v1", context.digest, roster, *([openings] if drawn(context) else []))


@lru_cache(maxsize=KEPT)
def group_of(context: Context, roster: Roster, openings: Openings | None) -> Group:
    """The group that both ends compute.

    openings: None exactly where no graph is drawn.

    Raises `Cheated` for openings that do not fit the list, a party twice, or fewer than parties - dropouts.
    """
    form = shape(context)
    if drawn(context) != (openings is not None):
        raise Cheated(COORDINATOR, "left out the round in which nonces are opened, or put it where none is due.")
    if openings is None:
        members = tuple(each.party for each in roster.advertisements)
        bound = group_digest(context, roster.digest, b"")
    else:
        members = tuple(each.party for each in openings.openings)
        if list(members) != sorted(set(members)):
            raise Cheated(COORDINATOR, "showed a list of nonces with a party twice or out of order.")
        for each in openings.openings:
            check_opening(roster, each)
        if len(members) < context.fewest:
            raise Cheated(
                COORDINATOR, f"showed nonces of {len(members)} parties; {context.title} needs {context.fewest}."
            )
        bound = group_digest(context, roster.digest, openings.encode())
    return Group(context, roster, members, bound, neighbours(members, form.degree, bound), form.threshold)


class Nonces:
    """The coordinator's side: collects one checked opening per party."""

    def __init__(self, context: Context, roster: Roster) -> None:
        self._context, self._roster = context, roster
        self._received: dict[str, Opening] = {}

    def add(self, opening: Opening) -> None:
        """Raises `Cheated` for one that does not fit the party's commitment or this list."""
        check_opening(self._roster, opening)
        self._received[opening.party] = opening

    def close(self) -> Openings:
        """The list to show all parties. Raises `AttemptLost` with fewer than parties - dropouts."""
        if len(self._received) < self._context.fewest:
            raise AttemptLost(
                f"{len(self._received)} parties opened their nonces for {self._context.title}, which needs "
                f"{self._context.fewest}. Start a new attempt when more are back."
            )
        return Openings(tuple(self._received[name] for name in sorted(self._received)))
