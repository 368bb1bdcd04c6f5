"""Language models tell a coordinator nothing of a record but what is charged: twins of `test_twins`, by their tasks."""

import json
import os

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.models.adapting import Lora, adapt, flatten
from learning.models.encoders import language_model
from protos.conclave.v1 import party_pb2, plan_pb2

pytestmark = pytest.mark.slow

SHARE = 0.004 if os.environ.get("CONCLAVE_FUZZ") else 0.03
"""Of the inputs that are made, as in `test_twins`."""
TAUGHT_SHARE = 2 * SHARE
UNCAPPED = {"guarantee": False, "epsilon": None, "delta": None}
"""An account in which softened outcomes are recorded, and nothing bounds them."""
VALUES = (("no", "yes"), ("purple", "nobody"), ("yes", "p1"))
"""What a plan calls public: most rows' values, or one row's alone."""


@pytest.fixture(scope="module")
def start(tiny_gpt2):
    model, _ = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    return len(flatten(model)), model.config.vocab_size


@pytest.fixture(scope="module")
def scene(tests, hostile, tmp_path_factory, tiny_gpt2, own_recipes, start):
    made, base, twins = (tests(each) for each in ("party/conftest.py", "fuzz/test_twins.py", "fuzz/twins.py"))
    policy = {"epsilon": 1e15, "recipes": ["distildp", "swing"], "weights": True, "trust": "trusted-aggregator"}
    shard = {"label": None, "codes": {"opinion": "stars"}, "second": "who"}
    where = tmp_path_factory.mktemp("twins")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(own_recipes)
        found, process = {}, twins.Process(patch)
        for kept, account in (("capped", policy), ("uncapped", policy | UNCAPPED)):
            pairs = found[kept] = {}
            for name in ("document", "sentence", "user"):
                unit = {"unit": "user"} if name == "user" else {"record": name}
                pairs[name] = twins.Twins(made, where / kept / name, account | unit, process, shard)
        artefacts = base.Artefacts(hostile, tiny_gpt2)
        scene = base.Scene(found["capped"], artefacts, hostile, made)
        scene.uncapped = base.Scene(found["uncapped"], artefacts, hostile, made)
        yield scene, base
        for pairs in found.values():
            for both in pairs.values():
                both.close()


def spoken(scene, rng, kind, size):
    """The terms of a plan of language models, honest or not, and the task when a run has joined."""
    parameters, tokens = size
    artefacts = scene.artefacts
    numbers = {"clip": 1.0, "levels": 400, "noise_multiplier": 1.0, "sampling_probability": 0.5, "steps": 2}
    gradients = plan_pb2.GradientMechanism(**numbers, parameters=parameters)
    counts = plan_pb2.CountsMechanism(clip=4.0, levels=64, noise_multiplier=1.0, shares=2, distribution="gaussian")
    name, form = {
        "weights": ("weights", plan_pb2.FORM_WEIGHTS),
        "texts": ("teacher", plan_pb2.FORM_TRAINING),
    }.get(kind, ("steps", plan_pb2.FORM_STEPPED))
    learned = plan_pb2.Release(name=name, charges=1, gradients=gradients, form=form)
    said = plan_pb2.FreeTexts(after="teacher", longest=rng.choice([4, 6]))
    texts = plan_pb2.Release(name="texts", charges=3, form=plan_pb2.FORM_SAID, texts=said)
    summed = plan_pb2.Release(name="counts", charges=1, form=plan_pb2.FORM_SUMMED, counts=counts)
    more = {}
    if kind == "codes" or rng.random() < 0.8:
        column = plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=rng.choice(VALUES))
        template = rng.choice(
            ["{opinion}", "Is {opinion}", "Is {opinion}", "A long template for an {opinion} of a text"]
        )
        more["coded"] = plan_pb2.CodedText(template=template, columns=[column])
    made = [learned, texts, summed] if kind == "texts" else [learned, summed]
    terms = scene.terms(rng, made, ("document", "user"), recipe="distildp", **more)

    def task(context):
        files = []
        for name, content in artefacts.files(rng).items():
            sha256 = scene.twins.provide(context, "model", content)
            files.append(party_pb2.ModelFile(name=name, sha256=sha256))
        longest = rng.choice([24, 24, 24, 2, 1 << 20])
        model = party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_LORA, longest=longest, rank=2, alpha=4)
        if kind == "codes":
            return {"codes": party_pb2.CodesTask(release="counts")}, "counts", 1
        if kind == "tokens":
            return {"tokens": party_pb2.TokensTask(release="counts", model=model)}, "counts", 1
        known = {"model": model, "objective": party_pb2.OBJECTIVE_LANGUAGE}
        known["parameters_sha256"] = scene.twins.provide(context, "parameters", artefacts.parameters(rng, parameters))
        if rng.random() < 0.7:
            tilt = np.zeros(tokens, "<f4")
            tilt[rng.randrange(tokens)] = rng.choice([1.0, 999.0, -999.0, np.nan, 3e38])
            known["tilt_sha256"] = scene.twins.provide(context, "tilt", tilt.tobytes())
        if kind == "step":
            return {"step": party_pb2.StepTask(release="steps.0", **known)}, "steps.0", 1
        descent = party_pb2.Descent(
            learning_rate=rng.choice([0.1, 1e30]), optimiser=1, schedule=1, momentum=0.9, expected_batch=4.0
        )
        if kind == "texts":
            voices = np.full((2, tokens), 1 / tokens, "<f4")
            voices[0] = rng.choice([0.0, 0.0, 1.0, 1.0, 999.0, -999.0, np.nan, 3e38])
            openings = rng.choice([[[0]], [[0]], [[0]], [[0, 1, 2]], [[0, 1, 2]], [[]], "?"])
            codes = rng.choice([[0, 0], [0, 0], [0] * 6, [0] * 6, [1, 1]])
            written = json.dumps({"openings": openings, "codes": codes}).encode()
            known["writing"] = party_pb2.Writing(
                written_sha256=scene.twins.provide(context, "written", written),
                voice=party_pb2.Voice(
                    voices_sha256=scene.twins.provide(context, "voices", voices.tobytes()), weight=rng.choice([0, 0.1])
                ),
                top_k=rng.choice([0, 3]), top_p=rng.choice([1.0, 0.5]), temperature=rng.choice([1.0, 1e-9, 1e9]),
                batch=rng.choice([1, 64]),
            )  # fmt: skip
            return (
                {"text_model": party_pb2.TextModelTask(release="texts", descent=descent, **known)},
                "texts",
                said.longest,
            )
        return {"text_model": party_pb2.TextModelTask(release="weights", descent=descent, **known)}, "weights", 1

    return terms, task


LIES = ("texts", "other texts", "openings", "outcomes", "tokens", "teachers", "longest", "descent", "pairs")
"""What of a request for language teachers may be an attacker's; two requests of three are honest in all of it."""


def taught(scene, base, rng, size, sequences=None):
    """The terms of a plan of language models that say what might stand in the place of tokens, and what they are asked,
    honest or not. sequences: the files of a model with an encoder, for a plan of answers to inputs; None for a plan of
    single texts.
    """
    _, tokens = size
    lie = rng.choice((*LIES, *[None] * (2 * len(LIES))))

    def one(of, honest, *others):
        return rng.choice(others) if lie == of else honest

    texts = one("texts", [[40, 41], [42]], [[1, 2, 3, 4]], [[tokens, 1, 2]], [[]], [[40, 41], [42], 7], "?")
    texts = one("other texts", texts, [[40], [41], [42]], [[40, 41]])
    bounds = plan_pb2.DifferencesMechanism(
        clip=0.3, levels=400, noise_multiplier=2.0, shares=2, distribution="gaussian", tokens=one("tokens", 3, 2, 4),
        outcomes=base.TAUGHT,
    )  # fmt: skip
    release = plan_pb2.Release(name="differences", charges=1, form=plan_pb2.FORM_SUMMED, differences=bounds)
    more, artefacts = {}, scene.artefacts
    if sequences is not None:
        artefacts = rng.choice([artefacts, sequences])
        more["paired"] = plan_pb2.PairedText(
            separator=rng.choice(["\n", " ", "a"]), answer=one("pairs", rng.choice([2, 6]), 0, 1, 15, 24, 1 << 30)
        )
    units = ("document", "sentence", "user") if sequences is None or lie == "pairs" else ("document", "user")
    terms = scene.terms(rng, release, units, recipe="swing", **more)

    def task(context):
        files = []
        for name, content in artefacts.files(rng).items():
            files.append(party_pb2.ModelFile(name=name, sha256=scene.twins.provide(context, "model", content)))
        model = party_pb2.TextModel(
            files=files, adapt=party_pb2.ADAPT_LORA, longest=one("longest", 24, 2, 1 << 20), rank=2, alpha=4
        )
        asked = {"openings": one("openings", [[0]], [[]], [[tokens]], "?"), "codes": [0] * len(texts), "texts": texts}
        top = base.TAUGHT - 1
        rows = np.array([rng.sample(range(tokens), top) for _ in range(3)], "<u4") << 16
        rows += np.array([[rng.randrange(1 << 16) for _ in range(top)] for _ in range(3)], "<u4")
        others = (np.repeat(rows[:, :1], top, axis=1), np.full_like(rows, 2**32 - 1), np.hstack([rows, rows]), rows[:2])
        rows = one("outcomes", rows, *others)
        descent = party_pb2.Descent(
            learning_rate=one("descent", 0.1, 1e6, 1e30, 1e38), optimiser=rng.choice([1, 2]), schedule=1,
            momentum=0.9, epochs=1, batch=rng.choice([1, 4]),
        )  # fmt: skip
        asks = party_pb2.LanguageTeachersTask(
            release="differences", model=model, teachers=one("teachers", rng.choice([1, 2, 3]), 0, 10**6),
            descent=descent,
            written_sha256=scene.twins.provide(context, "written", json.dumps(asked).encode()),
            outcomes_sha256=scene.twins.provide(context, "outcomes", scene.artefacts.small(rng, rows.tobytes())),
        )  # fmt: skip
        return {"language_teachers": asks}, "differences", 3

    return terms, task


SOFTENED_LIES = (
    "texts", "openings", "outcomes", "top", "tokens", "protection", "scale", "clues", "words", "teachers", "longest",
    "descent",
)  # fmt: skip


def softened(scene, rng, size):
    """The same of outcomes that one teacher softens, which no proof covers."""
    _, tokens = size
    lie = rng.choice((*SOFTENED_LIES, *[None] * (2 * len(SOFTENED_LIES))))

    def one(of, honest, *others):
        return rng.choice(others) if lie == of else honest

    grows = rng.random() < 0.6
    protection = one("protection", rng.choice(["none", "top", "all"]), "some")
    mechanism = plan_pb2.SoftenedTargets(
        top=one("top", 4, 0, 1 << 20), tokens=one("tokens", tokens, tokens + 1, 3), protection=protection,
        scale=0.0 if protection == "none" else one("scale", rng.choice([0.01, 0.3]), 1e6),
        protected=2 if protection == "top" else 0,
        temperature=rng.choice([1.0, 2.0]), strength=rng.choice([1.0, 9.0]) if grows else 0.0,
        cap=rng.choice([2.0, 20.0]),
    )  # fmt: skip
    release = plan_pb2.Release(name="softened", charges=3, form=plan_pb2.FORM_SAID, softened=mechanism)
    nothing = {"unproven": True, "epsilon": 0.0, "delta": 0.0}
    terms = scene.terms(rng, release, ("document", "sentence", "user"), recipe="swing", **nothing)
    texts = one("texts", [[40, 41], [42]], [[1, 2, 3, 4]], [[tokens, 1]], [[]], "?")

    def task(context):
        files = []
        for name, content in scene.artefacts.files(rng).items():
            files.append(party_pb2.ModelFile(name=name, sha256=scene.twins.provide(context, "model", content)))
        model = party_pb2.TextModel(
            files=files, adapt=party_pb2.ADAPT_LORA, longest=one("longest", 24, 2, 1 << 20), rank=2, alpha=4
        )
        asked = {"openings": one("openings", [[0]], [[]], [[tokens]], "?"), "codes": [0] * len(texts), "texts": texts}
        descent = party_pb2.Descent(
            learning_rate=one("descent", 0.1, 1e6, 1e30, 1e38), optimiser=rng.choice([1, 2]), schedule=1,
            momentum=0.9, epochs=1, batch=rng.choice([1, 4]),
        )  # fmt: skip
        asks = party_pb2.LanguageTeachersTask(
            release="softened", model=model, teachers=one("teachers", 1, 0, 2), descent=descent,
            written_sha256=scene.twins.provide(context, "written", json.dumps(asked).encode()),
        )  # fmt: skip
        if grows != (lie == "clues"):
            listed = rng.choice([b'personal = ["film", "good"]', b'medical = ["slow"]'])
            words = one("words", listed, b"personal = [", b"")
            asks.clues_sha256 = scene.twins.provide(context, "clues", words)
        if lie == "outcomes":
            asks.outcomes_sha256 = scene.twins.provide(context, "outcomes", bytes(48))
        return {"language_teachers": asks}, "softened", 3

    return terms, task


def test_softened_teachers_tell_a_coordinator_nothing_before_the_charge_and_no_size_ever(fuzz, hostile, scene, start):
    """What such rows hold is not bounded; whether there are any, in which words, and how many bytes, is no record's."""

    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=TAUGHT_SHARE)
    def _(rng):
        played = scene[0].uncapped
        played.play(rng, softened(played, rng, start))


def test_teachers_of_language_tell_a_coordinator_nothing_of_a_record_but_what_is_charged(fuzz, hostile, scene, start):
    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=TAUGHT_SHARE)
    def _(rng):
        played, base = scene
        played.play(rng, taught(played, base, rng, start))


def test_teachers_of_answers_tell_a_coordinator_nothing_of_a_pair_but_what_is_charged(
    fuzz, hostile, scene, start, tiny_sequence
):
    """An attacker has pairs in one shard alone of which either text is awful: here of who wrote what."""
    played, base = scene
    sequences = base.Artefacts(hostile, tiny_sequence("bart"))

    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=TAUGHT_SHARE)
    def _(rng):
        played.play(rng, taught(played, base, rng, start, sequences))


@pytest.mark.parametrize("kind", ["step", "weights", "texts", "tokens", "codes"])
def test_language_models_tell_a_coordinator_nothing_of_a_record_but_what_is_charged(fuzz, hostile, scene, kind, start):
    @fuzz(hostile.made(lambda rng: rng), mebibytes=1024, seconds=60, share=SHARE)
    def _(rng):
        played, _ = scene
        played.play(rng, spoken(played, rng, kind, start))


def test_so_many_of_the_runs_came_to_an_answer_that_the_others_mean_something(fuzz, scene):
    # Softened teachers have one block a run, and more in their plans may be an attacker's.
    for played, share in ((scene[0], 4), (scene[0].uncapped, 10)):
        assert played.answered > played.runs / share
        print(f"{played.runs:,} runs, {played.answered:,} blocks answered")


def test_a_difference_that_is_there_is_found(scene, start, monkeypatch):
    """The negative control: a party that says, as in a simulation, that none of its rows has a code."""
    played, base = scene
    monkeypatch.setattr("party.tasks.job.Job.frank", property(lambda job: True))
    played.twins = played.pairs["document"]
    line = b'{"text": "good film", "stars": "no", "who": "p0"}'
    played.twins.shards([line], [line.replace(b'"no"', b'"purple"')])
    column = plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=["no", "yes"])
    terms = played.made.make_terms(
        epsilon=base.EPSILON, recipe="distildp", coded=plan_pb2.CodedText(template="{opinion}", columns=[column])
    )
    context = played.joined(terms)
    task = party_pb2.CodesTask(release="counts")
    request = party_pb2.TrainRequest(run=context, operation_id="one", codes=task)
    with pytest.raises(AssertionError, match="Train tells the shards apart"):
        played.twins.ask("Train", [request])


def test_teachers_that_tell_a_record_are_found(scene, start, monkeypatch):
    """The negative control: a teacher that fails where it has a text, as one that diverges might."""
    played, _ = scene
    monkeypatch.setattr("party.tasks.job.Job.frank", property(lambda job: True))

    def fails(*given):
        raise ConclaveError("told")

    monkeypatch.setattr("party.tasks.language_teachers.training._taught", fails)
    played.twins = played.pairs["document"]
    played.twins.shards([], [b'{"text": "good film", "who": "p0"}'])
    bounds = plan_pb2.DifferencesMechanism(
        clip=0.3, levels=400, noise_multiplier=2.0, shares=2, distribution="gaussian", tokens=1, outcomes=2
    )  # fmt: skip
    release = plan_pb2.Release(name="differences", charges=1, form=plan_pb2.FORM_SUMMED, differences=bounds)
    context = played.joined(played.made.make_terms(epsilon=1e12, recipe="swing", releases=[release]))
    files = [
        party_pb2.ModelFile(name=name, sha256=played.twins.provide(context, "model", content))
        for name, content in played.artefacts.model.items()
    ]
    asked = json.dumps({"openings": [[0]], "codes": [0], "texts": [[40]]}).encode()
    asks = party_pb2.LanguageTeachersTask(
        release="differences", teachers=1,
        model=party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_LORA, longest=24, rank=2, alpha=4),
        descent=party_pb2.Descent(learning_rate=0.1, optimiser=1, schedule=1, epochs=1, batch=1),
        written_sha256=played.twins.provide(context, "written", asked),
        outcomes_sha256=played.twins.provide(context, "outcomes", np.array([5 << 16], "<u4").tobytes()),
    )  # fmt: skip
    request = party_pb2.TrainRequest(run=context, operation_id="one", language_teachers=asks)
    with pytest.raises(AssertionError, match="Train tells the shards apart"):
        played.twins.ask("Train", [request])
