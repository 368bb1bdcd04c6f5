"""Every training of a text model on a second device (`elsewhere`): whole jobs, beside the same on the processor."""

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.errors import EXHAUSTED
from learning.models.adapting import Lora, adapt, flatten
from learning.models.compute import PROCESSOR, Compute, running
from learning.models.device_memory import attempted
from learning.models.encoders import classifier, language_model
from learning.text.labelled import LabelMap
from party.config import PolicyTable
from party.shard_table import ShardTable
from party.tasks.ensemble.request import EnsembleWork
from party.tasks.job import Failure, Job
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.process import finished, prepared, tried, work
from party.tasks.result import load_counts
from party.tasks.step.request import StepWork
from party.tasks.text.request import Descent, Lesson, TextModel
from party.tasks.text_model.request import TextModelWork
from protos.conclave.v1 import plan_pb2

KEY = "11" * 32
NAMES = ("no", "yes")
SINGLE = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=NAMES).SerializeToString().hex()
CODED = plan_pb2.CodedText(
    template="Is {opinion}", columns=[plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=NAMES)]
)
CODED = CODED.SerializeToString().hex()
FILMS = [(f"a {word} film {number % 5}", NAMES[number % 2]) for number, word in enumerate(["dull", "good"] * 10)]
TEXTS = ["a good film", "the end was dull", "fast", "we saw it and it was a very slow story"]
DESCENT = Descent(0.05, "adamw", "linear", 0.1, 0.9, 0.01, 4.0, 1, 4)


@pytest.fixture
def job(tmp_path, pooled, tiny_gpt2, descent):
    """`job(kind, how)`: a job on labelled films, its parameters those of the public start."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": t, "label": one}) + "\n" for t, one in FILMS))
    (tmp_path / "texts").write_text(json.dumps(TEXTS))

    def makes(kind, how):
        speaks = kind in ("language", "language step", "differences")
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
        elif kind == "language step":
            np.linspace(-1, 1, model.config.vocab_size, dtype="<f4").tofile(tmp_path / "tilt")
            lesson = Lesson("language", coded=CODED, tilt=str(tmp_path / "tilt"))
            asked = StepWork(replace(text, longest=24), lesson, str(tmp_path / "start"), KEY)
        elif kind in ("weights", "language"):
            release, lesson = weights, Lesson("language") if speaks else lesson
            asked = TextModelWork(text, lesson, str(tmp_path / "start"), DESCENT, release.SerializeToString().hex())
        elif kind == "scores":
            free = plan_pb2.FreeAnswers(after="domain", layers=1, width=1, clip=1.0, levels=1 << 20)
            release = plan_pb2.Release(name="scores", charges=len(TEXTS), form=plan_pb2.FORM_FREE, free=free)
            lesson = Lesson("domain", texts=str(tmp_path / "texts"))
            training = weights.SerializeToString().hex()
            asked = TextModelWork(text, lesson, str(tmp_path / "start"), DESCENT, training, str(tmp_path / "texts"))
        elif kind == "differences":
            bounds = plan_pb2.DifferencesMechanism(
                clip=0.3, levels=400, noise_multiplier=2.0, shares=2, distribution="gaussian", tokens=3, outcomes=3
            )
            release = plan_pb2.Release(name="differences", charges=1, form=plan_pb2.FORM_SUMMED, differences=bounds)
            written = {"openings": [[0]], "codes": [0, 0], "texts": [[40, 41], [42]]}
            (tmp_path / "written").write_text(json.dumps(written))
            (tmp_path / "outcomes").write_bytes((np.array([[5, 6], [7, 8], [9, 10]], "<u4") << 16).tobytes())
            asked = LanguageTeachersWork(text, KEY, 2, DESCENT, str(tmp_path / "written"), str(tmp_path / "outcomes"))
        else:
            votes = plan_pb2.VotesMechanism(classes=2, levels=4, noise=5.0, shares=2, distribution="gaussian")
            release = plan_pb2.Release(name="votes", charges=len(TEXTS), form=plan_pb2.FORM_SUMMED)
            release.joint.votes.CopyFrom(votes)
            asked = EnsembleWork(
                model=text, labelled=SINGLE, key=KEY, texts=str(tmp_path / "texts"), teachers=2, descent=DESCENT
            )
        return Job(
            parent=os.getpid(),
            shard=ShardTable(
                source=str(tmp_path / "rows.jsonl"), label="label", codes={"opinion": "label"}
            ).model_dump(),
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
    pytest.param("language step", "lora", marks=pytest.mark.slow),
    ("scores", "head"),
    pytest.param("scores", "lora", marks=pytest.mark.slow),
    ("votes", "head"),
    pytest.param("votes", "lora", marks=pytest.mark.slow),
    pytest.param("differences", "lora", marks=pytest.mark.slow),
]


@pytest.mark.slow
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
        # AdamW divides a gradient by its size, and so a small one's last digits, too; all of a language model has some.
        near = DESCENT.learning_rate / 1000 if kind == "language" else 1e-6
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=near)
    else:
        assert np.abs(there.astype(np.int64) - here).max() <= 1  # grid units: a sum's last digit may round it elsewhere


class Memory:
    """The second device's memory: it holds so many tokens in one pass. tried: examples and lengths of every pass; full:
    of those that it did not hold.
    """

    def __init__(self, patch, words):
        self.tokens, self.tried, self.full = 1 << 30, [], []
        looks_up = torch.nn.Embedding.forward

        def looked_up(layer, ids):
            if layer.num_embeddings in words:
                self.tried.append(tuple(ids.shape))
                if ids.numel() > self.tokens:
                    self.full.append(tuple(ids.shape))
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return looks_up(layer, ids)

        patch.setattr(torch.nn.Embedding, "forward", looked_up)


@pytest.fixture
def memory(monkeypatch, tiny_bert, tiny_gpt2):
    monkeypatch.setattr("party.tasks.text.model.tokens_at_once", lambda device: 64)
    folders = (tiny_bert, tiny_gpt2)
    return Memory(monkeypatch, {json.loads((each / "config.json").read_text())["vocab_size"] for each in folders})


LONG = ("we saw it and it was a very slow story and a dull film and the end was good", "no")


def of(asked, folder, films, **changes):
    """The same job on other text."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"text": t, "label": n, "who": w}) + "\n" for t, n, w in films)
    )
    shard = asked.shard | {"source": str(folder / "rows.jsonl"), "user": "who" if changes.get("by_user") else None}
    return replace(asked, shard=shard, cache=str(folder / "cache"), result=str(folder / "result.npz"), **changes)


def played(asked, memory):
    """What a coordinator that measures time can tell: the passes that failed before the charge, and after it; and how
    many came before it, and what the job ended with.
    """
    memory.tried, memory.full = [], []
    private = prepared(asked)
    before, passes = list(memory.full), len(memory.tried)
    memory.full = []
    failure = private if isinstance(private, Failure) else finished(private, asked, lambda percent: None)
    return before, memory.full, passes, failure


TWINS = [
    ("step", "head", False, 40),
    ("step", "lora", False, 40),
    ("step", "lora", False, 33),
    ("step", "full", True, 33 * 32),
    ("scores", "lora", True, 40 * 32),
    ("votes", "head", False, 40),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "how", "by_user", "tokens"), TWINS)
def test_whether_memory_is_exhausted_after_the_charge_depends_on_no_record(
    kind, how, by_user, tokens, job, memory, elsewhere, tmp_path, monkeypatch
):
    """Twins, of which one has a record of the longest kind: what fails, and in what order, is the same, and all of it
    comes before the text is opened. So neither is done again, in other sizes or on the processor.
    """
    with elsewhere.paused(), running(PROCESSOR):
        asked = replace(job(kind, how), compute=Compute("cuda"))
    films = [(text, label, f"u{number % 7}") for number, (text, label) in enumerate(FILMS)]
    longer = [*films, (*LONG, "u0")]
    memory.tokens = tokens
    monkeypatch.setattr("party.tasks.text.model.tokens_at_once", lambda device: 2 * tokens)
    one = played(of(asked, tmp_path / "one", films, by_user=by_user), memory)
    other = played(of(asked, tmp_path / "other", longer, by_user=by_user), memory)
    assert one == other
    before, after, passes, failure = one
    assert before, "the memory was never exhausted"
    assert passes
    assert after == [] or kind == "votes", "which tries made-up texts again"
    assert failure is None


@pytest.mark.parametrize(
    ("kind", "how", "by_user"),
    [
        pytest.param("step", "lora", True, marks=pytest.mark.slow),
        pytest.param("step", "full", False, marks=pytest.mark.slow),
        pytest.param("votes", "lora", False, marks=pytest.mark.slow),
        ("step", "head", False),
        ("differences", "lora", False),
    ],
)
def test_a_device_too_small_for_a_unit_of_the_longest_kind_is_refused_before_the_charge_whatever_the_text(
    kind, how, by_user, job, memory, elsewhere, tmp_path
):
    with elsewhere.paused(), running(PROCESSOR):
        asked = replace(job(kind, how), compute=Compute("cuda"))
    memory.tokens = 16 * 32 - 1 if by_user else 15
    for name, rows in (("one", FILMS), ("other", [*FILMS, LONG])):
        films = [(*row, f"u{number}") for number, row in enumerate(rows)]  # one example each: they would fit
        failure = prepared(of(asked, tmp_path / name, films, by_user=by_user))
        assert isinstance(failure, Failure), "it is not seen before the text is opened"
        assert (failure.kind, failure.sentence, failure.private) == ("ComputeError", EXHAUSTED, False)


def test_a_device_that_is_not_there_is_said_before_anything_is_charged(job):
    failure = prepared(replace(job("step", "head"), compute=Compute("cuda:999")))
    assert failure.kind == "ComputeError"
    assert 'no device "cuda:999"' in failure.sentence
    assert not failure.private


def test_a_job_carries_what_it_computes_with(job):
    asked = replace(job("step", "head"), compute=Compute("cuda:1", "bfloat16", 3))
    assert Job.from_json(asked.to_json().encode()) == asked
    assert asked.reads != replace(asked, compute=PROCESSOR).reads  # what is kept of one device serves no other


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(
            "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API"
        ),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 MB). Tried to allocate 256 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    ],
)
def test_a_device_without_memory_is_told_from_a_party_without_it(error):
    def full():
        raise error

    assert attempted(full) is None, "it is not tried in smaller parts"
    assert tried(SimpleNamespace(memory=256), full) == Failure("ComputeError", EXHAUSTED)
    memory = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(RuntimeError):
        attempted(partial(_raised, memory))
    assert tried(SimpleNamespace(memory=256), partial(_raised, memory)).kind == "MemoryError"


def _raised(error):
    raise error
