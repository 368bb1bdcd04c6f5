"""One dialled connection to the coordinator's gate, from nothing until it waits; each failure in its own words."""

import asyncio
import socket
import ssl
from typing import Final

from party.config import split_address
from party.dialling.destination import Destination
from party.dialling.proxies import ProxyFailed, through
from protos.dialling.frames import GREETING_SECONDS, Garbled, Kind, expect, spoken
from protos.dialling.greeting import apart, check_gate, new_hello, party_context, prove
from protos.dialling.streams import Stream, connected
from protos.identity.certificates import IdentityError
from protos.identity.identity import Identity
from protos.refusal import printable

CONNECT_SECONDS: Final = 15.0
LONGEST_WHY: Final = 1000
"""The most characters of a gate's reason that are shown."""
LONGEST_CHALLENGE: Final = 200


class Unreached(Exception):
    """The gate cannot be reached, or did not let this party in. The message is a sentence."""


async def reach(destination: Destination, identity: Identity, process: str) -> Stream:
    """A connection that the gate welcomed. process: of this start of the node. Raises `Unreached`."""
    stream = await _secured(destination)
    welcomed = False
    try:
        async with asyncio.timeout(GREETING_SECONDS):
            await _greet(stream, destination, identity, process)
        welcomed = True
        return stream
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


async def _greet(stream: Stream, destination: Destination, identity: Identity, process: str) -> None:
    try:
        gate = check_gate(stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True), identity)
    except IdentityError as error:
        raise Unreached(
            f"what listens at {destination} is not the coordinator of this party's federation: {error}"
        ) from None
    await stream.say(spoken(Kind.HELLO, **new_hello(identity.name, process).fields()))
    kind, fields = await expect(stream.reader, Kind.CHALLENGE, Kind.REFUSED)
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
        raise Unreached(str(error)) from None
    except OSError:
        raw.close()
        raise Unreached(f"the proxy {proxy} hung up when asked for {address}.") from None
    except BaseException:
        raw.close()
        raise
    return raw


async def _tcp(host: str, port: int, shown: str, what: str) -> socket.socket:
    loop, last = asyncio.get_running_loop(), None
    option = "--connect" if what == "the gate" else "--proxy or https_proxy"
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
            "for that, or name a proxy (--proxy)."
        ) from None
    except (socket.gaierror, UnicodeError):
        raise Unreached(f"there is no host {printable(host)}. Mend {option}.") from None
    if isinstance(last, ConnectionRefusedError) and what == "the gate":
        raise Unreached(
            f"nothing listens at {shown} now. A gate is open while its coordinator runs or checks a plan; if it does, "
            "compare --connect with [federation] listen of the plan."
        )
    why = "no address" if last is None else (last.strerror or str(last)).lower()
    raise Unreached(f"{what} at {shown} cannot be reached: {why}. Mend {option}.")
