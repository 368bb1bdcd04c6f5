"""A kind of task is a folder in two halves, and what is to be done travels under its name."""

import subprocess
import sys
from dataclasses import is_dataclass

import pytest
from pydantic import TypeAdapter, ValidationError

from party.tasks.codes.request import CodesWork
from party.tasks.counts.request import CountsWork
from party.tasks.ensemble.request import EnsembleWork
from party.tasks.grading.request import GradingWork
from party.tasks.job import Job, Spread
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.moments.request import MomentsWork
from party.tasks.samples.request import SamplesWork
from party.tasks.step.request import StepWork
from party.tasks.task import TRAINS, Asks, half, request_of, work_of
from party.tasks.teachers.request import TeachersWork
from party.tasks.text.request import Descent, Lesson, TextModel, TokenizerFiles
from party.tasks.text.voice import Voice
from party.tasks.text_model.request import TextModelWork, WritingWork
from party.tasks.tokens.request import TokensWork
from protos.conclave.v1 import party_pb2
from protos.refusal import Refusal

MODEL = TextModel({"config.json": "/a"}, "/made", "lora", 2, 4, 16, 7)
DESCENT = Descent(0.1, "sgd", "constant", 0.0, 0.9, 0.0, expected_batch=4.0, epochs=0, batch=0)
WORKS = [
    CountsWork("/vocabulary", 2),
    MomentsWork("/vocabulary", 2, "/directions"),
    TeachersWork(
        "/vocabulary",
        2,
        3,
        "/reference",
        "procrustes",
        [1, 2],
        [],
        ["centre"],
        "lift",
        7,
        "00",
        "release",
        "",
        2.0,
        0.5,
    ),
    StepWork(MODEL, Lesson(labelled="aa"), "/parameters", "bb"),
    TextModelWork(MODEL, Lesson("domain", texts="/texts", second="reply"), "/parameters", DESCENT, "cc", "/scored"),
    EnsembleWork(MODEL, "aa", "bb", "/texts", 3, DESCENT),
    TokensWork(TokenizerFiles({"config.json": "/a"}, "/made", 16), "aa"),
    CodesWork("aa"),
    GradingWork(MODEL, Lesson("language"), "/parameters", "/written", Voice("/voices", 0.1), 1.5),
    LanguageTeachersWork(MODEL, "bb", 3, DESCENT, "/written", "/outcomes"),
    SamplesWork(MODEL, Lesson("labels", "aa"), "/projection", "bb"),
]
WRITING = WritingWork("/written", (1, 4), Voice("/voices", 0.1), 50, 0.9, 1.0, 64, 7, "/kept")
"""What a model that stays is to write; the other text models of `WORKS` write nothing."""


def job(work):
    return Job(
        1, {"source": "a"}, {"delta": 1e-6}, "pair", True, "ff", "/cache", "/result", work, spread=Spread("a", 2)
    )


def test_every_task_that_can_be_asked_is_a_kind_with_two_halves_and_there_is_no_other():
    fields = party_pb2.TrainRequest.DESCRIPTOR.oneofs_by_name["task"].fields
    assert set(TRAINS) == {field.name for field in fields} == {work.kind for work in WORKS}
    for kind in TRAINS:
        request = request_of(kind)
        assert is_dataclass(request.WORK)
        assert request.WORK.kind == kind
        assert all(callable(each) for each in (request.checked, request.fits, request.paid_before))
        assert callable(half(kind, "training").prepare)


def test_only_grading_opens_no_shard():
    assert {kind for kind in TRAINS if not request_of(kind).WORK.opens} == {"grading"}


def test_what_is_to_be_written_travels_with_a_text_model():
    work = TextModelWork(MODEL, Lesson("language"), "/parameters", DESCENT, "cc", writing=WRITING)
    assert Job.from_json(job(work).to_json().encode()).work == work


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.kind)
def test_a_job_travels_whole_and_carries_its_work_under_the_name_of_its_kind(work):
    asked = job(work)
    assert f'"work": {{"{work.kind}": {{' in asked.to_json()
    assert Job.from_json(asked.to_json().encode()) == asked


def test_work_that_is_none_of_its_kind_is_not_taken():
    fields = TypeAdapter(CountsWork).dump_python(WORKS[0])
    assert work_of("cooccurrence", fields) == WORKS[0]
    with pytest.raises(ValidationError):
        work_of("cooccurrence", fields | {"window": "wide"})


def test_the_key_of_a_private_training_reaches_the_work_that_needs_one():
    paid = {work.kind: job(work).paid_with("6b").work for work in WORKS}
    assert paid.pop("teachers").training_key == paid.pop("text_model").key == paid.pop("samples").key == "6b"
    assert paid == {work.kind: work for work in WORKS if work.kind in paid}


def test_steps_of_one_training_read_the_same_and_their_process_stays():
    one = job(StepWork(MODEL, Lesson(labelled="aa"), "/one", "bb"))
    other = job(StepWork(MODEL, Lesson(labelled="aa"), "/other", "cc"))
    wide = job(StepWork(MODEL, Lesson(labelled="ab"), "/one", "bb"))
    assert one.reads == other.reads != wide.reads
    spoken = [Lesson("language", coded=coded, tilt=tilt) for coded, tilt in [("aa", "/t"), ("aa", ""), ("ab", "/t")]]
    tilted, bare, recoded = (job(StepWork(MODEL, lesson, "/one", "bb")).reads for lesson in spoken)
    assert tilted == bare != recoded
    assert [work.kind for work in WORKS if job(work).stays] == ["step"]


def test_a_request_for_nothing_is_refused_with_what_there_is():
    with pytest.raises(Refusal, match=f"this party trains {', '.join(TRAINS)}; the request names no such task"):
        Asks.of(party_pb2.TrainRequest(operation_id="x"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRAINS)
def test_the_half_that_is_in_the_node_needs_no_torch(kind):
    never = ("torch", "transformers", "party.node")
    code = f"import sys, {half(kind, 'request').__name__}; print([each for each in {never} if each in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cooccurrence", "moments", "codes"])
def test_counting_needs_no_torch_in_the_training_process_either(kind):
    code = f"import sys, {half(kind, 'training').__name__}; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"
