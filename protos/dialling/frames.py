"""The frames of a dialled connection: one byte of kind, two bytes of length, and so many bytes, over TLS.

The party says HELLO, the gate CHALLENGE, the party PROOF, the gate WELCOME or REFUSED. Then both PING now and then, and
the other answers PONG. At last the gate says GO and the party READY; from there on the connection carries raw bytes.
"""

import asyncio
import json
from enum import IntEnum
from typing import Any, Final

VERSION: Final = 1
MAGIC: Final = "conclave-dial"
LONGEST: Final = 8 * 1024
"""The most bytes in a frame; the largest is a PROOF, with its certificate."""
HEADER: Final = 3

PING_SECONDS: Final = 20.0
DEAD_SECONDS: Final = 60.0
"""After so many seconds without a frame a waiting connection is taken to be dead."""
GREETING_SECONDS: Final = 10.0
"""Seconds for the TLS handshake, and then for the whole greeting, however slowly its bytes come."""
READY_SECONDS: Final = 5.0
"""Seconds that a party has to say READY, after which the next of its waiting connections is taken."""
BUFFER: Final = 256 * 1024
"""The most bytes that are read ahead in one direction of a connection, twice over."""


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    PING = 6
    PONG = 7
    GO = 8
    READY = 9


class Garbled(Exception):
    """What came is no frame of this protocol, or not the one that belongs here."""


def frame(kind: Kind, content: bytes = b"") -> bytes:
    """A frame as it is sent. Raises ValueError for one that is too long."""
    if len(content) > LONGEST:
        raise ValueError(f"a frame has at most {LONGEST} bytes, and this one has {len(content)}.")
    return bytes([kind]) + len(content).to_bytes(2, "big") + content


def spoken(kind: Kind, **fields: Any) -> bytes:
    """A frame whose content is JSON."""
    return frame(kind, json.dumps(fields).encode())


async def read(reader: asyncio.StreamReader) -> tuple[Kind, bytes]:
    """The next frame. Raises `Garbled`, and EOFError where the connection ends before a whole one."""
    try:
        header = await reader.readexactly(HEADER)
        size = int.from_bytes(header[1:], "big")
        if header[0] not in Kind.__members__.values() or size > LONGEST:
            raise Garbled
        return Kind(header[0]), await reader.readexactly(size)
    except asyncio.IncompleteReadError as ended:
        raise EOFError("the connection ended") from ended


async def expect(reader: asyncio.StreamReader, *kinds: Kind) -> tuple[Kind, dict[str, Any]]:
    """The next frame, one of these kinds, whose content is a JSON object. Raises as `read` does."""
    kind, content = await read(reader)
    if kind not in kinds:
        raise Garbled
    return kind, fields_of(content)


def fields_of(content: bytes) -> dict[str, Any]:
    """The JSON object in a frame. Raises `Garbled`."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise Garbled from None
    if not isinstance(fields, dict):
        raise Garbled
    return fields
