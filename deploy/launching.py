"""The code that starting parties on Ray shares, whoever started that Ray: its error, its silence, its environment."""

import ctypes
import os
import signal
import threading
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


@contextmanager
def terminated_as_before() -> Iterator[None]:
    """After it, SIGTERM is handled as before, whatever Ray installed inside it, in whichever thread.

    In the first thread Ray has Python raise `SystemExit`. In any thread its library installs a handler that writes a
    trace and aborts the process three seconds later, however much a run that stops has still to store; when it ends,
    nothing handles the signal any more. Python itself sets handlers in the first thread alone.
    """
    python, native = signal.getsignal(signal.SIGTERM), native_handler(signal.SIGTERM)
    try:
        yield
    finally:
        if python is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, python)
        ctypes.pythonapi.PyOS_setsig(int(signal.SIGTERM), ctypes.c_void_p(native))


def native_handler(number: int) -> int | None:
    """The address of the function that the system calls at a signal, with which Python's own handlers begin."""
    get = ctypes.pythonapi.PyOS_getsig
    get.restype = ctypes.c_void_p
    address: int | None = get(int(number))
    return address


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
