"""A run that its plan has audited publishes what was found, or nothing where its claim is refuted."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import api
from coordinator.auditing.audit import audited as attacked
from coordinator.console.command import main
from coordinator.errors import ClaimRefuted, PlanError, RunError
from coordinator.published.audit import Audit
from coordinator.published.manifest import MANIFEST
from coordinator.publishing.audited import verdict
from coordinator.publishing.report import render
from coordinator.run.audited import check_auditable
from coordinator.run.before.checking import check
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of
from protos.console.checklist import State

AUDIT = {"canaries": 60, "kinds": ["worst"]}


def written(tables, path):
    """The tables as a plan's file, inline tables and all."""
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {inline(value)}" for key, value in table.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


def inline(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {inline(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


@pytest.mark.slow
def test_what_an_audit_found_is_published_beside_the_claim(here, dped_tables, tmp_path, capsys):
    path = written(dped_tables("counts", audit=AUDIT), tmp_path / "plan.toml")
    result = api.run(path, output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    found = Audit.model_validate_json((result.student / "audit.json").read_text())
    assert (found.run, found.claimed) == (result.run, result.epsilon)
    assert not found.broken
    assert "audit.json" in json.loads((result.student / MANIFEST).read_text())["files"]
    card = (result.student / "README.md").read_text()
    assert "## Audit" in card
    assert "| counts | 60 worst case |" in card
    assert api.report(result.run)["audit"] == found.model_dump(mode="json")
    assert "counts (60 worst case): " in render(api.report(result.run))
    (line,) = [each for each in result.verdict.checks if each.name == "audit"]
    assert line.sentences[0].startswith("2 attacks on a simulation of the plan")
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "No attack refutes the claim" in capsys.readouterr().out
    with pytest.raises(RunError, match="is finished"):
        api.resume(result.run)


@pytest.mark.slow
def test_a_claim_that_is_refuted_is_not_published(here, dped_tables, tmp_path, no_noise, capsys):
    path = written(dped_tables("counts", audit=AUDIT | {"canaries": 120}), tmp_path / "plan.toml")
    assert main(["run", str(path), "--output", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "REFUTED: the attack on counts guesses right more often" in " ".join(said.split())
    assert "Nothing was published" in said
    assert said.endswith("[C603]\n")
    assert not (tmp_path / "run/student").exists()
    with closing(RunStore(tmp_path / "run")) as store:
        assert store.status() == "failed"
        assert Audit.model_validate(store.stages()["audit"][2]["audit"]).broken
    assert (tmp_path / "run/audit.png").read_bytes().startswith(b"\x89PNG")
    asked = len(here.asked)
    with pytest.raises(ClaimRefuted):  # what was found once is not tried again
        api.resume(tmp_path / "run")
    assert len(here.asked) == asked
    assert not (tmp_path / "run/student").exists()


@pytest.mark.slow
def test_an_honest_run_whose_bound_is_above_its_claim_by_chance_is_published(
    here, dped_tables, tmp_path, noise, monkeypatch, capsys
):
    """Noise of this key and coins of this seed are such a chance: the first of 256 keys that were looked at."""
    monkeypatch.setattr("coordinator.run.audited.attacked", lambda given: attacked(replace(given, seed=0)))
    noise(key=111)
    plan = plan_of(dped_tables("counts", privacy={"epsilon": 0.05}, audit=AUDIT | {"canaries": 100}))
    result = api.run(plan, output=tmp_path / "run")
    found = Audit.model_validate_json((result.student / "audit.json").read_text())
    assert found.lower > found.claimed
    assert not found.broken
    assert result.verdict.ok, result.verdict.checks
    assert verdict(found).startswith("No attack refutes the claim, though the largest lower bound, 0.15, is above")


@pytest.mark.slow
def test_an_audit_adds_its_file_to_what_is_published_and_no_other(here, dped_tables, tmp_path):
    same = {"privacy": {"noise_multiplier": 5.0}}
    plain = api.run(plan_of(dped_tables("counts", **same)), output=tmp_path / "plain")
    audited = api.run(plan_of(dped_tables("counts", **same, audit=AUDIT)), output=tmp_path / "audited")
    files = [sorted(path.name for path in each.student.iterdir()) for each in (plain, audited)]
    assert [name for name in files[1] if name not in files[0]] == ["audit.json"]
    assert "## Audit" not in (plain.student / "README.md").read_text()
    assert api.report(plain.run)["audit"] is None


@pytest.mark.slow
def test_a_finished_run_is_audited_and_keeps_what_was_found(here, dped_tables, tmp_path, capsys):
    result = api.run(plan_of(dped_tables("counts")), output=tmp_path / "run")
    assert main(["audit", str(tmp_path / "run"), "--canaries", "40", "--seed", "3", "--json"]) == 0
    out = capsys.readouterr().out.splitlines()
    found = json.loads(out[-1])
    assert (found["run"], found["coins"]) == (result.run, "seed")
    assert out[0].split() == ["attacked", "canaries", "guesses", "right", "epsilon", "at", "least", "claimed"]
    assert {each["count"] for each in found["attacks"]} == {40}
    assert api.report(result.run)["audit"]["attacks"] == found["attacks"]
    again = api.audit(result.run, canaries=40, seed=3)
    assert [each.canaries for each in again.audit.attacks] == [each["canaries"] for each in found["attacks"]]
    assert api.verify(result.student).ok  # the run's folder has the audit, the published one is as it was


@pytest.mark.slow
def test_a_broken_plan_that_was_never_run_ends_the_command_with_1(dped_tables, tmp_path, monkeypatch, no_noise, capsys):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    path = written(dped_tables("counts"), tmp_path / "plan.toml")
    assert main(["audit", str(path), "--canaries", "120", "--records", "100"]) == 1
    assert "REFUTED" in capsys.readouterr().out
    found = Audit.model_validate_json(Path("audit/audit.json").read_text())
    assert (found.run, found.records) == (None, 50)  # half of the records may be canaries


def test_real_parties_are_never_given_canaries(dped_tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    tables = dped_tables("counts")
    tables["federation"] = {"launch": "connect", "parties": [{"name": "north", "address": "127.0.0.1:7443"}]}
    path = written({**tables, "federation": {"launch": "connect"}}, tmp_path / "plan.toml")
    text = path.read_text().replace(
        'launch = "connect"', 'launch = "connect"\nparties = [{ name = "north", address = "127.0.0.1:7443" }]'
    )
    path.write_text(text)
    assert main(["audit", str(path)]) == 2
    assert "canaries go into simulated shards alone, never into a real party's" in " ".join(
        capsys.readouterr().err.split()
    )
    path.write_text(text + "[audit]\ncanaries = 10\n")
    assert main(["run", str(path)]) == 2
    assert '[audit] belongs to launch = "ray"' in " ".join(capsys.readouterr().err.split())


def test_a_plan_whose_noise_can_be_made_again_is_refused(dped_tables):
    changes, said = {"privacy": {"insecure_reproducible_noise": True}}, "there is none"
    with pytest.raises(ValueError, match=said):
        plan_of(dped_tables("counts", **changes, audit=AUDIT))
    with pytest.raises(PlanError, match=said):
        check_auditable(plan_of(dped_tables("counts", **changes)))


def test_the_table_is_checked_and_is_part_of_the_plan_only_where_it_is(dped_tables):
    plain, audited = plan_of(dped_tables("counts")), plan_of(dped_tables("counts", audit=AUDIT))
    assert "audit" not in json.loads(plain.document())
    assert json.loads(audited.document())["audit"]["canaries"] == 60
    for wrong, said in (
        ({"canaries": 1}, "greater than or equal to 2"),
        ({"kinds": ["worst", "worst"]}, "names one twice"),
        ({"confidence": 1.0}, "less than 1"),
        ({"kind": "worst"}, "Extra inputs"),
    ):
        with pytest.raises(ValueError, match=said):
            plan_of(dped_tables("counts", audit=wrong))


def test_what_a_run_needs_is_looked_at_with_its_audit(dped_tables, tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    path = written(dped_tables("counts", audit=AUDIT), tmp_path / "plan.toml")
    (line,) = [each for each in check(path) if each.what == "plan"]
    assert line.state is State.OK


@pytest.mark.parametrize("wrong", [{"canaries": 1}, {"records": 2}, {"seed": -1}])
def test_settings_out_of_range_are_refused(dped_tables, tmp_path, monkeypatch, wrong):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    path = written(dped_tables("counts"), tmp_path / "plan.toml")
    with pytest.raises(PlanError, match=next(iter(wrong))):
        api.audit(path, **wrong)


def test_a_run_that_is_not_finished_has_no_audit(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    RunStore.create(tmp_path / "run", "abcd-demo", "demo", b"\0" * 32).close()
    with pytest.raises(RunError, match="a run is audited when it is finished, or its plan is"):
        api.audit(tmp_path / "run")
