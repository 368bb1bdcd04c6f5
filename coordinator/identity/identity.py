"""The coordinator's identity, towards the parties it asks and towards anyone who checks what it published."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from coordinator.errors import PlanError
from coordinator.identity import provisioning
from coordinator.plan.plan import Plan
from coordinator.store.private_files import home, private_folder
from protos.identity.certificates import IdentityError, Role
from protos.identity.identity import Identity, load_identity
from protos.identity.signing import Signed, check

APART: Final = timedelta(days=2)
"""The most that the clocks of a run's two ends may differ; statements whose times are further apart contradict each
other.
"""


@dataclass(frozen=True, slots=True)
class Own:
    """The coordinator's identity in one run.

    identity: signs what is published. authority: the one whose certificates for parties are accepted; None where nobody
    vouches for them. tls: whether calls use mutual TLS under this identity. folder: where the authority's files are.
    """

    identity: Identity
    authority: x509.Certificate | None
    tls: bool
    folder: Path

    def vouch(self, name: str, request: bytes) -> bytes:
        """Certificates (PEM) for a party that this run starts, issued for the request (PEM) that it made."""
        return provisioning.vouched(self.folder, name, request)

    def checked(self, signed: Signed, kind: str, name: str) -> Mapping[str, Any]:
        """The content of a statement of this kind that the party of this name signed. Raises `IdentityError`."""
        revoked = self.identity.revoked if self.authority is not None else None
        return check(signed, kind, authority=self.authority, role=Role.PARTY, name=name, revoked=revoked)


def own_identity(plan: Plan, base: Path) -> Own:
    """The identity that a plan names, or the one of the local run store where it names none.

    The run store has a small authority of its own, in `$CONCLAVE_HOME/identity`: it vouches for what this user ran on
    this machine, and for the parties that its runs start. Raises `PlanError` for a folder that is not a federation's,
    or for certificates that are wrong.
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
