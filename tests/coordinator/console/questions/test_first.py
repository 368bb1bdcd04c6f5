"""The first questions of `coordinator init`: they wait for no library, and say what the systems themselves say."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from importlib.metadata import entry_points
from types import ModuleType

import pytest

from coordinator.console.questions import first
from coordinator.console.questions.first import glances
from coordinator.systems import registry
from coordinator.systems.glances import GROUP, Glance, glance

HEAVY = {"numpy", "torch", "transformers", "pydantic", "dp_accounting", "ray", "datasets"}


def test_a_glance_says_what_the_loaded_system_says():
    for name, seen in glances().items():
        found = registry.system(name)
        assert seen == Glance(found.about, found.first, found.alone is not None)
        assert seen.about
    assert list(glances()) == [name for name in registry.names() if registry.system(name).example is not None]


def test_every_own_system_is_seen_without_being_loaded():
    for point in entry_points(group=GROUP):
        if point.dist.name == "conclave-distill":
            assert glance(point.module) is not None, point.name


def test_a_system_without_the_file_is_loaded(monkeypatch):
    loaded = []
    monkeypatch.setattr(first, "glance", lambda module: None)
    monkeypatch.setattr(first, "_loaded", lambda name: loaded.append(name) or Glance("something"))
    assert set(glances().values()) == {Glance("something")}
    assert loaded == list(registry.names())


@pytest.mark.parametrize("text", ["about = ", "colour = 1", "about = 1\nabout = 2"])
def test_a_package_whose_file_cannot_be_read_is_one_without_it(tmp_path, monkeypatch, text):
    name = f"waltz_{abs(hash(text))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "about.toml").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert glance(name) is None


def test_no_library_is_imported_before_the_first_question():
    code = f"""
import sys
import coordinator.console.command
from coordinator.console.questions import first

class Never:
    def start(self):
        print(sorted({HEAVY} & sys.modules.keys()))
        raise EOFError

try:
    first.ask_first(Never())
except EOFError:
    pass
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"
    assert "dp_sgd" in said.stdout


WHOLE = "import sys; from coordinator.console.start import main; sys.exit(main())"
ENDLESS = f"""
import sys, time
from types import ModuleType

sys.modules["endless"] = endless = ModuleType("endless")
endless.load = lambda: time.sleep(600)
from coordinator.console.questions import first

first._OTHERS = "endless"
{WHOLE}
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.1, 0.7])
@pytest.mark.parametrize("code", [WHOLE, ENDLESS], ids=["as it is", "an import that never ends"])
def test_an_interrupt_while_libraries_are_imported_ends_in_a_sentence(tmp_path, code, wait):
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", code, "init", "mine.toml"])
    said, asked, deadline = b"", 0, time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 5.0)[0]:
            if asked == len(said):  # it came between the prompt and the reading, and nobody heard it: pressed again
                os.kill(process, signal.SIGINT)
            continue
        try:
            more = os.read(terminal, 65536)
        except OSError:  # it has ended
            break
        said += more
        if not asked and said.rstrip().endswith(b"recipe [dped]:"):
            asked = len(said)
            time.sleep(wait)
            os.kill(process, signal.SIGINT)
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert asked, said
    assert os.waitstatus_to_exitcode(status) == 130, said
    assert b"Nothing was written." in said
    assert b"Traceback" not in said
    assert not (tmp_path / "mine.toml").exists()


def test_the_thread_that_imports_takes_no_interrupt(monkeypatch):
    """The kernel gives a signal to any thread that takes it; another than the one that waits does not wake that one."""
    blocked = []
    module = ModuleType("seen")
    module.load = lambda: blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    monkeypatch.setitem(sys.modules, "seen", module)
    monkeypatch.setattr(first, "_OTHERS", "seen")
    importing = first.Importing()
    importing.start()
    importing.join()
    assert signal.SIGINT in blocked[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
