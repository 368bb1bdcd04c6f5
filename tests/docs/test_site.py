"""The site that `make docs` builds: no warning, every page is in it, and nothing in it leads or loads astray."""

import json
import os
import re
import shutil
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """What a page of the site links to, loads, and can be linked at."""

    def __init__(self, path):
        super().__init__()
        self.links, self.loads, self.names = [], [], set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key in ("id", "name") and value:
                self.names.add(value)
            if tag == "a" and key == "href" and value:
                self.links.append(value)
            if (tag, key) in LOADED and value:
                self.loads.append(value)


def built(project, folder):
    """Build the site as `make docs` does, into a folder."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=project, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_is_there_and_in_the_navigation(site, pages):
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    notebooks = {Path("notebooks", f"{path.stem}.html") for path in (ROOT / "examples/notebooks").glob("*.ipynb")}
    found = {path.relative_to(site) for path in pages}
    assert written | notebooks <= found
    start = {(site / link.partition("#")[0]).resolve() for link in pages[site / "index.html"].links}
    assert {(site / path).resolve() for path in written | notebooks} <= start | {(site / "index.html").resolve()}


def test_every_link_of_the_site_leads_somewhere(site, pages):
    wrong = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            if re.match(r"[a-z]+:", link):
                continue
            place, _, name = unquote(link).partition("#")
            target = (path.parent / place).resolve() if place and place != "." else path
            if path.name == "404.html":  # its links start at the root of a server
                continue
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (name and target.suffix == ".html" and name not in pages[target].names):
                wrong.append(f"{path.relative_to(site)}: {link}")
    assert not wrong


def test_a_page_loads_nothing_from_elsewhere(site, pages):
    outside = [each for page in pages.values() for each in page.loads if re.match(r"(https?:)?//", each)]
    assert not outside
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?(?:https?:)?//|@import", styles)


def test_code_is_shown_as_it_is_written_and_tables_are_tables(site):
    page = (site / "tutorials/own-table.html").read_text("utf-8")
    shown = re.sub(r"<[^>]+>", "", page)
    assert "coordinator run plan.toml --output topics" in shown
    assert "```" not in shown
    assert "at=here" not in shown
    plain = re.sub(
        r"<pre.*?</pre>|<code.*?</code>", "", (site / "results/dped.html").read_text("utf-8"), flags=re.DOTALL
    )
    assert not re.findall(r"^\|.*\|$", re.sub(r"<[^>]+>", "", plain), re.MULTILINE)


def test_a_notebook_is_a_page_with_what_its_cells_show(site):
    """The page of a run in it stays as it is, letter for letter: its style is known by a digest."""
    notebook = json.loads((ROOT / "examples/notebooks/first_run.ipynb").read_text("utf-8"))
    outputs = [each for cell in notebook["cells"] for each in cell.get("outputs", ())]
    (frame,) = [found for each in outputs if (found := "".join(each.get("data", {}).get("text/html", "")))]
    page = (site / "notebooks/first_run.html").read_text("utf-8")
    inside = re.compile(r'<iframe[^>]*srcdoc="([^"]*)"')
    assert unescape(inside.search(page)[1]) == unescape(inside.search(frame)[1])
    for each in outputs:
        if each["output_type"] == "stream":
            assert unescape(page).count("".join(each["text"]).rstrip()) == 1


def test_what_make_docs_calls_notices_a_wrong_link_and_a_page_that_nobody_finds(tmp_path):
    (command,) = re.findall(r"-m mkdocs (build .*)", (ROOT / "Makefile").read_text("utf-8"))
    assert command == "build --strict"  # with --quiet it would notice nothing
    project = tmp_path / "project"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "demo", "published", "runs", "site")
    shutil.copytree(ROOT, project, ignore=left_out)
    shutil.copytree(ROOT / "deploy/site", project / "deploy/site")
    (project / "docs/unfound.md").write_text("# Unfound\n")
    with (project / "docs/dped.md").open("a", encoding="utf-8") as page:
        page.write("\n[x](gone.md) [y](parties.md#nowhere)\n")
    done = built(project, tmp_path / "site")
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "unfound.md" in said
    assert "gone.md" in said
    assert "#nowhere" in said
    assert "Aborted with 3 warnings" in said
