"""The code that starting parties on Ray shares, whoever started that Ray: its error, its silence, its environment."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from aggregation.errors import ConclaveError

QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AUTH_MODE": "token",
}
"""Ray's settings wherever it is started: report to nobody, join nothing, and ask who calls."""

_SET_BY_RAY: Final = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")


class LaunchError(ConclaveError):
    """Parties that could not be started. The message names the party and what to do."""

    CODE = "C306"


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and those it starts inside the context; changes that Ray makes are undone as
    well.
    """
    before = {name: os.environ.get(name) for name in (*wanted, *_SET_BY_RAY)}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def read_token() -> bool:
    """Make Ray read again whether tokens are required, and its token; returns whether there is one.

    Ray keeps the first token that it found in a process, which may be another cluster's.
    """
    from ray import _raylet

    internal: Any = _raylet
    internal.Config.initialize("")
    loader = internal.AuthenticationTokenLoader.instance()
    loader.reset_cache()
    return bool(loader.has_token(ignore_auth_mode=True))
