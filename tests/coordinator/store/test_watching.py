"""A run is seen from its store alone: what the driver showed, what is on disk, and how long ago that was."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict

import numpy as np
import pytest

from coordinator.progress.progress import Silent
from coordinator.store.index import RunIndex
from coordinator.store.store import RunStore
from coordinator.store.watching import Part, Recorded, look, render


@pytest.fixture
def store(tmp_path):
    with closing(RunIndex(tmp_path / "home").add("demo", b"h" * 32, None)) as store:
        yield store


@pytest.fixture
def driven(store):
    store.take("me", 60.0)
    return store


class Heard(Silent):
    def __init__(self):
        self.told = []

    def say(self, line):
        self.told.append(line)

    def party(self, name, state):
        self.told.append((name, state))

    def bar(self, label, done, total, note=""):
        self.told.append((label, done, total, note))

    def close(self):
        self.told.append("closed")


def block(store, release, batch):
    store.put_block(release, batch, batch, batch + 1, np.zeros((1, 2), np.int64))


def test_a_run_of_which_nothing_is_known_is_shown_all_the_same(driven):
    view = look(driven)
    assert (view.status, view.stages, view.parts, view.parties, view.quiet) == ("running", (), (), {}, None)
    assert not view.at_rest
    assert render(view) == [f"run {driven.id}  running"]


def test_everything_is_passed_on_and_what_a_watcher_sees_is_what_was_told_last(driven):
    heard = Heard()
    with Recorded(heard, driven, every=0.01) as progress:
        progress.say("run 7f3a")
        progress.party("north", "ready")
        progress.party("east", "training 62%")
        progress.bar("counts", 3, 12, "epsilon 1.00 / 2.00")
        progress.party("north", "trained")
    assert heard.told == [
        "run 7f3a",
        ("north", "ready"),
        ("east", "training 62%"),
        ("counts", 3, 12, "epsilon 1.00 / 2.00"),
        ("north", "trained"),
    ]
    with closing(RunStore(driven.folder)) as watched:
        view = look(watched)
    assert view.parties == {"north": "trained", "east": "training 62%"}
    assert view.parts == (Part("counts", 3, 12, "epsilon 1.00 / 2.00"),)
    assert 0 <= view.quiet < 10


def test_what_is_on_disk_counts_more_than_what_was_said(driven):
    driven.note(bars={"counts": (9, 12, ""), "student": (40, 100, "percent")})
    for batch in range(4):
        block(driven, "counts", batch)
    block(driven, "labels", 0)
    assert look(driven).parts == (
        Part("counts", 4, 12, ""),
        Part("student", 40, 100, "percent"),
        Part("labels", 1, None, ""),
    )


def test_a_run_that_goes_on_keeps_the_totals_of_what_it_does_not_ask_again(driven):
    driven.note(bars={"counts": (12, 12, "")})
    with Recorded(Silent(), driven) as progress:
        progress.bar("votes", 1, 5)
    assert [part.label for part in look(driven).parts] == ["counts", "votes"]


def test_the_store_is_written_at_most_so_often_and_the_last_word_arrives(driven, monkeypatch):
    written = []
    monkeypatch.setattr(driven, "note", lambda **facts: written.append(facts))
    with Recorded(Silent(), driven, every=0.3) as progress:
        for percent in range(100):
            progress.party("north", f"counting {percent}%")
            time.sleep(0.005)
    assert 2 <= len(written) <= 6
    assert written[-1]["parties"] == {"north": "counting 99%"}


def test_a_disk_that_takes_nothing_does_not_end_the_run(driven):
    with closing(sqlite3.connect(driven.folder / "run.sqlite", isolation_level=None)) as other:
        other.execute("UPDATE lease SET owner = 'another'")
    with Recorded(Silent(), driven, every=0.01) as progress:
        progress.party("north", "ready")
    assert look(driven).parties == {}


def test_closing_closes_the_progress_inside_and_leaving_does_not(driven):
    heard = Heard()
    with Recorded(heard, driven) as progress:
        pass
    assert heard.told == []
    progress.close()
    assert heard.told == ["closed"]


def test_stages_show_their_seconds_and_a_run_at_rest_does_not_go_on(driven, monkeypatch):
    with driven.stage("join"):
        pass
    with pytest.raises(ZeroDivisionError), driven.stage("train"):
        1 / 0  # noqa: B018
    start = driven.stages()["train"][0]
    driven.note(seen=start + 7)
    monkeypatch.setattr("coordinator.store.watching.time.time", lambda: start + 20)
    join, train = look(driven).stages
    assert (join.name, join.finished) == ("join", True)
    assert (train.name, train.finished, train.seconds) == ("train", False, 20)
    assert render(look(driven))[1] == f"  stages    join {join.seconds:.1f} s · train 20 s so far"
    driven.note(status="resumable", error="party east was lost")
    view = look(driven)
    assert view.at_rest
    assert view.stages[1].seconds == 7
    assert render(view)[1:] == [
        f"  stages    join {join.seconds:.1f} s · train 7.0 s unfinished",
        "  last sign of life 13 s ago",
        "  party east was lost",
    ]


def test_a_finished_run_shows_what_it_promises_and_who_was_lost(store):
    store.note(
        status="finished",
        epsilon=3.971,
        parties={"north": "trained", "east": "lost"},
        bars={"counts": (3712, 5000, "epsilon 2.91 / 4.00")},
        seen=time.time(),
    )
    view = look(store)
    assert view.lost == ("east",)
    assert render(view) == [
        f"run {store.id}  finished",
        "  parties   north trained · east lost",
        "  counts    3,712 / 5,000  epsilon 2.91 / 4.00",
        "  epsilon   3.98",
    ]
    assert json.loads(json.dumps(asdict(view)))["parties"] == {"north": "trained", "east": "lost"}


DRIVER = """
import sys, time
from pathlib import Path
from coordinator.progress.progress import Silent
from coordinator.store.store import RunStore
from coordinator.store.watching import Recorded
store = RunStore(Path(sys.argv[1]))
store.take("driver", 60.0)
with Recorded(Silent(), store, every=0.05) as progress:
    for percent in range(10_000):
        progress.party("north", f"counting {percent}%")
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_driver_in_another_process_is_watched_until_it_is_killed(store):
    child = subprocess.Popen([sys.executable, "-c", DRIVER, str(store.folder)])
    try:
        until = time.monotonic() + 30
        while not look(store).parties and time.monotonic() < until:
            time.sleep(0.05)
        view = look(store)
        assert view.status == "running"
        assert view.parties["north"].startswith("counting")
    finally:
        os.kill(child.pid, 9)
        child.wait()
    assert look(store).at_rest
    assert look(store).status == "resumable"
