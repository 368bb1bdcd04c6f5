"""docs/reference is made from the code: the committed pages are what it gives, and nothing in them is unexplained."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"
PAGES = sorted(REFERENCE.glob("*.md"))


@pytest.fixture(scope="module")
def differing(tmp_path_factory):
    """What the check says of the committed pages, and of a copy with a page that differs, one too few and one too
    many.
    """
    copy = tmp_path_factory.mktemp("pages") / "reference"
    shutil.copytree(REFERENCE, copy)
    (copy / "plan.md").write_text((copy / "plan.md").read_text("utf-8").replace("`epsilon`", "`eps`"), "utf-8")
    (copy / "party-file.md").unlink()
    (copy / "plan-gone.md").write_text("# Gone\n")
    command = [sys.executable, str(ROOT / "docs/generate.py"), "--check", str(REFERENCE), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    named = [Path(line.split()[0]) for line in done.stdout.splitlines()]
    return {folder: [path.name for path in named if path.parent == folder] for folder in (REFERENCE, copy)}, copy


@pytest.mark.slow
def test_the_committed_pages_are_what_the_code_gives(differing):
    assert differing[0][REFERENCE] == [], "run `make reference`, and commit what it writes"


@pytest.mark.slow
def test_a_page_that_differs_is_missing_or_too_many_is_named(differing):
    found, copy = differing
    assert found[copy] == ["party-file.md", "plan-gone.md", "plan.md"]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_every_key_option_and_result_is_explained(page):
    text = page.read_text("utf-8")
    rows = re.findall(r"^\| .*\|$", text, re.MULTILINE)
    assert rows or page.stem == "python"
    assert [row for row in rows if not row.split("|")[-2].strip()] == []
    assert re.findall(r"^- `\w+`$", text, re.MULTILINE) == []


def test_all_recipes_all_commands_and_the_whole_interface_are_there():
    from coordinator import api
    from coordinator.systems.registry import names

    assert {f"plan-{name.replace('_', '-')}" for name in names() if "toy" not in name} <= {page.stem for page in PAGES}
    commands = (REFERENCE / "coordinator-command.md").read_text("utf-8")
    for command in ("run", "verify", "provision sign", "serve", "fetch"):
        assert f"\n## `coordinator {command}`\n" in commands
    interface = (REFERENCE / "python.md").read_text("utf-8")
    for name, member in vars(api).items():
        if getattr(member, "__module__", "") == api.__name__ and not name.startswith("_"):
            assert f"\n### `{name}`\n" in interface, name


@pytest.fixture(scope="module")
def docstrings():
    spec = importlib.util.spec_from_file_location("docs_docstrings", ROOT / "docs/making/docstrings.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_docstring_is_taken_apart_by_the_names_it_explains(docstrings):
    found = docstrings.described(
        """`[swing]`: what leaves.

        form: "one", of which: this; "two". scale, noised: of that
        noise; clip: a norm. The others: as before. PLACES: of the class.

        Of the rest: last: the end. Raises `ValueError` for none.
        """,
        ("form", "scale", "noised", "clip", "last"),
    )
    assert found.about == ["`[swing]`: what leaves.", "Of the rest: `last`. Raises `ValueError` for none."]
    assert found.meanings == {
        "form": '"one", of which: this; "two".', "scale": "of that noise.", "noised": "of that noise.",
        "clip": "a norm.", "last": "the end.",
    }  # fmt: skip
    assert found.together["noised"] == ("scale", "noised")
