"""A party that dials out and a gate show each other who they are.

TLS gives a party the gate's certificate, which is a coordinator's, and the proof that the gate has its key. A party's
own certificate is a server's, and TLS would not take it from a client. So the party signs a statement: the gate's
challenge, and the fingerprint of the certificate that it was shown. Nobody between the two can pass that on, and a gate
cannot use it at another gate (the SIGMA form of a key exchange; Krawczyk 2003, section 5).
"""

import base64
import binascii
import math
import re
import secrets
import ssl
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes

from protos import PROTOCOL_VERSION, software_version
from protos.dialling.frames import LONGEST, MAGIC, VERSION, Garbled
from protos.identity.certificates import PARTY_NAME, IdentityError, Role, Use, pem_of, read_certificate
from protos.identity.identity import Identity
from protos.identity.signing import Signed, check, sign
from protos.identity.validity import check_certificate
from protos.refusal import printable

DIALLED: Final = "conclave dial 1"
"""A statement of who dials: a gate's challenge, that gate's certificate, and the party's name."""
CHALLENGE_BYTES: Final = 32
PROCESS_BYTES: Final = 16
LONGEST_SOFTWARE: Final = 40
"""The most characters of the other end's version that are kept."""
FAR_OFF: Final = 60.0
"""Seconds; a larger difference of the two clocks is said where a certificate is refused."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a party says first, unproven. process: of one start of its node, hexadecimal. clock: seconds since 1970.

    looks: it only tries the way, and wants no place (`party check`); a gate of before takes it for one that stays.
    software: which Conclave it runs, empty where it does not say.
    """

    name: str
    process: str
    version: int
    clock: float
    looks: bool = False
    software: str = ""

    def fields(self) -> dict[str, Any]:
        """As it is sent; `hello_of` is the inverse."""
        return {
            "magic": MAGIC,
            "version": self.version,
            "name": self.name,
            "process": self.process,
            "clock": self.clock,
            "looks": self.looks,
            "software": self.software,
        }


def new_hello(name: str, process: str, *, looks: bool = False) -> Hello:
    """What this process says first."""
    return Hello(name, process, VERSION, time.time(), looks, software_version())


def about() -> dict[str, str | int]:
    """What a gate tells a proven party of the coordinator's program: the version of Conclave, and of the verbs."""
    return {"software": software_version(), "protocol": PROTOCOL_VERSION}


def hello_of(fields: dict[str, Any]) -> Hello:
    """What a party said first. Raises `Garbled` where it is nothing of the kind."""
    match fields:
        case {
            "magic": "conclave-dial",
            "version": int(version),
            "name": str(name),
            "process": str(process),
            "clock": int() | float() as clock,
        } if re.fullmatch(PARTY_NAME, name) and len(process) == 2 * PROCESS_BYTES:
            software = printable(str(fields.get("software", "")))[:LONGEST_SOFTWARE]
            return Hello(name, process, version, _clock(clock), fields.get("looks") is True, software)
    raise Garbled


def new_process() -> str:
    """The name of one start of a node."""
    return secrets.token_hex(PROCESS_BYTES)


def new_challenge() -> str:
    """Fresh randomness for a party to sign, hexadecimal."""
    return secrets.token_hex(CHALLENGE_BYTES)


def shown_by(gate: x509.Certificate) -> str:
    """SHA-256 of a gate's certificate (DER), hexadecimal."""
    return gate.fingerprint(hashes.SHA256()).hex()


def prove(identity: Identity, challenge: str, gate: x509.Certificate) -> dict[str, str]:
    """The fields of a party's PROOF to the gate with this certificate."""
    signed = sign(identity, DIALLED, {"challenge": challenge, "gate": shown_by(gate), "name": identity.name})
    parts = {"payload": signed.payload, "signature": signed.signature, "certificate": signed.certificate}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def check_proof(
    fields: dict[str, Any], hello: Hello, challenge: str, identity: Identity, *, at: datetime | None = None
) -> None:
    """Raises `IdentityError` unless the party that said hello has proven its name to this gate, whose `identity` is
    given; `Garbled` where the fields are no proof.
    """
    try:
        parts = [base64.b64decode(fields[name], validate=True) for name in ("payload", "signature", "certificate")]
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise Garbled from None
    if any(len(part) > LONGEST for part in parts):
        raise Garbled
    said = check(
        Signed(*parts),
        DIALLED,
        authority=identity.authority,
        role=Role.PARTY,
        name=hello.name,
        revoked=identity.revoked,
        at=at,
    )
    wanted = {"challenge": challenge, "gate": shown_by(identity.transport), "name": hello.name}
    if any(said.get(key) != value for key, value in wanted.items()):
        raise IdentityError(
            "it signed another gate's challenge: something on the way repeats old answers.", code="C406"
        )


def check_gate(shown: bytes | None, identity: Identity, *, at: datetime | None = None) -> x509.Certificate:
    """The certificate that a gate showed (DER), when it is one of this party's coordinator. Raises `IdentityError`."""
    if shown is None:
        raise IdentityError("it showed no certificate.")
    certificate = read_certificate(shown)
    check_certificate(
        certificate,
        authority=identity.authority,
        role=Role.COORDINATOR,
        use=Use.TRANSPORT,
        revoked=identity.revoked,
        at=at,
    )
    return certificate


def ahead_of(clock: object, at: float) -> float | None:
    """Seconds by which the other end's clock was ahead of ours when ours said `at`; None where it said no time."""
    off = _clock(clock) - at
    return off if math.isfinite(off) else None


def apart(clock: object) -> str:
    """What to add where a certificate is refused and the other end's clock is far from ours; empty where it is near."""
    off = _clock(clock) - time.time()
    if not FAR_OFF < abs(off) < math.inf:  # also where it is no number
        return ""
    return (
        f" The clock of the other end is {abs(off):,.0f} s {'ahead of' if off > 0 else 'behind'} the one here: set "
        "both by a time server."
    )


def _clock(said: object) -> float:
    try:
        return float(said) if isinstance(said, int | float) else math.nan
    except OverflowError:
        return math.nan


def gate_context(identity: Identity) -> ssl.SSLContext:
    """TLS 1.3 of a gate, under the coordinator's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    with tempfile.NamedTemporaryFile(prefix="conclave-") as file:  # the ssl module reads keys from files only
        file.write(identity.transport_key + pem_of(identity.transport))
        file.flush()
        context.load_cert_chain(file.name)
    return context


def party_context() -> ssl.SSLContext:
    """TLS 1.3 of a party that dials. It takes any certificate: `check_gate` checks the one that was shown."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
