"""Simulated parties of a language model do what parties would, and read their text once for all of it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregation.noise.stream import NoiseStream
from coordinator.transport.launchers import DocumentsWanted, SimulationRequest
from coordinator.transport.link import Batch
from deploy.simulation import ClearShards
from learning.models.adapting import Lora, adapt, flatten
from learning.models.encoders import language_model
from learning.text.words import Vocabulary
from party.config import check_config
from party.releasing.answers import noised
from party.releasing.mechanisms import mechanism_of
from party.shard import plain
from party.shard_table import located
from party.store.keys import insecure_key
from party.tasks.codes.request import CodesWork
from party.tasks.job import Job
from party.tasks.language_teachers import training
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.process import work
from party.tasks.result import load_counts
from party.tasks.step.request import StepWork
from party.tasks.text.request import Descent, Lesson, TextModel, TokenizerFiles
from party.tasks.tokens.request import TokensWork
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.steps import step_of

SEED, PARTIES, LONGEST = 7, 2, 24
CODED = plan_pb2.CodedText(
    template="Is {opinion}", columns=[plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=["0", "1"])]
)
WORDS = ["the", "film", "was", "good", "bad", "slow", "fast", "plot", "actor"]


@pytest.fixture
def request_for(tmp_path, distildp):
    rng = np.random.default_rng(1)
    rows = [{"text": " ".join(rng.choice(WORDS, 5)), "stars": str(n % 3), "id": f"r{n}"} for n in range(20)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shard = {"source": "notes.jsonl", "id": "id", "codes": {"opinion": "stars"}}
    policy = {"epsilon": 8.0, "delta": 1e-6, "recipes": [distildp], "simulation": True}
    tables = {
        f"party-{n}": {
            "name": f"party-{n}",
            "shard": shard | {"part": {"parts": PARTIES, "part": n, "seed": SEED}},
            "policy": policy,
        }
        for n in range(PARTIES)
    }
    vocabulary = Vocabulary(("a", "b")).to_bytes()
    return SimulationRequest(tables, tmp_path / "simulation", tmp_path, vocabulary, 2, "document", False)


@pytest.fixture(scope="module")
def start(tiny_gpt2):
    model, _ = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=SEED, lora=Lora(2, 4))
    rng = np.random.default_rng(0)
    vector = flatten(model).numpy()
    tilt = rng.normal(0, 1, model.config.vocab_size).astype("<f4")
    return vector + rng.normal(0, 0.05, len(vector)).astype(np.float32), tilt


def terms(parameters, noise=1.0):
    counts = {"clip": 4.0, "levels": 64, "noise_multiplier": noise, "shares": PARTIES, "distribution": "gaussian"}
    gradients = plan_pb2.GradientMechanism(
        clip=1.0, levels=4000, noise_multiplier=noise, sampling_probability=0.7, steps=2, parameters=parameters
    )
    releases = [
        plan_pb2.Release(
            name=name, charges=1, form=plan_pb2.FORM_SUMMED, counts=plan_pb2.CountsMechanism(**counts | changes)
        )
        for name, changes in (("unigram", {}), ("histogram", {"clip": 1.0}))
    ]
    releases.append(plan_pb2.Release(name="steps", charges=1, gradients=gradients, form=plan_pb2.FORM_STEPPED))
    privacy = plan_pb2.Privacy(record=plan_pb2.RECORD_DOCUMENT, insecure_reproducible_noise=True)
    return plan_pb2.Terms(recipe="distildp", seed=SEED, privacy=privacy, releases=releases, coded=CODED)


async def asked(link, terms, folder, start, steps=1):
    """Everything of a plan, as a coordinator asks it; the noised answers by their names."""
    vector, tilt = (each.astype("<f4").tobytes() for each in start)
    await link.join("simulated", plan_pb2.Plan(terms=terms), b"")
    files = []
    for path in sorted(folder.iterdir()):
        await link.provide("model", path.read_bytes())
        files.append(party_pb2.ModelFile(name=path.name, sha256=artefact_digest(path.read_bytes())))
    model = party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_LORA, longest=LONGEST, rank=2, alpha=4)
    await link.provide("parameters", vector)
    await link.provide("tilt", tilt)
    step = {
        "model": model, "parameters_sha256": artefact_digest(vector), "tilt_sha256": artefact_digest(tilt),
        "objective": party_pb2.OBJECTIVE_LANGUAGE,
    }  # fmt: skip
    stepped = [f"steps.{number}" for number in range(steps)]
    tasks = {
        "unigram": {"tokens": party_pb2.TokensTask(release="unigram", model=model)},
        "histogram": {"codes": party_pb2.CodesTask(release="histogram")},
        **{name: {"step": party_pb2.StepTask(release=name, **step)} for name in stepped},
    }
    columns = {"unigram": len(start[1]), "histogram": 2} | dict.fromkeys(stepped, len(start[0]))
    blocks = {}
    for name, task in tasks.items():
        await link.train(party_pb2.TrainRequest(operation_id="o", **task), lambda percent: None)
        (blocks[name],) = [each.value async for each in link.answer(name, [Batch(0, 0, 1)], columns[name])]
    return blocks


def stored(request, name, release, done, tmp_path):
    """What a party's own training process leaves on its disk for a release of the plan."""
    config = check_config(dict(request.parties[name]), name)
    job = Job(
        parent=os.getpid(),
        shard=located(config.shard, tmp_path).model_dump(),
        policy=config.policy.model_dump(),
        record="document",
        by_user=False,
        release=release.SerializeToString().hex(),
        cache=str(tmp_path / "cache"),
        result=str(tmp_path / f"{name}.npz"),
        work=done,
    )
    work(job, lambda percent: None)
    total = load_counts(Path(job.result))
    return total if isinstance(total, np.ndarray) else total.toarray()


@pytest.mark.slow
async def test_a_link_keeps_the_sum_of_one_step_only(request_for, tiny_gpt2, start):
    """All of a model has as many numbers as the model; kept for every step they would fill the memory."""
    (link, *_) = ClearShards(request_for).links()
    blocks = await asked(link, terms(len(start[0])), tiny_gpt2, start, steps=2)
    assert not np.array_equal(blocks["steps.0"], blocks["steps.1"])
    assert link.bounded("steps.1").any()
    assert link.bounded("unigram").sum()
    with pytest.raises(KeyError):
        link.bounded("steps.0")


@pytest.mark.slow
async def test_links_give_what_their_parties_would_send_and_read_their_text_once(
    request_for, tiny_gpt2, start, tmp_path, monkeypatch
):
    read, reads = plain.plain_units, []
    monkeypatch.setattr(
        "party.tasks.text.documents.plain_units", lambda *given, **more: reads.append(1) or read(*given, **more)
    )
    shards, plan = ClearShards(request_for), terms(len(start[0]))
    found = {link.name: await asked(link, plan, tiny_gpt2, start) for link in shards.links()}
    assert len(reads) == PARTIES  # for tokens and for steps together
    await asked(shards.links()[0], terms(len(start[0]), noise=2.0), tiny_gpt2, (start[0] + 0.1, start[1] * 2))
    assert len(reads) == PARTIES
    assert not np.array_equal(found["party-0"]["unigram"], found["party-1"]["unigram"])

    files = {path.name: str(path) for path in tiny_gpt2.iterdir()}
    reading = {name: path for name, path in files.items() if "safetensors" not in name and "generation" not in name}
    coded = CODED.SerializeToString().hex()
    start[1].tofile(tmp_path / "tilt")
    start[0].astype("<f4").tofile(tmp_path / "parameters")
    model = TextModel(files, str(tmp_path / "model"), "lora", 2, 4, LONGEST, SEED)
    name, blocks = "party-0", found["party-0"]
    key = insecure_key(SEED, name, "steps.0 sample 0").hex()
    works = {
        "unigram": TokensWork(TokenizerFiles(reading, str(tmp_path / "read"), LONGEST), coded),
        "histogram": CodesWork(coded),
        "steps.0": StepWork(
            model, Lesson("language", coded=coded, tilt=str(tmp_path / "tilt")), str(tmp_path / "parameters"), key
        ),
    }
    for release, done in works.items():
        message = step_of(plan.releases[2], release) or next(each for each in plan.releases if each.name == release)
        total = stored(request_for, name, message, done, tmp_path)
        assert total.any()
        stream = NoiseStream.insecure(SEED, name, release, "0")
        expected = noised(total.astype(np.int32), mechanism_of(message), stream)
        assert np.abs(blocks[release].astype(np.int64) - expected).max() <= (1 if release == "steps.0" else 0)


ASKED = {"openings": [[0]], "codes": [0, 0], "texts": [[40, 41, 42], [60, 0]]}
TOKENS, TOP, TEACHERS = 5, 4, 3
OUTCOMES = ((40 + np.arange(TOKENS * TOP, dtype="<u4").reshape(TOKENS, TOP)) << 16).tobytes()
"""Any tokens, each said to be as likely as can be."""


async def taught(link, folder, noise):
    """What a party's language models say of `ASKED`, noised, as a coordinator asks it; and the release."""
    bounds = plan_pb2.DifferencesMechanism(
        clip=0.05, levels=400, noise_multiplier=noise, shares=PARTIES, distribution="gaussian", tokens=TOKENS,
        outcomes=TOP + 1,
    )  # fmt: skip
    release = plan_pb2.Release(name="differences", charges=1, form=plan_pb2.FORM_SUMMED, differences=bounds)
    privacy = plan_pb2.Privacy(record=plan_pb2.RECORD_DOCUMENT, insecure_reproducible_noise=True)
    bound = plan_pb2.Terms(recipe="swing", seed=SEED, privacy=privacy, releases=[release])
    await link.join("simulated", plan_pb2.Plan(terms=bound), b"")
    files = []
    for path in sorted(folder.iterdir()):
        await link.provide("model", path.read_bytes())
        files.append(party_pb2.ModelFile(name=path.name, sha256=artefact_digest(path.read_bytes())))
    for kind, content in (("written", json.dumps(ASKED).encode()), ("outcomes", OUTCOMES)):
        await link.provide(kind, content)
    task = party_pb2.LanguageTeachersTask(
        release="differences", teachers=TEACHERS,
        model=party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_LORA, longest=LONGEST, rank=2, alpha=4),
        descent=party_pb2.Descent(
            learning_rate=0.05, optimiser=party_pb2.OPTIMISER_ADAMW, schedule=party_pb2.FALLING_LINEAR, epochs=1,
            batch=4,
        ),
        written_sha256=artefact_digest(json.dumps(ASKED).encode()), outcomes_sha256=artefact_digest(OUTCOMES),
    )  # fmt: skip
    await link.train(party_pb2.TrainRequest(operation_id="o", language_teachers=task), lambda percent: None)
    (block,) = [each.value async for each in link.answer("differences", [Batch(0, 0, TOKENS)], TOP + 1)]
    return block, release


@pytest.mark.slow
@pytest.mark.alone
async def test_language_teachers_in_two_processes_say_what_they_say_in_one(request_for, tiny_gpt2):
    found = []
    for processes in (1, 2):
        link = ClearShards(replace(request_for, processes=processes)).links()[0]
        await taught(link, tiny_gpt2, 1.0)
        found.append(link.bounded("differences"))
    assert np.array_equal(*found)


@pytest.mark.slow
async def test_language_teachers_say_what_their_partys_would_and_are_trained_once_whatever_the_noise(
    request_for, tiny_gpt2, tmp_path, monkeypatch
):
    own, trained = training._taught, []
    monkeypatch.setattr(training, "_taught", lambda *given: trained.append(1) or own(*given))
    links = {link.name: link for link in ClearShards(request_for).links()}
    found = {name: await taught(link, tiny_gpt2, 1.0) for name, link in links.items()}
    once = len(trained)
    assert PARTIES < once <= PARTIES * TEACHERS
    louder, _ = await taught(links["party-0"], tiny_gpt2, 2.0)
    assert len(trained) == once
    assert not np.array_equal(found["party-0"][0], louder)
    (tmp_path / "written").write_text(json.dumps(ASKED))
    (tmp_path / "outcomes").write_bytes(OUTCOMES)
    for name, (block, release) in found.items():
        done = LanguageTeachersWork(
            TextModel({path.name: str(path) for path in tiny_gpt2.iterdir()}, str(tmp_path / "model"), "lora", 2, 4,
                      LONGEST, SEED),
            insecure_key(SEED, name, "slots").hex(), TEACHERS,
            Descent(0.05, "adamw", "linear", 0.0, 0.0, 0.0, expected_batch=0.0, epochs=1, batch=4),
            str(tmp_path / "written"), str(tmp_path / "outcomes"),
        )  # fmt: skip
        total = stored(request_for, name, release, done, tmp_path)
        assert total.any()
        stream = NoiseStream.insecure(SEED, name, "differences", "0")
        assert np.array_equal(block, noised(total.astype(np.int32), mechanism_of(release), stream))


def test_documents_in_clear_are_those_that_parties_train_on(request_for, tiny_gpt2):
    tokenizer, shards = language_model(str(tiny_gpt2))[1], ClearShards(request_for)
    bare = shards.documents(DocumentsWanted(None, tokenizer, LONGEST))
    coded = shards.documents(DocumentsWanted(CODED, tokenizer, LONGEST))
    assert len(bare) == len(coded) == PARTIES
    said = sorted(
        tokenizer.decode(row.ids[row.second :], skip_special_tokens=True) for part in bare for row in part.rows
    )
    lines = (request_for.base / "notes.jsonl").read_text().splitlines()
    assert said == sorted(json.loads(line)["text"] for line in lines)
    opened = [tokenizer.decode(row.ids[: row.second]) for part in coded for row in part.rows]
    assert sum("Is bad" in each for each in opened) == 7
    assert sum("Is good" in each for each in opened) == 7  # the other six have stars that are no code
