"""Disclaimers of a lost attempt: parties sign that they never reveal a share of it, so that its charge may be taken
back.

**Why a charge may go.** What left a party P in the attempt is its noisy vector under masks, one of them its own: the
key stream of a seed that P alone drew. The seed exists in P's memory and in the shares that P dealt, `threshold` of
which rebuild it. A share can still come from a holder that did not sign, and from a holder that signed and lies; an
honest signer's ledger refuses its share for ever, also after a restart, and so does P's. With

    signed > holders + colluders - threshold

those who may still speak are at most (holders - signed) + colluders < threshold, and fewer than `threshold` shares of
Shamir's scheme say nothing of the seed. Nobody can ever take P's own mask off: its masked vector stays uniform to
whoever knows everything else, all pairwise masks and all other vectors among it, and P's data had no answer. The
argument needs nothing of the graph that was drawn, of any list of survivors, or of anybody's noise.

`holders` may be counted too high, never too low: a party that holds no share and signs adds one to both sides.
"""

from collections.abc import Collection
from dataclasses import dataclass

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import shape
from aggregation.secure_sum.keys import Sign, Verify
from aggregation.secure_sum.wire import pack, pack_all, speaker, unpack, unpack_all

_TAG = "conclave secure sum disclaimer v1: I revealed nothing of this attempt and never will"
_DISCLAIMERS = "conclave secure sum disclaimers v1"


@dataclass(frozen=True, slots=True)
class Disclaimer:
    """A party's signature that it revealed no share of an attempt, and never will. context: the attempt's digest."""

    context: bytes
    party: str
    signature: bytes

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.context, self.party, self.signature)

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Disclaimer":
        """Read what `who` sent. Raises `Cheated` where it is not a disclaimer."""
        context, name, signature = unpack(data, _TAG, (32, None, None), who)
        return cls(context, speaker(name, who), signature)


@dataclass(frozen=True, slots=True)
class Disclaimers:
    """The disclaimers that the coordinator shows to a charged party."""

    disclaimers: tuple[Disclaimer, ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_DISCLAIMERS, pack_all(each.encode() for each in self.disclaimers))

    @classmethod
    def decode(cls, data: bytes) -> "Disclaimers":
        """Read what the coordinator showed. Raises `Cheated` where these are not disclaimers."""
        (body,) = unpack(data, _DISCLAIMERS, (None,), COORDINATOR)
        return cls(tuple(Disclaimer.decode(each, COORDINATOR) for each in unpack_all(body, COORDINATOR)))


def disclaim(context: Context, party: str, sign: Sign) -> Disclaimer:
    """The party's side: sign a disclaimer.

    Its ledger must first have found that it revealed nothing of this attempt, and have recorded on disk that it never
    will.
    """
    return Disclaimer(context.digest, party, sign(_statement(context.digest, party)))


def check_disclaimer(context: Context, given: Disclaimer, verify: Verify) -> None:
    """Raises `Cheated` unless a party of this very attempt signed it."""
    if given.party not in context.members:
        raise Cheated(given.party, f"disclaimed {context.title} without having a part in it.")
    if given.context != context.digest:
        raise Cheated(given.party, f"disclaimed another attempt, sum or run where {context.title} was meant.")
    if not verify(given.party, _statement(given.context, given.party), given.signature):
        raise Cheated(given.party, "signed its disclaimer with a key that is not the one pinned for it.")


def least_signers(context: Context, holders: Collection[str]) -> int:
    """How many holders of a party's shares must disclaim before its charge may be taken back: holders + colluders -
    threshold + 1.

    holders: all parties that may hold a share of the party's seed, itself included.
    """
    return len(holders) + context.colluders - shape(context).threshold + 1


def check_disclaimers(context: Context, holders: Collection[str], shown: Disclaimers, verify: Verify) -> None:
    """The charged party's side, once it has itself disclaimed: return if nobody can ever open its masked vector.

    holders: as in `least_signers`; up to 16 parties all of the context, above that the party's neighbours and itself,
    or again all parties where it has forgotten who they are. Disclaimers of other parties do not count.

    Raises `Cheated` for an invalid one, `ConclaveError` for too few.
    """
    if len(shown.disclaimers) > len(context.parties):
        raise Cheated(COORDINATOR, f"showed more disclaimers of {context.title} than it has parties.")
    for each in shown.disclaimers:
        check_disclaimer(context, each, verify)
    signed = {each.party for each in shown.disclaimers} & set(holders)
    needed = least_signers(context, holders)
    if len(signed) < needed:
        raise ConclaveError(
            f"{len(signed)} of the {len(holders)} parties that may hold shares disclaimed {context.title}, and it "
            f"takes {needed}: the attempt stays charged."
        )


def _statement(context: bytes, party: str) -> bytes:
    return pack(_TAG, context, party)
