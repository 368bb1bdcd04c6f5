"""The list of deliberate breaks says what is there: each can be made, and the tests that should notice it exist."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BREAKS = tomllib.loads((ROOT / "benchmarks/mutations.toml").read_text())


def test_every_break_can_be_made_at_one_place():
    found = {name: (ROOT / each["file"]).read_text().count(each["old"]) for name, each in BREAKS.items()}
    assert {name: count for name, count in found.items() if count != 1} == {}


@pytest.mark.parametrize("test", sorted({test for each in BREAKS.values() for test in each["tests"]}))
def test_the_tests_that_should_notice_are_there(test):
    path, *names = test.partition("[")[0].split("::")
    assert (ROOT / path).exists()
    text = (ROOT / path).read_text() if names else ""
    assert all(f"def {name}(" in text or f"class {name}" in text for name in names)
