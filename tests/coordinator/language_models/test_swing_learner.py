"""The party that has little text: the student that others taught is trained on its text, privately."""

import pytest

from coordinator import api
from coordinator.systems.registry import plan_of


@pytest.fixture(scope="session")
def learner_tables(swing_tables, news):
    """`makes(**changes)`: the tables of a plan of three parties, of which the third learns and does not teach."""

    def makes(**changes):
        shards = {"source": str(news / "parties.jsonl"), "split": {"by": "hash", "parties": 3}}
        tables = swing_tables(
            federation={"launch": "ray", "shards": shards},
            queries={"public": True},
            learner={"parties": ["party-3"], "declared_size": 40, "steps": 4, "batch": 10, "learning_rate": 0.01},
        )
        for name, change in changes.items():
            if change is None:
                tables.pop(name)
            else:
                tables[name] = tables.get(name, {}) | change
        return tables

    return makes


@pytest.fixture(scope="module")
def finished(here_for_all, learner_tables, tmp_path_factory):
    """One run with a secure sum: its result, and its folder."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return api.run(plan_of(learner_tables(privacy={"trust": "secure-sum"})), output=folder), folder


def test_anyone_can_check_it(finished):
    result, _ = finished
    assert result.verdict.ok
    assert 7.9 < result.epsilon <= 8.0
