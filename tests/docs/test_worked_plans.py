"""The forecast beside the plan on each system's page is what `coordinator forecast` says of that plan."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from coordinator import api
from coordinator.forecasting.forecast import headline, summary, table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
_blocks = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_blocks)
sys.modules[_blocks.name] = blocks
_blocks.loader.exec_module(blocks)
MINE = {Path(each.page).stem: each.text for each in blocks.executed_by("tests/docs/test_worked_plans.py")}
_spec = importlib.util.spec_from_file_location("examples_public_model", ROOT / "examples/public_model.py")
public_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public_model)


@pytest.mark.parametrize("page", sorted(MINE))
def test_the_forecast_of_a_worked_plan_is_the_one_shown(page, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    text = (ROOT / f"docs/{page}.md").read_text("utf-8").partition("\n## A worked plan\n")[2]
    plan, shown = re.findall(r"```(?:toml|text)\n(.*?)```", text, re.DOTALL)[:2]
    assert plan == MINE[page]
    (tmp_path / "plan.toml").write_text(plan, "utf-8")
    if '"public-model"' in plan:  # what it has learned changes no price
        public_model.made(tmp_path / "public-model", 2)
    found = api.forecast(tmp_path / "plan.toml")
    lines = shown.splitlines()
    assert lines[0] == headline(found)
    assert next(line for line in lines if line.startswith("epsilon")).split("  ")[0] == summary(found)[0].split("  ")[0]
    for cells in table(found)[1]:
        (row,) = [line.split() for line in lines if line.split()[:1] == cells[:1]]
        assert row[1] == cells[1]
        sizes = [float(each.replace(",", "")) for each in (*row[2:4], *cells[2:4])]
        assert sizes[:2] == pytest.approx(sizes[2:], rel=0.05)  # public text is that of this Python
