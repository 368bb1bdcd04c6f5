"""Folders of sockets: private, short, and gone when their process is, however it ended."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from protos.dialling.sockets import LONGEST_PATH, PREFIX, socket_folder

HOLDS = """
import sys, time
from protos.dialling.sockets import socket_folder
with socket_folder() as folder:
    (folder / "node.sock").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(monkeypatch):
    """A temporary folder of the test's own, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield made


def test_a_folder_is_its_owners_alone_and_is_removed(place):
    with socket_folder() as folder, socket_folder() as other:
        assert folder != other
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "node.sock").touch()
    assert os.listdir(place) == []


def test_where_temporary_files_have_a_long_path_it_lies_elsewhere(monkeypatch, tmp_path):
    long = tmp_path / ("x" * LONGEST_PATH)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with socket_folder() as folder:
        assert len(bytes(folder)) <= LONGEST_PATH
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_is_in_use_is_not(place):
    command = [sys.executable, "-c", HOLDS]
    environment = os.environ | {"TMPDIR": place}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        folder = process.stdout.readline().strip()
        with socket_folder():
            assert os.path.exists(f"{folder}/node.sock"), "it is in use"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert os.path.exists(folder)
    os.mkdir(f"{place}/{PREFIX}fresh")  # being made just now by another process
    os.symlink("/", f"{place}/{PREFIX}link")
    with socket_folder():
        assert not os.path.exists(folder)
    assert sorted(os.listdir(place)) == [f"{PREFIX}fresh", f"{PREFIX}link"]
