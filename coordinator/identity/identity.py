"""Who this coordinator is: to the parties it asks, and to whoever checks what it published."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from aggregation.accounting.events import to_json
from coordinator.errors import PartyRefused, PlanError
from coordinator.identity import provisioning
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Release
from coordinator.store.store import home, private_folder
from coordinator.verifying.check import APART
from protos.conclave.v1 import party_pb2
from protos.identity.certificates import IdentityError, Role
from protos.identity.identity import Identity, load_identity
from protos.identity.signing import ATTESTATION, DESCRIBED, Signed, check, signed_of
from protos.identity.validity import check_dates, moment

NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Own:
    """The coordinator's identity in one run.

    identity: signs what is published. authority: whose word on parties counts; None where nobody vouches for them.
    tls: whether calls go over mutual TLS under this identity. folder: where the authority's files are.
    """

    identity: Identity
    authority: x509.Certificate | None
    tls: bool
    folder: Path

    def vouch(self, name: str, request: bytes) -> bytes:
        """Certificates (PEM) for a party that this run starts and that made this request (PEM)."""
        return provisioning.vouched(self.folder, name, request)


def own_identity(plan: Plan, base: Path) -> Own:
    """The identity that a plan names, or, for a run without one, that of the local run store.

    The run store has a small authority of its own, in `$CONCLAVE_HOME/identity`: it vouches for what this user ran on
    this machine, and for the parties that its runs start. Raises `PlanError` for a folder that is none, or certificates
    that are wrong.
    """
    named = plan.federation.identity
    folder = home() / "identity" if named is None else base / named
    if named is None:
        private_folder(home())
        provisioning.ensure(folder)
    try:
        identity = load_identity(
            folder / provisioning.COORDINATOR,
            folder / provisioning.COORDINATOR_KEY,
            role=Role.COORDINATOR,
            authority=None,
            revoked=folder / provisioning.REVOKED,
        )
    except IdentityError as error:
        where = "" if named is None else f'[federation] identity = "{named}": '
        raise PlanError(f"{where}{error}") from None
    launched = plan.federation.shards is not None
    tls = named is not None or plan.federation.cluster is not None
    return Own(identity, identity.authority if launched or named is not None else None, tls, folder)


def proven(name: str, answer: party_pb2.DescribeResponse, nonce: bytes, own: Own) -> bytes:
    """The signing certificate (DER) of a party that has shown that it is who it says. Raises `PartyRefused`."""
    try:
        said = _checked(signed_of(answer.identity), DESCRIBED, name, own)
    except IdentityError as error:
        raise PartyRefused(f"party {name} did not show that it is {name}: {error}") from None
    if said.get("nonce") != nonce.hex():
        raise PartyRefused(
            f"party {name} did not show that it is {name}: it signed another question. Something on the way to it "
            "repeats old answers."
        )
    return answer.identity.certificate


def attested(
    name: str, signed: Signed, run_id: str, plan_hash: str, releases: Sequence[Release], own: Own
) -> Mapping[str, Any]:
    """What a party attests, once it is found to say that this run cost it at least these releases.

    Raises `PartyRefused` for a signature, a run or a cost that is not this run's.
    """
    try:
        said = _checked(signed, ATTESTATION, name, own)
        # Whoever verifies what is published goes by the time of the signature, so a clock that was put back shows here.
        if isinstance(signed_at := said.get("signed_at"), float | int):
            at = datetime.fromtimestamp(signed_at, UTC)
            check_dates(signed.signer, f"when it signed, the certificate of party {name}", Role.PARTY, at)
            if abs(datetime.now(UTC) - at) > APART:
                raise PartyRefused(
                    f"party {name} attests nothing that counts: it says that it signed at {moment(at)}, and the clock "
                    f"here says {moment(datetime.now(UTC))}. Set both by a time server."
                )
    except IdentityError as error:
        raise PartyRefused(f"party {name} attests nothing that counts: {error}") from None
    except (ValueError, OverflowError, OSError):
        raise PartyRefused(f"party {name} attests nothing that counts: it signed at no time there is.") from None
    if (said.get("run"), said.get("plan_hash"), said.get("party")) != (run_id, plan_hash, name):
        raise PartyRefused(f"party {name} attests another run than {run_id}.")
    listed = said.get("releases")
    costs = [(each.get("name"), each.get("event")) for each in listed] if isinstance(listed, list) else []
    missing = [release.name for release in releases if (release.name, to_json(release.event)) not in costs]
    if missing:
        raise PartyRefused(
            f"party {name} does not attest the cost of {', '.join(missing)} as the plan has it. Its ledger and this "
            "run disagree."
        )
    return said


def new_nonce() -> bytes:
    """Fresh randomness for `Describe`."""
    return secrets.token_bytes(NONCE_BYTES)


def _checked(signed: Signed, kind: str, name: str, own: Own) -> Mapping[str, Any]:
    revoked = own.identity.revoked if own.authority is not None else None
    return check(signed, kind, authority=own.authority, role=Role.PARTY, name=name, revoked=revoked)
