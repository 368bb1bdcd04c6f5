"""Every relative link of a page leads somewhere: the file is there, and so is the heading that it names."""

import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
WITHIN = ("docs", "examples", "deploy", "benchmarks")
CODE = ("protos", "aggregation", "learning", "party", "coordinator", "deploy", "examples", "benchmarks", "tests")
CODE_ENDINGS = {".py", ".toml", ".yaml", ".proto", ".service", ".html"}
FOUND = [*ROOT.glob("*.md"), *ROOT.glob("examples/notebooks/*.ipynb")]
PAGES = sorted(
    page
    for page in [*FOUND, *(page for folder in WITHIN for page in (ROOT / folder).rglob("*.md"))]
    if "published" not in page.parts  # a student's card is of the reader's own run
)

FENCE = re.compile(r"^( *)(`{3,}|~{3,})[^\n]*\n.*?^\1\2`*~* *$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)", re.MULTILINE)
IN_HTML = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\"")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")


def written(page):
    """A page's text; of a notebook its words."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return text


def prose(text):
    """A page without its code, in which brackets are no links and a number sign is no heading."""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "`code`", FENCE.sub("", text), flags=re.DOTALL)


def links(text):
    """The places that the links of a page name, but for those on other machines."""
    text = prose(text)
    found = [place for pattern in (LINK, REFERENCE, IN_HTML) for place in pattern.findall(text)]
    return [place for place in found if not ELSEWHERE.match(place)]


def anchors(text):
    """The names of a page's headings, as GitHub and the site make them."""
    found, seen = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text)), Counter()
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)? *$", FENCE.sub("", text), re.MULTILINE):
        said = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", said.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@cache
def anchors_of(page):
    return anchors(page.read_text("utf-8"))


def wrong(text, page):
    """A sentence for every link of a page, or a text in its place, that leads nowhere."""
    for place in links(text):
        path, _, anchor = unquote(place).partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("/") or not target.is_relative_to(ROOT):
            yield f"{place} leads out of the project"
        elif not target.exists():
            yield f"{place}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in (anchors(text) if not path else anchors_of(target)):
            yield f"{place}: no heading has that name"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_relative_link_and_anchor_resolves(page):
    assert list(wrong(written(page), page)) == []


def test_a_link_that_leads_nowhere_is_found():
    page = ROOT / "docs/parties.md"
    assert not list(wrong("[a](sites.md) [b](../README.md#your-own-data) [c](https://example.org/#x)\n", page))
    assert len(list(wrong("[a](site.md)\n[b](../README.md#my-data) ![c](gone.png) [d](/etc/hosts)\n", page))) == 4
    assert len(list(wrong('[a]\n\n[a]: gone.md\n<img src="gone.png">\n[e](#nowhere)\n', page))) == 3
    assert not list(wrong("# What `a` is\n\n```sh\n[x](gone.md)\n```\n`[y](gone.md)` [z](#what-a-is)\n", page))


def test_headings_are_named_as_github_names_them():
    text = "# One & two\n## `a.b`: *c*, [d](e.md)\n## Twice\n## Twice\n```\n# no heading\n```\n"
    assert anchors(text) == {"one--two", "ab-c-d", "twice", "twice-1"}


@pytest.mark.slow
def test_every_page_that_code_names_is_there():
    named = set()
    for room in CODE:
        for path in (ROOT / room).rglob("*"):
            if path.suffix in CODE_ENDINGS and path.parent != Path(__file__).parent:
                named |= set(re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text("utf-8")))
    assert len(named) > 5
    assert list(wrong(" ".join(f"[x]({each})" for each in sorted(named)), ROOT / "README.md")) == []
