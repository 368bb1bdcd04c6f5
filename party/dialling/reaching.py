"""One dialled connection to the coordinator's gate, from nothing until it waits; each failure in its own words."""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from party.config import split_address
from party.dialling.destination import Destination
from party.dialling.proxies import ProxyFailed, through
from protos.dialling.frames import GREETING_SECONDS, Garbled, Kind, expect, spoken
from protos.dialling.greeting import (
    LONGEST_SOFTWARE,
    Hello,
    ahead_of,
    apart,
    check_gate,
    new_hello,
    new_process,
    party_context,
    prove,
)
from protos.dialling.streams import Stream, connected
from protos.identity.certificates import IdentityError
from protos.identity.identity import Identity
from protos.refusal import printable

CONNECT_SECONDS: Final = 15.0
LONGEST_WHY: Final = 1000
"""The most characters of a gate's reason that are shown."""
LONGEST_CHALLENGE: Final = 200


class Unreached(Exception):
    """The gate cannot be reached, or did not let this party in. The message is a sentence.

    proxied: whether the proxy on the way is what failed.
    """

    def __init__(self, sentence: str, *, proxied: bool = False) -> None:
        super().__init__(sentence)
        self.proxied = proxied


@dataclass(frozen=True, slots=True)
class Met:
    """What a gate showed that let this party in.

    certificate: the coordinator's. ahead: seconds by which its clock is ahead of ours, give or take half a round trip;
    None where it said no time. software, protocol: the coordinator's Conclave and its version of the verbs, empty and 0
    where it does not say. connected: whether a node of this party is connected there already.
    """

    certificate: x509.Certificate
    ahead: float | None = None
    software: str = ""
    protocol: int = 0
    connected: bool = False


async def look(destination: Destination, identity: Identity) -> Met:
    """Try the way to the gate and back, without staying there. Raises `Unreached`."""
    stream, met = await reach(destination, identity, new_process(), looks=True)
    stream.close()
    return met


async def reach(
    destination: Destination, identity: Identity, process: str, *, looks: bool = False
) -> tuple[Stream, Met]:
    """A connection that the gate welcomed, and what it showed. Raises `Unreached`.

    process: of this start of the node. looks: whether it wants no place there.
    """
    stream = await _secured(destination)
    welcomed = False
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            met = await _greet(stream, destination, identity, new_hello(identity.name, process, looks=looks))
        welcomed = True
        return stream, met
    except TimeoutError:
        raise Unreached(
            f"what listens at {destination} did not answer the greeting for {GREETING_SECONDS:g} s: it may be another "
            "program."
        ) from None
    except Garbled:
        raise Unreached(
            f"what listens at {destination} does not speak this protocol: it is another program, or another version of "
            "Conclave."
        ) from None
    except (OSError, EOFError):
        raise Unreached(f"the gate at {destination} hung up during the greeting.") from None
    finally:
        if not welcomed:
            stream.close()


async def _greet(stream: Stream, destination: Destination, identity: Identity, hello: Hello) -> Met:
    try:
        gate = check_gate(stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True), identity)
    except IdentityError as error:
        raise Unreached(
            f"what listens at {destination} is not the coordinator of this party's federation: {error}"
        ) from None
    asked = time.time()
    await stream.say(spoken(Kind.HELLO, **hello.fields()))
    kind, fields = await expect(stream.reader, Kind.CHALLENGE, Kind.REFUSED)
    ahead = ahead_of(fields.get("clock"), (asked + time.time()) / 2)
    if kind is Kind.CHALLENGE:
        challenge = fields.get("challenge")
        if not isinstance(challenge, str) or len(challenge) > LONGEST_CHALLENGE:
            raise Garbled
        await stream.say(spoken(Kind.PROOF, **prove(identity, challenge, gate)))
        kind, fields = await expect(stream.reader, Kind.WELCOME, Kind.REFUSED)
    if kind is Kind.REFUSED:
        why = printable(str(fields.get("why", "")))[:LONGEST_WHY]
        off = "" if "time server" in why else apart(fields.get("clock"))
        raise Unreached(f"the gate at {destination} turned this party away: {why}{off}")
    protocol = fields.get("protocol")
    return Met(
        gate,
        ahead,
        printable(str(fields.get("software", "")))[:LONGEST_SOFTWARE],
        protocol if type(protocol) is int and 0 <= protocol < 2**31 else 0,
        fields.get("connected") is True,
    )


async def _secured(destination: Destination) -> Stream:
    """TLS to whatever is there. Raises `Unreached`."""
    host, _ = split_address(destination.address)
    raw = await _raw(destination)
    try:
        return await connected(raw, party_context(), host, GREETING_SECONDS)
    except ssl.SSLError as error:
        raise Unreached(_no_tls(destination, error)) from None
    except ConnectionAbortedError:
        raise Unreached(
            f"what listens at {destination} did not answer in TLS for {GREETING_SECONDS:g} s: another program?"
        ) from None
    except OSError:
        raise Unreached(f"what listens at {destination} hung up during the TLS handshake.") from None


def _no_tls(destination: Destination, error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        return f"what listens at {destination} speaks an older TLS than 1.3: it is no gate of Conclave. Mend --connect."
    if "ALERT" in reason:
        said = reason.partition("ALERT_")[2].lower().replace("_", " ")
        return f"what listens at {destination} refused the TLS handshake ({said}): it is no gate of Conclave."
    return (
        f"what listens at {destination} speaks plain text, and a gate speaks TLS: another program listens there. Mend "
        "--connect; it is [federation] listen of the coordinator's plan."
    )


async def _raw(destination: Destination) -> socket.socket:
    """A TCP connection to the gate, through the proxy where there is one. Raises `Unreached`."""
    address, proxy = destination.address, destination.proxy
    if proxy is None:
        return await _tcp(*split_address(address), address, "the gate")
    raw = await _tcp(proxy.host, proxy.port, str(proxy), "the proxy")
    try:
        await through(proxy, raw, address)
    except ProxyFailed as error:
        raw.close()
        raise Unreached(str(error), proxied=True) from None
    except OSError:
        raw.close()
        raise Unreached(f"the proxy {proxy} hung up when asked for {address}.", proxied=True) from None
    except BaseException:
        raw.close()
        raise
    return raw


async def _tcp(host: str, port: int, shown: str, what: str) -> socket.socket:
    loop, last = asyncio.get_running_loop(), None
    proxied = what == "the proxy"
    option = "--proxy or https_proxy" if proxied else "--connect"
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            for family, kind, protocol, _, where in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                raw = socket.socket(family, kind, protocol)
                try:
                    raw.setblocking(False)
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    await loop.sock_connect(raw, where)
                    return raw
                except TimeoutError:
                    raw.close()
                    raise
                except OSError as error:
                    raw.close()
                    last = error
                except BaseException:
                    raw.close()
                    raise
    except TimeoutError:
        raise Unreached(
            f"no answer from {what} at {shown} for {CONNECT_SECONDS:g} s. A firewall may let nothing out to it: ask "
            "for that, or name a proxy (--proxy).",
            proxied=proxied,
        ) from None
    except (socket.gaierror, UnicodeError):
        raise Unreached(f"there is no host {printable(host)}. Mend {option}.", proxied=proxied) from None
    if isinstance(last, ConnectionRefusedError) and not proxied:
        raise Unreached(
            f"nothing listens at {shown} now. A gate is open while its coordinator runs or checks a plan; if it does, "
            "compare --connect with [federation] listen of the plan."
        )
    why = "no address" if last is None else (last.strerror or str(last)).lower()
    raise Unreached(f"{what} at {shown} cannot be reached: {why}. Mend {option}.", proxied=proxied)
