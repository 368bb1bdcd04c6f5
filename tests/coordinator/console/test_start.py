"""Ctrl-C in the first moments of a command, while it is imported and a run begins, prints no traceback."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from coordinator.systems.registry import template

HOUSE = Path(__file__).parents[3]
RUN = "import sys; from coordinator.console.start import main; sys.exit(main())"
WHILE_IMPORTING = f"""
import os, signal, sys
wanted = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
{RUN}
"""
WHEN_READY = f"import os; os.write(1, b'.')\n{RUN}"
UNRAISABLE = """
import os, signal, sys, time
from types import ModuleType
from protos.console.starting import started

class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)  # the interrupt comes where Python cannot raise it

def main():
    Callback()
    time.sleep(30)
    return 0

sys.modules["command"] = ModuleType("command")
sys.modules["command"].main = main
sys.exit(started("command"))
"""

ENDING = """
import atexit, gc, sys
from types import ModuleType
from protos.console.starting import started

sys.modules["command"] = ModuleType("command")
sys.modules["command"].main = lambda: 3
atexit.register(lambda: print(gc.get_freeze_count() > 0))
sys.exit(started("command"))
"""


@pytest.fixture
def begun(tmp_path):
    (tmp_path / "plan.toml").write_text(template("ray"))
    environment = os.environ | {"CONCLAVE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(HOUSE)}

    def begin(code, *arguments):
        return subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            env=environment,
        )

    return begin


def ended(process):
    said = process.communicate(timeout=120)[1].decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert said.splitlines()[-1] == "stopped."
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["coordinator.console.command", "typer", "rich.table", "coordinator.progress.terminal", "coordinator.api", "scipy"],
)
def test_an_interrupt_during_an_import_ends_a_run_in_a_word(begun, module):
    ended(begun(WHILE_IMPORTING, module, "run", "plan.toml"))


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.2, 0.3])
def test_an_interrupt_of_a_run_that_was_just_started_ends_it_in_a_word(begun, seconds):
    process = begun(WHEN_READY, "run", "plan.toml")
    assert process.stdout.read(1) == b"."
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    ended(process)


def test_an_interrupt_that_python_cannot_raise_where_it_comes_is_not_lost(begun):
    ended(begun(UNRAISABLE))


def test_a_command_ends_without_looking_through_all_that_it_imported(begun):
    process = begun(ENDING)
    assert process.communicate(timeout=60)[0].split() == [b"True"]
    assert process.returncode == 3


@pytest.mark.slow
def test_what_a_caller_ignores_stays_ignored(begun):
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{WHILE_IMPORTING}"
    process = begun(code, "typer", "--version")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith(b"coordinator, Conclave")


def test_both_commands_begin_so():
    scripts = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"coordinator": "coordinator.console.start:main", "party": "party.console.start:main"}
