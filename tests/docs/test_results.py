"""docs/results.md is a page of headlines: each figure stands on its theme's page, and each command is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADLINES = ROOT / "docs/results.md"
THEMES = sorted((ROOT / "docs/results").glob("*.md"))
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *THEMES,
    ROOT / "README.md",
    *sorted((ROOT / "examples").glob("*/*.md")),
]
ROW = re.compile(r"^\| .*\]\((results/[\w-]+\.md)[^|]*\).*\|$", re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.,])\d[\d,]*\.\d+|(?<![\w.,^])\d{1,3}(?:,\d{3})+(?![\w^])")
RUN = "benchmarks/run.py"


def test_the_headlines_are_one_page_and_no_theme_is_long():
    assert len(HEADLINES.read_text("utf-8").splitlines()) <= 100
    assert [page.name for page in THEMES if len(page.read_text("utf-8").splitlines()) > 200] == []


def test_every_theme_is_found_from_the_headlines_and_leads_back():
    told = HEADLINES.read_text("utf-8")
    for page in THEMES:
        assert f"](results/{page.name})" in told
        assert "](../results.md)" in page.read_text("utf-8")


def test_every_figure_of_a_headline_stands_on_the_page_of_its_theme():
    rows = [found[0] for found in ROW.finditer(HEADLINES.read_text("utf-8").partition("## All figures")[0])]
    assert len(rows) > 20
    for row in rows:
        linked = re.findall(r"\]\((results/[\w-]+\.md)", row)
        there = "\n".join((ROOT / "docs" / page).read_text("utf-8") for page in linked)
        assert [figure for figure in FIGURE.findall(row) if figure not in there] == [], row


def commands():
    """The benchmarks that pages name, with what stands behind them."""
    for page in PAGES:
        for said in re.findall(r"`(?:[A-Z_]+=\S+ )*python (benchmarks/[^`]+)`", page.read_text("utf-8")):
            yield page.relative_to(ROOT).as_posix(), said.split()


@cache
def texts(script):
    """A benchmark's text, and that of the benchmarks that it imports."""
    text = (ROOT / "benchmarks" / script).read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
        text += "".join(texts(f"{name}.py") for name in names if (ROOT / f"benchmarks/{name}.py").is_file())
    return text


def has(text, option):
    """Whether a benchmark's text has an option, or one that it says no to."""
    said_no = re.search(rf'"--{option[5:]}", action=[\w.]*BooleanOptionalAction', text)
    return f'"{option}"' in text or (option.startswith("--no-") and said_no is not None)


@pytest.mark.slow
def test_every_benchmark_that_a_page_names_is_there_with_its_options():
    found, wrong = list(commands()), []
    assert len(found) > 50
    for page, (script, *words) in found:
        if not (ROOT / script).is_file():
            wrong.append(f"{page}: there is no {script}")
            continue
        text = texts(Path(script).name)
        options = [word for word in words if word.startswith("--")]
        wrong += [f"{page}: {script} has no {option}" for option in options if not has(text, option)]
        if script == RUN:
            wrong += [f"{page}: {RUN} knows no {word}" for word in words if f'"{word}"' not in text]
    assert wrong == []
