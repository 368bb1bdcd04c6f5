"""Conclave from Python: what may be given, sentences on what may not, results in one line, and a quick import."""

import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator import api
from coordinator.comparing.comparison import Comparison
from coordinator.errors import PlanError
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.run.before.given import plan_given
from coordinator.run.result import Audited, Result
from coordinator.systems.registry import plan_of, template
from coordinator.systems.system import TrainedAlone
from coordinator.verifying.check import Check
from coordinator.verifying.verify import Verdict
from protos.console.checklist import passed

TEXT = template("ray")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_a_file_a_value_or_its_tables(home):
    (home / "plans").mkdir()
    (home / "plans/plan.toml").write_text(TEXT)
    tables = tomllib.loads(TEXT)
    for file in ("plans/plan.toml", Path("plans/plan.toml")):
        of_file = plan_given(file)
        assert (of_file.path, of_file.base) == (home / "plans/plan.toml", home / "plans")
    for value in (tables, of_file.plan):
        found = plan_given(value)
        assert (found.plan, found.path, found.base) == (of_file.plan, None, home)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: api.run(5), "5 is no plan. Name its file, or give its tables as a dictionary."),
        (lambda: api.run(None), "None is no plan. Name its file, or give its tables as a dictionary."),
        (lambda: api.run("none.toml"), "none.toml: there is no such file."),
        (lambda: api.forecast({}), "the plan: run is missing."),
        (lambda: api.forecast({"run": {"recipe": "dped", "name": "x", "seed": 1}}), "the plan: privacy is missing."),
        (lambda: api.run({"run": {"recipe": "dped", "name": " A"}}), 'the plan: [run] name = " A"'),
        (lambda: api.compare({}, recipes="counts"), "recipes = 'counts' is not a list of names of rows"),
        (lambda: api.compare({}, recipes=[4]), "recipes = [4] is not a list of names of rows"),
        (lambda: api.compare({}, seeds=0), "seeds = 0 is no number of seeds. Say how many, from 1 to 100."),
        (lambda: api.compare({}, seeds=True), "seeds = True is no number of seeds."),
        (lambda: api.compare({}, epsilons=4), "epsilons = 4 is not a list of numbers, for example [1, 2, 4]."),
        (lambda: api.compare({}, epsilons=["4"]), "epsilons = ['4'] is not a list of numbers"),
    ],
)
def test_what_is_given_wrongly_is_said_in_a_sentence(ask, says):
    with pytest.raises(PlanError) as said:
        ask()
    assert says in str(said.value)


@pytest.mark.slow
def test_a_plan_from_tables_is_checked_as_a_file_is(home):
    tables = tomllib.loads(TEXT)
    lines = api.check(tables)
    assert passed(lines), lines
    (line,) = [line for line in api.check({"run": {"recipe": "waltz"}}) if line.what == "plan"]
    assert "[run] name is missing" in line.said


@pytest.mark.slow
def test_a_plan_from_tables_is_forecast_as_a_file_is(home):
    (home / "plan.toml").write_text(TEXT)
    of_tables, of_file = api.forecast(tomllib.loads(TEXT)), api.forecast("plan.toml")
    assert of_tables.rows == of_file.rows
    assert of_tables.plan == of_file.plan


def test_results_are_one_short_line(home):
    plan = plan_of(tomllib.loads(TEXT))
    verdict = Verdict(home / "student", "7f3a", 3.98, (Check("files", True, ()), Check("privacy", False, ("wrong",))))
    student = home / "student"
    row = Row("moments", 1, 1.0, 2.0, 8.0)
    results = {
        f"<verdict on {student}: WRONG: privacy>": verdict,
        f"<run 7f3a: epsilon 3.980 at delta 1e-06, verify WRONG, student in {student}>": Result(
            "7f3a", student, 3.98, 1e-6, None, {}, verdict, None, home
        ),
        f"<comparison of : 0 cells, 3 missing, in {home}>": Comparison(
            plan, None, (), (1.0,), (7,), (), (), None, False, home, 3
        ),
        "<forecast of my-embeddings: no guarantee, about 60 seconds; moments>": Forecast(
            plan, (row,), None, 0, 1, 60.0, {}, (), ()
        ),
        f"<training without parties: no guarantee, student in {student}>": TrainedAlone(student, {}, "none"),
    }
    for line, result in results.items():
        assert repr(result) == line
    attack = SimpleNamespace(attacks=(1, 2), broken=False)
    assert repr(Audited(attack, home)) == f"<audit: 2 attacks, no claim is refuted, in {home}>"


@pytest.mark.slow
def test_importing_it_imports_neither_torch_nor_ray():
    """That takes under two seconds of a processor; torch alone would double it."""
    code = """
import sys, coordinator.api
heavy = {"torch", "transformers", "ray", "datasets", "gensim", "sklearn", "matplotlib", "pandas", "scipy.stats"}
print(sorted(heavy & sys.modules.keys()))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"
