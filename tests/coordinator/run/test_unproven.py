"""Around a run without a guarantee: its simulated parties' files, and what `check`, `watch`, `runs` and figures say."""

import json
import logging
import math
from contextlib import closing
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.forecasting.forecast import Forecast, record, summary
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.events import Everyone, Logged, Metrics, Unobserved
from coordinator.progress.progress import Silent
from coordinator.run.before import checking
from coordinator.run.driver import Drive
from coordinator.run.party_files import party_tables
from coordinator.store.index import RunIndex
from coordinator.store.watching import look, render
from party.config import check_config
from party.console.command import main as party_main
from party.ledger.protection import of_policy

SHARDS = {"launch": "ray", "shards": {"source": "letters.jsonl", "split": {"by": "hash", "parties": 2}}}


@pytest.fixture
def store(tmp_path, monkeypatch, heuristic):
    """The store of a run without a guarantee, as `run` makes it."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    with closing(RunIndex().add("demo", b"h" * 32, None)) as made:
        made.note(plan=heuristic().plan.model_dump(mode="json"))
        yield made


def test_simulated_parties_have_accounts_without_a_cap(heuristic):
    priced = price_plan(heuristic(federation=SHARDS))
    for name, tables in party_tables(priced.plan, priced.releases).items():
        policy = tables["policy"]
        assert policy["guarantee"] is False
        assert not {"epsilon", "delta"} & set(policy)
        config = check_config(
            {**tables, "policy": policy | {"recipes": ["dped"]}, "listen": "127.0.0.1:0"}, f"{name}.toml"
        )
        assert not of_policy(config.policy).capped


def test_simulated_parties_of_other_plans_have_the_cap_that_they_had(heuristic):
    priced = price_plan(heuristic("counts", federation=SHARDS, epsilon=8.0, delta=1e-6))
    policies = [tables["policy"] for tables in party_tables(priced.plan, priced.releases).values()]
    assert {(policy["epsilon"], policy["delta"], "guarantee" in policy) for policy in policies} == {(16.0, 1e-6, False)}


def test_a_check_has_the_label_in_place_of_a_price(heuristic):
    line = checking._plan(price_plan(heuristic()))
    assert f"softening, 2 parties, {HEURISTIC}, hash " in line.said


def test_a_forecast_has_the_label_in_place_of_a_price(heuristic):
    found = Forecast(heuristic().plan, (), None, 0, 10**6, 60.0, {"coordinator": 10**9}, (), ())
    assert summary(found)[0].startswith(HEURISTIC)
    told = record(found)
    assert (told["epsilon"], told["delta"], told["heuristic"]) == (None, None, True)


def test_a_driven_run_tells_its_observers_no_number(heuristic, store, tmp_path, caplog):
    class Nowhere:
        def launch(self, request):
            raise RunError("nobody is here")

    told, registry = [], CollectorRegistry()

    class Noted(Unobserved):
        def opened(self, run, epsilon, budget):
            told.append((run, epsilon, budget))

    logger = logging.getLogger("test.unproven")
    observer = Everyone([Noted(), Metrics(registry), Logged(logger)])
    priced = price_plan(heuristic(federation=SHARDS))
    with caplog.at_level(logging.INFO, "test.unproven"), pytest.raises(RunError, match="nobody is here"):
        Drive(priced, None, SimpleNamespace(vouch=None), Nowhere(), tmp_path, store, Silent(), observer).to_the_end()
    assert told == [(store.id, None, None)]
    for name in ("conclave_run_epsilon", "conclave_run_epsilon_budget"):
        assert math.isnan(registry.get_sample_value(name))
    assert f"run {store.id} is driven from here; {HEURISTIC}" in caplog.messages


def test_a_list_of_runs_and_a_watcher_show_the_label_from_the_beginning(store, capsys):
    store.note(status="finished", epsilon=None)
    view = look(store)
    assert (view.heuristic, view.epsilon) == (True, None)
    assert f"  {HEURISTIC}" in render(view)
    assert main(["runs", "--json"]) == 0
    table, last = capsys.readouterr().out.rsplit("\n", 2)[:2]
    assert HEURISTIC in " ".join(table.split())
    (entry,) = json.loads(last)["runs"]
    assert (entry["epsilon"], entry["heuristic"]) == (None, True)


def test_other_runs_show_no_label(tmp_path, monkeypatch, heuristic):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    with closing(RunIndex().add("demo", b"h" * 32, None)) as made:
        assert not look(made).heuristic  # of this one nothing is known yet
        made.note(plan=heuristic("counts", epsilon=8.0, delta=1e-6).plan.model_dump(mode="json"), epsilon=3.5)
        assert not look(made).heuristic
        assert HEURISTIC not in "".join(render(look(made)))
    assert [entry.heuristic for entry in RunIndex().entries()] == [False]


def test_a_party_of_such_a_run_is_told_the_same_by_its_own_command(heuristic, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letters.jsonl").write_text('{"text": "one"}\n')
    policy = party_tables(price_plan(heuristic(federation=SHARDS)).plan)["party-1"]["policy"]
    (tmp_path / "party.toml").write_text(
        'name = "party-1"\nplaintext = true\nshard = { source = "letters.jsonl" }\n[policy]\nguarantee = false\n'
        f'unit = "{policy["unit"]}"\nrecord = "{policy["record"]}"\nrecipes = ["dped"]\nsimulation = true\n'
    )
    assert party_main(["account", "open"]) == 0
    assert "has no cap: it promises nothing for its records" in capsys.readouterr().out
