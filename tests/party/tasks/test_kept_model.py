"""A language model that a party trains alone and keeps: its texts, what it says of texts, and what a hostile plan
gets.
"""

import json

import numpy as np
import pytest
import torch

from aggregation.mechanisms.said import FreeTargets, FreeTexts
from aggregation.noise.stream import NoiseStream
from learning.language.generation import Sampling, Texts, generate
from learning.language.soft_targets import graded
from learning.language.speaker import Speaker
from learning.models.adapting import Lora, adapt, flatten, merged, unflatten
from learning.models.batching import encode_documents, losses
from learning.models.encoders import language_model
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits
from party.admission.admit import event_of
from party.errors import TrainingError
from party.ledger.accounts import read_account
from party.provided.written import written
from party.releasing.mechanisms import mechanism_of
from party.store.keys import insecure_key
from party.tasks.grading import training as grading_task
from party.tasks.text_model import training as text_training
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

OPENINGS = [[0, 5], [0, 6, 7]]
CODES = [0, 1, 1, 0, 1]
LONGEST, TOP, TEMPERATURE = 8, 4, 1.5
LABELS = {"no": "Is bad", "yes": "Is good"}


@pytest.fixture(scope="module")
def start(tiny_gpt2):
    model, _ = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    first = flatten(model).numpy()
    return first + np.random.default_rng(0).normal(0, 0.05, len(first)).astype(np.float32)


@pytest.fixture(scope="module")
def tokens(tiny_gpt2):
    return language_model(str(tiny_gpt2))[0].config.vocab_size


@pytest.fixture
def training(descent, start):
    made = descent("teacher", len(start), weights=True, sampling_probability=1.0, noise_multiplier=0.1, levels=4000)
    made.form = plan_pb2.FORM_TRAINING
    return made


@pytest.fixture
def texts():
    def makes(name="texts", after="teacher", longest=LONGEST, charges=5):
        said = plan_pb2.FreeTexts(after=after, longest=longest)
        return plan_pb2.Release(name=name, charges=charges, form=plan_pb2.FORM_SAID, texts=said)

    return makes


@pytest.fixture
def targets(tokens):
    def makes(name="targets", after="texts", top=TOP, charges=6):
        said = plan_pb2.FreeTargets(after=after, top=top, tokens=tokens)
        return plan_pb2.Release(name=name, charges=charges, form=plan_pb2.FORM_SAID, targets=said)

    return makes


@pytest.fixture
def keeper(speaker, training, texts, targets):
    """`await keeper()`: a caller of a party whose policy lets no parameters out, in a run of all three releases."""

    async def joins(*releases, **more):
        policy = {"weights": False} | more.pop("policy", {})
        return await speaker(*(releases or (training, texts(), targets())), policy=policy, **more)

    return joins


@pytest.fixture
def charged(tmp_path):
    def reads():
        account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
        return [(each.release, each.event) for each in account.reservations]

    return reads


def voices(tokens, rows=3):
    rng = np.random.default_rng(1)
    said = rng.random((rows, tokens)) + 0.01
    return np.vstack([rng.normal(0, 1, (rows, tokens)), said / said.sum(axis=1, keepdims=True)]).astype("<f4")


async def sent(caller, content, kind="written"):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    await caller.provide(content, kind=kind)
    return artefact_digest(content)


def dealt(codes):
    """Codes of two parties' texts, of which these are the first party's."""
    return [each for code in codes for each in (code, 1)]


async def asked(caller, start, tokens, *, content=None, voice=None, operation="texts-0", sampling=None, **changes):
    content = {"openings": OPENINGS, "codes": dealt(CODES)} if content is None else content
    voice = voices(tokens) if voice is None else voice
    settings = {"top_k": 0, "top_p": 1.0, "temperature": 1.0, "batch": 3} | (sampling or {})
    writing = party_pb2.Writing(
        written_sha256=await sent(caller, content),
        voice=party_pb2.Voice(voices_sha256=await sent(caller, voice.tobytes(), "voices"), weight=0.1),
        **settings,
    )
    return await caller.train_alone(
        caller.model,
        start,
        **{"operation": operation, "release": "texts", "objective": party_pb2.OBJECTIVE_LANGUAGE, "writing": writing}
        | changes,
    )


async def grading(caller, tokens, *, content, voice=None, operation="targets-0", **changes):
    voice = voices(tokens) if voice is None else voice
    task = party_pb2.GradingTask(
        **{
            "release": "targets",
            "model": caller.model,
            "written_sha256": await sent(caller, content),
            "voice": party_pb2.Voice(voices_sha256=await sent(caller, voice.tobytes(), "voices"), weight=0.1),
            "temperature": TEMPERATURE,
        }
        | changes
    )
    return await caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id=operation, grading=task))


async def given(caller, release, rows, columns):
    (block,) = await caller.answer(caller.batch(0, 0, rows, release), columns=columns)
    return block


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


def speaker_wanted(folder, rows, training, start, tokens):
    """The model as the learning room alone trains it, with its voice."""
    model, tokenizer = language_model(str(folder))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    unflatten(model, torch.from_numpy(start))
    words = [text for text, _ in rows]
    own = encode_documents(tokenizer, words, longest=24, codes=[LABELS[label] for _, label in rows]).rows
    stream = NoiseStream.from_key(insecure_key(7, "north", "teacher"))
    settings = Optimisation(4.0, 0.1, "sgd", Schedule("constant"), 0.9, 0.0)
    train_private(model, TextUnits(model.config, own, None), losses, mechanism_of(training), settings, stream=stream)
    tilts, said = np.split(voices(tokens), 2)
    return Speaker(merged(model), torch.from_numpy(tilts), torch.from_numpy(said), 0.1), tokenizer


@pytest.mark.slow
async def test_texts_and_what_is_said_of_texts_are_those_of_the_trained_model_and_only_training_costs(
    keeper, training, texts, targets, start, tokens, films, tiny_gpt2, charged, tmp_path
):
    caller = await keeper()
    await asked(caller, start, tokens)
    assert charged() == [("teacher", event_of(training))]
    found = await given(caller, "texts", len(CODES), LONGEST)
    wanted, tokenizer = speaker_wanted(tiny_gpt2, films(), training, start, tokens)
    before = [OPENINGS[code] for code in CODES]
    sampling = Sampling(LONGEST, 0, 1.0, 1.0, 3)
    own = generate(
        wanted, before, sampling, end=0, seed=7, folder=tmp_path / "wanted", known=len(tokenizer), cells=CODES
    )
    assert np.array_equal(found, mechanism_of(texts()).contribute(list(own)))
    assert len({tuple(row) for row in found.tolist()}) > 2

    pooled = [[3, 4, 5, 0], [9, 8], [1, 2, 3, 4, 5, 6, 7]]
    codes = [0, 1, 1]
    await grading(caller, tokens, content={"openings": OPENINGS, "codes": codes, "texts": pooled})
    places = sum(map(len, pooled))
    said = mechanism_of(targets()).targets((await given(caller, "targets", places, TOP)).astype(np.int64))
    right = graded(
        [wanted], Texts.joined([np.array(each, np.int32) for each in pooled], 0),
        [[OPENINGS[code] for code in codes]], top=TOP, temperature=TEMPERATURE, folder=tmp_path / "graded",
        cells=codes,
    )  # fmt: skip
    assert np.array_equal(said[0], right.ids)
    assert np.abs(said[1].astype(int) - right.codes.astype(int)).max() <= 1
    assert [name for name, _ in charged()] == ["teacher", "texts", "targets"]
    assert [event for name, event in charged() if name != "teacher"] == [event_of(texts()), event_of(targets())]

    folder = tmp_path / "north.party/runs/run-1"
    kept = folder / "teacher.kept.f32"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert np.abs(np.fromfile(kept, "<f4") - start).max() > 1e-3
    await caller.leave()
    assert not folder.exists()


@pytest.mark.slow
async def test_the_parameters_that_are_kept_cannot_be_asked(keeper, start, tokens):
    caller = await keeper()
    await asked(caller, start, tokens)
    refusal = await refused(caller.answer(caller.batch(0, 0, 1, "teacher"), columns=len(start)))
    assert "not trained yet" in refusal.sentence or "nothing is answered under it" in refusal.sentence


@pytest.mark.slow
async def test_one_training_writes_once(keeper, start, tokens, charged):
    """The noise key is the training's: another start, or other texts, under it would be a second training."""
    caller = await keeper()
    await asked(caller, start, tokens)
    for change in ({"start": start + 1}, {"content": {"openings": OPENINGS, "codes": [1, 1]}}):
        again = await refused(asked(caller, change.pop("start", start), tokens, operation="texts-1", **change))
        assert again.reason == Reason.CONFLICT
    content = {"openings": OPENINGS, "codes": [0], "texts": [[1, 2]]}
    await grading(caller, tokens, content=content)
    other = await refused(grading(caller, tokens, content=content | {"texts": [[2, 2]]}, operation="targets-1"))
    assert other.reason == Reason.CONFLICT
    assert [name for name, _ in charged()] == ["teacher", "targets"]


@pytest.mark.slow
async def test_grading_is_done_once_for_no_shard_is_opened(keeper, start, tokens, caplog, monkeypatch):
    """Work that reads no record leaves no list of them, which elsewhere means that it has to be done without text."""
    done = []
    real = grading_task.graded
    monkeypatch.setattr(grading_task, "graded", lambda *given, **more: done.append(1) or real(*given, **more))
    caller = await keeper()
    await asked(caller, start, tokens)
    await grading(caller, tokens, content={"openings": OPENINGS, "codes": [0], "texts": [[1, 2]]})
    assert len(done) == 1
    assert not [each for each in caplog.messages if "without this party's text" in each]


@pytest.mark.slow
async def test_no_unit_is_in_memory_while_texts_are_written(keeper, start, tokens, monkeypatch):
    """Otherwise a coordinator that chooses the batch could tell from exhausted memory how large the shard is."""
    held = []
    real = text_training.write
    learned = text_training.learn

    def learn(job, mechanism, found, kept, progress):
        learned(job, mechanism, found, kept, progress)
        held.append(kept)

    def write(*given):
        held.append(held[0]._units)
        return real(*given)

    monkeypatch.setattr(text_training, "learn", learn)
    monkeypatch.setattr(text_training, "write", write)
    await asked(await keeper(), start, tokens)
    assert held[1:] == [None]


async def test_a_model_that_wrote_nothing_grades_nothing(keeper, tokens, charged):
    caller = await keeper()
    content = {"openings": OPENINGS, "codes": [0], "texts": [[1, 2]]}
    refusal = await refused(grading(caller, tokens, content=content))
    assert "release texts is not trained yet, and its model grades texts" in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"content": []}, "no JSON object of openings and codes"),
        ({"content": b"\xff"}, "no JSON object of openings and codes"),
        ({"content": {"openings": OPENINGS, "codes": [2]}}, "no JSON object of openings and codes"),
        ({"content": {"openings": OPENINGS, "codes": [0]}}, "no JSON object of openings and codes"),
        ({"content": {"openings": OPENINGS, "codes": []}}, "no JSON object of openings and codes"),
        ({"content": {"openings": [[]], "codes": [0, 0]}}, "no JSON object of openings and codes"),
        ({"content": {"openings": [[-1]], "codes": [0, 0]}}, "no JSON object of openings and codes"),
        ({"content": {"openings": [[True]], "codes": [0, 0]}}, "no JSON object of openings and codes"),
        (
            {"content": {"openings": OPENINGS, "codes": [0, 0], "texts": [[1], [1]]}},
            "no JSON object of openings and codes",
        ),
        ({"content": {"openings": OPENINGS, "codes": [0] * 12}}, "6 texts are asked, and release texts is of 5"),
        ({"content": {"openings": [[0] * 17], "codes": [0, 0]}}, "longer than the 24 tokens"),
        ({"content": {"openings": [[10**6]], "codes": [0, 0]}, "voice": 2}, "the token 1,000,000, and the model has"),
        ({"voice": 2}, "and for 2 openings"),
        ({"voice": "nan"}, "tilt by NaN"),
        ({"voice": "large"}, "tilt by NaN, or by more than 1,000"),
        ({"voice": "none"}, "voices that were provided cannot be used"),
        ({"sampling": {"top_p": 0.0}}, "draw no text"),
        ({"sampling": {"top_p": float("nan")}}, "draw no text"),
        ({"sampling": {"temperature": float("inf")}}, "draw no text"),
        ({"sampling": {"batch": 0}}, "0 texts at a time"),
        ({"sampling": {"batch": 2**20}}, "1,048,576 texts at a time"),
        ({"writing": None}, "such a release needs them"),
    ],
)
async def test_what_cannot_be_written_is_refused_before_anything_is_charged(
    keeper, start, tokens, charged, change, says
):
    caller = await keeper()
    voice = voices(tokens)
    match change.pop("voice", None) if isinstance(change, dict) and "voice" in change else None:
        case 2:
            voice = voices(tokens, 2)
        case "nan":
            voice[0, 3] = np.nan
        case "large":
            voice[0, 3] = 2000
        case "none":
            voice[3] = 0
    refusal = await refused(asked(caller, start, tokens, voice=voice, **change))
    assert says in refusal.sentence
    assert charged() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"content": {"openings": OPENINGS, "codes": [0]}}, "no JSON object of openings, codes and texts"),
        (
            {"content": {"openings": OPENINGS, "codes": [0], "texts": [[]]}},
            "no JSON object of openings, codes and texts",
        ),
        ({"content": {"openings": OPENINGS, "codes": [0] * 7, "texts": [[1]] * 7}}, "7 texts are asked"),
        ({"content": {"openings": OPENINGS, "codes": [0], "texts": [[1] * 23]}}, "longer than the 24 tokens"),
        ({"content": {"openings": OPENINGS, "codes": [0], "texts": [[10**6]]}}, "and the texts hold 1,000,000"),
        ({"temperature": 0.0}, "a temperature of 0 makes no sense"),
        ({"temperature": float("nan")}, "a temperature of nan makes no sense"),
    ],
)
async def test_what_cannot_be_graded_is_refused_and_a_second_request_may_be_right(keeper, start, tokens, change, says):
    caller = await keeper()
    await asked(caller, start, tokens)
    content = {"openings": OPENINGS, "codes": [0], "texts": [[1, 2]]}
    refusal = await refused(grading(caller, tokens, **{"content": content} | change))
    assert says in refusal.sentence
    await grading(caller, tokens, content=content, operation="targets-1")
    assert (await given(caller, "targets", 2, TOP)).shape == (2, TOP)


@pytest.mark.parametrize(
    ("releases", "says"),
    [
        (lambda t, w, g: [t, w(), w("more")], "two releases are free after 'teacher'"),
        (lambda t, w, g: [t, w(), g(), g("more")], "two releases are free after 'texts'"),
        (lambda t, w, g: [t, w(after="other")], "is free after 'other', which trains nothing privately"),
        (lambda t, w, g: [t, g(after="teacher")], "is free after 'teacher', which gives no texts"),
        (lambda t, w, g: [w()], "which trains nothing privately"),
    ],
)
async def test_texts_come_after_one_training_and_targets_after_its_texts(
    speaker, training, texts, targets, releases, says
):
    refusal = await refused(speaker(*releases(training, texts, targets)))
    assert says in refusal.sentence


async def test_a_training_whose_parameters_leave_writes_nothing(speaker, training, texts):
    training.form = plan_pb2.FORM_WEIGHTS
    refusal = await refused(speaker(training, texts()))
    assert "which gives its parameters itself" in refusal.sentence


def test_a_file_of_anything_else_is_none(tmp_path):
    path = tmp_path / "written"
    for content in (b"", b"[" * 100_000, b'{"openings": "no"}', b"null"):
        path.write_bytes(content)
        with pytest.raises(TrainingError, match="no JSON object"):
            written(path, texts=False)


def test_rows_are_texts_again_and_odd_ones_are_none():
    mechanism = FreeTexts("teacher", 4)
    own = [np.array(each, np.int32) for each in ([5, 0], [], [1, 2, 3, 0])]
    found = mechanism.texts(mechanism.contribute(own))
    assert [each.tolist() for each in found] == [each.tolist() for each in own]
    for odd in ([[0, 1, 0, 0]], [[-1, 0, 0, 0]], [[1, 1]]):
        with pytest.raises(Exception, match="no texts"):
            mechanism.texts(np.array(odd))
    with pytest.raises(Exception, match="5 tokens, and 4 may leave"):
        mechanism.contribute([np.arange(5, dtype=np.int32)])


@pytest.mark.parametrize("size", [100, 2**16, 2**16 + 1, 128_000])
def test_outcomes_travel_whole_whatever_the_vocabulary(size):
    mechanism = FreeTargets("texts", 2, size)
    ids, codes = np.array([[size - 1, 0], [3, 7]]), np.array([[0, 65535], [12, 40000]], np.uint16)
    wire = mechanism.contribute((ids, codes))
    assert wire.shape == (2, mechanism.columns) == (2, 2 if size <= 2**16 else 4)
    back = mechanism.targets((wire & 0xFFFFFFFF).astype(np.uint32).view(np.int32).astype(np.int64))
    assert np.array_equal(back[0], ids)
    assert np.array_equal(back[1], codes)
    for odd in (np.zeros((1, mechanism.columns)), np.full((1, mechanism.columns), -1)):
        with pytest.raises(Exception, match="no outcomes"):
            mechanism.targets(odd.astype(np.int64))
