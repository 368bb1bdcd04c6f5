"""The HTTP proxy through which a party leaves its site: which one, and the CONNECT that it is asked for."""

import asyncio
import base64
import socket
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from protos.console.mistakes import SettingsError
from protos.refusal import printable

ANSWER_SECONDS: Final = 20.0
"""Seconds that a proxy has for its answer."""
LONGEST_ANSWER: Final = 16 * 1024
_UNREACHABLE: Final = (502, 503, 504)


class ProxyFailed(Exception):
    """The proxy did not make the connection. The message is a sentence."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy. credentials: "user:password", empty for none; they are never shown."""

    host: str
    port: int
    credentials: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def proxy_for(host: str, given: str | None) -> Proxy | None:
    """The proxy on the way to a host: `given` (a URL, or "none"), else what `https_proxy` and `no_proxy` say.

    Raises `SettingsError` for a URL that is not an HTTP proxy's.
    """
    if given is not None:
        return None if given == "none" else _parsed(given, "--proxy")
    found = getproxies_environment()
    if not found.get("https") or proxy_bypass_environment(host, found):
        return None
    return _parsed(found["https"], "https_proxy")


def _parsed(url: str, where: str) -> Proxy:
    whole = url if "://" in url else f"http://{url}"
    wanted = "Name it as http://HOST:PORT or http://USER:PASSWORD@HOST:PORT."
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SettingsError(f"{where} is not the URL of a proxy. {wanted}", code="C503") from None
    if parts.scheme != "http":
        kind = printable(parts.scheme)[:20]
        raise SettingsError(
            f"{where} names a proxy of the kind {kind}, and only HTTP proxies are known. {wanted}", code="C503"
        )
    if not host:
        raise SettingsError(f"{where} names no host. {wanted}", code="C503")
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
    return Proxy(host, port or 80, credentials)


async def through(proxy: Proxy, raw: socket.socket, target: str) -> None:
    """Have the proxy at the other end of `raw` connect to the target ("HOST:PORT"). Raises `ProxyFailed`, OSError."""
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.credentials:
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(proxy.credentials.encode()).decode()}")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await loop.sock_sendall(raw, "\r\n".join([*lines, "", ""]).encode())
            answer = await _answer(loop, raw)
    except TimeoutError:
        raise ProxyFailed(
            f"the proxy {proxy} took the connection and has not answered CONNECT {target} for {ANSWER_SECONDS:g} s. "
            "Ask whoever runs it."
        ) from None
    status, word = _status(answer)
    if status is None:
        raise ProxyFailed(f"what listens at {proxy} is not an HTTP proxy. Mend --proxy or https_proxy.")
    if not 200 <= status < 300:
        raise ProxyFailed(_why(proxy, target, status, word))


def _why(proxy: Proxy, target: str, status: int, word: str) -> str:
    said = f"{status} {word}".strip()
    if status == 407 and proxy.credentials:
        return f"the proxy {proxy} does not take this user and password ({said}). Mend them in its URL."
    if status == 407:
        return (
            f"the proxy {proxy} wants a user and a password ({said}). Put them in its URL: "
            "http://USER:PASSWORD@HOST:PORT."
        )
    if status in _UNREACHABLE:
        return f"the proxy {proxy} could not connect to {target} ({said}): wrong address, or nothing listens there."
    return (
        f"the proxy {proxy} refuses to connect to {target} ({said}). Ask whoever runs it to allow CONNECT to that host "
        "and port, or have the coordinator listen on 443."
    )


async def _answer(loop: asyncio.AbstractEventLoop, raw: socket.socket) -> bytes:
    """The header of the proxy's answer; what came of it where the proxy ends the connection or says too much."""
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < LONGEST_ANSWER:
        piece = await loop.sock_recv(raw, 4096)
        if not piece:
            break
        answer += piece
    return answer


def _status(answer: bytes) -> tuple[int | None, str]:
    head, ended, more = answer.partition(b"\r\n\r\n")
    parts = head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
    if not ended or not parts[0].startswith("HTTP/1.") or len(parts) < 2 or len(parts[1]) != 3:
        return None, ""
    # A tunnel carries nothing before we speak: what comes with a success is not the far end's.
    if not (parts[1].isascii() and parts[1].isdigit()) or (parts[1].startswith("2") and more):
        return None, ""
    return int(parts[1]), printable(parts[2] if len(parts) > 2 else "")[:60]
