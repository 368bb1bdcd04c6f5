"""Finds out why a party cannot be reached over the agreed transport, with a socket of our own.

gRPC says "unavailable" in all cases. Only what the other end positively shows counts as a reason: silence, a broken
connection or a closed port may pass, and are left to whoever retries.
"""

import contextlib
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from protos.identity.certificates import IdentityError, Role, Use, pem_of, read_certificate
from protos.identity.identity import Identity
from protos.identity.validity import check_certificate, moment

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""The first bytes of an HTTP/2 client: the preface and empty settings (RFC 9113, sections 3.4 and 6.5)."""
FRAME_HEADER: Final = 9
SETTINGS_TYPE: Final = 4

ATTEMPTS: Final = 3
PAUSE: Final = 0.2
FIRST_WORD: Final = 1.0
"""Seconds that an HTTP/2 server has to speak first, as gRPC's do."""
NEAR: Final = timedelta(days=1)
"""A clock that is a little off may refuse a certificate that is this close to one end of its validity."""

_ENDED, _CLOCKS, _UNTRUSTED, _TAKEN_BACK, _OTHER_TRANSPORT = "C402", "C403", "C404", "C405", "C502"
"""The codes of what may be wrong with a connection."""

_EXPIRED: Final = ("CERTIFICATE_EXPIRED",)
_UNKNOWN: Final = ("UNKNOWN_CA",)
_REVOKED: Final = ("CERTIFICATE_REVOKED",)
_PURPOSE: Final = ("UNSUPPORTED_CERTIFICATE",)
_BAD: Final = ("BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "ACCESS_DENIED", "CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE")


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one attempt over TLS.

    certificate: the server's. alert: OpenSSL's name for the alert with which it refused. closed: it closed the
    connection once it had our certificate. foreign: it does not speak TLS.
    """

    certificate: x509.Certificate | None = None
    alert: str = ""
    closed: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no connection can be made, in a sentence that says what to do; code: of the page that says more."""

    sentence: str
    code: str


def diagnose(
    address: str,
    name: str,
    identity: Identity | None,
    *,
    timeout: float = 5.0,
    at: datetime | None = None,
    shown: str | None = None,
) -> Obstacle | None:
    """Why no connection to party `name` at `address` can be made.

    identity: ours, for mutual TLS; None for plain text. timeout: seconds for each step. at: our clock (with a time
    zone); by default now. shown: what sentences name in place of the address. None when the transport works, when
    nothing listens, and when nothing is certain.
    """
    who = f"party {name} at {shown or address}"
    try:
        if identity is None:
            return _plain(address, who, timeout)
        return _mutual(address, name, who, identity, timeout, datetime.now(UTC) if at is None else at)
    except OSError:
        return None


def _plain(address: str, who: str, timeout: float) -> Obstacle | None:
    answer = _greeting(address, timeout)
    if _is_http2(answer):
        return None
    seen = handshake(address, None, timeout)
    if seen.certificate is not None or seen.alert:
        return Obstacle(
            f"{who} speaks TLS, and this run has no identity to show. Name the federation's folder in the plan: "
            '[federation] identity = "FOLDER"; `coordinator provision` makes one.',
            _OTHER_TRANSPORT,
        )
    return _stranger(answer, who)


def _mutual(address: str, name: str, who: str, identity: Identity, timeout: float, now: datetime) -> Obstacle | None:
    try:
        check_certificate(
            identity.transport,
            authority=identity.authority,
            role=identity.role,
            use=Use.TRANSPORT,
            revoked=identity.revoked,
            at=now,
        )
    except IdentityError as error:
        return Obstacle(f"{who} was not asked, for our own certificate is of no use: {error}", error.code)
    seen = handshake(address, identity, timeout)
    if seen.foreign:
        answer = _greeting(address, timeout)
        if _is_http2(answer):
            return Obstacle(
                f"{who} speaks plain text, and this run wants TLS. Put an [identity] in its party file in place of "
                "plaintext = true, or, for a trial on one machine, take identity out of the plan's [federation].",
                _OTHER_TRANSPORT,
            )
        return _stranger(answer, who)
    if seen.certificate is not None:
        try:
            check_certificate(
                seen.certificate,
                authority=identity.authority,
                role=Role.PARTY,
                name=name,
                use=Use.TRANSPORT,
                revoked=identity.revoked,
                at=now,
            )
        except IdentityError as error:
            return Obstacle(f"{who} showed a certificate that cannot be trusted: {error}", error.code)
    if seen.alert:
        return _refused(seen.alert, who, identity, now)
    for _ in range(ATTEMPTS - 1):
        if not seen.closed:
            return None
        time.sleep(PAUSE)
        seen = handshake(address, identity, timeout)
    return _hung_up(who, identity, now) if seen.closed else None


def _refused(alert: str, who: str, identity: Identity, now: datetime) -> Obstacle:
    """The meaning of an alert (RFC 8446, section 6.2) against our certificate."""
    own = identity.transport
    said = f"{who} refused our certificate"
    if alert.endswith(_EXPIRED):
        return Obstacle(
            f"{said} as expired. It is valid until {moment(own.not_valid_after_utc)} and our clock says {moment(now)}: "
            "set both clocks by a time server, or renew it: `coordinator provision renew`.",
            _ENDED,
        )
    if alert.endswith(_UNKNOWN):
        return Obstacle(
            f"{said}: it was issued by an authority that it does not know. Both ends need one federation's: "
            "compare [identity] authority in its party file with the fingerprint of ca.pem.",
            _UNTRUSTED,
        )
    if alert.endswith(_REVOKED):
        return Obstacle(
            f"{said} as revoked. If it was: `coordinator provision renew --new-keys`. If not, compare its revoked.pem "
            "with ours.",
            _TAKEN_BACK,
        )
    if alert.endswith(_PURPOSE):
        return Obstacle(
            f"{said}: it is not one for a {identity.role}'s connections. Use what `coordinator provision` wrote.",
            _UNTRUSTED,
        )
    return Obstacle(
        f"{said} as bad ({alert.lower().replace('_', ' ')}): by its clock it may not be valid yet (it is from "
        f"{moment(own.not_valid_before_utc)} on, our clock says {moment(now)}), or it was revoked there. Set both "
        "clocks by a time server, and compare its revoked.pem with ours.",
        _CLOCKS,
    )


def _hung_up(who: str, identity: Identity, now: datetime) -> Obstacle:
    """Why the server closed the connection: gRPC's servers send no alert, so it follows from what we know of both
    ends.
    """
    start, end = identity.transport.not_valid_before_utc, identity.transport.not_valid_after_utc
    said = f"{who} hung up when it saw our certificate"
    if now - start < NEAR:
        return Obstacle(
            f"{said}, which is valid from {moment(start)} on; our clock says {moment(now)}. Its clock is probably "
            "behind: set both clocks by a time server.",
            _CLOCKS,
        )
    if end - now < NEAR:
        return Obstacle(
            f"{said}, which is valid until {moment(end)}; our clock says {moment(now)}. Its clock is probably ahead: "
            "set both clocks by a time server, and renew the certificate: `coordinator provision renew`.",
            _CLOCKS,
        )
    return Obstacle(
        f"{said}, and did not say why. Its own log does: it may trust another authority than ours, or its clock may be "
        f"far off (ours says {moment(now)}).",
        _UNTRUSTED,
    )


def _stranger(answer: bytes, who: str) -> Obstacle | None:
    """What is said where something answered that is not a gRPC server."""
    if not answer or _is_http2(answer):
        return None
    return Obstacle(
        f"{who} speaks neither TLS nor gRPC: another program listens there. Compare the address with listen in the "
        "party's file.",
        _OTHER_TRANSPORT,
    )


def handshake(address: str, identity: Identity | None, timeout: float) -> Seen:
    """One TLS handshake that trusts any certificate, then the start of HTTP/2. Raises OSError where nothing is
    shown.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # its certificate is checked by our own rules, and nothing is sent to it
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        with tempfile.NamedTemporaryFile(prefix="conclave-") as file:  # the ssl module reads keys from files only
            file.write(identity.transport_key + pem_of(identity.transport))
            file.flush()
            context.load_cert_chain(file.name)
    certificate = None
    try:
        with _connected(address, timeout) as raw, context.wrap_socket(raw) as stream:
            shown = stream.getpeercert(binary_form=True)
            certificate = None if shown is None else read_certificate(shown)
            try:
                answered = _first(stream, timeout)
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                answered = b""
            return Seen(certificate, closed=not answered)
    except TimeoutError:
        return Seen(certificate)
    except ssl.SSLEOFError:
        return Seen(certificate)
    except ssl.SSLError as error:
        reason = error.reason or ""
        alert = reason.partition("ALERT_")[2]
        return Seen(certificate, alert=alert, foreign=not alert and certificate is None)
    except IdentityError:
        return Seen()


def _first(stream: ssl.SSLSocket, timeout: float) -> bytes:
    """The first byte after the handshake; none when the other end closes the connection."""
    stream.settimeout(min(timeout, FIRST_WORD))
    try:
        return stream.recv(1)
    except TimeoutError:
        stream.settimeout(timeout)
        stream.sendall(PREFACE)
        return stream.recv(1)


def _greeting(address: str, timeout: float) -> bytes:
    """The first bytes of the answer to the start of HTTP/2 in plain text; none where nothing answers."""
    try:
        with _connected(address, timeout) as raw:
            raw.sendall(PREFACE)
            return raw.recv(FRAME_HEADER)
    except (TimeoutError, ConnectionError):
        return b""


def _is_http2(answer: bytes) -> bool:
    return len(answer) == FRAME_HEADER and answer[3] == SETTINGS_TYPE


@contextlib.contextmanager
def _connected(address: str, timeout: float) -> Iterator[socket.socket]:
    if address.startswith("unix:"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
            raw.settimeout(timeout)
            raw.connect(address.removeprefix("unix:"))
            yield raw
        return
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), timeout) as raw:
        yield raw
