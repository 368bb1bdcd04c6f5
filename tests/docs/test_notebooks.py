"""examples/notebooks: each is executed here from its first cell to its last, and kept with what its cells show."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
LARGEST = 200_000
"""The most bytes of a notebook with what it shows."""


def shown(cell):
    """All that a cell shows, as text."""
    parts = []
    for output in cell.get("outputs", ()):
        parts += output["text"] if output["output_type"] == "stream" else output.get("data", {}).values()
    return "".join("".join(part) for part in parts)


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_there_is_one_for_each_thing_to_try():
    assert NAMES == ["comparing_methods", "first_run", "own_table", "privacy_report", "synthetic_text"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_kept_small_with_what_its_cells_show_and_with_no_place_of_a_machine(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert path.stat().st_size < LARGEST
    assert not [cell["source"] for cell in code(notebook) if "print(" in "".join(cell["source"]) and not shown(cell)]
    for cell in notebook["cells"]:
        said = "".join(cell["source"]) + shown(cell)
        assert not re.findall(r"(?<![\w.>])/(?:home|root|tmp|work|usr|var)/[^\s\"']*|Traceback|Warning:", said)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_runs_and_shows_what_it_is_kept_with(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", "")  # which executing a notebook sets, and a later test must not have
    spec = importlib.util.spec_from_file_location("execute_notebooks", ROOT / "docs/making/execute_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    done, kept = module.executed(path, tmp_path), json.loads(path.read_text("utf-8"))
    assert [bool(shown(cell)) for cell in code(done)] == [bool(shown(cell)) for cell in code(kept)]
    said = "".join(shown(cell) for cell in code(done))
    assert {
        "comparing_methods": "all private cells together",
        "first_run": "verified: True",
        "own_table": "Better than what costs nothing",
        "privacy_report": "passes: False",
        "synthetic_text": "trained on  ",
    }[path.stem] in said
