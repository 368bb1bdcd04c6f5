"""docs/tutorials, followed to the letter: the blocks of each page are done in their order, in a clean folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FOLDER = Path(__file__).parents[2] / "docs/tutorials"
SECONDS = 600
BLOCK = re.compile(r"^```(\w+) at=here(?: file=(\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def follow(page, folder, home):
    """Do what a page says; returns all that its commands said."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    said = ""
    for language, file, text in BLOCK.findall(page.read_text("utf-8")):
        if file is not None and file:
            (folder / file).write_text(text, "utf-8")
        command = f"python {file}" if language == "python" and file == "use.py" else text if language == "sh" else None
        if command is None:
            continue
        done = subprocess.run(
            ["bash", "-euc", command], cwd=folder, env=os.environ | {"PATH": path, "CONCLAVE_HOME": str(home)},
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        said += done.stdout
    return said


def test_the_first_student_is_better_than_what_costs_nothing_and_verifies(tmp_path):
    said = follow(FOLDER / "first-student.md", tmp_path, tmp_path / "home")
    assert "Better than what costs nothing" in said
    assert "match the signed manifest" in said
    assert "verify: ok" in said
    assert (tmp_path / "first.html").stat().st_size > 10_000


def test_a_table_becomes_a_classifier_that_is_better_than_what_costs_nothing(tmp_path):
    said = follow(FOLDER / "own-table.md", tmp_path, tmp_path / "home")
    assert "Better than what costs nothing" in said
    assert re.findall(r"'label': '(\w+)'", said) == ["messages", "processes"]
