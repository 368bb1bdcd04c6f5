"""A row that no proof covers costs no epsilon, because it has none; the table says so beside its name."""

import json
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from aggregation.accounting.price import calibrate
from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.comparing import table
from coordinator.comparing.comparable import Method, Outcome, SeedData, changed
from coordinator.comparing.comparison import compare
from coordinator.errors import PlanError
from coordinator.plan.plan import EvaluationTable
from coordinator.progress.progress import Silent
from coordinator.text_models.compare import CLASSES

PROMISE = {"epsilon": 8.0, "delta": 1e-6}


class Data(SeedData):
    def __init__(self, plan):
        self.plan = plan


class Rows:
    """A `Comparable` of a noised row, a softened one and one without privacy."""

    view = replace(CLASSES, about=lambda plan, seeds: "Accuracy on public text.")

    def __init__(self, plan):
        self.plan = plan.model_copy(update={"evaluation": EvaluationTable(source="public.jsonl")})

    @property
    def methods(self):
        def noised(data, epsilon):
            return Outcome(0.7, GaussianDpEvent(calibrate(GaussianDpEvent, epsilon, data.delta)))

        made = (
            Method("noised", "noised rows", noised),
            Method("soft", "softened", lambda *_: Outcome(0.8, NonPrivateDpEvent()), private=False, heuristic=True),
            Method("clear", "no privacy", lambda *_: Outcome(0.9, None), private=False),
        )
        return {method.name: method for method in made}

    def data(self, seed, folder):
        return Data(changed(self.plan, seed=seed))

    def metrics(self, data, model):
        return {"accuracy": model}


def compared(plan, folder, *methods, epsilons=(1.0, 4.0)):
    return compare(Rows(plan), folder, methods=methods, epsilons=epsilons, seeds=1, progress=Silent())


@pytest.mark.slow
@pytest.mark.parametrize("epsilons", [(4.0,), (1.0, 4.0)])
def test_it_is_named_in_the_table_and_the_picture_and_costs_nothing_of_the_total(heuristic, tmp_path, epsilons):
    found = compared(heuristic("counts", **PROMISE).plan, tmp_path / "cells", epsilons=epsilons)
    assert 0 < found.total.epsilon <= sum(epsilons)
    assert found.open
    (cell,) = found.of("soft", 4.0)
    assert (cell.epsilon, cell.paid, cell.event) == (None, None, None)
    text = table.markdown(found)
    assert f"| softened ({HEURISTIC}) |" in text
    assert "No proof covers the rows that say so" in text
    assert "infinity" not in text
    _, picture = table.draw(found, tmp_path)
    assert f"softened ({HEURISTIC})" in picture.read_text()


@pytest.mark.slow
def test_a_plan_without_a_guarantee_compares_the_rows_that_need_none(heuristic, tmp_path):
    plan = heuristic().plan
    with pytest.raises(PlanError, match=r"--recipes: noised rows would be compared at epsilons, and \[privacy\]"):
        compared(plan, tmp_path / "cells")
    assert not (tmp_path / "cells").exists()
    for _ in range(2):  # the second time from the folder
        found = compared(plan, tmp_path / "cells", "soft", "clear")
        assert found.total is None
        text = table.markdown(found)
        assert "cost epsilon" not in text
        assert "delta" not in text
    assert json.loads((tmp_path / "cells/comparison.json").read_bytes())["format"] == 1
    _, picture = table.draw(found, tmp_path)
    assert HEURISTIC in picture.read_text()


def test_no_plan_without_a_guarantee_is_given_an_epsilon(heuristic):
    with pytest.raises(PlanError, match="this plan promises nothing, at any epsilon"):
        changed(heuristic().plan, epsilon=4.0)


def test_a_heuristic_spends_no_epsilon():
    with pytest.raises(ValueError, match="soft is a heuristic, which spends no epsilon"):
        Method("soft", "softened", lambda *_: None, heuristic=True)
