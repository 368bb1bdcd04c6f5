"""Driving a run whose store was damaged, or whose student cannot be published: it is said in sentences."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from aggregation.mechanisms.mechanism import Form
from coordinator.errors import RunError
from coordinator.run.attesting import seal
from coordinator.run.cancelling import cancelled, leave
from coordinator.run.driver import Drive
from coordinator.store.index import RunIndex

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
    priced = SimpleNamespace(
        releases=(
            SimpleNamespace(name="answers", form=Form.SUMMED),
            SimpleNamespace(name="training", form=Form.TRAINING),
        ),
        plan=SimpleNamespace(federation=SimpleNamespace(names=NAMES)),
        binding=None,
    )
    yield Drive(priced, Mock(), SimpleNamespace(identity=None), Mock(), tmp_path, store, Mock(), Mock())
    store.close()


def sealed(drive):
    return seal(drive.store, drive.priced.binding, drive.own.identity)


def test_what_was_kept_is_what_was_written(drive, tmp_path):
    assert drive._kept() == (NAMES, {"answers": 2})
    assert drive.student_folder == tmp_path / "student"
    assert drive.store.plan_hash == b"h" * 32
    assert sealed(drive).not_attested == {"south": "went away"}


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
    assert sealed(drive).not_attested == {"south": published}


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
        _ = drive.store.plan_hash


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
        sealed(drive)


def test_a_run_that_was_resumed_an_odd_number_of_times_is_a_damaged_run(drive):
    drive.store.note(resumed="often")
    with pytest.raises(RunError, match="is damaged"):
        drive.to_the_end()


def test_one_that_is_interrupted_while_it_notes_that_it_was_overtaken_says_that_it_was(drive, monkeypatch):
    overtaken = RunError("another coordinator took this run over while this one did not move; it stopped here.")

    def noted(self, status, error, code):
        raise KeyboardInterrupt

    def stages(self):
        store = self.store
        monkeypatch.setattr(type(self), "_note", noted)
        monkeypatch.setattr(store, "note", Mock(side_effect=overtaken))
        raise overtaken

    monkeypatch.setattr(Drive, "_stages", stages)
    plan = SimpleNamespace(
        privacy=SimpleNamespace(epsilon=1.0, guarantee=True), federation=drive.priced.plan.federation
    )
    drive.priced.plan, drive.priced.private = plan, False
    with pytest.raises(RunError, match="another coordinator took this run over"):
        drive.to_the_end()
