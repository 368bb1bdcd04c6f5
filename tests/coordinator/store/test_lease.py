"""The lease's own interruptions: they stop a run that was overtaken, and never hide what a run ends with."""

import threading
import time
from types import SimpleNamespace

import pytest

from coordinator.errors import RunError
from coordinator.store import lease
from coordinator.store.index import RunIndex

OVERTAKEN = "another coordinator took this run over"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    store = RunIndex(tmp_path / "home").add("demo", b"h" * 32, None)
    yield store
    store.close()


@pytest.mark.slow
def test_a_driver_that_was_overtaken_is_interrupted(store):
    def drive():
        with lease.held(store):
            store.renew = lambda seconds: False
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        drive()


def test_what_a_run_ends_with_is_not_hidden_by_an_interruption_on_its_way(store):
    asked, answer = threading.Event(), threading.Event()

    def renew(seconds):
        asked.set()
        answer.wait(10)  # the driver ends its run meanwhile
        return False

    def drive():
        with lease.held(store):
            store.renew = renew
            assert asked.wait(10)
            threading.Timer(0.2, answer.set).start()
            raise RunError(OVERTAKEN)

    with pytest.raises(RunError, match=OVERTAKEN):
        drive()


def test_an_interruption_at_the_very_end_changes_nothing(store, monkeypatch):
    class Interrupted(threading.Event):
        """An event on whose setting Ctrl-C arrives, once."""

        first = True

        def set(self):
            if self.first:
                self.first = False
                raise KeyboardInterrupt
            super().set()

    own = SimpleNamespace(Event=Interrupted, Lock=threading.Lock, Thread=threading.Thread)
    monkeypatch.setattr(lease, "threading", own)
    with pytest.raises(RunError, match=OVERTAKEN), lease.held(store):
        raise RunError(OVERTAKEN)
    assert store.driver() is None
