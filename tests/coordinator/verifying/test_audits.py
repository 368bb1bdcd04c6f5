"""What `verify` makes of an audit in a published folder."""

import json
from types import SimpleNamespace

import pytest

from aggregation.accounting.events import to_json
from aggregation.accounting.library import GaussianDpEvent
from coordinator.published.audit import Attacked, Audit
from coordinator.published.folder import Published
from coordinator.publishing.audited import content_of
from coordinator.verifying.audits import check_audit
from learning.audits.gate import GATE
from learning.audits.one_run import lower_bound

HASH = "ab" * 32
PRIVACY = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=2.0, delta=1e-6, audited=False)
HEURISTIC = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=None, delta=None, audited=True)
UNSAID = SimpleNamespace(run="7f3a-demo", plan_hash=HASH, epsilon=None, delta=None, audited=False)
ASKED = SimpleNamespace(document=json.dumps({"audit": {"canaries": 100}}))
NOT_ASKED = SimpleNamespace(document=json.dumps({"audit": None}))


EVENTS = [SimpleNamespace(event=to_json(GaussianDpEvent(2.2)))]
PRIVACY.releases = EVENTS
for each in (PRIVACY, HEURISTIC, UNSAID):
    each.unit, each.record = "record", "document"


def audit(right=90, lower=None, **changes):
    """One of format 1, of before there was a gate."""
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


def gated(right=90, counted=None, refuted=False, **changes):
    """One of format 2."""
    pairs = counted or [[100, right]] * 7
    attack = audit(right).attacks[0].model_copy(update={"counted": pairs, "refuted": refuted})
    return audit(**({"format": 2, "against": "gaussian", "gate": GATE, "attacks": [attack]} | changes))


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


def test_a_bound_above_the_claim_is_no_refutation_at_the_gate(checked):
    """100 guesses show epsilon above 1, which an honest audit may by chance; the plan's events are not refuted."""
    small = SimpleNamespace(**vars(PRIVACY) | {"epsilon": 1.0})
    found = gated(claimed=1.0)
    assert found.lower > 1.0
    assert checked(found, privacy=small).ok


def test_a_heuristics_audit_has_no_gate(checked):
    bare = gated(claimed=None, against=None, gate=None)
    assert checked(bare, privacy=HEURISTIC).ok


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (gated(right=100, refuted=True), "refutes the claimed 2.000"),
        (gated(right=100), "says that the attack on counts does not refute the claim; it is not so"),
        (gated(refuted=True), "says that the attack on counts refutes the claim; it is not so"),
        (gated(against="renyi"), 'holds attacks to "renyi" at 0.9999; its plan\'s events give "gaussian"'),
        (gated(gate=0.5), "a claim is held to 0.9999"),
        (gated(counted=[[100, 90]] * 6), "hides guesses"),
        (gated(counted=[[100, 91]] * 7), "hides guesses"),
    ],
)
def test_what_refutes_a_claim_follows_from_the_guesses_and_the_plans_events(checked, found, said):
    check = checked(found)
    assert not check.ok
    assert any(said in each for each in check.sentences), check.sentences


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"gate": 0.9999', b'"gate": null'),
        (b'"format": 2', b'"format": 1'),
        (b'"format": 2', b'"format": 3'),
        (b'"claimed": 2.0', b'"claimed": null'),
    ],
)
def test_a_file_of_another_format_is_refused_with_words(checked, old, new):
    content = content_of(gated())
    assert old in content
    check = checked(content.replace(old, new))
    assert not check.ok
    assert check.sentences[0].startswith("audit.json: ")


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
        (audit(right=99, claimed=2.0), ASKED, "refutes the claimed 2.000"),
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
