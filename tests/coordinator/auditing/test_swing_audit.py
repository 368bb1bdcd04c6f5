"""Audits of swing distillation: of sums of differences, of softened outcomes that claim nothing, and of the student."""

import json

import pytest

from coordinator import api
from coordinator.published.audit import DELTA, Audit
from coordinator.publishing.audited import HEADS, drawn, lines, rows, verdict
from coordinator.publishing.report import render
from coordinator.systems.registry import plan_of, prepared, system
from coordinator.systems.swing.audit import TURNS
from party.tasks.language_teachers import training

pytestmark = pytest.mark.slow

ALONE = {"per_party": 300, "epochs": 1}
"""So many teachers that most canaries are the only text of theirs."""
NOTHING = {"guarantee": False, "unit": "record", "record": "document", "declared_size": 120}


def of(audit, attacked, kind):
    (found,) = [each for each in audit.attacks if (each.attacked, each.canaries) == (attacked, kind)]
    return found


@pytest.fixture(scope="session")
def softened_tables(swing_tables):
    """`makes(**changes)`: the tables of a plan in the published form."""

    def makes(**changes):
        tables = swing_tables(
            text={"longest": 32}, teachers={"per_party": 1}, swing={"form": "published"}, privacy=None, **changes
        )
        del tables["swing"]["clip"]
        return tables | {"privacy": dict(NOTHING)}

    return makes


def test_an_honest_run_is_not_refuted(audit, swing_tables):
    found = audit(swing_tables(privacy={"epsilon": 1.0}), canaries=20, records=60)
    assert [(each.attacked, each.canaries) for each in found.attacks] == [
        ("differences", "worst"), ("differences", "natural"), ("student", "worst"), ("student", "natural"),
    ]  # fmt: skip
    assert not found.broken
    assert found.claimed == pytest.approx(1.0, abs=0.01)
    (exposed,) = found.exposures  # of the numbers that are in, beside the public model
    assert (exposed.attacked, exposed.digits) == ("student", 4)
    assert exposed.low <= exposed.mean <= exposed.high


def test_without_noise_a_canary_shows_in_the_sum_and_the_claim_is_refuted(audit, swing_tables, no_noise):
    tables = swing_tables(privacy={"epsilon": 0.3}, text={"longest": 32}, teachers=ALONE)
    found = audit(tables, canaries=60, records=90, kinds=["worst"])
    worst = of(found, "differences", "worst")
    assert worst.right > 0.9 * worst.guesses
    assert worst.lower > found.claimed
    assert found.broken


def test_teachers_of_the_same_records_are_trained_once_for_both_simulations(audit, swing_tables, monkeypatch):
    trained, own = [], training._taught

    def taught(start, first, read, places, work, number):
        trained.append((number, *(read.rows[int(place)].ids.tobytes() for place in places)))
        return own(start, first, read, places, work, number)

    monkeypatch.setattr(training, "_taught", taught)
    monkeypatch.setattr("coordinator.auditing.audit.processors", lambda: 1)  # so that they are trained here
    audit(swing_tables(text={"longest": 32}, teachers=ALONE), canaries=8, records=40, kinds=["worst"])
    assert len(set(trained)) == len(trained) > 32


def test_an_attack_on_some_of_the_asked_tokens_finds_less_and_is_as_sound(audit, swing_tables, no_noise, monkeypatch):
    monkeypatch.setattr("coordinator.systems.swing.audit.MOST_NUMBERS", 1)  # a single text
    tables = swing_tables(text={"longest": 32}, teachers=ALONE)
    found = audit(tables, canaries=24, records=40, kinds=["worst"])
    worst = of(found, "differences", "worst")
    assert worst.right / worst.guesses > 0.6


def test_a_worst_case_is_a_number_and_two_outcomes_that_are_asked_about(swing_tables, tmp_path):
    import numpy as np

    from learning.text.source import Document

    recipe = prepared(plan_of(swing_tables()), tmp_path, tmp_path / "cache")
    made = system("swing").audit(recipe).worst(20, [Document("a", "x", {"kind": "1"})], np.random.default_rng(0))
    assert len({each.text for each in made}) == 20
    for each in made:
        assert each.text.startswith("The number is")
        assert each.fields == {"kind": "1"}
        ids = recipe.read.tokenizer(each.text, add_special_tokens=False)["input_ids"]
        first, second = ids[-2:]
        assert first != second
        assert ids.count(first) >= TURNS - 1


def test_the_published_form_is_measured_and_nothing_is_claimed(audit, softened_tables):
    found = audit(softened_tables(), canaries=16, records=60)
    assert [each.attacked for each in found.attacks] == ["softened", "softened", "student", "student"]
    assert (found.claimed, found.delta, found.broken) == (None, DELTA, False)
    assert len(found.exposures) == 1
    assert found.says[0].startswith("The plan promises nothing")
    assert json.loads(found.model_dump_json())["claimed"] is None
    assert {row[HEADS.index("claimed")] for row in rows(found)} == {"no claim"}
    assert verdict(found).startswith("There is no claim")
    said = " ".join(lines(found))
    assert "claimed" not in said
    assert "inf" not in said.replace("in first", "")
    assert drawn(found).startswith(b"\x89PNG")


def test_an_audited_heuristic_run_says_that_an_audit_measured_it(here, softened_tables, tmp_path):
    asked = {"canaries": 8, "records": 40, "kinds": ["worst"]}
    result = api.run(plan_of(softened_tables() | {"audit": asked}), output=tmp_path / "run")
    assert result.verdict.ok, result.verdict.checks
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert (privacy["guarantee"], privacy["audited"], privacy["epsilon"]) == (False, True, None)
    found = Audit.model_validate_json((result.student / "audit.json").read_text())
    assert (found.claimed, found.run) == (None, result.run)
    card = (result.student / "README.md").read_text()
    assert "an audit measured it, which bounds nothing" in card
    assert "| softened | 8 worst case |" in card
    assert "no claim" in card
    assert "an audit measured it" in render(api.report(result.run))
    (line,) = [each for each in result.verdict.checks if each.name == "audit"]
    assert line.sentences[0].endswith("no claim")
