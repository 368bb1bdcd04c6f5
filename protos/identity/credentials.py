"""Authentication by a bearer token in a call's metadata."""

import hmac
from collections.abc import Iterable
from typing import Final

AUTHORIZATION: Final = "authorization"


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata with `token`; empty for an empty token."""
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


def shows(metadata: Iterable[tuple[str, str | bytes]], token: str) -> bool:
    """Whether the metadata of a call has `token`, compared in constant time. An empty token requires nothing."""
    if not token:
        return True
    given = [value for key, value in metadata if key == AUTHORIZATION]
    said = given[0] if len(given) == 1 else ""
    return hmac.compare_digest(said.encode() if isinstance(said, str) else said, f"Bearer {token}".encode())
