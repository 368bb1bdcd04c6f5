"""Canonical encoding: a sequence of fields has one encoding, and no two sequences share one."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TypeVar

from aggregation.errors import COORDINATOR, Cheated

Field = bytes | str | int
Packed = TypeVar("Packed", bytes, memoryview)

LONGEST_NAME = 200
"""Characters of a name in a message."""

KEPT = 4
"""What a process keeps, decoded, of the last lists that a coordinator showed. It shows all parties the same: where
simulated parties share a process, the first one's work serves the others. Lists are public.
"""

_LENGTH = 4


def pack(*fields: Field) -> bytes:
    """Each field behind its length (4 bytes, big-endian); text as UTF-8, a number >= 0 as 8 bytes big-endian."""
    parts = []
    for field in fields:
        if isinstance(field, str):
            field = field.encode()
        elif isinstance(field, int):
            field = field.to_bytes(8, "big")
        parts.append(len(field).to_bytes(_LENGTH, "big"))
        parts.append(field)
    return b"".join(parts)


def pack_all(fields: Iterable[Field]) -> bytes:
    """`pack` of a sequence."""
    return pack(*fields)


def digest(*fields: Field) -> bytes:
    """SHA-256 of the packed fields."""
    return sha256(pack(*fields)).digest()


def unpack_all(data: Packed, who: str) -> list[Packed]:
    """The fields of packed bytes; of a memoryview, views of it.

    Raises `Cheated` naming `who` for bytes that are not a whole sequence of fields.
    """
    fields, at = [], 0
    while at < len(data):
        start = at + _LENGTH
        end = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or end > len(data):
            raise Cheated(who, "sent a message that breaks off in the middle; it was not made by this protocol.")
        fields.append(data[start:end])
        at = end
    return fields


def unpack(data: Packed, tag: str, lengths: Sequence[int | None], who: str) -> list[Packed]:
    """The fields behind `tag`, as many as `lengths`, each of that many bytes (None: of any length).

    Raises `Cheated` naming `who` for anything else.
    """
    fields = unpack_all(data, who)
    if not fields or fields[0] != tag.encode():
        raise Cheated(who, f"sent something else where '{tag}' was due.")
    rest = fields[1:]
    if len(rest) != len(lengths):
        raise Cheated(who, f"sent '{tag}' with {len(rest)} fields, not {len(lengths)}.")
    if any(wanted not in (None, len(field)) for field, wanted in zip(rest, lengths, strict=True)):
        raise Cheated(
            who, f"sent '{tag}' with fields of lengths {[len(field) for field in rest]}, not {list(lengths)}."
        )
    return rest


def text(field: bytes, who: str) -> str:
    """A field as a name. Raises `Cheated` naming `who` where it is not UTF-8, or not printable."""
    try:
        name = field.decode()
    except UnicodeDecodeError:
        raise Cheated(who, "sent a name that is not UTF-8.") from None
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Cheated(who, f"sent a name that is longer than {LONGEST_NAME} characters or cannot be shown.")
    return name


def speaker(field: bytes, who: str) -> str:
    """The party that speaks in a message. Raises `Cheated` where a party sent it in another's name; the coordinator
    relays everybody's.
    """
    name = text(field, who)
    if who not in (COORDINATOR, name):
        raise Cheated(who, f"sent a message in the name of {name!r}.")
    return name
