"""What starts in a thread while a run is prepared: taken, or ended, and never left."""

import threading
import time
from contextlib import contextmanager

import pytest

from deploy import early
from deploy.early import Early
from deploy.launching import LaunchError


class Started:
    """Stands for a Ray. told: what was done with it, in order, and whether a thread of its own did it."""

    def __init__(self, fails=None):
        self.told = []
        self.fails = fails
        self.up = threading.Event()

    @contextmanager
    def start(self):
        assert threading.current_thread() is not threading.main_thread()
        thread = threading.current_thread()
        self.told.append("start")
        if self.fails is not None:
            raise self.fails
        self.up.set()
        try:
            yield "ray", {"north": "actor"}
        finally:
            assert threading.current_thread() is thread
            self.told.append("stop")


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(early, "GRACE", 0.0)


def begun(started):
    found = Early(started.start)
    found.begin()
    return found


@pytest.mark.usefixtures("soon")
def test_it_starts_before_it_is_taken_and_ends_after():
    started = Started()
    found = begun(started)
    assert started.up.wait(10)
    with found.taken() as taken:
        assert taken == ("ray", {"north": "actor"})
        assert started.told == ["start"]
    found.end()
    found.end()
    assert started.told == ["start", "stop"]


@pytest.mark.usefixtures("soon")
def test_it_ends_where_nobody_takes_it():
    started = Started()
    found = begun(started)
    assert started.up.wait(10)
    found.end()
    assert started.told == ["start", "stop"]


def test_it_never_starts_for_what_fails_at_once():
    started = Started()
    begun(started).end()
    assert started.told == []


def test_it_starts_at_once_for_one_who_waits(monkeypatch):
    monkeypatch.setattr(early, "GRACE", 60.0)
    started, began = Started(), time.monotonic()
    with begun(started).taken():
        assert time.monotonic() - began < 10


@pytest.mark.usefixtures("soon")
def test_it_has_ended_when_an_error_leaves():
    started = Started()
    with pytest.raises(KeyError), begun(started).taken():
        raise KeyError
    assert started.told == ["start", "stop"]


@pytest.mark.usefixtures("soon")
def test_why_it_did_not_start_is_told_to_the_one_who_takes_it_and_to_nobody_else():
    with pytest.raises(LaunchError, match="no room"), begun(Started(LaunchError("no room"))).taken():
        pass
    begun(Started(LaunchError("no room"))).end()
