"""Every training of a text model on a second device (`elsewhere`): whole jobs, beside the same on the processor."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from learning.models.adapting import Lora, adapt, flatten
from learning.models.compute import PROCESSOR, Compute, running
from learning.models.encoders import classifier, language_model
from learning.text.labelled import LabelMap
from party.config import PolicyTable, ShardTable
from party.tasks.ensemble.request import EnsembleWork
from party.tasks.job import Job
from party.tasks.process import prepared, work
from party.tasks.result import load_counts
from party.tasks.step.request import StepWork
from party.tasks.text.request import Descent, Lesson, TextModel
from party.tasks.text_model.request import TextModelWork
from protos.conclave.v1 import plan_pb2

KEY = "11" * 32
NAMES = ("no", "yes")
SINGLE = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=NAMES).SerializeToString().hex()
FILMS = [(f"a {word} film {number % 5}", NAMES[number % 2]) for number, word in enumerate(["dull", "good"] * 10)]
TEXTS = ["a good film", "the end was dull", "fast", "we saw it and it was a very slow story"]
DESCENT = Descent(0.05, "adamw", "linear", 0.1, 0.9, 0.01, 4.0, 1, 4)


@pytest.fixture
def job(tmp_path, pooled, tiny_gpt2, descent):
    """`job(kind, how)`: a job on labelled films, its parameters those of the public start."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": t, "label": one}) + "\n" for t, one in FILMS))
    (tmp_path / "texts").write_text(json.dumps(TEXTS))

    def makes(kind, how):
        speaks = kind == "language"
        folder = str(tiny_gpt2 if speaks else pooled)
        if speaks:
            model, _ = language_model(folder)
        else:
            model, _ = classifier(folder, LabelMap(NAMES), seed=7)
        adapt(model, how, seed=7, lora=Lora(2, 4))
        start = flatten(model).numpy()
        (tmp_path / "start").write_bytes(start.astype("<f4").tobytes())
        text = TextModel({}, folder, how, 2, 4, 16, 7)
        steps = descent("steps.0", len(start))
        weights = descent("weights", len(start), weights=True, steps=2)
        lesson = Lesson(labelled=SINGLE)
        release = steps
        if kind == "step":
            asked = StepWork(text, lesson, str(tmp_path / "start"), KEY)
        elif kind in ("weights", "language"):
            release, lesson = weights, Lesson("language") if speaks else lesson
            asked = TextModelWork(text, lesson, str(tmp_path / "start"), DESCENT, release.SerializeToString().hex())
        elif kind == "scores":
            free = plan_pb2.FreeAnswers(after="domain", layers=1, width=1, clip=1.0, levels=1 << 20)
            release = plan_pb2.Release(name="scores", charges=len(TEXTS), form=plan_pb2.FORM_FREE, free=free)
            lesson = Lesson("domain", texts=str(tmp_path / "texts"))
            training = weights.SerializeToString().hex()
            asked = TextModelWork(text, lesson, str(tmp_path / "start"), DESCENT, training, str(tmp_path / "texts"))
        else:
            votes = plan_pb2.VotesMechanism(classes=2, levels=4, noise=5.0, shares=2, distribution="gaussian")
            release = plan_pb2.Release(name="votes", charges=len(TEXTS), form=plan_pb2.FORM_SUMMED)
            release.joint.votes.CopyFrom(votes)
            asked = EnsembleWork(
                model=text, labelled=SINGLE, key=KEY, texts=str(tmp_path / "texts"), teachers=2, descent=DESCENT
            )
        return Job(
            parent=os.getpid(),
            shard=ShardTable(source=str(tmp_path / "rows.jsonl"), label="label").model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dp_sgd"]).model_dump(),
            record="document",
            by_user=False,
            release=release.SerializeToString().hex(),
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=asked.paid_with(KEY),
        )

    return makes


def done(job):
    work(job, lambda percent: None)
    found = load_counts(Path(job.result))
    return found if isinstance(found, np.ndarray) else found.toarray()


CASES = [
    ("step", "head"),
    pytest.param("step", "full", marks=pytest.mark.slow),
    pytest.param("step", "lora", marks=pytest.mark.slow),
    ("weights", "lora"),
    pytest.param("weights", "head", marks=pytest.mark.slow),
    pytest.param("language", "full", marks=pytest.mark.slow),
    ("scores", "head"),
    pytest.param("scores", "lora", marks=pytest.mark.slow),
    ("votes", "head"),
    pytest.param("votes", "lora", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_a_job_on_another_device_leaves_nothing_behind_and_gives_the_same(kind, how, job, elsewhere, monkeypatch):
    monkeypatch.setattr("party.tasks.text.model.tokens_at_once", lambda device: 64)  # the second device is no faster
    with elsewhere.paused(), running(PROCESSOR):
        asked = job(kind, how)
        here = done(asked)
    before = elsewhere.done
    there = done(replace(asked, compute=Compute("cuda")))
    assert elsewhere.done > before + 100
    if kind in ("weights", "language"):
        here, there = here.view("<f4"), there.view("<f4")
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-6)
    else:
        assert np.abs(there.astype(np.int64) - here).max() <= 1  # grid units: a sum's last digit may round it elsewhere


def test_a_device_that_is_not_there_is_said_before_anything_is_charged(job):
    failure = prepared(replace(job("step", "head"), compute=Compute("cuda:999")))
    assert failure.kind == "ComputeError"
    assert 'no device "cuda:999"' in failure.sentence
    assert not failure.private


def test_a_job_carries_what_it_computes_with(job):
    asked = replace(job("step", "head"), compute=Compute("cuda:1", "bfloat16", 3))
    assert Job.from_json(asked.to_json().encode()) == asked
    assert asked.reads != replace(asked, compute=PROCESSOR).reads  # what is kept of one device serves no other
