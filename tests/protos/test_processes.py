"""A process lives from its start to its end, whether or not its parent asks how it ended."""

import os
import subprocess
import sys

import psutil
import pytest

from protos.processes import lives


@pytest.fixture
def waiting():
    """A process that ends when its standard input is closed."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield child
    child.kill()
    child.communicate()


def test_a_process_lives_until_it_ends(waiting):
    assert lives(os.getpid())
    assert lives(waiting.pid)
    waiting.kill()
    waiting.wait()
    assert not lives(waiting.pid)


def test_one_that_ended_does_not_live_though_its_parent_has_not_asked_how(waiting):
    waiting.kill()
    os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.pid_exists(waiting.pid)
    assert not lives(waiting.pid)


def test_one_of_another_user_lives(monkeypatch, waiting):
    def refused(_):
        raise psutil.AccessDenied(waiting.pid)

    monkeypatch.setattr(psutil, "Process", refused)
    assert lives(waiting.pid)


@pytest.mark.parametrize("number", [-1, 2**31 - 1, 10**20])
def test_a_number_that_no_process_has_does_not_live(number):
    assert not lives(number)
