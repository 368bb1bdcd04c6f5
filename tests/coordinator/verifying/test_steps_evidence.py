"""Steps in a published folder: each is charged as a release of its own, and all of them are one release's price."""

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
PARTIES = ("east", "north", "south", "west")
STEPS = 5
PUBLIC = SimpleNamespace(start=np.zeros(66, np.float32))


def bound_of(**privacy):
    """A plan of five steps of four parties, of which one may be lost, its noise given."""
    tables = {
        "run": {"name": "demo", "recipe": "dp_sgd", "seed": 7},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "declared_size": 1000, "trust": "secure-sum", "dropouts": 1}
        | {"noise_multiplier": 2.0}
        | privacy,
        "federation": {
            "launch": "connect",
            "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in PARTIES],
        },
        "text": {"labels": ["no", "yes"]},
        "dp_sgd": {"steps": STEPS, "batch": 100},
    }
    return price_of(plan_of(tables), PUBLIC)


class Publisher:
    """A bound plan and who signs what is published of it; everybody vouches for himself."""

    def __init__(self, priced):
        self.priced = priced
        self.coordinator = self_made("coordinator.local", Role.COORDINATOR, None)
        self.parties = {name: self_made(name, Role.PARTY, None) for name in PARTIES}
        (self.release,) = priced.releases
        self.event = to_json(self.release.step(0).event)

    def costs(self, steps=range(STEPS), attempts=(0,)):
        """What a party is charged for these steps."""
        return [
            {"name": f"steps.{number}", "attempt": attempt, "event": self.event}
            for number in steps
            for attempt in attempts
        ]

    def attestation(self, name, costs):
        privacy = self.priced.plan.privacy
        fields = {
            "party": name,
            "run": RUN,
            "plan_hash": plan_hash(self.priced.binding).hex(),
            "account": "00" * 16,
            "unit": privacy.unit,
            "record": privacy.record,
            "relation": RELATION,
            "insecure_reproducible_noise": privacy.insecure_reproducible_noise,
            "simulation": False,
            "releases": costs,
            "software": "0.1.0",
            "signed_at": int(time.time()),
        }
        return sign(self.parties[name], "conclave attestation 1", fields)

    def publish(self, folder, *, costs=None, alter=lambda privacy: None, steps=None, silent=None):
        """The folder, signed whatever is in it. costs: what parties attest, by name; all steps by default. steps:
        the parties in each sum. silent: why a party attests nothing, by name.
        """
        sums = steps or [PARTIES] * STEPS
        silent = silent or {}
        told = {name: (costs or {}).get(name, self.costs()) for name in PARTIES if name not in silent}
        everybody = tuple(sorted({name for parties in sums for name in parties}))
        whole = tuple(name for name in PARTIES if all(name in parties for parties in sums))
        digest = plan_hash(self.priced.binding).hex()
        statement = state(self.priced, whole, digest, {}, run=RUN, sums={"steps": everybody}, steps={"steps": sums})
        alter(statement.privacy)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes(64))
        (folder / "privacy.json").write_text(json.dumps(statement.privacy))
        (folder / "README.md").write_text(f"# demo\n\n{promised(statement.privacy)}\n")
        manifest.write(
            folder,
            Seal(
                run=RUN,
                plan_hash=digest,
                binding=self.priced.binding,
                identity=self.coordinator,
                attestations={name: self.attestation(name, each) for name, each in told.items()},
                not_attested=silent,
                attested_at=time.time(),
                signed_at=time.time(),
            ),
        )
        return folder


@pytest.fixture(scope="module")
def publisher():
    return Publisher(bound_of())


@pytest.fixture(scope="module")
def unpriced():
    """Of a run that claims no guarantee, and whose events are looked at all the same: nothing is priced."""
    return Publisher(bound_of(insecure_reproducible_noise=True))


def wrong(folder):
    """Every sentence of what is wrong, by check."""
    return {each.name: "\n".join(each.sentences) for each in verify(folder).checks if not each.ok}


def said(folder, name):
    (found,) = (each for each in verify(folder).checks if each.name == name)
    return "\n".join(found.sentences)


@pytest.mark.slow
def test_steps_that_are_charged_one_by_one_are_one_release_in_the_promise(publisher, tmp_path):
    folder = publisher.publish(tmp_path / "student")
    assert wrong(folder) == {}
    assert said(folder, "parties").startswith("4 of 4 attestations, none altered (the promise needs 3); signed at ")
    privacy = json.loads((folder / "privacy.json").read_text())
    (release,) = privacy["releases"]
    assert release["steps"] == {"fewest": 4, "parties": dict.fromkeys(PARTIES, STEPS)}
    assert release["event"] == to_json(publisher.release.event)
    assert f"epsilon {publisher.priced.guarantee.epsilon:.6g}"[:9] in said(folder, "privacy")


@pytest.mark.slow
def test_a_party_that_was_lost_amid_the_steps_need_not_attest(publisher, tmp_path):
    rest = ("east", "north", "south")
    sums = [PARTIES, PARTIES, rest, rest, rest]
    folder = publisher.publish(tmp_path / "student", steps=sums, silent={"west": "no answer for 20 s"})
    assert wrong(folder) == {}
    assert "west attests nothing (no answer for 20 s)" in said(folder, "parties")
    (release,) = json.loads((folder / "privacy.json").read_text())["releases"]
    assert release["steps"] == {"fewest": 3, "parties": dict.fromkeys(rest, 5) | {"west": 2}}


@pytest.mark.parametrize("signing", range(4))
def test_a_folder_whose_every_party_was_away_at_some_time_needs_as_many_attestations_as_the_promise(
    unpriced, tmp_path, signing
):
    """No party is in all sums, so none has to attest for itself: the coordinator alone would say who was there."""
    sums = [tuple(name for name in PARTIES if name != away) for away in (*PARTIES, "east")]
    silent = dict.fromkeys(PARTIES[signing:], "no answer")
    costs = {name: unpriced.costs([step for step in range(STEPS) if name in sums[step]]) for name in PARTIES}
    found = wrong(unpriced.publish(tmp_path / "student", steps=sums, silent=silent, costs=costs))
    few = f"{signing} of 4 parties attest validly what the run cost them, and the promise needs 3."
    assert found == ({} if signing == 3 else {"parties": few})


def other_event(publisher):
    costs = publisher.costs()
    costs[2] = costs[2] | {"event": to_json(publisher.release.event)}
    return costs


def named(publisher, name):
    costs = publisher.costs()
    costs[-1] = costs[-1] | {"name": name}
    return costs


ATTESTED = {
    "a step less": (
        lambda publisher: publisher.costs(range(STEPS - 1)),
        "north is in the sum of 5 steps of steps and does not attest its cost.",
    ),
    "none": (lambda publisher: [], "north is in the sum of 5 steps of steps and does not attest its cost."),
    "one twice": (
        lambda publisher: publisher.costs() + publisher.costs([3]),
        "north attests attempt 0 of steps.3 twice.",
    ),
    "the same step at another attempt in place of the last": (
        lambda publisher: publisher.costs(range(STEPS - 1)) + publisher.costs([0], [1]),
        "does not attest its cost",
    ),
    "another event": (other_event, "north attests another event for steps.2 than privacy.json has"),
    "a step after the last": (lambda publisher: named(publisher, "steps.5"), "attests a charge for steps.5, which"),
    "no number": (lambda publisher: named(publisher, "steps.x"), "attests a charge for steps.x, which"),
    "another number's name": (lambda publisher: named(publisher, "steps.04"), "attests a charge for steps.04, which"),
    "all at once": (lambda publisher: named(publisher, "steps"), "attests a charge for steps, which"),
    "no step of it": (lambda publisher: named(publisher, "votes.4"), "attests a charge for votes.4, which"),
}


@pytest.mark.parametrize(("costs", "says"), ATTESTED.values(), ids=ATTESTED)
def test_what_a_party_attests_is_what_it_has_to_have_paid(unpriced, tmp_path, costs, says):
    found = wrong(unpriced.publish(tmp_path / "student", costs={"north": costs(unpriced)}))
    assert set(found) == {"parties"}
    assert says in found["parties"]


def release_of(privacy):
    return privacy["releases"][0]


STATED = {
    "fewer parties than the noise needs": (
        lambda privacy: release_of(privacy)["steps"].update(fewest=2),
        "2 parties are in the smallest sum of steps and the plan needs 3: a part of the noise that the guarantee",
    ),
    "no steps": (
        lambda privacy: release_of(privacy).pop("steps"),
        "privacy.json says otherwise than the plan whether steps is taken in steps.",
    ),
    "more in the smallest sum than counted": (
        lambda privacy: release_of(privacy)["steps"]["parties"].update(west=1),
        "privacy.json counts fewer parties in the sums of steps than it says are in the smallest.",
    ),
    "more steps than there are": (
        lambda privacy: release_of(privacy)["steps"]["parties"].update(west=6),
        "privacy.json counts steps of steps that its parties cannot have been in.",
    ),
    "a party that is in none": (
        lambda privacy: release_of(privacy)["steps"]["parties"].pop("west"),
        "privacy.json counts steps of steps that its parties cannot have been in.",
    ),
    "fewer steps": (
        lambda privacy: release_of(privacy)["mechanism"].update(steps=4),
        "privacy.json describes another mechanism for steps than the plan has.",
    ),
    "one step's event": (
        lambda privacy: release_of(privacy).update(event=release_of(privacy)["event"]["event"]),
        "privacy.json has another event for steps than the plan's mechanism costs.",
    ),
}


@pytest.mark.parametrize(("alter", "says"), STATED.values(), ids=STATED)
def test_what_is_stated_of_steps_has_to_follow_from_the_plan(unpriced, tmp_path, alter, says):
    found = wrong(unpriced.publish(tmp_path / "student", alter=alter))
    assert says in found["privacy"], found


@pytest.mark.slow
def test_a_smaller_price_than_that_of_all_steps_is_told(publisher, tmp_path):
    found = wrong(publisher.publish(tmp_path / "student", alter=lambda privacy: privacy.update(epsilon=0.1)))
    assert "above the stated 0.1." in found["privacy"]


@pytest.mark.parametrize("steps", [{"fewest": -1, "parties": {}}, {"fewest": 3, "parties": {"west": 0}}, [4], "all"])
def test_steps_that_are_none_end_in_a_sentence(unpriced, tmp_path, steps):
    folder = unpriced.publish(tmp_path / "student", alter=lambda privacy: release_of(privacy).update(steps=steps))
    found = wrong(folder)
    assert "privacy.json" in found["privacy"]
    assert all(line.isprintable() for line in "\n".join(found.values()).splitlines())


@pytest.mark.slow
def test_another_attempt_at_a_step_is_told_and_priced(publisher, tmp_path):
    again = publisher.costs() + publisher.costs([2], [1])
    unpaid = publisher.publish(tmp_path / "unpaid", costs={"north": again})
    assert set(found := wrong(unpaid)) == {"privacy"}, "five steps are stated, and north was charged six"
    assert "Recomputed from the events that north attests, epsilon is" in found["privacy"]
    paying = Publisher(bound_of(attempts=2))
    folder = paying.publish(tmp_path / "paid", costs={"north": again})
    assert wrong(folder) == {}
    assert "north was charged steps 1 more time" in said(folder, "parties")
    assert paying.priced.guarantee.epsilon > publisher.priced.guarantee.epsilon


@pytest.mark.slow
def test_all_attempts_at_all_steps_are_within_the_plans_price(tmp_path):
    paying = Publisher(bound_of(attempts=2))
    folder = paying.publish(tmp_path / "most", costs=dict.fromkeys(PARTIES, paying.costs(attempts=(0, 1))))
    assert wrong(folder) == {}
    over = paying.publish(tmp_path / "over", costs={"east": paying.costs(attempts=(0, 1, 2))})
    assert "Recomputed from the events that east attests" in wrong(over)["privacy"]
