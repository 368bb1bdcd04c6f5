"""Admission of parties to a run: each describes itself, proves its identity, and joins under the plan's hash."""

import secrets
from collections.abc import Coroutine
from typing import Any, Final

from coordinator.errors import PartyRefused
from coordinator.federation.participants import Participants
from coordinator.identity.identity import Own
from coordinator.transport.link import Outcome, PartyLink
from protos import PROTOCOL_VERSION, software_version
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import plan_hash
from protos.identity.certificates import IdentityError
from protos.identity.signing import DESCRIBED, signed_of

NONCE_BYTES: Final = 32


async def admit(parties: Participants, plan: plan_pb2.Plan, own: Own) -> tuple[dict[str, bytes], dict[str, Computed]]:
    """Have every party describe itself, prove its identity and join.

    Returns the signing certificates (DER) of those proven, and what each party says that it computes with. plan: what
    they join under. Raises `PartyRefused` for a party that speaks another protocol, is another party or does not prove
    its identity, and whatever a verb raises.
    """
    nonces = {name: new_nonce() for name in parties.names}
    described = await parties.ask("be described", lambda link: link.describe(nonces[link.name]))
    peers: dict[str, party_pb2.Peer] = {}
    for name, answer in described.items():
        if answer.protocol_version != PROTOCOL_VERSION:
            older = "an older" if answer.protocol_version < PROTOCOL_VERSION else "a newer"
            raise PartyRefused(
                f"party {name} speaks {older} protocol ({answer.protocol_version}; here {PROTOCOL_VERSION}). It runs "
                f"Conclave {answer.software_version}, here it is {software_version()}: install the same version at "
                f"both ends.{parties.money}",
                code="C504",
            )
        if answer.name != name:
            raise PartyRefused(
                f'the plan calls it "{name}", but the node at that address is party "{answer.name}". '
                f"Mend the addresses in [federation] parties.{parties.money}",
                code="C404",
            )
        try:
            certificate = proven(name, answer, nonces[name], own)
        except PartyRefused as error:
            raise PartyRefused(f"{error}{parties.money}") from None
        peers[name] = party_pb2.Peer(name=name, certificate=certificate)
    digest = plan_hash(plan)

    def join(link: PartyLink) -> Coroutine[Any, Any, Outcome[Computed]]:
        others = [peer for name, peer in peers.items() if name != link.name]
        return link.join(parties.run_id, plan, digest, peers=others)

    computed = await parties.ask("join", join)
    return {name: peer.certificate for name, peer in peers.items()}, computed


def new_nonce() -> bytes:
    """Fresh randomness for `Describe`."""
    return secrets.token_bytes(NONCE_BYTES)


def proven(name: str, answer: party_pb2.DescribeResponse, nonce: bytes, own: Own) -> bytes:
    """The signing certificate (DER) of a party that has proven its identity. Raises `PartyRefused`."""
    try:
        said = own.checked(signed_of(answer.identity), DESCRIBED, name)
    except IdentityError as error:
        raise PartyRefused(f"party {name} did not show that it is {name}: {error}") from None
    if said.get("nonce") != nonce.hex():
        raise PartyRefused(
            f"party {name} did not show that it is {name}: it signed another question. Something on the way to it "
            "repeats old answers.",
            code="C406",
        )
    return answer.identity.certificate
