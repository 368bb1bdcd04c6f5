"""Round 5: every survivor signs the list of survivors, one list per attempt, so that no party can be shown another.

Two different lists cannot both have `threshold` signers: they would have an honest signer in common, since 2 threshold
> parties + colluders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.keys import Sign, Verify, verified
from aggregation.secure_sum.opening import Group
from aggregation.secure_sum.wire import KEPT, digest, pack, pack_all, speaker, text, unpack, unpack_all

_TAG = "conclave secure sum consent v1"
_SURVIVORS = "conclave secure sum survivors v1"
_CONSENTS = "conclave secure sum consents v1"


@dataclass(frozen=True)
class Survivors:
    """The parties whose every masked block has arrived, in order: the terms of the sum."""

    group: bytes
    names: tuple[str, ...]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the encoding: context, advertisements, graph and names."""
        return digest(self.encode())

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_SURVIVORS, self.group, pack_all(self.names))

    @staticmethod
    def decode(data: bytes) -> "Survivors":
        """Read what the coordinator showed. Raises `Cheated` where it is not a list of survivors."""
        return _survivors(data)


@lru_cache(maxsize=KEPT)
def _survivors(data: bytes) -> Survivors:
    group, body = unpack(data, _SURVIVORS, (32, None), COORDINATOR)
    return Survivors(group, tuple(text(name, COORDINATOR) for name in unpack_all(body, COORDINATOR)))


@dataclass(frozen=True, slots=True)
class Consent:
    """A survivor's signature over one list of survivors."""

    survivors: bytes
    party: str
    signature: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.survivors, self.party, self.signature)

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Consent":
        """Read what `who` sent. Raises `Cheated` where it is not a consent."""
        survivors, name, signature = unpack(data, _TAG, (32, None, None), who)
        return cls(survivors, speaker(name, who), signature)


@dataclass(frozen=True, slots=True)
class Consents:
    """The signatures that the coordinator shows to all parties that are to reveal shares."""

    consents: tuple[Consent, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_CONSENTS, pack_all(each.encode() for each in self.consents))

    @staticmethod
    def decode(data: bytes) -> "Consents":
        """Read what the coordinator showed. Raises `Cheated` where these are not consents."""
        return _consents(data)


@lru_cache(maxsize=KEPT)
def _consents(data: bytes) -> Consents:
    (body,) = unpack(data, _CONSENTS, (None,), COORDINATOR)
    return Consents(tuple(Consent.decode(each, COORDINATOR) for each in unpack_all(body, COORDINATOR)))


def check_survivors(group: Group, party: str, peers: frozenset[str], survivors: Survivors) -> None:
    """The party's side: refuse a list whose sum would hold too little noise, or leave this party with too few masks.

    peers: the neighbours with whom this party shares a mask. Every neighbour that survives must be one: a coordinator
    that kept a survivor's shares from us would cut the masks between us, and could cut the sum into parts.

    Raises `Cheated`.
    """
    context = group.context
    names = survivors.names
    if survivors.group != group.digest:
        raise Cheated(COORDINATOR, f"showed {party} survivors of another attempt or another list of parties.")
    if list(names) != sorted(set(names)) or not set(names) <= set(group.members):
        raise Cheated(COORDINATOR, f"showed {party} survivors twice, out of order, or who took no part.")
    if party not in names:
        raise Cheated(COORDINATOR, f"counts {party} as lost and asks it to agree.")
    if len(names) < context.fewest:
        raise Cheated(
            COORDINATOR,
            f"wants to unmask the sum of {len(names)} parties; {context.title} needs the noise of {context.fewest}. It "
            "may be trying to single a party out.",
        )
    cut = (set(names) & group.near[party]) - peers
    if cut:
        raise Cheated(
            COORDINATOR,
            f"counts {min(cut)} as a survivor and kept its shares from {party}, so that no mask joins the two. It may "
            "be trying to single a party out.",
        )


def consent(survivors: Survivors, party: str, sign: Sign) -> Consent:
    """The party's side, after `check_survivors`: sign the list. Once per attempt, which `Participant` ensures."""
    return Consent(survivors.digest, party, sign(_statement(survivors.digest, party)))


def check_consents(group: Group, survivors: Survivors, consents: Consents, verify: Verify) -> None:
    """The party's side: refuse to go on without `threshold` survivors' signatures over this very list.

    Raises `Cheated` for a signature that is invalid or over another list, and for too few signers.
    """
    signed = (each for each in consents.consents if each.party in survivors.names)
    claims = ((each.party, _statement(survivors.digest, each.party), each.signature) for each in signed)
    verify = verified(verify, claims)
    signers = set()
    for each in consents.consents:
        check_consent(survivors, each, verify)
        signers.add(each.party)
    needed = group.context.threshold
    if len(signers) < needed:
        raise Cheated(
            COORDINATOR,
            f"asks to unmask {group.context.title} with the signatures of {len(signers)} parties; {needed} are needed.",
        )


def check_consent(survivors: Survivors, given: Consent, verify: Verify) -> None:
    """Raises `Cheated` unless a survivor signed this very list."""
    if given.party not in survivors.names:
        raise Cheated(given.party, "signed a list of survivors on which it does not stand.")
    if given.survivors != survivors.digest:
        raise Cheated(
            given.party, "signed another list of survivors: not everybody was shown the same keys or survivors."
        )
    if not verify(given.party, _statement(survivors.digest, given.party), given.signature):
        raise Cheated(given.party, "signed the list of survivors with a key that is not the one pinned for it.")


class Agreement:
    """The coordinator's side: collects consents to one list."""

    def __init__(self, group: Group, names: Sequence[str], verify: Verify) -> None:
        """names: the parties whose every block arrived. Raises `AttemptLost` with fewer than parties - dropouts."""
        context = group.context
        if len(names) < context.fewest:
            raise AttemptLost(
                f"{len(names)} masked vectors of {context.title} are whole, which needs {context.fewest}. Nothing is "
                "unmasked. Start a new attempt when more parties are back."
            )
        self.survivors = Survivors(group.digest, tuple(sorted(names)))
        self._group, self._verify = group, verify
        self._received: dict[str, Consent] = {}

    def add(self, given: Consent) -> None:
        """Raises `Cheated` for a consent to another list, or under another key."""
        check_consent(self.survivors, given, self._verify)
        self._received[given.party] = given

    @property
    def enough(self) -> bool:
        """Whether `threshold` parties have signed."""
        return len(self._received) >= self._group.context.threshold

    def close(self) -> Consents:
        """Exactly `threshold` consents, which suffice to be shown. Raises `AttemptLost` with fewer."""
        needed = self._group.context.threshold
        if not self.enough:
            raise AttemptLost(
                f"{len(self._received)} parties signed the survivors of {self._group.context.title}, which needs "
                f"{needed}. Nothing is unmasked. Start a new attempt when more are back."
            )
        return Consents(tuple(self._received[name] for name in sorted(self._received)[:needed]))


def _statement(survivors: bytes, party: str) -> bytes:
    return pack(_TAG, survivors, party)
