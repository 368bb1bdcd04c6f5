"""Checks what a party attests that a run has cost it against the releases in whose sums the party is."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aggregation.accounting.events import to_json
from coordinator.errors import PartyRefused
from coordinator.identity.identity import APART, Own
from coordinator.pricing.release import Release
from protos.identity.certificates import IdentityError, Role
from protos.identity.signing import ATTESTATION, Signed
from protos.identity.validity import check_dates, moment


def attested(
    name: str, signed: Signed, run_id: str, plan_hash: str, releases: Sequence[Release], own: Own
) -> Mapping[str, Any]:
    """A party's attestation, once it is checked to say that this run cost it at least these releases.

    Raises `PartyRefused` for a wrong signature, or for a run or a cost that is not this run's.
    """
    try:
        said = own.checked(signed, ATTESTATION, name)
        # A verifier relies on the time of the signature, so a clock that was set back must be noticed here.
        if isinstance(signed_at := said.get("signed_at"), float | int):
            at = datetime.fromtimestamp(signed_at, UTC)
            check_dates(signed.signer, f"when it signed, the certificate of party {name}", Role.PARTY, at)
            if abs(datetime.now(UTC) - at) > APART:
                raise PartyRefused(
                    f"party {name} attests nothing that counts: it says that it signed at {moment(at)}, and the clock "
                    f"here says {moment(datetime.now(UTC))}. Set both by a time server.",
                    code="C403",
                )
    except IdentityError as error:
        raise PartyRefused(f"party {name} attests nothing that counts: {error}") from None
    except (ValueError, OverflowError, OSError):
        raise PartyRefused(f"party {name} attests nothing that counts: it signed at no time there is.") from None
    if (said.get("run"), said.get("plan_hash"), said.get("party")) != (run_id, plan_hash, name):
        raise PartyRefused(f"party {name} attests another run than {run_id}.", code="C406")
    listed = said.get("releases")
    costs = [(each.get("name"), each.get("event")) for each in listed] if isinstance(listed, list) else []
    missing = [release.name for release in releases if (release.name, to_json(release.event)) not in costs]
    if missing:
        raise PartyRefused(
            f"party {name} does not attest the cost of {', '.join(missing)} as the plan has it. Its ledger and this "
            "run disagree."
        )
    return said
