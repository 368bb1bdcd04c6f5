"""A run that is prepared is found before it has a folder, and no longer once it has one or its process is gone."""

import json
import os
import stat
import subprocess
import sys

import pytest

from coordinator.store.preparing import announced, announcement


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_a_run_that_is_prepared_is_found_by_its_id_and_its_folder(home, tmp_path):
    with announced("7f3a-demo", tmp_path / "out"):
        found = announcement("7f3a-demo")
        assert (found.run, found.folder) == ("7f3a-demo", str(tmp_path / "out"))
        assert 0 <= found.seconds < 60
        assert announcement("7f3").run == announcement("out").run == "7f3a-demo"
        assert announcement("8") is None
        (file,) = (home / "preparing").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert announcement("7f3a-demo") is None
    assert list((home / "preparing").iterdir()) == []


def test_a_beginning_of_two_ids_names_neither():
    with announced("7f3a-demo", None), announced("7f3b-demo", None):
        assert announcement("7f3") is None
        assert announcement("7f3b").run == "7f3b-demo"


def test_preparing_that_fails_takes_its_announcement_back():
    with pytest.raises(ZeroDivisionError), announced("7f3a-demo", None):
        1 / 0  # noqa: B018
    assert announcement("7f3a") is None


def test_a_process_that_was_killed_announces_nothing(home):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with announced("7f3a-demo", None):
        (file,) = (home / "preparing").iterdir()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"process": dead.pid}))
        assert announcement("7f3a") is None
        assert not file.exists()


def test_a_file_that_is_no_announcement_is_left_alone(home):
    (home / "preparing").mkdir(parents=True)
    for name, content in (("7f3a-demo.json", "[]"), ("7f3b-demo.json", "nothing")):
        (home / "preparing" / name).write_text(content)
    assert announcement("7f3") is None
    assert len(list((home / "preparing").iterdir())) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_home_that_takes_no_file_is_no_obstacle(home):
    home.mkdir(mode=0o500)
    with announced("7f3a-demo", None):
        assert announcement("7f3a") is None


def test_a_home_that_is_a_file_is_no_obstacle(home):
    home.write_text("")
    with announced("7f3a-demo", None):
        pass
