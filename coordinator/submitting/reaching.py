"""Why a coordinator that stays up cannot be reached, told apart with a socket of our own: gRPC says "unavailable"."""

import socket
from typing import Final

from cryptography import x509

from protos.identity.certificates import IdentityError, Role, Use, subject_of
from protos.identity.identity import Identity
from protos.identity.probing import handshake
from protos.identity.validity import check_certificate

SECONDS: Final = 5.0


def why_not(address: str, identity: Identity) -> str | None:
    """Why no call can be made to the coordinator at this address, in a sentence; None where nothing is wrong, or
    nothing is certain.

    identity: the submitter's, whose authority the coordinator must have too.
    """
    host, _, port = address.rpartition(":")
    who = f"the coordinator at {address}"
    try:
        with socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), SECONDS):
            pass
        seen = handshake(address, identity, SECONDS)
    except socket.gaierror:
        return f"{who}: there is no host {host}. Compare --at with [submit] listen in the coordinator's file."
    except ConnectionRefusedError:
        return (
            f"{who}: nothing listens there. It may be down, or --at is not [submit] listen of the coordinator's file."
        )
    except TimeoutError:
        return f"{who} does not answer. A firewall may let nothing through, or it is another host."
    except (OSError, ValueError) as error:
        return f"{who} cannot be reached: {error}."
    if seen.foreign:
        return f"{who} speaks no TLS: another program listens there. Compare --at with [submit] listen."
    if seen.certificate is not None:
        try:
            _check(seen.certificate, identity)
        except IdentityError as error:
            return (
                f"{who} is not the one that submitter.toml trusts: {error} Nothing was sent to it. Ask who looks after "
                "the coordinator before you go on."
            )
    if seen.alert or seen.closed:
        return (
            f"{who} refuses our certificate. It may be of another federation, have expired, or a clock is off; the "
            "coordinator's log, or whoever looks after it, knows."
        )
    return None


def _check(certificate: x509.Certificate, identity: Identity) -> None:
    subject = subject_of(certificate)
    if subject is not None and subject[0] in (Role.COORDINATOR, Role.PARTY):
        kind = "a party listens" if subject[0] is Role.PARTY else "the gate for parties that dial is"
        raise IdentityError(f"{kind} there, and runs are submitted at another port.")
    check_certificate(
        certificate, authority=identity.authority, role=Role.SERVER, use=Use.TRANSPORT, revoked=identity.revoked
    )
