"""A folder of a run without a guarantee is held to its label: whoever drops it, or states a number, is found out."""

import json
import time
from types import SimpleNamespace

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.events import to_json
from coordinator.console import shown
from coordinator.pricing.priced_plan import price_plan
from coordinator.published import manifest
from coordinator.published.manifest import Seal
from coordinator.published.statement import Privacy
from coordinator.publishing.report import promised, state
from coordinator.verifying.attestations import judged
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import lines, record, verify
from party.admission.admit import event_of
from party.ledger.attesting import attestation
from protos.conclave.v1 import plan_pb2
from protos.digest import plan_hash
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import Identity
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.signing import ATTESTATION, sign, signed_of

RUN, PARTIES = "7f3a-demo", ("north", "south")
PROMISE = {"epsilon": 8.0, "delta": 1e-6}


def identity(authority, name, role):
    transport, signing = new_keys()
    issued = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return Identity(name, role, issued.transport, key_pem(transport), issued.signing, signing, issued.authority)


class Federation:
    """An authority, the ends that it vouches for, and what they sign of a run without a guarantee."""

    def __init__(self, priced):
        self.priced = priced
        self.authority = new_authority("consortium")
        self.coordinator = identity(self.authority, "coordinator.consortium.example", Role.COORDINATOR)
        self.parties = {name: identity(self.authority, name, Role.PARTY) for name in PARTIES}
        self.trust = Trust(self.authority.certificate, None)

    def attested(self, name, binding, **changes):
        """What a party signs by its own code; changes: of what it says, as only a party that lies would."""
        run = SimpleNamespace(id=RUN, plan_hash=plan_hash(binding), terms=binding.terms)
        charged = [(each.name, 0, event_of(each)) for each in binding.terms.releases]
        signed = signed_of(attestation(self.parties[name], run, charged, "00" * 16, simulation=False))
        if not changes:
            return signed
        said = {key: value for key, value in json.loads(signed.payload).items() if key != "kind"} | changes
        return sign(self.parties[name], ATTESTATION, {key: value for key, value in said.items() if value is not None})

    def publish(self, folder, *, alter=lambda privacy: None, binding=None, card=None, attested=None, **changes):
        """A folder that the coordinator signs, whatever is in it. attested: the plan that parties signed."""
        binding = binding or self.priced.binding
        digest = plan_hash(binding).hex()
        statement = state(self.priced, PARTIES, digest, {}, run=RUN, sums={})
        alter(statement.privacy)
        folder.mkdir()
        (folder / "model.bin").write_bytes(bytes(64))
        (folder / "privacy.json").write_text(json.dumps(statement.privacy))
        (folder / "README.md").write_text(card or f"# demo\n\n{promised(statement.privacy)}\n")
        signed = {name: self.attested(name, attested or binding, **changes) for name in PARTIES}
        now = time.time()
        manifest.write(folder, Seal(RUN, digest, binding, self.coordinator, signed, {}, now, now))
        return folder


@pytest.fixture(scope="module")
def federation(heuristic):
    return Federation(price_plan(heuristic()))


@pytest.fixture(scope="module")
def mixed(heuristic):
    """What a coordinator would have to say of a run of counts and softened outcomes."""
    counts, softened = price_plan(heuristic("counts", **PROMISE)), price_plan(heuristic())
    binding = plan_pb2.Plan()
    binding.CopyFrom(counts.binding)
    binding.terms.releases.extend(softened.binding.terms.releases)
    return binding


def wrong(folder, trust):
    verdict = verify(folder, trust)
    assert not verdict.ok
    return {each.name: "\n".join(each.sentences) for each in verdict.checks if not each.ok}


def changed(federation, change):
    binding = plan_pb2.Plan()
    binding.CopyFrom(federation.priced.binding)
    change(binding.terms.privacy)
    return binding


def test_an_honest_folder_is_consistent_and_claims_nothing(federation, tmp_path):
    verdict = verify(federation.publish(tmp_path / "student"), federation.trust)
    assert verdict.ok, lines(verdict)
    assert verdict.epsilon is record(verdict)["epsilon"] is None
    said = {each.name: each.sentences[0] for each in verdict.checks}
    assert said["privacy"] == (
        "no guarantee claimed: a heuristic; what the releases tell of a text is not bounded, and no audit measured it"
    )
    assert said["trust"].startswith("no guarantee: a heuristic, against nobody")


def test_attestations_are_judged_as_a_verifier_will(federation):
    binding = federation.priced.binding
    statement = state(federation.priced, PARTIES, plan_hash(binding).hex(), {}, run=RUN, sums={})
    privacy = Privacy.model_validate(statement.privacy)
    honest = {name: federation.attested(name, binding) for name in PARTIES}
    found = judged(honest, privacy)
    assert (found.unfit, found.beyond) == ({}, {})
    found = judged(honest | {"north": federation.attested("north", binding, guarantee=True)}, privacy)
    assert "north attests guarantee" in found.unfit["north"]


def dropped(privacy):
    del privacy["guarantee"]


def put(**values):
    return lambda privacy: privacy.update(values)


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (dropped, "privacy.json says guarantee True; by the plan it is False"),
        (put(guarantee=True, **PROMISE), "privacy.json says guarantee True; by the plan it is False"),
        (put(guarantee=True, sampler_delta=0.0, **PROMISE), "the plan says that nothing is guaranteed"),
        (put(epsilon=1.0), "privacy.json states an epsilon or a delta, and the plan says that nothing is guaranteed"),
        (put(epsilon=1.0, delta=1e-6), "privacy.json says delta 1e-06; by the plan it is None"),
        (put(sampler_delta=0.0), "privacy.json states an epsilon or a delta"),
        (put(relation="add or remove one unit at one party"), "privacy.json says relation"),
    ],
)
def test_a_statement_without_the_label_or_with_a_number_fails(federation, tmp_path, alter, said):
    card = f"# demo\n\n{promised(state(federation.priced, PARTIES, '00' * 32, {}, run=RUN, sums={}).privacy)}\n"
    found = wrong(federation.publish(tmp_path / "student", alter=alter, card=card), federation.trust)
    assert said in found["privacy"]


def test_events_that_claim_noise_are_not_those_of_the_plan(federation, tmp_path):
    noisy = to_json(GaussianDpEvent(8.0))
    alter = lambda privacy: privacy["releases"][0].update(event=noisy)  # noqa: E731
    found = wrong(federation.publish(tmp_path / "student", alter=alter), federation.trust)
    assert "another event for outcomes than the plan's mechanism costs" in found["privacy"]
    assert "attests another event for outcomes than privacy.json has" in found["parties"]


@pytest.mark.parametrize("changes", [{"guarantee": None}, {"relation": "add or remove one unit at one party"}])
def test_a_party_that_attests_a_guarantee_is_no_witness_of_this_run(federation, tmp_path, changes):
    found = wrong(federation.publish(tmp_path / "student", **changes), federation.trust)
    assert "north attests" in found["parties"]


def test_a_plan_from_which_the_label_was_taken_is_not_the_one_that_parties_signed(federation, tmp_path):
    def promising(privacy):
        privacy.unproven, privacy.epsilon, privacy.delta = False, 8.0, 1e-6

    binding, own = changed(federation, promising), federation.priced.binding
    alter = put(guarantee=True, sampler_delta=0.0, relation="add or remove one unit at one party", **PROMISE)
    found = wrong(federation.publish(tmp_path / "one", binding=binding, attested=own, alter=alter), federation.trust)
    assert "north attests a run of another plan." in found["parties"]
    assert "no proof covers its release outcomes: no guarantee: a heuristic" in found["privacy"]
    # Parties that would sign it are no help: the mechanism is what it is.
    found = wrong(federation.publish(tmp_path / "two", binding=binding, alter=alter), federation.trust)
    assert set(found) == {"privacy"}
    assert "no proof covers its release outcomes" in found["privacy"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda privacy: setattr(privacy, "epsilon", 1.0), "states an epsilon, a delta or several attempts"),
        (lambda privacy: setattr(privacy, "delta", 1e-6), "states an epsilon, a delta or several attempts"),
        (lambda privacy: setattr(privacy, "attempts", 2), "states an epsilon, a delta or several attempts"),
        (lambda privacy: setattr(privacy, "trust", plan_pb2.TRUST_SECURE_SUM), "names a trust that hides sums"),
        (lambda privacy: setattr(privacy, "unproven", False), "no proof covers its release outcomes"),
    ],
)
def test_a_plan_that_contradicts_itself_fails(federation, tmp_path, change, said):
    found = wrong(federation.publish(tmp_path / "student", binding=changed(federation, change)), federation.trust)
    assert said in found["privacy"]


def test_one_softened_release_beside_guaranteed_ones_fails_under_any_label(federation, mixed, heuristic, tmp_path):
    counts = price_plan(heuristic("counts", **PROMISE))
    softened = state(federation.priced, PARTIES, "00" * 32, {}, run=RUN, sums={}).privacy["releases"]
    unlabelled = Federation(counts)
    found = wrong(
        unlabelled.publish(tmp_path / "one", binding=mixed, alter=lambda privacy: privacy["releases"].extend(softened)),
        unlabelled.trust,
    )
    assert "no proof covers its release outcomes" in found["privacy"]
    labelled = plan_pb2.Plan()
    labelled.CopyFrom(mixed)
    labelled.terms.privacy.CopyFrom(federation.priced.binding.terms.privacy)
    guaranteed = state(counts, PARTIES, "00" * 32, {}, run=RUN, sums={}).privacy["releases"]
    found = wrong(
        federation.publish(
            tmp_path / "two", binding=labelled, alter=lambda privacy: privacy["releases"].insert(0, *guaranteed)
        ),
        federation.trust,
    )
    assert "The plan says that nothing is guaranteed, and its release counts is." in found["privacy"]


def test_a_card_that_promises_more_fails(federation, tmp_path):
    card = "# demo\n\nAdding or removing one document changes the probability of any student by at most e^1.\n"
    found = wrong(federation.publish(tmp_path / "student", card=card), federation.trust)
    assert "README.md does not promise what privacy.json states." in found["card"]


def test_the_end_of_a_run_prints_the_label_and_no_number(federation, tmp_path, capsys):
    folder = federation.publish(tmp_path / "student")
    statement = state(federation.priced, PARTIES, "00" * 32, {}, run=RUN, sums={})
    result = SimpleNamespace(
        run=RUN, student=folder, epsilon=statement.epsilon, delta=None, statement=statement, metrics={}, neighbours={},
        verdict=verify(folder, federation.trust), authority=None,
    )  # fmt: skip
    shown.finished(result, as_json=True)
    *said, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("No guarantee: a heuristic.") for line in said)
    assert not any("epsilon" in line for line in said)
    told = json.loads(last)
    assert (told["epsilon"], told["delta"], told["heuristic"], told["verified"]) == (None, None, True, True)
