"""Every benchmark can be started: what they share may be renamed while none of them runs."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
ELSEWHERE = {"flower_secagg"}
"""Run in an environment of their own."""


@pytest.mark.slow
def test_every_benchmark_can_be_imported():
    names = sorted({path.stem for path in FOLDER.glob("*.py")} - ELSEWHERE)
    assert "hundred_steps" in names
    subprocess.run([sys.executable, "-c", f"import {', '.join(names)}"], cwd=FOLDER, check=True)
