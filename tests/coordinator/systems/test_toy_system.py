"""A system of a package that Conclave does not know runs, forecasts, compares, publishes and verifies like its own."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from coordinator import api
from coordinator.errors import PlanError
from coordinator.run.before.checking import check
from coordinator.systems.registry import names, read_plan, template
from protos.console.checklist import State

ROOT = Path(__file__).parents[3]
TOY = ROOT / "tests/toy_system"
_spec = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)
WORDS = ("ship", "sea", "sail", "wind")
PLAN = f"""
[run]
name = "words"
recipe = "tally"
seed = 5

[privacy]
epsilon = 20.0
delta = 1e-5
trust = "TRUST"
declared_size = 240

[federation]
launch = "ray"

[federation.shards]
source = "letters.jsonl"
split = {{ by = "hash", parties = 3 }}

[tally]
words = {json.dumps(WORDS)}

[student]
publish = "published"

[evaluation]
source = "public.jsonl"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The toy is installed, and a plan of it lies beside its text."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TOY)
    rng = np.random.default_rng(0)
    for name, count in (("letters", 240), ("public", 60)):
        rows = [{"text": " ".join(rng.choice(WORDS, 12, p=(0.5, 0.3, 0.1, 0.1)))} for _ in range(count)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    planned("trusted-aggregator")
    return tmp_path


def planned(trust):
    Path("plan.toml").write_text(PLAN.replace("TRUST", trust))


def test_the_page_that_explains_it_shows_what_runs_here():
    """Every line of its blocks, in their order, in a file of the toy."""
    files = [path.read_text("utf-8") for path in TOY.rglob("*") if path.suffix in (".py", ".txt")]
    found = ["".join(text.split()) for text in files]
    shown = blocks.executed_by("tests/coordinator/systems/test_toy_system.py")
    assert len(shown) == 3
    for block in shown:
        if block.kind == "python":
            assert any("".join(block.text.split()) in text for text in found), block.place
        else:
            told = tomllib.loads(block.text)["project"]["entry-points"]
            for group, points in told.items():
                for name, place in points.items():
                    assert any(f"[{group}]{name}={place}" in text for text in found), (group, name)


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["trusted-aggregator", "secure-sum"])
def test_it_runs_publishes_and_verifies(here, trust):
    planned(trust)
    result = api.run("plan.toml")
    assert result.verdict.ok, result.verdict.checks
    assert 0 < result.epsilon <= 20.0
    assert api.verify("published").ok
    shares = json.loads(Path("published/shares.json").read_text())
    assert list(shares) == list(WORDS)
    assert shares["ship"] > shares["sea"] > max(shares["sail"], shares["wind"])
    assert result.metrics == {"error": pytest.approx(0.0, abs=0.3)}
    assert sorted(here.asked) == [(f"party-{number}", "counts-0") for number in (1, 2, 3)]
    (release,) = json.loads(Path("published/privacy.json").read_text())["releases"]
    assert (release["name"], release["values"]) == ("counts", 16)
    assert api.report(result.run)["metrics"] == result.metrics


def test_it_forecasts():
    found = api.forecast("plan.toml")
    assert found.epsilon <= 20.0
    assert found.row("counts").sensitivity == 5.0
    assert any("letters" in each or "public.jsonl" in each for each in found.warnings) is False


@pytest.mark.slow
def test_it_compares():
    found = api.compare("plan.toml", epsilons=[20.0], seeds=1)
    assert [method.name for method in found.methods] == ["tally", "exact"]
    noisy, exact = (found.spread(method.name, 20.0, "error")[0] for method in found.methods)
    assert 0 <= exact < 0.2
    assert noisy < 0.5
    assert Path("comparison/table.md").read_text().count("\n|") == 3


def test_everything_that_it_needs_is_looked_at_before_a_run():
    lines = {line.what: line for line in check(Path("plan.toml"))}
    assert lines["plan"].said.startswith("tally, 3 parties, epsilon ")
    assert lines["plan"].state is State.OK


def test_it_offers_no_audit_and_says_so(here):
    with pytest.raises(PlanError, match='The system "tally" offers no audit: it names no attacks'):
        api.audit("plan.toml")
    Path("plan.toml").write_text(PLAN.replace("TRUST", "trusted-aggregator") + "\n[audit]\ncanaries = 10\n")
    with pytest.raises(PlanError, match="Leave \\[audit\\] out"):
        api.run("plan.toml")
    assert here.asked == []
    (line,) = [each for each in check(Path("plan.toml")) if each.what == "plan"]
    assert line.state is State.TO_DO


def test_a_mistake_in_its_tables_is_told_like_any_other():
    Path("plan.toml").write_text(PLAN.replace("TRUST", "trusted-aggregator").replace('"sail"', '"ship"'))
    with pytest.raises(PlanError, match=r"^plan.toml: \[tally\] words has one twice"):
        read_plan(Path("plan.toml"))
    Path("plan.toml").write_text(PLAN.replace("TRUST", "trusted-aggregator").replace("words =", "wrods ="))
    with pytest.raises(PlanError, match=r'there is no key \[tally\] wrods. Did you mean "words"\?'):
        read_plan(Path("plan.toml"))


def test_it_is_named_after_ours_and_has_no_plan_to_start_from():
    assert names()[-1] == "tally"
    assert names()[0] == "distildp"
    with pytest.raises(PlanError, match="there is a plan to start from for "):
        template("ray", "tally")


def test_without_its_package_there_is_no_such_system(monkeypatch):
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(TOY)])
    importlib.invalidate_caches()
    with pytest.raises(
        PlanError, match=r"plan.toml, line 4: \[run\] recipe = \"tally\" is not one of 'distildp', 'dped', "
    ):
        read_plan(Path("plan.toml"))


@pytest.mark.slow
def test_another_process_finds_it():
    found = commanded("forecast", "plan.toml", "--json")
    assert json.loads(found.splitlines()[-1])["releases"][0]["name"] == "counts"


@pytest.mark.slow
def test_parties_in_processes_of_their_own_run_it():
    found = json.loads(commanded("run", "plan.toml", "--json").splitlines()[-1])
    assert found["verified"]
    assert commanded("verify", "published")


def commanded(*arguments):
    """What the command says on standard output, in a process of its own; parties are processes of that one."""
    paths = [str(TOY), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    program = "from coordinator.console.command import main; raise SystemExit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_name_of_it_stands_anywhere_else():
    rooms = ("aggregation", "coordinator", "deploy", "learning", "party", "protos", "tests")
    own = {Path(__file__), *TOY.rglob("*")}
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if path not in own]
    assert [path for path in (*files, ROOT / "pyproject.toml") if "tally:" in path.read_text()] == []
    assert [path for path in files if '"tally"' in path.read_text()] == []
