"""Words that stopped readers do not come back, on pages or in what is printed, and the glossary explains the others."""

import ast
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.forecasting.forecast import ACCURACY, Row, table
from coordinator.progress.drawing import bar, spoken
from coordinator.progress.followed import Followed
from coordinator.progress.terminal import Terminal
from coordinator.publishing.measured import shown_perplexity
from coordinator.store.watching import Part, render
from coordinator.systems.dped.compare import VIEW

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
        *(ROOT / "examples/notebooks").glob("*.ipynb"),
    ]
)
STOPPED = {
    r"\bstepping\b": "training",
    r"telling apart": "training",
    r"\d \s*masked\b": "blocks of the secure sum",
    r"100 / 100 +percent": "100%",
    r"a release of \d[\d.]* is left": "1.50 is left for one more release",
    r"expected label accuracy\s*\n[^\n]*-\s*\n": "no such column",
    r"Free is what was paid for": "answers cost nothing once training was charged",
    r"[Dd]irections are public or they are a leak": "choosing directions from private text leaks it",
    r"nothing can be ablated|Where nothing is heard": "without a signal an ablation shows nothing",
    r"\b\d(?:\.\d+)?e\+\d{2,3} *\|": "diverged",
    r"Softened is not private": "softening answers gives no guarantee",
    r"is public or paid for": "a vocabulary of private text is a release",
    r"Signed is not true": "a signature does not show that something is true",
    r"trust, then measure": "what attacks find",
}
"""What must not stand on a page, and what to say instead."""
STATES = {"training", "counting", "counted", "teaching", "encoding", "sampling", "grading", "trained"}
"""What a party does while a person waits: one word each, that needs no explanation."""
TERMS = """
account; adapter; attestation; audit; budget; canary; charge; clip; colluder; coordinator; counts; delta;
dial; distil; diverged; DP-SGD; drowned; dropouts; embedding; encoder; epsilon; event; exposure; federation;
fingerprint; floor; forecast; guarantee; head; heuristic; ledger; LoRA; manifest; mask; mechanism; moments;
neighbouring; noise multiplier; noise share; party; PATE; perplexity; plan; policy; public start; query;
recipe; record; release; run; secure sum; sensitivity; shard; signal; student; teacher; token; trust; trusted
aggregator; unit; verify; vocabulary
"""
"""The special terms of README, tutorials, plans and reports."""


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_no_page_has_words_that_stopped_readers(page):
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        shown = [each.get("text", "") for cell in cells for each in cell.get("outputs", ())]
        text = "\n".join("".join(each) for each in [*(cell["source"] for cell in cells), *shown])
    found = {words: instead for words, instead in STOPPED.items() if re.search(words, text)}
    assert not found


@pytest.mark.slow
def test_what_a_party_does_is_said_in_a_word_that_everybody_knows():
    said = {}
    for path in (ROOT / "coordinator").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "train":
                words = [each.value for each in node.keywords if each.arg in ("doing", "then")]
                said |= {each.value: path.name for each in words if isinstance(each, ast.Constant)}
    assert len(said) > 5
    assert {word: where for word, where in said.items() if word not in STATES} == {}


def test_a_bar_of_percents_says_how_many():
    assert bar("student", 40, 100, "percent", room=10) == "student   ████░░░░░░  40%"
    assert bar("counts", 3, 12, "blocks", room=4) == "counts    █░░░  3 / 12  blocks"
    stream = io.StringIO()
    shown = Terminal(stream)
    shown.bar("student", 100, 100, "percent")
    shown.close()
    assert stream.getvalue().split() == ["student", "█" * 24, "100%"]
    seen = Followed(0.0)
    seen.bar("student", 62, 100, "percent")
    assert spoken(seen, 1.0) == "student 62%"


def test_whoever_looks_on_sees_percents_too():
    seen = {"parties": {}, "stages": (), "heuristic": False, "epsilon": None, "spent": None, "quiet": None, "error": ""}
    parts = (Part("student", 40, 100, "percent"), Part("labels", 1, None, ""))
    view = SimpleNamespace(run="7f3a", status="running", parts=parts, **seen)
    assert render(view)[1:] == ["  student   40%", "  labels    1"]


def test_a_perplexity_beyond_any_guess_is_called_diverged():
    assert [shown_perplexity(value) for value in (174.3, 99_999.0, 1e5, 1e300)] == [
        "174.3",
        "99999.0",
        *["diverged"] * 2,
    ]
    assert VIEW.shown(1e300, 0.0, 170.1) == "diverged"
    assert VIEW.shown(174.3, 0.2, 170.1) == "174.3 ± 0.2 (1.02)"


def row(name, accuracy=None):
    return Row(name, 1, 1.0, 2.0, 3.0, accuracy=accuracy)


def test_a_forecast_has_a_column_of_label_accuracy_only_where_there_are_labels():
    heads, cells = table(SimpleNamespace(rows=(row("moments"), row("counts"))))
    assert ACCURACY not in heads
    assert {len(each) for each in cells} == {len(heads)}
    assert "-" not in [*cells[0], *cells[1]]
    heads, cells = table(SimpleNamespace(rows=(row("votes", 0.46), row("counts"))))
    at = heads.index(ACCURACY)
    assert [each[at] for each in cells] == ["46%", "no labels"]


def test_the_glossary_explains_every_special_term_once_and_in_order():
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    words = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")][1:]
    assert {" ".join(each.split()) for each in TERMS.split(";")} <= set(words)
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))


def test_the_readme_says_that_random_text_does_nearly_as_well():
    told = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert "public text taken at random does nearly as well, 0.780" in told
    assert "| chosen at random | 0.780" in (ROOT / "docs/results/privdistil.md").read_text("utf-8")
