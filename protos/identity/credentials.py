"""How a caller shows that it may ask: a bearer token in the call's metadata."""

import hmac
from collections.abc import Iterable
from typing import Final

AUTHORIZATION: Final = "authorization"


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """The metadata that carries `token`; none for an empty one."""
    return ((AUTHORIZATION, f"Bearer {token}"),) if token else ()


def shows(metadata: Iterable[tuple[str, str | bytes]], token: str) -> bool:
    """Whether the metadata of a call carries `token`; compared in constant time. An empty token asks for nothing."""
    if not token:
        return True
    given = [value for key, value in metadata if key == AUTHORIZATION]
    said = given[0] if len(given) == 1 else ""
    return hmac.compare_digest(said.encode() if isinstance(said, str) else said, f"Bearer {token}".encode())
