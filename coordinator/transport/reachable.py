"""Why no connection can be made to a party's address, found by trying: gRPC says "unavailable" in all cases."""

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Final

CONNECT_SECONDS: Final = 5.0
"""Seconds to wait for a connection to a party's address."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Why there is no connection, to complete "party north was lost: ...", and a sentence that says what to do."""

    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.why}. {self.cure}"


async def unreachable(address: str) -> Unreachable | None:
    """Why no TCP connection to a host and port can be made; None where one can."""
    host, _, port = address.rpartition(":")
    mend = "Mend the address in [federation] parties."
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.removeprefix("[").removesuffix("]"), int(port))
    except TimeoutError:
        return Unreachable(f"no answer from {address} for {CONNECT_SECONDS:g} s", _silent(port))
    except (socket.gaierror, UnicodeError):
        return Unreachable(f"there is no such host: {address}", mend)
    except ConnectionRefusedError:
        return Unreachable(
            f"nothing listens at {address}", "Start the party there (`party serve`), or mend the address."
        )
    except (OSError, OverflowError, ValueError) as error:
        why = (getattr(error, "strerror", None) or str(error)).lower()
        return Unreachable(f"{address} cannot be reached ({why})", mend)
    writer.close()
    return None


def _silent(port: str) -> str:
    said = f"Is the machine on, and does a firewall let port {port} through? A site that lets nobody in can dial"
    if os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY"):
        return f"{said}. The proxy in https_proxy is for parties that dial: a coordinator calls parties without."
    return f"{said} (`party serve --connect`)."
