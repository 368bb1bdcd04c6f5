"""examples/own_recipe, installed as its page says, runs and verifies; where it is not installed, words say so."""

import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/own_recipe"
PAGE = ROOT / "docs/own-recipes.md"
_spec = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)
COMMAND = (sys.executable, "-c", "import sys; from coordinator.console.command import main; sys.exit(main())")


def test_the_page_shows_what_the_example_has():
    """Every block of Python or TOML on the page is in a file of the example."""
    page = PAGE.read_text(encoding="utf-8")
    kinds = (".py", ".toml", ".md")
    files = "\n".join(each.read_text(encoding="utf-8") for each in sorted(EXAMPLE.rglob("*.*")) if each.suffix in kinds)
    blocks = [each.split("```")[0] for kind in ("python", "toml") for each in page.split(f"```{kind}\n")[1:]]
    assert len(blocks) >= 4
    for block in blocks:
        assert block.strip("\n") in files


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder that the example's package is installed in, by pip, from a copy."""
    copy, target = tmp_path_factory.mktemp("copy") / "own_recipe", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", target, copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def told(site, tmp_path):
    """`told(*arguments)`: how the command ends and what it says; without the package for `installed=False`."""

    def run(*arguments, installed=True):
        paths = [*([str(site)] if installed else []), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths), "CONCLAVE_HOME": str(tmp_path / "home"), "COLUMNS": "300",
        }  # fmt: skip
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done.returncode, done.stderr + done.stdout

    return run


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["trusted-aggregator", "secure-sum"])
def test_it_runs_and_verifies_where_it_is_installed_and_is_refused_in_words_where_it_is_not(told, tmp_path, trust):
    rows = [
        {"text": f"note {number}: open the file and {'read' if number % 4 else 'write'} a list"}
        for number in range(300)
    ]
    (tmp_path / "notes.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = told("init", "--recipe", "near_words", "--source", "notes.jsonl")
    assert code == 0, said
    plan = (tmp_path / "plan.toml").read_text()
    assert 'launch = "processes"' in plan
    (tmp_path / "plan.toml").write_text(plan.replace('"trusted-aggregator"', f'"{trust}"'))

    code, said = told("run", "plan.toml", "--output", "run", "--json")
    assert code == 0, said
    assert json.loads(said.splitlines()[-1])["verified"] is True
    assert "each unit counted once in at most 20 cells" in (tmp_path / "run/student/README.md").read_text()
    pairs = [line.split("\t") for line in (tmp_path / "run/student/pairs.tsv").read_text().splitlines()[1:]]
    counts = {frozenset(pair): float(documents) for *pair, documents in pairs}
    assert abs(counts[frozenset(("file", "open"))] - 300) < 60
    assert abs(counts[frozenset(("file", "read"))] - 225) < 60
    assert frozenset(("error", "raise")) not in counts
    assert list(_processes()) == []

    code, said = told("verify", "run/student")
    assert code == 0, said
    assert "recomputed epsilon" in said

    code, said = told("verify", "run/student", installed=False)
    assert code == 1
    assert "its mechanism own_recipe.presence is of another package, which is not installed here" in said
    code, said = told("run", "plan.toml", "--output", "again", installed=False)
    assert code == 2
    assert "recipe = \"near_words\" is not one of 'distildp'" in said


def _processes():
    """Processes of parties that are left over."""
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if "own_recipe.node" in (process.info["cmdline"] or ()):
            yield process


@pytest.mark.slow
def test_a_party_that_cannot_start_is_told_in_a_sentence(told, tmp_path):
    told("init", "--recipe", "near_words")
    plan = (tmp_path / "plan.toml").read_text().replace('source = "documentation"', 'source = "gone.jsonl"')
    (tmp_path / "plan.toml").write_text(plan)
    code, said = told("run", "plan.toml", "--output", "run")
    assert code != 0
    assert "gone.jsonl" in said
    assert list(_processes()) == []


@pytest.mark.slow
def test_the_commands_of_the_page_are_typed_as_they_stand(told):
    shown, *_ = [each for each in blocks.executed_by("tests/docs/test_own_recipes.py") if each.text.startswith("cp ")]
    lines = [shlex.split(line) for line in shown.text.splitlines() if line.strip()]
    assert [line[0] for line in lines] == ["cp", "pip", "coordinator", "coordinator", "coordinator"]
    for _, *arguments in lines[2:]:
        code, said = told(*arguments)
        assert code == 0, said
