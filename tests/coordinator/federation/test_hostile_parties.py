"""Whole runs of four parties of which one is hostile: none ends or holds the run, and each is named.

What a party may do to hold a run is met by the clock in test_patience.py and test_link.py; its whole runs are slow.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PATIENCE = 600.0
"""Seconds: a run that is held would go on for ever, and one that is not may share a slow machine."""
QUICK = (
    "is called by escape codes and Markdown",
    "runs a version of escape codes, 1 MB",
    "refuses in escape codes and Markdown",
    "sends messages without end",
    "seals shares that do not open",
    "deals shares of another seed",
    "agrees to another list",
)


def parties():
    """`benchmarks/hostile_parties.py`, by its path."""
    if "hostile_parties" not in sys.modules:
        path = Path(__file__).resolve().parents[3] / "benchmarks/hostile_parties.py"
        spec = importlib.util.spec_from_file_location("hostile_parties", path)
        sys.modules["hostile_parties"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["hostile_parties"]


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in parties().CASES]
)
def test_a_hostile_party_neither_ends_nor_holds_the_run_and_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    found = parties().whole_run(parties().CASES[name], tmp_path, longest=PATIENCE)
    assert found["wrong"] == [], found
