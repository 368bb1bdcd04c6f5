"""One driver per run: a lease that its driver renews, and that expires soon after the driver died.

A driver that was suspended for longer than its lease may find that another took over. Every later write of it then
fails, so that two drivers never write one run.
"""

import _thread
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from coordinator.errors import RunError
from coordinator.store.mending import remove_stale
from coordinator.store.store import RunStore

LEASE_SECONDS: Final = 30.0
BEAT_SECONDS: Final = 2.0

CANCEL: Final = "cancel"
"""The fact by which another process asks the driver to stop for good."""


@contextmanager
def held(store: RunStore) -> Iterator[None]:
    """Hold the run's lease inside the context. Raises `RunError` when another process drives the run.

    A thread renews the lease. When it is asked to cancel, or another driver took over, it interrupts the main thread as
    Ctrl-C would, but not once the run is ending by itself, so that the run's own outcome is reported.
    """
    store.take(secrets.token_hex(16), LEASE_SECONDS)
    ended, ending = threading.Event(), threading.Lock()
    beating = threading.Thread(target=_beat, args=(store, ended, ending), name="lease", daemon=True)
    beating.start()
    try:
        remove_stale(store)
        yield
    finally:
        with suppress(KeyboardInterrupt), ending:  # a request that came at the very end
            ended.set()
        ended.set()
        beating.join()
        with suppress(RunError):
            store.let_go()


def _beat(store: RunStore, ended: threading.Event, ending: threading.Lock) -> None:
    renewed = time.monotonic()
    while not ended.wait(BEAT_SECONDS):
        try:
            mine = store.renew(LEASE_SECONDS)
            renewed = time.monotonic()
        except RunError:  # a full disk: the run's next write reports it; until then the lease may run out
            mine = time.monotonic() - renewed < LEASE_SECONDS
        if not mine or store.fact(CANCEL):
            with ending:
                if not ended.is_set():
                    _thread.interrupt_main()
            return
