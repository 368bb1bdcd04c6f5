"""The protocol that both ends share: message types, the tensor codec, digests, and the reasons of refusal."""

PROTOCOL_VERSION = 3
"""Raised when an old node could misread a new coordinator, or the reverse. `Join` refuses any other version."""
