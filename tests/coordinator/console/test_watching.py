"""`coordinator watch` on a run that is prepared, that goes on, and that has ended."""

import threading
import time
from contextlib import closing

import pytest

from coordinator import api
from coordinator.console import watching
from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.store.index import RunIndex
from coordinator.store.preparing import announced
from coordinator.store.store import RunStore


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(watching, "_LOOKED_EVERY", 0.05)
    monkeypatch.chdir(tmp_path)


def test_a_run_is_followed_from_its_preparation_to_its_end(capsys, monkeypatch):
    ready, seen = threading.Event(), threading.Event()
    show = watching.show

    def shows(view, terminal):
        show(view, terminal)
        if any(stage.name == "train" for stage in view.stages):
            seen.set()

    monkeypatch.setattr(watching, "show", shows)

    def run():
        with announced("7f3a-demo", None):
            ready.set()
            time.sleep(0.5)
            store = RunIndex().add("demo", b"h" * 32, None, run_id="7f3a-demo")
        with closing(store):
            store.take("me", 60.0)
            store.note(
                plan={"privacy": {"epsilon": 4.0}}, spent=2.901, expected={"stages": {"train": 40.0}, "whole": None}
            )
            store.lasted([("prepare", time.time() - 12, time.time())])
            store.note(parties={"north": "counting 40%"}, bars={"moments": [3, 12, ""]}, warning="party north is slow")
            with store.stage("train"):
                assert seen.wait(50)
            store.note(parties={"north": "trained"}, status="finished", epsilon=3.97)

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(20)
    assert main(["watch", "7f3a"]) == 0
    thread.join()
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert lines[0] == "run 7f3a-demo is being prepared"
    assert "  prepare took 12 s; epsilon 2.91 of 4 so far" in lines
    assert "  train, about 40 s" in lines
    assert "  north counting 40%" in lines
    assert "  party north is slow" in lines
    assert out.splitlines()[0] == "run 7f3a-demo  finished"
    assert "so far" not in out
    assert "  epsilon   3.97" in out


def test_a_preparation_that_ended_is_told(capsys):
    done = threading.Event()

    def prepare():
        with announced("7f3a-demo", None):
            done.wait(20)

    thread = threading.Thread(target=prepare)
    thread.start()
    time.sleep(0.2)
    threading.Timer(0.5, done.set).start()
    assert main(["watch", "7f3a"]) == 1
    thread.join()
    said = capsys.readouterr().err
    assert "run 7f3a-demo ended while it was prepared: no party was asked, and nothing was spent." in said


def test_a_finished_run_shows_no_stage_that_goes_on(capsys):
    with closing(RunIndex().add("demo", b"h" * 32, None, run_id="7f3a-demo")) as store:
        store._begin("choose")  # of an attempt that a kill cut off, and that was not needed again
        with store.stage("train"):
            pass
        store.note(status="finished", epsilon=3.97)
    assert main(["watch", "7f3a"]) == 0
    out = capsys.readouterr().out
    assert "choose" not in out
    assert "train" in out


def test_a_run_that_is_nowhere_is_not_waited_for(capsys):
    assert main(["watch", "7f3a"]) == 1
    assert 'There is no run "7f3a".' in capsys.readouterr().err


def test_a_stopped_run_shows_what_it_has_spent(capsys):
    with closing(RunIndex().add("demo", b"h" * 32, None, run_id="7f3a-demo")) as store:
        folder = store.folder
        store.note(status="resumable", spent=2.901, error="party east was lost", plan={"privacy": {"epsilon": 4.0}})
    with closing(RunStore(folder)):
        assert main(["watch", "7f3a"]) == 0
    out = capsys.readouterr().out
    assert "  epsilon 2.91 of 4 so far" in out
    assert "  party east was lost" in out


def test_a_run_is_watched_from_python_until_it_is_at_rest():
    store = RunIndex().add("demo", b"h" * 32, None, run_id="7f3a-demo")
    store.take("me", 60.0)
    seen = []
    for view in api.watch("7f3a", every=0.01):
        seen.append(view.status)
        if len(seen) == 2:
            store.note(status="finished", epsilon=3.97)
    store.close()
    assert seen == ["running", "running", "finished"]
    assert view.epsilon == 3.97
    with pytest.raises(RunError, match="no run"):
        next(api.watch("nothing"))
