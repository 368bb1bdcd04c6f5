"""Proof that an attempt went on without a party: signatures over the one list of survivors, which does not name it.

Its masked vector may have left and been charged before it was lost. With `threshold` signatures over a list without it,
nobody can ever open that vector, and its charge may go.

**Why.** Let n be the parties of the context, c its colluders, t its threshold for signatures, 2t > n + c.

1. *One list.* An honest party signs one list of survivors an attempt, ever: it signs after its masked vector is whole,
   so charged, and an attempt that was charged never begins again, not after a restart either. The digest that it signs
   is bound to the attempt's context. Colluders may sign as many lists as they like. Were there t signatures over each
   of two lists of this context, at least 2t - n > c parties would have signed both, an honest one among them: so there
   is at most one such list L, whatever advertisements, nonces and lists the coordinator showed to whom.
2. *What honest parties reveal.* Only shares for a list that they signed and that t signatures are over: for L. For a
   party P that L does not name they reveal a share of its mask key, and never its seed's. P itself reveals nothing: it
   signs only lists that name it, none of which ever has t signatures, and its ledger refuses for good what it disclaims
   here. Which party P's seed share could still come from is a colluder, and each holds at most one.
3. *That is too little.* A seed takes `shape(context).threshold` shares. Up to 16 parties that is t, and t > c follows
   from 2t > n + c and n > c. Above 16 parties P dealt to its neighbours on the graph, and `graph.choose` takes no
   threshold at or below c, so all colluders together, were they all P's neighbours, have too few; no probability
   enters, and P need not remember its neighbours. `check_absent` computes the comparison all the same, and refuses
   where it fails. Fewer shares than the threshold say nothing of the seed.
4. *So the vector stays hidden.* All pairwise masks of P may be known: the coordinator rebuilds its mask key, and that
   key opens no sealed share, which is under another. P's own mask is the key stream of the seed. Without the seed its
   masked vector is uniform to whoever knows everything else. The noise key of the attempt goes with the charge.

A signature that P gave to another list, one that names it, changes nothing of this, for that list never has t. P's side
refuses where it still knows of one, because then the coordinator has shown two lists.
"""

from dataclasses import dataclass

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.consistency import Consents, Survivors, check_consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn, shape
from aggregation.secure_sum.keys import Verify
from aggregation.secure_sum.opening import Group, group_digest
from aggregation.secure_sum.wire import pack, pack_all, text, unpack, unpack_all

_TAG = "conclave secure sum absence v1"


@dataclass(frozen=True, slots=True)
class Absence:
    """The signed list of survivors of an attempt, and the evidence that it is this attempt's.

    roster: digest of the list of advertisements. openings: the encoded list of nonces, empty where no graph is drawn.
    Neither needs to be what the absent party was shown.
    """

    roster: bytes
    openings: bytes
    names: tuple[str, ...]
    consents: Consents

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.roster, self.openings, pack_all(self.names), self.consents.encode())

    @classmethod
    def decode(cls, data: bytes) -> "Absence":
        """Read what the coordinator showed. Raises `Cheated` where it is not such a list."""
        roster, openings, names, consents = unpack(data, _TAG, (32, None, None, None), COORDINATOR)
        listed = tuple(text(name, COORDINATOR) for name in unpack_all(names, COORDINATOR))
        return cls(roster, openings, listed, Consents.decode(consents))


def shows_absence(data: bytes) -> bool:
    """Whether bytes claim to be an `Absence`, and must be decoded as one."""
    return data.startswith(pack(_TAG))


def absence(group: Group, openings: bytes, survivors: Survivors, consents: Consents) -> Absence:
    """The coordinator's side, once the list is signed. openings: as in `Absence`."""
    return Absence(group.roster.digest, openings, survivors.names, consents)


def check_absent(context: Context, party: str, shown: Absence, verify: Verify) -> None:
    """The charged party's side: return if nobody can ever open its masked vector of this attempt.

    Before the party takes its charge back, its ledger must have found that it revealed nothing of the attempt, and have
    recorded on disk that it never will.

    Raises `Cheated` for a list that names the party, is not of the context's parties, or has an invalid signature;
    `ConclaveError` for too few signatures, and where colluders alone could rebuild a seed.
    """
    if party in shown.names:
        raise Cheated(COORDINATOR, f"says that {party} was left out of {context.title}, by a list that names it.")
    if list(shown.names) != sorted(set(shown.names)) or not set(shown.names) <= set(context.parties):
        raise Cheated(COORDINATOR, f"showed {party} survivors twice, out of order, or who took no part.")
    if len(shown.consents.consents) > len(context.parties):
        raise Cheated(COORDINATOR, f"showed more signatures over the survivors of {context.title} than it has parties.")
    if bool(shown.openings) != drawn(context):
        raise Cheated(COORDINATOR, "left out the nonces that were opened, or put some where no graph is drawn.")
    if shape(context).threshold <= context.colluders:
        raise ConclaveError(
            f"In {context.title} {context.colluders} colluders hold enough shares to rebuild a seed: it stays charged."
        )
    survivors = Survivors(group_digest(context, shown.roster, shown.openings), shown.names)
    for each in shown.consents.consents:
        check_consent(survivors, each, verify)
    signers = {each.party for each in shown.consents.consents}
    if len(signers) < context.threshold:
        raise ConclaveError(
            f"{len(signers)} parties signed the survivors of {context.title} and it takes {context.threshold}: the "
            "attempt stays charged."
        )
