"""The README, the first page and the tutorials stay easy to read, and the stored figures are theirs."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("benchmarks_reading", ROOT / "benchmarks/reading.py")
reading = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = reading
_spec.loader.exec_module(reading)

STORED = json.loads((ROOT / "benchmarks/results/reading.json").read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", reading.PAGES)
def test_a_page_is_easier_than_it_was_and_measured_as_it_is(page):
    found, before = reading.measured((ROOT / page).read_text("utf-8")), STORED["before"][page]
    assert found["grade"] <= min(8, before["grade"])
    assert found["words"] <= 14
    assert found["longest"] <= 40
    again = "python benchmarks/reading.py --beside 502a14bb --out benchmarks/results/reading.json"
    assert found["grade"] == pytest.approx(STORED["now"][page]["grade"], abs=0.5), f"measure it again: {again}"


def test_the_page_of_results_shows_what_is_stored():
    told = (ROOT / "docs/results/code.md").read_text("utf-8")
    for page, now in STORED["now"].items():
        assert f"| {page} | {STORED['before'][page]['grade']}, {now['grade']} |" in told


@pytest.mark.slow
def test_what_is_measured_is_the_prose_alone():
    page = "# Title\n\nOne [link](x.md). See it ([y.md](y.md)).\n\n    make x\n\n- a `b c`\n- d\n"
    page += "\n```sh\nno. no.\n```\n| a. | b. |\n"
    assert reading.sentences(reading.prose(page)) == ["One link.", "See it.", "a code.", "d."]
    assert reading.measured(page)["sentences"] == 4


@pytest.mark.slow
def test_long_sentences_make_a_page_harder():
    short = "The party counts its text. It adds noise. It sends the sum."
    long = "The party, having counted its text and having added noise to what it had counted, sends the resulting sum."
    assert reading.measured(long)["grade"] > reading.measured(short)["grade"] + 3
    assert reading.measured(long)["longest"] == 19
