"""Parts of plans and of other files that pages show: laid over a whole plan they are priced, over a whole file used."""

import ast
import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

from coordinator import api
from coordinator.serving.config import ServeConfig
from coordinator.systems.registry import price_of, read_plan
from party.config import check_config
from party.console.command import main as party_command
from protos.console.settings import check_settings

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

MINE = blocks.executed_by("tests/docs/test_fragments.py")
PARTY = """
name = "north"
listen = "127.0.0.1:0"
plaintext = true

[shard]
source = "notes.jsonl"

[policy]
epsilon = 4.0
delta = 1e-6
recipes = ["dped"]
simulation = true
"""


def part(page, first):
    """The tables of a page's block that begins so."""
    (found,) = [block for block in MINE if block.begins(page, first)]
    return tomllib.loads(found.text)


def laid(under, over):
    """Tables with others laid over them, key by key."""
    both = {key: laid(under[key], over[key]) for key in under.keys() & over.keys() if isinstance(under[key], dict)}
    return under | over | {key: both[key] if isinstance(over[key], dict) else over[key] for key in both}


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def priced(tables, folder):
    """The plan of tables as it is read from a file, and its price."""
    path = folder / "plan.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in tables.items()))
    plan = read_plan(path)
    return plan, price_of(plan)


def forecast(tables, folder):
    """The plan of tables as it is read from a file, and what `coordinator forecast` says of it."""
    path = folder / "plan.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in tables.items()))
    return read_plan(path), api.forecast(path)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Tables of a plan of word counts among four parties of this machine."""
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rows = [{"text": "open the old file and read one list of all names that are in it today"}] * 60
    for name in ("letters", "public"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "run": {"name": "words", "recipe": "dped", "seed": 7},
        "privacy": {"epsilon": 8.0, "delta": 1e-6, "dropouts": 0},
        "federation": {
            "launch": "ray", "shards": {"source": "letters.jsonl", "split": {"by": "hash", "parties": 4}},
        },
        "vocabulary": {"source": "public.jsonl", "size": 12},
        "dped": {"signals": ["counts"], "dimension": 4},
    }  # fmt: skip


def test_a_table_of_an_audit(words, tmp_path):
    plan, price = priced(laid(words, part("docs/auditing-runs.md", "[audit]")), tmp_path)
    assert (plan.audit.canaries, plan.audit.shadows) == (500, 16)
    assert 0 < price.guarantee.epsilon <= 8.0


def test_parties_that_share_processes(words, tmp_path):
    plan, price = priced(laid(words, part("docs/ray.md", '[federation]\nlaunch = "ray"')), tmp_path)
    assert plan.federation.parties_per_actor == 50
    assert 0 < price.guarantee.epsilon <= 8.0


def test_a_cluster_that_runs_already(words, tmp_path):
    plan, price = priced(laid(words, part("docs/ray.md", "[federation.cluster]")), tmp_path)
    assert plan.federation.cluster.party["party-3"].gpus == 1
    assert 0 < price.guarantee.epsilon <= 8.0


def test_a_gate_for_parties_that_dial(words, tmp_path):
    plan, price = priced(words | part("docs/dialling.md", "[federation]"), tmp_path)
    assert [party.dials for party in plan.federation.parties] == [True, False]
    assert 0 < price.guarantee.epsilon <= 8.0


def test_a_secure_sum_that_can_lose_a_party_and_has_a_curious_one_counts_on_the_noise_of_two(words, tmp_path):
    plan, price = priced(laid(words, part("docs/secure-sum.md", "[privacy]")), tmp_path)
    assert (plan.privacy.trust, plan.privacy.attempts) == ("secure-sum", 1)
    assert price.releases[0].mechanism.shares == 4 - 1 - 1
    assert 0 < price.guarantee.epsilon <= 8.0


@pytest.mark.slow
def test_text_that_the_parties_write(distildp_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    plan, said = forecast(laid(distildp_tables(), part("docs/distildp.md", "[dp_sgd]")), tmp_path)
    assert (plan.dp_sgd.form, plan.generation.where) == ("local", "parties")
    assert 0 < said.epsilon <= 8.0


@pytest.mark.slow
def test_answers_to_inputs(swing_tables, tiny_gpt2, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    rows = [{"body": f"the ship number {at} sails over a calm sea", "subject": "the port"} for at in range(40)]
    for name in ("mail", "public"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tables = swing_tables(text={"longest": 24}, evaluation=None)
    tables["federation"]["shards"]["source"] = "mail.jsonl"
    tables["queries"]["source"] = "public.jsonl"
    shown = part("docs/swing.md", "[federation.shards]")
    assert (shown["text"]["longest"], shown["text"]["answer"]) == (96, 24)
    shown["text"] |= {"longest": 32, "answer": 12}  # of a model that reads 32 tokens
    plan, said = forecast(laid(tables, shown), tmp_path)
    assert (plan.text.kind, plan.queries.second) == ("pair", "subject")
    assert 0 < said.epsilon <= 8.0


@pytest.mark.slow
def test_a_party_that_learns(swing_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    named = [{"name": name, "address": "127.0.0.1:7443"} for name in ("east", "west", "clinic")]
    tables = swing_tables(federation=None) | {"federation": {"launch": "connect", "parties": named}}
    plan, said = forecast(laid(tables, part("docs/swing.md", "[queries]")), tmp_path)
    assert list(plan.learner.parties) == ["clinic"]
    assert 0 < said.epsilon <= 8.0


def test_an_account_without_a_cap(tmp_path, capsys):
    (tmp_path / "notes.jsonl").write_text('{"text": "a note"}\n')
    tables = tomllib.loads(PARTY)
    tables["policy"] = part("docs/parties.md", "[policy]")["policy"]
    path = tmp_path / "north.toml"
    path.write_text("\n".join(f"{key} = {toml(value)}" for key, value in tables.items() if key != "plaintext"))
    assert party_command(["account", "open", "--config", str(path)]) == 0
    assert party_command(["budget", "--config", str(path)]) == 0
    assert re.search("spent +no cap", capsys.readouterr().out)


def test_where_a_party_tells_its_spans():
    config = check_config(tomllib.loads(PARTY) | part("docs/traces.md", "# the party's file"), "north")
    assert config.traces.to == "https://collector.north.example:4318"


def test_a_coordinator_that_stays_up():
    config = check_settings(part("docs/deploy.md", 'identity = "federation"'), ServeConfig, "coordinator.toml")
    assert config.dialling == ("north",)
    assert config.submit.listen == "0.0.0.0:7445"


def test_every_part_that_pages_show_is_used_here():
    calls = [node for node in ast.walk(ast.parse(Path(__file__).read_text("utf-8"))) if isinstance(node, ast.Call)]
    used = {tuple(map(ast.literal_eval, call.args)) for call in calls if getattr(call.func, "id", "") == "part"}
    assert [block.place for block in MINE if not any(block.begins(*each) for each in used)] == []
