"""A published folder whose releases are of some parties alone: each is held to its own, whatever the folder says."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from aggregation.accounting.events import to_json
from coordinator.published import manifest
from coordinator.published.manifest import Seal
from coordinator.publishing.report import promised, state
from coordinator.systems.registry import plan_of, price_of
from coordinator.verifying.verify import verify
from protos.digest import plan_hash
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.identity.signing import RELATION, sign

RUN = "7f3a-demo"
TEACHING = ("east", "north", "west")
PARTIES = ("clinic", *TEACHING)
PUBLIC = SimpleNamespace(queries=SimpleNamespace(ids=np.zeros(60)), tokens=300, trainable=66)
SUMS = {"differences": TEACHING, "learned": ("clinic",)}


def bound():
    """A plan of four parties of which one learns, and one may be lost."""
    addresses = [{"name": name, "address": "127.0.0.1:7443"} for name in PARTIES]
    tables = {
        "run": {"name": "demo", "recipe": "swing", "seed": 7},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "trust": "secure-sum", "dropouts": 1},
        "federation": {"launch": "connect", "parties": addresses},
        "model": {"name": "anything"},
        "queries": {"source": "public.jsonl", "public": True},
        "learner": {"parties": ["clinic"], "declared_size": 400, "steps": 5, "batch": 100},
    }
    return price_of(plan_of(tables), PUBLIC)


class Publisher:
    """A bound plan and who signs what is published of it; everybody vouches for himself."""

    def __init__(self):
        self.priced = bound()
        self.coordinator = self_made("coordinator.local", Role.COORDINATOR, None)
        self.parties = {name: self_made(name, Role.PARTY, None) for name in PARTIES}
        self.costs = {each.name: self.cost(each.name) for each in self.priced.releases}

    def cost(self, name):
        return {"name": name, "attempt": 0, "event": to_json(self.priced.release(name).event)}

    def attestation(self, name, costs):
        fields = {
            "party": name,
            "run": RUN,
            "plan_hash": plan_hash(self.priced.binding).hex(),
            "account": "00" * 16,
            "unit": "record",
            "record": "document",
            "relation": RELATION,
            "insecure_reproducible_noise": False,
            "simulation": False,
            "releases": [self.costs[each] for each in costs],
            "software": "0.1.0",
            "signed_at": int(time.time()),
        }
        return sign(self.parties[name], "conclave attestation 1", fields)

    def found(self, folder, *, sums=None, costs=None, alter=lambda privacy: None, binding=None, silent=()):
        """What `verify` says of the folder of these sums, by check; costs: what parties attest, by name, where it is
        not what they are in. silent: parties that attest nothing.
        """
        sums = sums or SUMS
        binding = binding or self.priced.binding
        own = {name: [each for each, parties in sums.items() if name in parties] for name in PARTIES} | (costs or {})
        digest = plan_hash(binding).hex()
        whole = tuple(name for name in PARTIES if any(name in parties for parties in sums.values()))
        statement = state(self.priced, whole, digest, {}, run=RUN, sums=sums)
        alter(statement.privacy)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(64))
        (folder / "privacy.json").write_text(json.dumps(statement.privacy))
        (folder / "README.md").write_text(f"# demo\n\n{promised(statement.privacy)}\n")
        there = [name for name in PARTIES if own[name] and name not in silent]
        manifest.write(
            folder,
            Seal(
                run=RUN,
                plan_hash=digest,
                binding=binding,
                identity=self.coordinator,
                attestations={name: self.attestation(name, own[name]) for name in there},
                not_attested={name: "it was lost" for name in PARTIES if name not in there},
                attested_at=time.time(),
                signed_at=time.time(),
            ),
        )
        return {check.name: (check.ok, " ".join(check.sentences)) for check in verify(folder).checks}


@pytest.fixture(scope="module")
def publisher():
    return Publisher()


@pytest.mark.slow
def test_a_folder_in_which_everybody_pays_for_his_own_passes(publisher, tmp_path):
    found = publisher.found(tmp_path / "well")
    assert all(ok for ok, _ in found.values()), found
    assert "2 events" in found["privacy"][1] or "recomputed epsilon 7.9" in found["privacy"][1]


@pytest.mark.slow
def test_who_takes_part_is_the_plans_word_and_not_the_publishers(publisher, tmp_path):
    def everybody(privacy):
        del privacy["releases"][1]["among"]

    def others(privacy):
        privacy["releases"][0]["among"] = ["east", "north"]

    for number, alter in enumerate((everybody, others)):
        ok, said = publisher.found(tmp_path / str(number), alter=alter)["privacy"]
        assert not ok
        assert "says otherwise than the plan who takes part in" in said


@pytest.mark.slow
def test_a_party_in_a_sum_that_it_has_no_part_in_is_noticed(publisher, tmp_path):
    sums = {"differences": PARTIES, "learned": ("clinic",)}
    ok, said = publisher.found(tmp_path / "both", sums=sums)["privacy"]
    assert not ok
    assert "names parties in the sum of differences that the plan does not have" in said


@pytest.mark.slow
def test_a_sum_of_fewer_than_its_noise_counts_on_is_noticed_though_all_others_are_there(publisher, tmp_path):
    """One party of four may be lost, so that of the three that teach two are needed."""
    well = publisher.found(tmp_path / "two", sums={"differences": ("east", "north"), "learned": ("clinic",)})
    assert well["privacy"][0], well
    found = publisher.found(tmp_path / "one", sums={"differences": ("east",), "learned": ("clinic",)})
    assert not found["privacy"][0]
    assert "1 parties are in the sum of differences and the plan needs 2" in found["privacy"][1]


@pytest.mark.slow
def test_a_party_that_paid_for_more_than_its_own_is_priced_by_what_it_paid(publisher, tmp_path):
    found = publisher.found(tmp_path / "more", costs={"clinic": ["differences", "learned"]})
    assert not found["privacy"][0]
    assert "Recomputed from the events that clinic attests, epsilon is" in found["privacy"][1]


def test_a_party_that_did_not_pay_for_its_own_is_noticed(publisher, tmp_path):
    ok, said = publisher.found(tmp_path / "less", costs={"clinic": ["differences"]})["parties"]
    assert not ok
    assert "clinic is in the sum of learned and does not attest its cost" in said


def test_a_party_in_all_of_its_own_sums_must_attest_or_is_left_out(publisher, tmp_path):
    found = publisher.found(tmp_path / "silent", silent=("west",))
    assert not found["parties"][0]
    assert "west took part to the end and attests nothing" in found["parties"][1]


def test_a_learner_that_attests_nothing_leaves_its_release_without_evidence(publisher, tmp_path):
    found = publisher.found(
        tmp_path / "unseen", silent=("clinic",), alter=lambda privacy: privacy["left_out"].update(clinic="lost")
    )
    assert not found["parties"][0]
    assert (
        "0 of 1 parties in the sum of learned attest validly what it cost, and the promise needs 1"
        in (found["parties"][1])
    )


@pytest.mark.parametrize("index", [0, 1])
def test_a_smaller_epsilon_than_either_release_costs_is_noticed(publisher, tmp_path, index):
    def smaller(privacy):
        privacy["epsilon"] = 4.0

    ok, said = publisher.found(tmp_path / str(index), alter=smaller)["privacy"]
    assert not ok
    name = ("differences", "learned")[index]
    assert f"Recomputed from the events in privacy.json ({name}), epsilon is 7.9" in said


@pytest.mark.slow
@pytest.mark.parametrize("parties", [["north", "east"], ["clinic", "nobody"], list(PARTIES)])
def test_a_plan_whose_rosters_cannot_be_is_noticed(publisher, tmp_path, parties):
    binding = type(publisher.priced.binding)()
    binding.CopyFrom(publisher.priced.binding)
    binding.terms.releases[0].roster.parties[:] = parties
    assert (
        "The plan cannot be: the parties of release differences"
        in publisher.found(tmp_path / "odd", binding=binding)["privacy"][1]
    )
