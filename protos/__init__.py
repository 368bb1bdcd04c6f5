"""The protocol that both ends share: message types, the tensor codec, digests, and the reasons of refusal."""

from functools import cache

PROTOCOL_VERSION = 3
"""Raised when an old node could misread a new coordinator, or the reverse. `Join` refuses any other version."""


@cache
def software_version() -> str:
    """The version of Conclave that is installed here. Looked up once: that reads and parses a file."""
    from importlib.metadata import version

    return version("conclave-distill")
