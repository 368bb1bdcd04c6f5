"""Driving a run whose store was damaged, or whose parties sign other costs than the plan's: it is said in sentences."""

import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from dp_accounting import GaussianDpEvent

from aggregation.accounting.events import to_json
from coordinator.errors import PartyLost, RunError
from coordinator.federation.attendance import Attendance
from coordinator.federation.federation import Federation
from coordinator.identity.identity import Own
from coordinator.publishing.report import promise
from coordinator.run.driver import Drive, cancelled, leave, plan_hash_of
from coordinator.store.store import RunIndex
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.registry import bind, plan_of
from coordinator.transport.link import Answered, Refused
from coordinator.verifying.attestations import OVERCHARGED, UNATTESTED
from protos.digest import plan_hash
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.identity.signing import ATTESTATION, RELATION, sign
from protos.refusal import Reason, Refusal

NAMES = ("north", "south")
ODD = [None, 3, "?", [], {}, [[]], {"parties": "north"}, float("nan")]


@pytest.fixture
def drive(tmp_path):
    """A run of two parties that answered, and what drives it; its parties are mocks."""
    store = RunIndex(tmp_path / "home").add("demo", b"h" * 32, None)
    store.note(student=str(tmp_path / "student"), base=str(tmp_path))
    with store.stage("aggregate") as result:
        result |= {"parties": list(NAMES), "present": {"answers": 2}}
    with store.stage("attest") as result:
        result |= {"signed": {}, "missing": {"south": "went away"}}
    bound = SimpleNamespace(
        releases=(SimpleNamespace(name="answers", rows=5), SimpleNamespace(name="training", rows=0)),
        plan=SimpleNamespace(federation=SimpleNamespace(names=NAMES)),
        binding=None,
    )
    yield Drive(bound, Mock(), SimpleNamespace(identity=None), Mock(), tmp_path, store, Mock(), Mock())
    store.close()


def test_what_was_kept_is_what_was_written(drive, tmp_path):
    assert drive._kept() == (NAMES, {"answers": 2})
    assert drive.student_folder == tmp_path / "student"
    assert plan_hash_of(drive.store) == b"h" * 32
    assert drive._seal().not_attested == {"south": "went away"}


@pytest.mark.parametrize(
    ("why", "published"),
    [
        ("nothing answers at 10.1.2.3:7443", "nothing answers at its address"),
        ("the connection to north.hospital.example:7443 broke", "the connection to its address broke"),
        ("what answers at [fe80::1]:7443 is none", "what answers at its address is none"),
        ("it says: /home/ann/notes.jsonl, line 3", "it says: a path, line 3"),
        ("no answer for 60 s and/or 3 tries", "no answer for 60 s and/or 3 tries"),
    ],
)
def test_why_a_party_did_not_attest_is_published_without_where_it_is(drive, why, published):
    kept = drive.store.stages()["attest"][2]
    with drive.store.stage("attest") as result:
        result |= kept | {"missing": {"south": why}}
    assert drive._seal().not_attested == {"south": published}


def test_a_student_that_cannot_be_published_at_the_end_is_stored_and_the_way_to_go_on_is_said(drive, tmp_path):
    (tmp_path / "student").write_text("somebody's")
    with pytest.raises(RunError, match=rf"student exists already.*\n.*stored.*coordinator resume {drive.store.id}"):
        drive._publish(Mock(), Mock())
    (tmp_path / "student").unlink()
    student = Mock()
    student.write.side_effect = OSError(28, "No space left on device")
    with pytest.raises(RunError, match=rf"No space left.*\n.*stored.*coordinator resume {drive.store.id}"):
        drive._publish(student, Mock())
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != "?"])
def test_a_place_that_is_none_is_a_damaged_run(drive, odd):
    drive.store.note(student=odd, base=odd)
    with pytest.raises(RunError, match="is damaged"):
        _ = drive.student_folder
    with pytest.raises(RunError, match="is damaged"):
        cancelled(drive.store, drive.launcher, drive.own)


@pytest.mark.parametrize("odd", ODD)
def test_a_plan_or_its_hash_that_is_none_is_a_damaged_run(drive, odd):
    drive.store.note(plan=odd, plan_hash=odd)
    with pytest.raises(RunError, match="is damaged"):
        leave(drive.store, drive.launcher, Path(), drive.own)
    with pytest.raises(RunError, match="is damaged"):
        plan_hash_of(drive.store)


@pytest.mark.parametrize(
    "odd",
    [
        *ODD,
        {"parties": "north", "present": {"answers": 2}},
        {"parties": ["north", "east"], "present": {"answers": 2}},
        {"parties": [["north"]], "present": {"answers": 2}},
        {"parties": ["north"], "present": {}},
        {"parties": ["north"], "present": {"answers": 0}},
        {"parties": ["north"], "present": {"answers": "many"}},
    ],
)
def test_sums_of_nobody_are_a_damaged_run(drive, odd):
    drive.store._finish("aggregate", odd)
    with pytest.raises(RunError, match="is damaged"):
        drive._kept()


@pytest.mark.parametrize("odd", [*ODD, {"signed": {"north": {"payload": "?"}}, "missing": {}}, {"signed": {}}])
def test_statements_that_are_none_are_a_damaged_run(drive, odd):
    drive.store._finish("attest", odd)
    with pytest.raises(RunError, match="is damaged"):
        drive._seal()


def test_a_run_that_was_resumed_an_odd_number_of_times_is_a_damaged_run(drive):
    drive.store.note(resumed="often")
    with pytest.raises(RunError, match="is damaged"):
        drive.to_the_end()


def test_one_that_is_interrupted_while_it_notes_that_it_was_overtaken_says_that_it_was(drive, monkeypatch):
    overtaken = RunError("another coordinator took this run over while this one did not move; it stopped here.")

    def noted(self, status, error):
        raise KeyboardInterrupt

    def stages(self):
        store = self.store
        monkeypatch.setattr(type(self), "_note", noted)
        monkeypatch.setattr(store, "note", Mock(side_effect=overtaken))
        raise overtaken

    monkeypatch.setattr(Drive, "_stages", stages)
    plan = SimpleNamespace(privacy=SimpleNamespace(epsilon=1.0), federation=drive.bound.plan.federation)
    drive.bound.plan, drive.bound.private = plan, False
    with pytest.raises(RunError, match="another coordinator took this run over"):
        drive.to_the_end()


FOUR = ("east", "north", "south", "west")
EXTRA = {"name": "more", "attempt": 0, "event": to_json(GaussianDpEvent(0.5))}


def bound_of(**privacy):
    return bind(
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
        self.bound = bound_of(**privacy)
        (release,) = self.bound.releases
        self.store = RunIndex(folder / "home").add("demo", plan_hash(self.bound.binding), None)
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
            "plan_hash": plan_hash(self.bound.binding).hex(),
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
        federation._run_id = self.store.id
        drive = Drive(
            self.bound, Dped(self.bound.plan, None), self.own, Mock(), Path(), self.store, self.progress, Mock()
        )
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
