"""What `verify` makes of an audit in a published folder."""

import json
from types import SimpleNamespace

import pytest

from coordinator.published.audit import Attacked, Audit
from coordinator.published.folder import Published
from coordinator.publishing.audited import content_of
from coordinator.verifying.audits import check_audit
from learning.audits.one_run import lower_bound

HASH = "ab" * 32
PRIVACY = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=2.0, delta=1e-6, audited=False)
HEURISTIC = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=None, delta=None, audited=True)
UNSAID = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=None, delta=None, audited=False)
ASKED = SimpleNamespace(document=json.dumps({"audit": {"canaries": 100}}))
NOT_ASKED = SimpleNamespace(document=json.dumps({"audit": None}))


def audit(right=90, lower=None, **changes):
    confidence = 1 - 0.05 / 7
    bound = lower_bound(200, 100, right, delta=1e-6, confidence=confidence)
    attack = Attacked(
        attacked="counts", canaries="worst", count=200, how="It looked.", guesses=100, right=right, tried=7,
        lower=bound if lower is None else lower,
    )  # fmt: skip
    made = {
        "format": 1, "run": "7f3a-demo", "plan_hash": HASH, "claimed": 2.0, "delta": 1e-6, "unit": "one document",
        "confidence": 0.95, "records": 100, "source": 100, "coins": "system", "attacks": [attack],
    }  # fmt: skip
    return Audit(**(made | changes))


@pytest.fixture
def checked(tmp_path):
    """`checked(audit, plan)`: the check of a folder that holds this audit, or these bytes."""

    def check(found, plan=ASKED, privacy=PRIVACY):
        if found is not None:
            (tmp_path / "audit.json").write_bytes(found if isinstance(found, bytes) else content_of(found))
        return check_audit(Published.at(tmp_path), privacy, plan)

    return check


def test_a_sound_audit_passes(checked):
    found = checked(audit())
    assert found.ok, found.sentences
    assert found.sentences[0].startswith("1 attacks on a simulation of the plan, epsilon 1.")


def test_a_folder_without_one_has_no_such_check(checked):
    assert checked(None, NOT_ASKED) is None


def test_one_of_a_heuristic_claims_nothing_and_nothing_refutes_it(checked):
    found = checked(audit(right=99, claimed=None), privacy=HEURISTIC)
    assert found.ok, found.sentences
    assert found.sentences[0].endswith("at 95%, no claim")


@pytest.mark.parametrize(
    ("found", "plan", "privacy", "said"),
    [
        (audit(claimed=2.0), ASKED, HEURISTIC, "holds epsilon 2 against its attacks, and privacy.json states another"),
        (audit(claimed=None), ASKED, PRIVACY, "holds no epsilon against its attacks, and privacy.json states another"),
        (audit(claimed=None), ASKED, UNSAID, "privacy.json says that no audit measured the releases"),
        (None, NOT_ASKED, HEURISTIC, "says that an audit measured the releases, and audit.json is missing"),
    ],
)
def test_what_an_audit_holds_and_what_the_folder_says_agree(checked, found, plan, privacy, said):
    check = checked(found, plan, privacy)
    assert not check.ok
    assert any(said in each for each in check.sentences), check.sentences


@pytest.mark.parametrize(
    ("found", "plan", "said"),
    [
        (None, ASKED, "The plan asks for an audit, and audit.json is missing."),
        (audit(), NOT_ASKED, "the plan asks for no audit"),
        (audit(run="another"), ASKED, "of another run"),
        (audit(claimed=8.0), ASKED, "privacy.json states another"),
        (audit(lower=0.1), ASKED, "its guesses show 1."),
        (audit(right=99, claimed=2.0), ASKED, "above the claimed 2.000"),
        (b'{"format": 1}', ASKED, "audit.json: "),
        (b"{", ASKED, "is not JSON"),
        (content_of(audit()).replace(b'"right": 90', b'"right": 190'), ASKED, "cannot be"),
        (content_of(audit()).replace(b'"format": 1', b'"format": 1, "more": 1'), ASKED, "more"),
    ],
)
def test_one_that_does_not_belong_or_does_not_follow_fails(checked, found, plan, said):
    check = checked(found, plan)
    assert not check.ok
    assert any(said in each for each in check.sentences), check.sentences
