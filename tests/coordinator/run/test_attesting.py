"""Parties sign what a run has cost them; whose word does not count is left out of the promise, or of the sums."""

import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.events import to_json
from coordinator.errors import PartyLost, RunError
from coordinator.federation.attendance import Attendance
from coordinator.federation.federation import Federation
from coordinator.identity.identity import Own
from coordinator.publishing.report import promise
from coordinator.run.driver import Drive
from coordinator.store.index import RunIndex
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.registry import plan_of, price_of
from coordinator.transport.link import Answered, Refused
from coordinator.verifying.attestations import OVERCHARGED, UNATTESTED
from protos.digest import plan_hash
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.identity.signing import ATTESTATION, RELATION, sign
from protos.refusal import Reason, Refusal

FOUR = ("east", "north", "south", "west")
EXTRA = {"name": "more", "attempt": 0, "event": to_json(GaussianDpEvent(0.5))}


def bound_of(**privacy):
    return price_of(
        plan_of(
            {
                "run": {"name": "demo", "recipe": "dped", "seed": 7},
                "privacy": {"epsilon": 6.0, "delta": 1e-6, "dropouts": 1} | privacy,
                "federation": {
                    "launch": "connect",
                    "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in FOUR],
                },
                "vocabulary": {"source": "public.jsonl", "size": 30},
                "dped": {"signals": ["counts"], "dimension": 4},
            }
        )
    )


class Signing:
    """A link to a party that signs what it is told to, or refuses to."""

    traffic = 0

    def __init__(self, name, fields, refuses=None):
        self.name, self.fields, self.refuses = name, fields, refuses
        self.identity = self_made(name, Role.PARTY, None)

    async def attest(self):
        if self.refuses is not None:
            return Refused(self.refuses)
        return Answered(sign(self.identity, ATTESTATION, self.fields))


class Attesting:
    """A run of four parties whose sum is stored, at the moment when they are asked what it cost them."""

    def __init__(self, folder, **privacy):
        self.priced = bound_of(**privacy)
        (release,) = self.priced.releases
        self.store = RunIndex(folder / "home").add("demo", plan_hash(self.priced.binding), None)
        self.store.begin_sum(release.name, FOUR)
        self.paid = {"name": release.name, "attempt": 0, "event": to_json(release.event)}
        self.own = Own(self_made("coordinator.local", Role.COORDINATOR, None), None, False, folder)
        self.said = []
        self.progress = Mock()
        self.progress.say.side_effect = self.said.append
        self.lies, self.refusals = {}, {}

    async def attest(self):
        """What is stored of it, and the drive."""
        fields = {
            "run": self.store.id,
            "plan_hash": plan_hash(self.priced.binding).hex(),
            "unit": "record",
            "record": "document",
            "relation": RELATION,
            "insecure_reproducible_noise": False,
            "simulation": False,
            "releases": [self.paid],
            "signed_at": time.time(),
        }
        links = [
            Signing(name, fields | {"party": name} | self.lies.get(name, {}), self.refusals.get(name)) for name in FOUR
        ]
        federation = Federation(links, self.own, 3, Attendance(self.progress, None, 1.0))
        federation._parties.run_id = self.store.id
        recipe = Dped(self.priced.plan, None)
        drive = Drive(self.priced, recipe, self.own, Mock(), Path(), self.store, self.progress, Mock())
        await drive._attest(federation)
        return self.store.stages()["attest"][2], drive


@pytest.fixture
def attesting(tmp_path):
    made = []

    def make(**privacy):
        made.append(Attesting(tmp_path / str(len(made)), **privacy))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


async def test_a_party_with_charges_that_no_plan_knows_is_left_out_of_the_promise_and_named(attesting):
    run = attesting()
    run.lies = {"north": {"releases": [run.paid, EXTRA]}}
    result, drive = await run.attest()
    assert result["left_out"] == {"north": OVERCHARGED}
    assert set(result["signed"]) == set(FOUR)
    assert "  party north was charged for more than this run's plan: a charge for more" in run.said
    assert promise(drive._statement(FOUR, {}, drive._left_out())).endswith(
        f"Nothing is promised for north: {OVERCHARGED}."
    )


@pytest.mark.slow
async def test_a_party_that_was_charged_too_often_is_left_out_of_the_promise(attesting):
    run = attesting()
    run.lies = {"north": {"releases": [run.paid, run.paid | {"attempt": 1}]}}
    result, _ = await run.attest()
    assert result["left_out"] == {"north": OVERCHARGED}
    assert any("charged for more than this run's plan: epsilon" in line for line in run.said)


async def test_nothing_is_published_while_too_few_vouch_for_the_others(attesting):
    run = attesting()
    run.lies = {name: {"releases": [run.paid, EXTRA]} for name in ("north", "west")}
    with pytest.raises(
        RunError, match=r"(?s)party north was charged.*2 of 4 parties attest validly.*coordinator resume"
    ):
        await run.attest()
    assert not run.store.finished("attest")
    run.lies = {}
    assert (await run.attest())[0]["left_out"] == {}


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"run": "another"}, "attests another run"),
        ({"unit": "user"}, "north attests unit user; privacy.json says record."),
        ({"signed_at": "now"}, "signed_at"),
        ({"simulation": None}, "simulation"),
    ],
    ids=["run", "unit", "time", "words"],
)
async def test_a_party_of_a_secure_sum_whose_word_does_not_count_is_left_out(attesting, lies, why):
    run = attesting(trust="secure-sum")
    run.lies = {"north": lies}
    result, _ = await run.attest()
    assert (set(result["signed"]), set(result["missing"])) == ({"east", "south", "west"}, {"north"})
    assert result["left_out"] == {"north": UNATTESTED}
    assert any(why in line for line in run.said)


async def test_a_party_of_a_secure_sum_that_refuses_to_sign_does_not_hold_the_run(attesting):
    run = attesting(trust="secure-sum")
    run.refusals = {"north": Refusal(Reason.BUSY, "not now.")}
    result, _ = await run.attest()
    assert result["left_out"] == {"north": UNATTESTED}
    assert "  party north refused to attest what the run cost it: not now. The run goes on without it" in run.said


async def test_two_of_a_secure_sum_whose_word_does_not_count_stop_it_where_it_can_go_on(attesting):
    run = attesting(trust="secure-sum")
    run.lies = {name: {"run": "another"} for name in ("north", "west")}
    with pytest.raises(PartyLost, match=r"(?s)party north attests another run.*coordinator resume"):
        await run.attest()
    assert not run.store.finished("attest")


async def test_sums_that_can_be_made_again_are_made_without_a_party_whose_word_does_not_count(attesting, monkeypatch):
    run = attesting()
    run.lies = {"north": {"run": "another"}}

    async def collect(self, priced, federation, store, stage):
        store.begin_sum("counts", federation.present)

    monkeypatch.setattr("coordinator.systems.dped.recipe.Dped.collect", collect)
    result, _ = await run.attest()
    assert run.store.summed("counts") == ("east", "south", "west")
    assert (set(result["signed"]), result["left_out"]) == ({"east", "south", "west"}, {})
