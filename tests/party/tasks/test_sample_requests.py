"""A request for rows has what its release needs, and nothing else."""

from types import SimpleNamespace

import pytest

from party.tasks.samples import request
from party.tasks.text.request import TextModel
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MODEL = TextModel({}, "/made", "head", 0, 0, 16, 7)
SAMPLES = plan_pb2.Release(
    name="rows", samples=plan_pb2.SamplesMechanism(rows=10, dimensions=4, levels=64, noise_multiplier=1.0, texts=1,
                                                   classes=2, label_epsilon=1.0),
)  # fmt: skip
SEQUENCES = plan_pb2.Release(
    name="rows", sequences=plan_pb2.SequencesMechanism(rows=10, layer="nvib", tokens=4, width=8, levels=64, classes=2)
)


@pytest.fixture
def given(monkeypatch, tmp_path):
    """`given(release, ...)`: what a request is checked with; every artefact that is named lies in a file."""
    monkeypatch.setattr(request, "model_of", lambda model, given: MODEL)
    monkeypatch.setattr(request, "labelled_of", lambda given, kind: "aa")

    def made(release, kind=plan_pb2.TEXT_KIND_SINGLE, record=plan_pb2.RECORD_DOCUMENT):
        terms = plan_pb2.Terms(
            labelled=plan_pb2.LabelledText(kind=kind, labels=["a", "b"]), privacy=plan_pb2.Privacy(record=record)
        )
        return SimpleNamespace(
            release=release, run=SimpleNamespace(terms=terms), slot_key="00",
            provided=lambda kind, sha256: tmp_path / kind,
        )  # fmt: skip

    return made


def task(*artefacts):
    found = party_pb2.SamplesTask(release="rows", model=party_pb2.TextModel(adapt=party_pb2.ADAPT_HEAD))
    for each in artefacts:
        setattr(found, f"{each}_sha256", b"x" * 32)
    return found


def test_vectors_are_projected_and_sequences_sampled_by_a_layer(given):
    assert request.checked(task("projection"), given(SAMPLES)).layer == ""
    assert request.checked(task("projection"), given(SAMPLES)).projection.endswith("/projection")
    assert request.checked(task("layer"), given(SEQUENCES)).projection == ""
    assert request.checked(task("layer"), given(SEQUENCES)).layer.endswith("/layer")


@pytest.mark.parametrize("release", [SAMPLES, SEQUENCES])
@pytest.mark.parametrize("artefacts", [(), ("projection", "layer"), None])
def test_the_one_is_provided_and_only_it(given, release, artefacts):
    if artefacts is None:
        artefacts = ("layer",) if release is SAMPLES else ("projection",)
    with pytest.raises(Refusal) as refusal:
        request.checked(task(*artefacts), given(release))
    assert refusal.value.reason == Reason.REQUEST
    assert "the one, and only it" in refusal.value.sentence


def test_sequences_are_of_single_texts(given):
    with pytest.raises(Refusal, match="reads pairs"):
        request.checked(task("layer"), given(SEQUENCES, kind=plan_pb2.TEXT_KIND_PAIR))


def test_rows_that_take_more_than_a_job_may_are_refused_before_anything_is_charged(given, tmp_path):
    (tmp_path / "layer").write_bytes(b"x")
    work = request.checked(task("layer"), given(SEQUENCES))
    large = plan_pb2.Release()
    large.CopyFrom(SEQUENCES)
    large.sequences.rows, large.sequences.width = 100_000, 256
    request.fits(work, large, 0)
    with pytest.raises(Refusal, match="memory_mib") as refusal:
        request.fits(work, large, 100)
    assert refusal.value.reason == Reason.MEMORY


@pytest.mark.parametrize(("name", "release"), [("layer", SEQUENCES), ("projection", SAMPLES)])
def test_a_file_that_is_too_large_is_refused(given, tmp_path, monkeypatch, name, release):
    monkeypatch.setattr(request, "MOST_PROVIDED", 10)
    (tmp_path / name).write_bytes(b"x" * 11)
    with pytest.raises(Refusal, match=f"the {name} that was provided") as refusal:
        request.fits(request.checked(task(name), given(release)), release, 0)
    assert refusal.value.reason == Reason.ARTEFACT
