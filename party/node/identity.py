"""A node's identity, and who may call it."""

from pathlib import Path
from typing import Any

from party.config import PartyConfig
from party.errors import PartyError
from protos.identity.certificates import IdentityError, Role, Use
from protos.identity.credentials import shows
from protos.identity.identity import Identity, load_identity, parse_identity, self_made
from protos.identity.tls import caller
from protos.identity.validity import check_certificate
from protos.refusal import Reason, Refusal


def own_identity(
    config: PartyConfig, home: Path, base: Path, token: str, issued: tuple[bytes, bytes] | None
) -> Identity:
    """A node's identity: from its party file, issued by its launcher, or a key of its own without a certificate.

    Raises `PartyError` where the party file has neither an identity nor permission to do without, and for wrong
    certificates or keys.
    """
    name, table = config.name, config.identity
    try:
        if issued is not None:
            return parse_identity(*issued, role=Role.PARTY)
        if table is not None:
            identity = load_identity(
                base / table.certificate,
                base / table.key,
                role=Role.PARTY,
                authority=table.authority,
                revoked=None if table.revoked is None else base / table.revoked,
            )
            if identity.name != name:
                raise PartyError(
                    f"{base / table.certificate} is of party {identity.name}, and this party file is {name}'s. Name "
                    "its own in [identity] certificate.",
                    code="C404",
                )
            if table.authority is None:
                raise PartyError(
                    f"[identity] authority is missing in the file of party {name}. Ask whoever runs the federation, by "
                    'telephone, for the fingerprint of its authority, and write authority = "SHA256:...".',
                    code="C401",
                )
            return identity
        if not token and not config.plaintext:
            raise PartyError(
                f"party {name} has no [identity], so it could not tell who asks. Run `party enroll`, or, for a trial "
                "on this machine with text that is nobody's secret, set plaintext = true.",
                code="C401",
            )
        return self_made(name, Role.PARTY, home / "identity")
    except IdentityError as error:
        raise PartyError(f"party {name}: {error}") from None


def is_tls(identity: Identity, token: str) -> bool:
    """Whether a node with this identity accepts only mutual TLS; a node with a token uses plain text."""
    return not identity.self_made and not token


def check_caller(party: str, identity: Identity, token: str, context: Any) -> None:
    """Raises `Refusal` (AUTHENTICATION) unless the call comes from this federation's coordinator.

    That is the holder of a coordinator's certificate of the pinned authority, neither expired nor revoked; at a node
    that a launcher started, a caller that knows its token.
    """
    if not shows(context.invocation_metadata() or (), token):
        raise Refusal(
            Reason.AUTHENTICATION,
            f"party {party} wants the token of whoever started it; none, or another, came with this call.",
        )
    if not is_tls(identity, token):
        return
    certificate = caller(context)
    if certificate is None:
        raise Refusal(Reason.AUTHENTICATION, f"party {party} answers a coordinator that shows its certificate.")
    try:
        check_certificate(
            certificate,
            authority=identity.authority,
            role=Role.COORDINATOR,
            use=Use.TRANSPORT,
            revoked=identity.revoked,
        )
    except IdentityError as error:
        raise Refusal(Reason.AUTHENTICATION, f"party {party} does not answer this caller: {error}") from None
