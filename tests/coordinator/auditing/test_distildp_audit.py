"""Audits of language models: counts of tokens, steps, texts, the student, and how far numbers stand out."""

import pytest

from coordinator.plan.audit import AuditTable
from coordinator.systems.registry import plan_of

pytestmark = pytest.mark.slow

PRIVATE = {"privacy": {"epsilon": 4.0, "noise_multiplier": None}}


def of(audit, attacked, kind):
    (found,) = [each for each in audit.attacks if (each.attacked, each.canaries) == (attacked, kind)]
    return found


@pytest.mark.parametrize("codes", [{}, None])
def test_an_honest_run_is_not_refuted(audit, distildp_tables, codes):
    found = audit(distildp_tables(**PRIVATE, codes=codes), canaries=12, records=60)
    assert [each.attacked for each in found.attacks[::2]] == ["tokens", "steps", "texts", "student"]
    assert not found.broken


def test_an_audit_writes_fewer_texts_than_the_plan_and_says_so(audit, distildp_tables):
    tables = distildp_tables(**PRIVATE, dp_sgd={"steps": 2, "batch": 60}, generation={"texts": 90})
    few = audit(tables, canaries=4, records=60, kinds=["worst"], texts=40)
    assert "The simulated teacher wrote 40 of the plan's 90 texts." in "\n".join(few.says)
    plan = plan_of(tables)
    assert plan.audited_with(AuditTable()) == (plan, [])  # 2,000 are more than the plan's
    assert plan.audited_with(AuditTable(texts=90)) == (plan, [])
    (simulated, (said,)) = plan.audited_with(AuditTable(texts=40))
    assert simulated.generation.texts == 40
    assert "--texts 90 writes them all" in said


def test_without_noise_counts_and_steps_tell_who_is_in(audit, distildp_tables, no_noise):
    tables = distildp_tables(privacy={"epsilon": 1.0}, dp_sgd={"steps": 2, "batch": 120})
    found = audit(tables, canaries=70, records=80, kinds=["worst"])
    assert of(found, "tokens", "worst").lower > 0.5
    assert of(found, "steps", "worst").lower > 0.5
    assert found.broken
    (exposed,) = found.exposures  # of the numbers that are in, beside the public model
    assert (exposed.attacked, exposed.digits) == ("student", 4)
    assert 20 < exposed.count < 50
    assert exposed.low <= exposed.mean <= exposed.high
