"""Language models that learn the answers to inputs: a unit is a pair, in one of them, and a coordinator that lies about
inputs, answers or models learns nothing and is charged nothing.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from aggregation.mechanisms.said import FreeTargets, SoftenedTargets
from aggregation.mechanisms.vectors import DifferencesMechanism
from learning.classification.training import Fit, fit
from learning.language.generation import Texts
from learning.language.speaker import Speaker
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.encoders import speaking_model
from learning.models.optimisers import Schedule
from learning.models.pairs import PairForm, encode_pairs
from learning.swing.answers import cells_kept, differences_of_texts
from party.config import PolicyTable
from party.ledger.accounts import read_account
from party.shard.memory import Memory
from party.shard.units import slot
from party.shard_table import ShardTable
from party.tasks.job import Job
from party.tasks.language_teachers import training
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.text.request import Descent, Paired, TextModel
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

INPUTS = [[0, 40, 41, 221], [0, 9, 221], [0, 40, 41, 221]]
ASKED = [[60, 61, 0], [70, 0], [60, 0]]
TOKENS = sum(map(len, ASKED))
TOP, TEACHERS, LONGEST, ANSWER = 4, 3, 24, 8
CLIP, LEVELS = 0.1, 4000
KEY = b"k" * 32
SEPARATOR = " and "
WORDS = ("the", "film", "was", "good", "bad", "slow", "plot", "actor", "story")
PAIRED = plan_pb2.PairedText(separator=SEPARATOR, answer=ANSWER)
DESCENT = {
    "learning_rate": 0.05, "optimiser": "adamw", "schedule": "linear", "warm_up": 0.1, "momentum": 0.9, "decay": 0.01,
    "expected_batch": 0.0, "epochs": 2, "batch": 2,
}  # fmt: skip
MECHANISM = DifferencesMechanism(CLIP, LEVELS, 1.0, 2, tokens=TOKENS, outcomes=TOP + 1)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["gpt2", "bart", pytest.param("t5", marks=pytest.mark.slow)])
def began(request, tiny_gpt2, tiny_sequence):
    """The folder of a public model, and the model as every party has it."""
    folder = tiny_gpt2 if request.param == "gpt2" else tiny_sequence(request.param)
    model, tokenizer = speaking_model(str(folder))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    return folder, model, tokenizer, flatten(model).clone()


def public_outcomes(size):
    """Outcomes of every token that is asked, and the same as they are sent."""
    rng = np.random.default_rng(3)
    ids = np.array([rng.permutation(size)[:TOP] for _ in range(TOKENS)], np.uint32)
    codes = np.tile(np.array([3000, 6000, 9000, 12000], np.uint16), (TOKENS, 1))
    rows = FreeTargets("public", TOP, size).contribute((ids, codes))
    return (ids, codes), rows.astype(np.uint32).astype("<u4").tobytes()


def note(number, **changes):
    rng = np.random.default_rng(number)
    said, answer = (" ".join(rng.choice(WORDS, rng.integers(1, most))) for most in (12, 4))
    return {"text": said, "reply": answer, "id": f"n{number}", "who": f"u{number % 4}"} | changes


NOTES = [note(number) for number in range(12)]


class Keeps(Memory):
    """Shows what the teachers said before it was bounded; nothing for one that learned nothing."""

    def each(self, what, of, make, told):
        found = super().each(what, of, make, told)
        self.vectors = np.stack([np.zeros((TOKENS, TOP + 1)) if each is None else each for each in found])
        return found


@pytest.fixture
def make(tmp_path, began):
    """`make(rows, ...)`: a job over these rows; fields of its work and of its descent can be changed."""

    def makes(rows=NOTES, *, by_user=False, descent=(), **changes):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
        asked = {"openings": INPUTS[:2], "codes": [0, 1, 0], "texts": ASKED}
        (tmp_path / "written").write_text(json.dumps(asked))
        (tmp_path / "outcomes").write_bytes(public_outcomes(began[1].config.vocab_size)[1])
        files = {path.name: str(path) for path in began[0].iterdir()}
        work = {
            "model": TextModel(files, str(tmp_path / "model"), "lora", 2, 4, LONGEST, 7), "slot_key": KEY.hex(),
            "teachers": TEACHERS, "descent": Descent(**DESCENT | dict(descent)), "written": str(tmp_path / "written"),
            "outcomes": str(tmp_path / "outcomes"), "pairs": Paired("reply", SEPARATOR, ANSWER),
        }  # fmt: skip
        shard = {"source": str(tmp_path / "rows.jsonl"), "id": "id", "user": "who", "second": "reply"}
        return Job(
            parent=os.getpid(),
            shard=ShardTable(**shard).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["swing"]).model_dump(),
            record="document",
            by_user=by_user,
            release="",
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=LanguageTeachersWork(**work | changes),
        )

    return makes


@pytest.fixture
def said(own_recipes, monkeypatch):
    """`said(job)`: the bounded sum, [tokens, cells], and the vectors that are in it, [teachers, tokens, cells]."""
    monkeypatch.syspath_prepend(own_recipes)

    def says(job):
        kept = Keeps()
        total = training.prepare(job, job.work, MECHANISM, kept)(job, lambda percent: None)
        return total, kept.vectors

    return says


def learned(began, units):
    """By the learning room alone: what teachers on these (id, input, answer) say, [teachers, tokens, cells]."""
    _, model, tokenizer, start = began
    cells = cells_kept(*public_outcomes(model.config.vocab_size)[0])
    texts = Texts.joined([np.array(each, np.int32) for each in ASKED], 0)
    form = PairForm(SEPARATOR, LONGEST, ANSWER, False).of(model.config)
    found = np.zeros((TEACHERS, *cells.public.shape))
    settings = Fit(2, 2, 0.05, "adamw", Schedule("linear", 0.1), 0.01, 0.9)
    for number in range(TEACHERS):
        own = [each[1:] for each in units if slot(KEY, each[0], TEACHERS) == number]
        if not own:
            continue
        unflatten(model, start)
        rows = encode_pairs(tokenizer, [each for each, _ in own], [each for _, each in own], form).rows
        fit(model, rows, None, settings, np.random.default_rng([7, number]))
        found[number] = differences_of_texts(Speaker(model), texts, INPUTS, np.ones(TOKENS), cells)
    return found


def units_of(rows):
    return [(row["id"], row["text"], row["reply"]) for row in rows]


@pytest.mark.slow
def test_what_teachers_say_of_answers_is_what_the_learning_room_makes_of_their_pairs(make, said, began):
    total, vectors = said(make())
    expected = learned(began, units_of(NOTES))
    np.testing.assert_array_equal(vectors, expected)
    norms = np.linalg.norm(expected, axis=(1, 2), keepdims=True)
    on_grid = expected * np.minimum(1, CLIP / np.maximum(norms, 1e-12)) * LEVELS / CLIP
    assert np.abs(total - on_grid.sum(axis=0)).max() <= TEACHERS


@pytest.mark.slow
def test_the_same_answer_after_another_input_is_said_otherwise(make, said):
    """One answer is asked after two inputs, and after the first of them once more."""
    job = make()
    told = {"openings": INPUTS[:2], "codes": [0, 1, 0], "texts": [[60, 0, 60], [60, 0], [60, 0]]}
    Path(job.work.written).write_text(json.dumps(told))
    rows = np.tile(np.frombuffer(Path(job.work.outcomes).read_bytes(), "<u4").reshape(TOKENS, TOP)[:1], (TOKENS, 1))
    Path(job.work.outcomes).write_bytes(rows.tobytes())
    _, vectors = said(job)
    np.testing.assert_allclose(vectors[:, 0], vectors[:, 5], atol=1e-5)
    assert not np.allclose(vectors[:, 0], vectors[:, 3], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 7])
def test_one_pair_less_or_with_another_answer_changes_one_teacher_and_the_sum_by_two_levels_at_most(make, said, place):
    total, vectors = said(make())
    for rows in (
        [row for row in NOTES if row["id"] != f"n{place}"],
        [row | {"reply": "very dull"} if row["id"] == f"n{place}" else row for row in NOTES],
        [row | {"text": "awful end"} if row["id"] == f"n{place}" else row for row in NOTES],
    ):
        moved, others = said(make(rows))
        changed = [each for each in range(TEACHERS) if not np.array_equal(vectors[each], others[each])]
        assert changed == [slot(KEY, f"n{place}", TEACHERS)]
        assert 0 < np.linalg.norm((moved - total).astype(float)) <= 2 * LEVELS


@pytest.mark.slow
def test_all_pairs_of_a_user_are_in_one_teacher(make, said):
    total, vectors = said(make(by_user=True))
    moved, others = said(make([row for row in NOTES if row["who"] != "u1"], by_user=True))
    changed = [each for each in range(TEACHERS) if not np.array_equal(vectors[each], others[each])]
    assert changed == [slot(KEY, "u1", TEACHERS)]
    assert np.linalg.norm((moved - total).astype(float)) <= 2 * LEVELS


AWFUL = [
    note(90, reply=" "), note(91, reply=""), note(92, text=" "), note(93, reply="\ud800"), note(94, text="\ud800"),
    note(95, reply=None), {"id": "n97", "text": "the film"}, {"id": "n98", "reply": "good"},
    '{"text": "the film", "reply": ',
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("by_user", [False, True])
def test_a_pair_that_lacks_either_text_or_cannot_be_tokenised_changes_nothing(make, said, by_user):
    own = [row if isinstance(row, str) else row | {"who": "u9"} for row in AWFUL]
    for found, expected in zip(
        said(make([*NOTES[:5], *own, *NOTES[5:]], by_user=by_user)), said(make(by_user=by_user)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    total, vectors = said(make(own, by_user=by_user))
    assert not vectors.any()
    assert not total.any()


@pytest.mark.slow
def test_both_texts_of_a_pair_are_in_the_census(make, said, tmp_path):
    from dataclasses import replace

    sizes = []
    for reply in ("good", " "):
        path = tmp_path / f"census-{len(reply)}"
        rows = [note(number, reply=reply) for number in range(3)]
        said(replace(make(rows, descent={"epochs": 1}), census=str(path), census_key="6b" * 32))
        sizes.append(len(path.read_bytes()))
    assert sizes[0] > sizes[1]


SOFTENED = SoftenedTargets(top=2, tokens=300, protection="top", scale=0.2, protected=2, temperature=2.0, strength=0.0,
                           cap=2.0)  # fmt: skip


@pytest.mark.slow
def test_a_pair_that_is_asked_twice_gets_one_softened_answer_and_another_input_another(make, said, tmp_path):
    """So that asking the same again averages no noise away."""
    job = make(outcomes="", softened=True, key="ab" * 32, teachers=1)
    asked = {"openings": INPUTS[:2], "codes": [0, 1, 0], "texts": [[60, 61, 0]] * 3}
    (tmp_path / "written").write_text(json.dumps(asked))
    rows = training.prepare(job, job.work, SOFTENED, None)(job, lambda percent: None)
    first, other, again = np.split(np.asarray(rows), 3)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


# A party on a real port, and a coordinator that may lie.


@pytest.fixture(scope="module")
def sent(tiny_gpt2):
    return public_outcomes(speaking_model(str(tiny_gpt2))[0].config.vocab_size)[1]


def release(tokens=TOKENS):
    bounds = plan_pb2.DifferencesMechanism(
        clip=CLIP, levels=LEVELS, noise_multiplier=5.0, shares=1, distribution="gaussian", tokens=tokens,
        outcomes=TOP + 1,
    )  # fmt: skip
    return plan_pb2.Release(name="differences", charges=1, form=plan_pb2.FORM_SUMMED, differences=bounds)


@pytest.fixture
def charged(tmp_path):
    """The names of what the party's ledger charged; none where it has no ledger."""

    def reads():
        path = tmp_path / "north.party/ledger.sqlite"
        return [each.release for each in read_account(path, "north").reservations] if path.exists() else []

    return reads


@pytest.fixture
def taught(speaker, trains_here):
    """`await taught(...)`: a caller of a party that joined a run of swing of pairs and has the model."""

    async def joins(asks=None, *, second="stars", **more):
        rules = {"recipes": ["swing"]} | more.pop("policy", {})
        settings = {"recipe": "swing", "coded": None, "paired": PAIRED} | more
        asks = release() if asks is None else asks
        return await speaker(asks, shard={"codes": None, "second": second}, policy=rules, **settings)

    return joins


def written(texts=ASKED, openings=INPUTS, codes=None):
    codes = list(range(len(texts))) if codes is None else codes
    return json.dumps({"openings": list(openings), "codes": codes, "texts": texts}).encode()


async def asked(caller, sent, texts=None, *, operation="differences-0", **changes):
    content = written() if texts is None else texts
    for kind, each in (("written", content), ("outcomes", sent)):
        await caller.provide(each, kind=kind)
    descent = {key: each for key, each in DESCENT.items() if key not in ("optimiser", "schedule", "expected_batch")}
    task = {
        "release": "differences", "model": caller.model, "teachers": TEACHERS,
        "descent": party_pb2.Descent(optimiser=1, schedule=2, **descent | changes.pop("descent", {})),
        "written_sha256": artefact_digest(content), "outcomes_sha256": artefact_digest(sent),
    }  # fmt: skip
    request = party_pb2.LanguageTeachersTask(**task | changes)
    return await caller.trained(
        party_pb2.TrainRequest(run=caller.run, operation_id=operation, language_teachers=request)
    )  # fmt: skip


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.sentence.rstrip().endswith(".")
    assert "\n" not in refusal.value.sentence
    return refusal.value


@pytest.mark.parametrize(
    ("terms", "reason", "says"),
    [
        ({"second": None}, Reason.POLICY, "policy [shard] second: this party's shard has no column of second texts"),
        ({"record": plan_pb2.RECORD_SENTENCE, "policy": {"record": "sentence"}}, Reason.PLAN, "these are of one row"),
        ({"coded": plan_pb2.CodedText(template="{a}")}, Reason.PLAN, ""),
        (
            {"labelled": plan_pb2.LabelledText(kind=1, labels=["no", "yes"])}, Reason.POLICY,
            "has no label column",
        ),
        ({"paired": plan_pb2.PairedText(separator="a" * 201, answer=8)}, Reason.PLAN, "more than 200 characters"),
        ({"paired": plan_pb2.PairedText(separator=" ", answer=0)}, Reason.PLAN, "answers of 0 tokens; use 2 to"),
        ({"paired": plan_pb2.PairedText(separator=" ", answer=1)}, Reason.PLAN, "answers of 1 tokens; use 2 to"),
        ({"paired": plan_pb2.PairedText(separator=" ", answer=2**31)}, Reason.PLAN, "answers of 2,147,483,648 tokens"),
    ],
)  # fmt: skip
async def test_terms_of_pairs_that_no_party_reads_are_refused_when_it_is_to_join(taught, charged, terms, reason, says):
    refusal = await refused(taught(**terms))
    assert (refusal.reason, says in refusal.sentence) == (reason, True), refusal.sentence
    assert charged() == []


@pytest.mark.slow
async def test_every_answers_token_is_charged_once(taught, sent, films, charged):
    caller = await taught()
    messages = await asked(caller, sent)
    assert {each.percent for each in messages} <= {255, 33, 66, 99, 100}
    assert charged() == ["differences"]


LONG = [[0, *[5] * LONGEST]]
LIES = {
    "an input longer than the model is to read": (
        {"texts": written(openings=[*LONG, *INPUTS[1:]])}, Reason.REQUEST, "longer than the 24 tokens",
    ),
    "an input that no answer has and is too long": (
        {"texts": written(openings=[*INPUTS, *LONG])}, Reason.REQUEST, "longer than the 24 tokens",
    ),
    "an input without a token": ({"texts": written(openings=[[], *INPUTS[1:]])}, Reason.ARTEFACT, "no JSON object"),
    "no input": ({"texts": written(openings=[])}, Reason.ARTEFACT, "no JSON object"),
    "an input that is not there": ({"texts": written(codes=[0, 1, 3])}, Reason.ARTEFACT, "no JSON object"),
    "an answer without an input": ({"texts": written(codes=[0, 1])}, Reason.ARTEFACT, "no JSON object"),
    "an answer without a token": ({"texts": written([[], *ASKED[1:]])}, Reason.ARTEFACT, "no JSON object"),
    "a negative token": ({"texts": written(openings=[[-1], *INPUTS[1:]])}, Reason.ARTEFACT, "no JSON object"),
    "more answers than are paid for": (
        {"texts": written([*ASKED, [5]], [*INPUTS, [1]])}, Reason.REQUEST, "8 tokens are asked, and release",
    ),
    "one pair a thousand times": (
        {"texts": written([ASKED[0]] * 1000, codes=[0] * 1000)}, Reason.REQUEST, "1,000 texts are asked",
    ),
    "an input of unknown tokens": (
        {"texts": written(openings=[[0, 9999], *INPUTS[1:]])}, Reason.TRAINING, "the texts hold number 9,999",
    ),
    "an answer of unknown tokens": (
        {"texts": written([[60, 61, 300], *ASKED[1:]])}, Reason.TRAINING, "the texts hold number 300",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
async def test_a_request_that_lies_is_refused_in_a_sentence_before_anything_is_charged(taught, sent, charged, lie):
    changes, reason, says = LIES[lie]
    refusal = await refused(asked(await taught(), sent, **changes))
    assert (refusal.reason, says in refusal.sentence) == (reason, True), refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("longest", "reason", "says"),
    [
        (ANSWER, Reason.REQUEST, "pairs of 8 tokens leave no input beside an answer of 8"),
        (ANSWER + 4, Reason.TRAINING, "leave 1 for an input beside 8 of its answer"),
    ],
)
async def test_a_pair_without_room_for_its_input_is_refused_before_anything_is_charged(
    taught, sent, charged, longest, reason, says
):
    caller = await taught(release(tokens=1), model={"longest": longest})
    refusal = await refused(asked(caller, sent[: 4 * TOP], written([[60]], [[0]])))
    assert (refusal.reason, says in refusal.sentence) == (reason, True), refusal.sentence
    assert charged() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bart", "t5"])
async def test_a_model_with_an_encoder_reads_pairs_and_nothing_else(taught, sent, charged, films, tiny_sequence, kind):
    caller = await taught(folder=tiny_sequence(kind))
    assert (await asked(caller, sent))[-1].percent == 100
    assert charged() == ["differences"]


async def test_a_model_with_an_encoder_is_not_taught_single_texts(taught, sent, charged, tiny_sequence, tmp_path):
    caller = await taught(folder=tiny_sequence("bart"), paired=None)
    refusal = await refused(asked(caller, sent))
    assert refusal.reason is Reason.TRAINING
    assert "has an encoder and a decoder. Name a model that has one of them" in refusal.sentence
    assert str(tmp_path) not in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("t5", {"decoder_start_token_id": 10**6}),
        ("t5", {"decoder_start_token_id": -7}),
        ("t5", {"decoder_start_token_id": None}),
        ("t5", {"relative_attention_num_buckets": 0}),
        ("bart", {"decoder_layers": 10**5}),
        ("bart", {"pad_token_id": 10**5}),
        ("bart", {"is_encoder_decoder": False, "max_position_embeddings": 2}),
    ],
)
async def test_a_model_of_two_halves_that_cannot_be_is_refused_before_anything_is_charged(
    taught, sent, charged, tiny_sequence, tmp_path, kind, change
):
    folder = shutil.copytree(tiny_sequence(kind), tmp_path / "hostile")
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | change))
    refusal = await refused(asked(await taught(folder=folder), sent))
    assert refusal.reason in (Reason.TRAINING, Reason.ARTEFACT)
    assert str(tmp_path) not in refusal.sentence
    assert charged() == []


@pytest.mark.slow
async def test_other_inputs_are_not_asked_under_the_same_charge(taught, sent, films, charged):
    caller = await taught()
    await asked(caller, sent)
    for operation in ("differences-0", "differences-1"):
        others = written(openings=[[0, 41, 221], *INPUTS[1:]])
        assert (await refused(asked(caller, sent, others, operation=operation))).reason is Reason.CONFLICT
    assert charged() == ["differences"]


TOLD = {
    "honest": {},
    "wild": {"descent": {"learning_rate": 1e38}},
    "a lie": {"teachers": 0},
    "other texts": {"texts": written([*ASKED, [5]], [*INPUTS, [1]])},
}
SHARDS = (
    [("good film", "yes"), ("a secret " * 9, "a reply that is much longer than any answer is to be " * 3)],
    [("good film", " "), (" ", "yes"), ("\ud800", "yes"), ("a", "\ud800")],
    [("good film", 7), ("good film", None), ("good film", ["yes"])],
    [],
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
async def test_no_outcome_depends_on_what_a_shard_holds(taught, sent, films, tmp_path, charged, name):
    found = []
    for rows in SHARDS:
        films(rows)
        caller = await taught(insecure_reproducible_noise=False, policy={"simulation": False})
        try:
            said = await asked(caller, sent, **TOLD[name])
            (block,) = await caller.answer(caller.batch(0, 0, TOKENS, "differences"), columns=TOP + 1)
            ends = ([each.percent for each in said if each.finished], block.shape)
        except Refusal as refusal:
            ends = (refusal.reason, refusal.sentence)
        found.append((ends, charged()))
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    assert all(each == found[0] for each in found)
