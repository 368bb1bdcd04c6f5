"""Rows of a data set tell a coordinator nothing of a record but what is charged: twins as of `test_twins`."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors

from aggregation.errors import ConclaveError
from learning.bottleneck.forms import Form, NoisyModel
from learning.models.checkpoints import save
from learning.models.encoders import classifier
from learning.noisy_vectors.projection import Projection
from learning.text.labelled import LabelMap
from protos.conclave.v1 import party_pb2, plan_pb2

pytestmark = pytest.mark.slow

SHARE = 0.004 if os.environ.get("CONCLAVE_FUZZ") else 0.03
"""Of the inputs that are made, as in `test_twins`."""
ROWS, DIMENSIONS, TOKENS = 6, 3, 5
LAYERS = ("nvib", "vtdp", "vib-fixed", "vib-learned")
UNCAPPED = {"guarantee": False, "epsilon": None, "delta": None}
LIES = ("provided", "both", "neither", "size", "classes", "longest", "adapt", "pairs", "rows", "layer")
"""What of a request may be an attacker's; two requests of three are honest in all of it."""


@pytest.fixture(scope="module")
def scene(tests, hostile, tmp_path_factory, tiny_bert, own_recipes):
    made, base, twins = (tests(each) for each in ("party/conftest.py", "fuzz/test_twins.py", "fuzz/twins.py"))
    where = tmp_path_factory.mktemp("twins")
    shutil.copytree(tiny_bert, where / "bert")
    (where / "bert/1_Pooling").mkdir()
    (where / "bert/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    labels = LabelMap(tuple(made.LABELLED.labels), tuple(made.LABELLED.values))
    model, tokenizer = classifier(str(where / "bert"), labels, seed=7, pool="mean")
    (where / "sent").mkdir()
    save(model, tokenizer, where / "sent")
    policy = {"epsilon": 1e15, "recipes": ["nvdp"], "samples": True, "public_labels": True,
              "trust": "trusted-aggregator"}  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(own_recipes)
        found, process = {}, twins.Process(patch)
        for kept, account in (("capped", policy), ("uncapped", policy | UNCAPPED)):
            found[kept] = {
                name: twins.Twins(
                    made, where / kept / name,
                    account | ({"unit": "user"} if name == "user" else {"record": name}), process,
                )
                for name in ("document", "user")
            }  # fmt: skip
        artefacts = base.Artefacts(hostile, where / "sent")
        scene = base.Scene(found["capped"], artefacts, hostile, made)
        scene.uncapped = base.Scene(found["uncapped"], artefacts, hostile, made)
        scene.width = int(model.config.hidden_size)
        yield scene
        for pairs in found.values():
            for both in pairs.values():
                both.close()


def projections(rng, width):
    """A projection, now and then of other vectors, or with numbers that overflow."""
    features = np.random.default_rng(0).normal(size=(100, width + rng.choice([0] * 9 + [1])))
    content = Projection.fitted(features, DIMENSIONS).to_bytes()
    if rng.random() < 0.1:
        content = content.replace(content[-8:], np.array([rng.choice([np.nan, np.inf, 1e300])]).tobytes())
    return content


def layers(rng, kind, width):
    """A layer's parameters, now and then as large as they may be, as small as noise may be, or not finite."""
    model = NoisyModel(Form(kind, width, 4, TOKENS, 1, heads=1), rng.randrange(3))
    found = dict(model.bottleneck.state_dict())
    name = rng.choice(sorted(found))
    if rng.random() < 0.4:
        number = rng.choice([1e6, -1e6, -10.0, float("nan"), float("inf"), 1e9])
        found[name] = torch.full_like(found[name], number)
    if rng.random() < 0.05:
        del found[name]
    return save_tensors({each: tensor.contiguous() for each, tensor in found.items()})


def sampled(scene, rng, width, *, layered):
    """The terms of a plan of rows, honest or not, and the task when a run has joined."""
    lie = rng.choice((*LIES, *[None] * (2 * len(LIES))))

    def one(of, honest, *others):
        return rng.choice(others) if lie == of else honest

    rows, classes = one("rows", ROWS, 1, 0, 1 << 20), one("classes", 2, 3, 1)
    kind = rng.choice(LAYERS)
    if layered:
        mechanism = plan_pb2.SequencesMechanism(
            rows=rows, layer=one("layer", kind, "plain", *LAYERS), tokens=one("size", TOKENS, 128, 4), width=4,
            sigma=1.0 if kind == "vib-fixed" else 0.0, levels=4096, classes=classes,
        )  # fmt: skip
        release = plan_pb2.Release(name="rows", charges=1, form=plan_pb2.FORM_SAMPLES, sequences=mechanism)
        more = {"unproven": True, "epsilon": 0.0, "delta": 0.0}
    else:
        bounds = plan_pb2.SamplesMechanism(
            rows=rows, dimensions=one("size", DIMENSIONS, 1, 1000), levels=64, noise_multiplier=2.0,
            texts=rng.choice([1, 1, 2]), classes=classes, label_epsilon=rng.choice([0.0, 1.0]),
        )  # fmt: skip
        release = plan_pb2.Release(name="rows", charges=1, form=plan_pb2.FORM_SAMPLES, samples=bounds)
        more = {}
    labelled = plan_pb2.LabelledText()
    labelled.CopyFrom(scene.made.LABELLED)
    if lie == "pairs":
        labelled.kind = plan_pb2.TEXT_KIND_PAIR
    terms = scene.terms(rng, release, ("document", "user"), recipe="nvdp", labelled=labelled, **more)

    def task(context):
        files = []
        for name, content in scene.artefacts.files(rng).items():
            files.append(party_pb2.ModelFile(name=name, sha256=scene.twins.provide(context, "model", content)))
        model = party_pb2.TextModel(
            files=files, adapt=one("adapt", party_pb2.ADAPT_HEAD, party_pb2.ADAPT_LORA, party_pb2.ADAPT_FULL),
            longest=one("longest", 16, 2, 1 << 20), rank=2, alpha=4,
        )  # fmt: skip
        asks = party_pb2.SamplesTask(release="rows", model=model)
        projection = scene.artefacts.small(rng, projections(rng, width))
        layer = scene.artefacts.small(rng, layers(rng, kind, width))
        if lie == "provided":
            projection, layer = rng.choice([(layer, projection), (b"", b""), (json.dumps({}).encode(), b"{}")])
        if (not layered or lie == "both") and lie != "neither":
            asks.projection_sha256 = scene.twins.provide(context, "projection", projection)
        if (layered or lie == "both") and lie != "neither":
            asks.layer_sha256 = scene.twins.provide(context, "layer", layer)
        return {"samples": asks}, "rows", ROWS

    return terms, task


@pytest.mark.parametrize("layered", [False, True], ids=["vectors", "sequences"])
def test_rows_tell_a_coordinator_nothing_of_a_record_but_what_is_charged(fuzz, hostile, scene, layered):
    """Of sequences, whose content nothing bounds: whether there are any, in which words, and how many bytes."""
    played = scene.uncapped if layered else scene

    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=SHARE)
    def _(rng):
        played.play(rng, sampled(played, rng, scene.width, layered=layered))


def test_so_many_of_the_runs_came_to_an_answer_that_the_others_mean_something(fuzz, scene):
    for played in (scene, scene.uncapped):
        assert played.answered > played.runs / 10
        print(f"{played.runs:,} runs, {played.answered:,} blocks answered")


def test_rows_that_tell_a_record_are_found(scene, monkeypatch):
    """The negative control: a party that fails where it has a text, as one whose vector overflows might."""
    monkeypatch.setattr("party.tasks.job.Job.frank", property(lambda job: True))

    def fails(rows, *given, **more):
        if len(rows):
            raise ConclaveError("told")
        return np.zeros(0, np.int64)

    monkeypatch.setattr("party.tasks.samples.training.chosen", fails)
    scene.twins = scene.pairs["document"]
    scene.twins.shards([], [b'{"text": "good film", "stars": "no", "who": "p0"}'])
    bounds = plan_pb2.SamplesMechanism(
        rows=ROWS, dimensions=DIMENSIONS, levels=64, noise_multiplier=2.0, texts=1, classes=2, label_epsilon=1.0
    )
    release = plan_pb2.Release(name="rows", charges=1, form=plan_pb2.FORM_SAMPLES, samples=bounds)
    labelled = scene.made.LABELLED
    context = scene.joined(scene.made.make_terms(epsilon=1e12, recipe="nvdp", releases=[release], labelled=labelled))
    files = [
        party_pb2.ModelFile(name=name, sha256=scene.twins.provide(context, "model", content))
        for name, content in scene.artefacts.model.items()
    ]
    projection = Projection.fitted(np.random.default_rng(0).normal(size=(100, scene.width)), DIMENSIONS)
    asks = party_pb2.SamplesTask(
        release="rows", model=party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_HEAD, longest=16),
        projection_sha256=scene.twins.provide(context, "projection", projection.to_bytes()),
    )  # fmt: skip
    request = party_pb2.TrainRequest(run=context, operation_id="one", samples=asks)
    with pytest.raises(AssertionError, match="Train tells the shards apart"):
        scene.twins.ask("Train", [request])
