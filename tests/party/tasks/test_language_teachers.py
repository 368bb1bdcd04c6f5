"""Language models on a party's units say how far they are from a public one: one unit is in one of them, and a
coordinator that lies learns nothing and is charged nothing.
"""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregation.mechanisms.said import FreeTargets
from aggregation.mechanisms.vectors import DifferencesMechanism
from aggregation.noise.stream import NoiseStream
from learning.classification.training import Fit, fit
from learning.language.generation import Texts
from learning.language.soft_targets import STEP
from learning.language.speaker import Speaker
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.batching import encode_documents
from learning.models.encoders import language_model
from learning.models.optimisers import Schedule
from learning.swing.answers import cells_kept, differences_of_texts
from party.admission.admit import event_of
from party.config import PolicyTable
from party.ledger.accounts import read_account
from party.releasing.mechanisms import mechanism_of
from party.shard.memory import Memory
from party.shard.units import slot
from party.shard_table import ShardTable
from party.store.keys import insecure_key
from party.tasks.job import Job
from party.tasks.language_teachers import training
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.text.request import Descent, TextModel
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

OPENING = [0]
ASKED = [[40, 41, 42, 43], [60, 61], [70, 41, 7, 0]]
TOKENS = sum(map(len, ASKED))
TOP, TEACHERS, LONGEST = 4, 3, 24
CLIP, LEVELS = 0.1, 4000
KEY = b"k" * 32
DESCENT = {"learning_rate": 0.05, "epochs": 2, "batch": 2}
RUN_KEY = insecure_key(7, "north", "slots")
WORDS = ("the", "film", "was", "good", "bad", "slow", "plot", "actor", "story")


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def spoken(tiny_gpt2):
    """The public start as every party has it, and its tokenizer."""
    model, tokenizer = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    return model, tokenizer, flatten(model).clone()


@pytest.fixture(scope="module")
def size(spoken):
    return spoken[0].config.vocab_size


@pytest.fixture(scope="module")
def texts():
    return Texts.joined([np.array(each, np.int32) for each in ASKED], 0)


@pytest.fixture(scope="module")
def outcomes(spoken):
    """What the public model says of every token, text by text."""
    model, _, start = spoken
    unflatten(model, start)
    with torch.no_grad():
        said = [model(torch.tensor([[*OPENING, *each]])).logits[0, :-1].log_softmax(dim=-1) for each in ASKED]
    best, ids = torch.cat(said).topk(TOP, dim=-1)
    return ids.numpy().astype(np.uint32), (best.numpy() / -STEP).round().astype(np.uint16)


@pytest.fixture(scope="module")
def public(outcomes, size):
    """The same as it is sent."""
    rows = FreeTargets("public", TOP, size).contribute(outcomes)
    return rows.astype(np.uint32).astype("<u4").tobytes()


@pytest.fixture(scope="module")
def learned(spoken, texts, outcomes):
    """`learned(rows, key)`: by the learning room alone, what teachers on these (id, texts) say, [teachers, tokens,
    cells].
    """

    def learns(units, key=KEY, teachers=TEACHERS, epochs=2):
        model, tokenizer, start = spoken
        cells = cells_kept(*outcomes)
        found = np.zeros((teachers, *cells.public.shape))
        settings = Fit(epochs, 2, 0.05, "adamw", Schedule("linear", 0.1), 0.01, 0.9)
        for number in range(teachers):
            own = [text for unit, said in units if slot(key, unit, teachers) == number for text in said]
            if not own:
                continue
            unflatten(model, start)
            rows = encode_documents(tokenizer, own, longest=LONGEST, codes=[None] * len(own)).rows
            fit(model, rows, None, settings, np.random.default_rng([7, number]))
            plain = np.ones(len(texts.ids))
            found[number] = differences_of_texts(Speaker(model), texts, [OPENING] * len(texts), plain, cells)
        return found

    return learns


def on_grid(vectors):
    """Clipped, each teacher's as one, and put on the grid, not yet rounded: [teachers, tokens, cells]."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=(1, 2), keepdims=True)
    return vectors * np.minimum(1, CLIP / np.maximum(norms, 1e-12)) * LEVELS / CLIP


# The task alone, as its process does it.


def note(number, **changes):
    rng = np.random.default_rng(number)
    said = " ".join(rng.choice(WORDS, rng.integers(2, 8)))
    return {"text": said, "id": f"n{number}", "who": f"u{number % 4}"} | changes


NOTES = [note(number) for number in range(12)]
MECHANISM = DifferencesMechanism(CLIP, LEVELS, 1.0, 2, tokens=TOKENS, outcomes=TOP + 1)


class Keeps(Memory):
    """Shows what the teachers said before it was bounded; nothing for one that learned nothing."""

    def each(self, what, of, make, told):
        found = super().each(what, of, make, told)
        self.vectors = np.stack([np.zeros((TOKENS, TOP + 1)) if each is None else each for each in found])
        return found


@pytest.fixture
def make(tmp_path, tiny_gpt2, public):
    """`make(rows, ...)`: a job over these rows; fields of its work and of its descent can be changed."""

    def makes(rows=NOTES, *, by_user=False, record="document", descent=(), simulation=False, **changes):
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
        asked = {"openings": [OPENING], "codes": [0] * len(ASKED), "texts": ASKED}
        (tmp_path / "written").write_text(json.dumps(asked))
        (tmp_path / "outcomes").write_bytes(public)
        descending = {
            "learning_rate": 0.05, "optimiser": "adamw", "schedule": "linear", "warm_up": 0.1, "momentum": 0.9,
            "decay": 0.01, "expected_batch": 0.0, "epochs": 2, "batch": 2,
        }  # fmt: skip
        work = {
            "model": TextModel(
                {path.name: str(path) for path in tiny_gpt2.iterdir()}, str(tmp_path / "model"), "lora", 2, 4, LONGEST,
                7,
            ),
            "slot_key": KEY.hex(), "teachers": TEACHERS, "descent": Descent(**descending | dict(descent)),
            "written": str(tmp_path / "written"), "outcomes": str(tmp_path / "outcomes"),
        }  # fmt: skip
        shard = {"source": str(tmp_path / "rows.jsonl"), "id": "id", "user": "who"}
        rules = {"epsilon": 1.0, "delta": 1e-6, "recipes": ["swing"], "simulation": simulation}
        return Job(
            parent=os.getpid(),
            shard=ShardTable(**shard).model_dump(),
            policy=PolicyTable(**rules).model_dump(),
            record=record,
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

    def says(job, progress=lambda percent: None):
        kept = Keeps()
        total = training.prepare(job, job.work, MECHANISM, kept)(job, progress)
        return total, kept.vectors

    return says


def units_of(rows):
    return [(row["id"], [row["text"]]) for row in rows]


@pytest.mark.slow
def test_what_teachers_say_is_what_the_learning_room_makes_of_their_units_clipped_as_one(make, said, learned):
    told = []
    total, vectors = said(make(), told.append)
    expected = learned(units_of(NOTES))
    np.testing.assert_array_equal(vectors, expected)
    assert (np.linalg.norm(expected, axis=(1, 2)) > CLIP).any()
    assert np.abs(total - on_grid(expected).sum(axis=0)).max() <= TEACHERS
    assert told == [33, 66, 99]


def changed_by(make, said, rows, base=None, **more):
    """Which teachers say something else where the shard has these rows, not `base`; and how far the sum has moved, in
    levels.
    """
    (total, vectors), (moved, others) = (said(make(each, **more)) for each in (NOTES if base is None else base, rows))
    teachers = [each for each in range(len(vectors)) if not np.array_equal(vectors[each], others[each])]
    return teachers, np.linalg.norm((moved - total).astype(float))


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 7])
def test_one_unit_less_changes_one_teacher_and_the_sum_by_two_levels_at_most(make, said, place):
    teachers, moved = changed_by(make, said, [row for row in NOTES if row["id"] != f"n{place}"])
    assert teachers == [slot(KEY, f"n{place}", TEACHERS)]
    assert 0 < moved <= 2 * LEVELS


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(0, len(NOTES)), st.text(max_size=60))
def test_one_unit_more_changes_one_teacher_at_most_wherever_it_stands_and_whatever_it_says(
    make, said, name, place, text
):
    row = note(1, id=f"new-{name}", text=text)
    short = {"descent": {"epochs": 1}}
    teachers, moved = changed_by(make, said, [*NOTES[:place], row, *NOTES[place:]], **short)
    assert teachers in ([], [slot(KEY, row["id"], TEACHERS)])
    assert moved <= 2 * LEVELS


@pytest.mark.slow
def test_a_unit_that_fills_an_empty_teacher_moves_the_sum_by_two_levels_at_most_though_it_is_far_away(make, said):
    wild = {"learning_rate": 1.0, "epochs": 8}
    teachers, moved = changed_by(make, said, NOTES[:1], [], teachers=1, descent=wild)
    assert teachers == [0]
    assert 0.9 * LEVELS < moved <= 2 * LEVELS


@pytest.mark.slow
def test_all_texts_of_a_user_are_in_one_teacher(make, said, learned):
    _, vectors = said(make(by_user=True))
    users = [(user, [row["text"] for row in NOTES if row["who"] == user]) for user in ("u0", "u1", "u2", "u3")]
    slots = [slot(KEY, user, TEACHERS) for user, _ in users]
    assert len(set(slots)) > 1
    alone = slots.index(next(each for each in slots if slots.count(each) == 1))
    # Users are read in an order of their own; a teacher of one user has that user's texts in their order.
    np.testing.assert_array_equal(vectors[slots[alone]], learned([users[alone]])[slots[alone]])
    without = [row for row in NOTES if row["who"] != users[alone][0]]
    teachers, moved = changed_by(make, said, without, by_user=True)
    assert teachers == [slots[alone]]
    assert moved <= 2 * LEVELS


@pytest.mark.slow
def test_each_sentence_is_a_unit_where_sentences_are_records(make, said):
    import hashlib

    two = [note(1, text="the film was good. the plot was slow.")]
    teachers, moved = changed_by(make, said, [note(1, text="the film was good.")], two, record="sentence")
    assert teachers == [slot(KEY, hashlib.sha256(b"the plot was slow.").hexdigest(), TEACHERS)]
    assert moved <= 2 * LEVELS


@pytest.mark.slow
@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("rows", [[], [{"text": 5}], [note(1, text=" ")], [note(1, text="\ud800")]])
def test_without_a_text_every_teacher_says_what_the_public_model_says(make, said, rows, by_user):
    total, vectors = said(make(rows, by_user=by_user))
    assert vectors.shape == (TEACHERS, TOKENS, TOP + 1)
    assert not vectors.any()
    assert not total.any()


def test_an_empty_slot_says_what_the_public_model_says(make, said):
    _, vectors = said(make(NOTES[:3], teachers=20))
    filled = {slot(KEY, row["id"], 20) for row in NOTES[:3]}
    assert {each for each in range(20) if vectors[each].any()} == filled


@pytest.mark.slow
def test_records_that_cannot_be_read_or_tokenised_change_nothing(make, said):
    awful = [
        note(90, text=["a"]), note(91, text=" "), note(92, text="\ud800"), note(94, text=None), {"id": "n93"},
        '{"text": ',
    ]  # fmt: skip
    for found, expected in zip(said(make([*NOTES[:5], *awful, *NOTES[5:]])), said(make()), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_training_that_goes_to_infinity_says_what_the_public_model_says_and_the_party_alone_is_told(
    make, said, caplog
):
    wild = {"learning_rate": 1e38, "optimiser": "sgd", "schedule": "constant", "warm_up": 0.0, "epochs": 50}
    total, vectors = said(make(descent=wild))
    assert not vectors.any()
    assert not total.any()
    assert f"{TEACHERS} of {TEACHERS} language models went to infinity" in caplog.text


@pytest.mark.slow
def test_what_was_read_is_in_the_census(make, said, tmp_path):
    from dataclasses import replace

    path = tmp_path / "census"
    said(replace(make(descent={"epochs": 1}), census=str(path), census_key="6b" * 32))
    assert len(path.read_bytes()) >= 17 * len(NOTES)


@pytest.mark.slow
def test_teachers_are_trained_once_for_what_is_asked_again_of_the_same_text(make, own_recipes, monkeypatch):
    job, memory, trained = make(descent={"epochs": 1}), Memory(), []
    monkeypatch.setattr(training, "fit", lambda *given: trained.append(1) or fit(*given))
    for _ in range(2):
        training.prepare(job, job.work, MECHANISM, memory)(job, lambda percent: None)
    assert len(trained) == TEACHERS


@pytest.mark.slow
def test_a_shared_memory_takes_no_teacher_for_one_of_other_records(make):
    memory = Memory()
    for rows in (NOTES, NOTES[:-1], [NOTES[1], NOTES[0], *NOTES[2:]]):
        job = make(rows, descent={"epochs": 1})
        shared = training.prepare(job, job.work, MECHANISM, memory)(job, lambda percent: None)
        alone = training.prepare(job, job.work, MECHANISM, None)(job, lambda percent: None)
        assert np.array_equal(np.asarray(shared), np.asarray(alone))


@pytest.mark.slow
def test_how_far_it_is_says_nothing_of_teachers_without_a_unit(make):
    """The coordinator is told percents: these are of all teachers, however many have text."""
    told = []
    for rows in (NOTES, NOTES[:1]):
        job, seen = make(rows, descent={"epochs": 1}), []
        training.prepare(job, job.work, MECHANISM, None)(job, seen.append)
        told.append(seen)
    assert told[0] == told[1]
    assert len(told[0]) == TEACHERS


# A party on a real port, and a coordinator that may lie.


@pytest.fixture
def release():
    def makes(charges=1, name="differences", **more):
        numbers = {"clip": CLIP, "levels": LEVELS, "noise_multiplier": 5.0, "shares": 1, "distribution": "gaussian"}
        bounds = plan_pb2.DifferencesMechanism(**{"tokens": TOKENS, "outcomes": TOP + 1} | numbers | more)
        return plan_pb2.Release(name=name, charges=charges, form=plan_pb2.FORM_SUMMED, differences=bounds)

    return makes


@pytest.fixture
def charged(tmp_path):
    """What the party's ledger charged: names and events."""

    def reads():
        account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
        return [(each.release, each.event) for each in account.reservations]

    return reads


@pytest.fixture
def taught(speaker, trains_here, release):
    """`await taught(...)`: a caller of a party that joined a run of swing and has the model."""

    async def joins(*releases, policy=(), **more):
        shard = {"codes": None} | more.pop("shard", {})
        rules = {"recipes": ["swing"]} | dict(policy)
        settings = {"recipe": "swing", "coded": None} | more
        return await speaker(*(releases or (release(),)), shard=shard, policy=rules, **settings)

    return joins


def written(texts=ASKED, openings=(OPENING,), codes=None):
    codes = [0] * len(texts) if codes is None else codes
    return json.dumps({"openings": list(openings), "codes": codes, "texts": texts}).encode()


def descent(**changes):
    said = {"learning_rate": 0.05, "warm_up": 0.1, "momentum": 0.9, "decay": 0.01, "epochs": 2, "batch": 2}
    return party_pb2.Descent(
        optimiser=party_pb2.OPTIMISER_ADAMW, schedule=party_pb2.FALLING_LINEAR, **said | changes
    )  # fmt: skip


async def asked(caller, public, texts=None, *, operation="differences-0", **changes):
    content = written() if texts is None else texts
    for kind, each in (("written", content), ("outcomes", public)):
        if len(each) < 2**20:
            await caller.provide(each, kind=kind)
    task = {
        "release": "differences", "model": caller.model, "teachers": TEACHERS, "descent": descent(),
        "written_sha256": artefact_digest(content), "outcomes_sha256": artefact_digest(public),
    }  # fmt: skip
    task = party_pb2.LanguageTeachersTask(**task | changes)
    return await caller.trained(
        party_pb2.TrainRequest(run=caller.run, operation_id=operation, language_teachers=task)
    )  # fmt: skip


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    sentence = refusal.value.sentence
    assert sentence.rstrip().endswith(".")
    assert "\n" not in sentence
    return refusal.value


async def joined_and_asked(taught, public, *releases, **more):
    return await asked(await taught(*releases, **more), public)


async def clean(caller, release, name="differences"):
    """What a party answers, less the noise that anybody knows here."""
    (block,) = await caller.answer(caller.batch(0, 0, TOKENS, name), columns=TOP + 1)
    stream = NoiseStream.insecure(7, "north", name, "0")
    return block - mechanism_of(release).noise_share(block.shape, stream)


@pytest.mark.slow
@pytest.mark.parametrize("teachers", [1, TEACHERS])
async def test_the_answer_is_the_bounded_sum_of_the_partys_own_teachers_and_every_token_is_charged(
    taught, release, public, films, learned, charged, teachers
):
    units = [(text, [text]) for text, _ in films()]
    caller = await taught(shard={"id": "text"})
    messages = await asked(caller, public, teachers=teachers)
    assert {each.percent for each in messages} <= {255, 33, 66, 99, 100}
    assert charged() == [("differences", event_of(release()))]
    assert event_of(release()) != event_of(release(charges=2))
    signal = learned(units, RUN_KEY, teachers)
    expected = mechanism_of(release()).contribute(signal)
    assert np.abs(await clean(caller, release()) - expected).max() <= TEACHERS  # of rounding, each once
    assert LEVELS / 4 < np.linalg.norm(expected) <= teachers * LEVELS


@pytest.mark.slow
async def test_where_users_are_protected_all_of_a_persons_texts_are_in_one_teacher(
    taught, release, public, films, learned
):
    """One person has films, and everybody else none: the teacher of one user learned from them in their order."""
    films([("the film was good", "yes"), (" ", "no"), (" ", "no"), ("a slow plot", "no")])
    caller = await taught(policy={"unit": "user"}, unit=plan_pb2.UNIT_USER)
    await asked(caller, public)
    signal = learned([("p0", ["the film was good", "a slow plot"])], RUN_KEY)
    expected = mechanism_of(release()).contribute(signal)
    assert expected.any()
    assert np.abs(await clean(caller, release()) - expected).max() <= TEACHERS  # of rounding, each once


@pytest.mark.slow
async def test_a_party_without_units_answers_noise_alone(taught, release, public, films):
    films([])
    caller = await taught(policy={"simulation": False}, insecure_reproducible_noise=False)
    assert (await asked(caller, public))[-1].percent == 100
    (block,) = await caller.answer(caller.batch(0, 0, TOKENS, "differences"), columns=TOP + 1)
    sigma = mechanism_of(release()).noise_multiplier * 2 * LEVELS
    assert 0 < np.abs(block).max() < 6 * sigma


LONG = [[5] * LONGEST]
LIES = {
    "fewer tokens than are paid for": (
        {"texts": written([[5]])}, Reason.REQUEST, "1 tokens are asked, and release differences is paid for 10",
    ),
    "more tokens than are paid for": (
        {"texts": written([*ASKED, [5]])}, Reason.REQUEST,
        "11 tokens are asked, and release differences is paid for 10",
    ),
    "texts longer than the model is to read": (
        {"texts": written(LONG)}, Reason.REQUEST, "longer than the 24 tokens that the model is to read",
    ),
    "no texts": ({"texts": written([])}, Reason.ARTEFACT, "no JSON object of openings, codes and texts"),
    "a text without a token": ({"texts": written([[], [1]])}, Reason.ARTEFACT, "no JSON object"),
    "a negative token": ({"texts": written([[-1]])}, Reason.ARTEFACT, "no JSON object"),
    "codes without an opening": ({"texts": written(codes=[0, 1, 2])}, Reason.ARTEFACT, "no JSON object"),
    "no JSON": ({"texts": b"\xff{"}, Reason.ARTEFACT, "no JSON object"),
    "nobody": ({"teachers": 0}, Reason.REQUEST, "0 teachers make no sense; use 1 to 1,000"),
    "a million teachers": ({"teachers": 10**6}, Reason.REQUEST, "1000000 teachers make no sense; use 1 to 1,000"),
    "no epoch": ({"descent": descent(epochs=0)}, Reason.REQUEST, "0 epochs in batches of 2 train nothing"),
    "endless": ({"descent": descent(epochs=1001)}, Reason.REQUEST, "1,001 epochs would keep this party for ever"),
    "no batch": ({"descent": descent(batch=0)}, Reason.REQUEST, "2 epochs in batches of 0 train nothing"),
    "no rate": ({"descent": descent(learning_rate=float("nan"))}, Reason.REQUEST, "learning_rate = nan makes no sense"),
    "texts that never came": ({"written_sha256": b"w" * 32}, Reason.ARTEFACT, "the written was never provided"),
    "outcomes that never came": ({"outcomes_sha256": b"o" * 32}, Reason.ARTEFACT, "the outcomes were never provided"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
async def test_a_request_that_lies_is_refused_in_a_sentence_before_anything_is_charged(taught, public, charged, lie):
    changes, reason, says = LIES[lie]
    caller = await taught()
    refusal = await refused(asked(caller, public, **changes))
    assert says in refusal.sentence
    assert refusal.reason is reason
    assert charged() == []


def twice(rows):
    rows[3, 1] = rows[3, 0]


def unknown(rows):
    rows[0, 0] = (299 << 16) + (1 << 31)


HOSTILE = {
    "of other texts": (lambda rows: np.vstack([rows, rows[:3]]).tobytes(), Reason.ARTEFACT, "take 208 bytes"),
    "truncated": (lambda rows: rows.tobytes()[:-3], Reason.ARTEFACT, "take 157 bytes"),
    "nothing": (lambda rows: b"", Reason.ARTEFACT, "take 0 bytes, and 4 of each of 10 tokens take 4 or 8 each"),
    "a column too few": (lambda rows: rows[:, 1:].tobytes(), Reason.ARTEFACT, "take 120 bytes"),
    "a column too many": (lambda rows: rows[:, [0, 1, 2, 3, 0]].tobytes(), Reason.ARTEFACT, "take 200 bytes"),
    "of a larger vocabulary": (
        lambda rows: np.hstack([rows, rows]).tobytes(), Reason.TRAINING, "are 80 numbers, and 10 tokens have 40",
    ),
    "a token twice": (lambda rows: twice(rows) or rows.tobytes(), Reason.TRAINING, "They are no outcomes of tokens"),
    "unknown tokens": (lambda rows: unknown(rows) or rows.tobytes(), Reason.TRAINING, "They are no outcomes of tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_outcomes_that_are_none_are_refused_before_anything_is_charged(taught, public, charged, name, tmp_path):
    damage, reason, says = HOSTILE[name]
    caller = await taught()
    rows = np.frombuffer(public, "<u4").reshape(TOKENS, TOP).copy()
    refusal = await refused(asked(caller, damage(rows)))
    assert (refusal.reason, says in refusal.sentence) == (reason, True), refusal.sentence
    assert str(tmp_path) not in refusal.sentence
    assert charged() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("texts", "model", "says"),
    [
        (written([[5, 9999], *ASKED[1:2], [1, 2, 3, 4, 5, 6]]), {}, "and the texts hold number 9,999"),
        (written([ASKED[0] * 2 + ASKED[1]], [[0] * 29]), {"longest": 1000}, "reads no texts of this length"),
    ],
)
async def test_texts_that_the_model_cannot_read_are_refused_before_anything_is_charged(
    taught, public, charged, texts, model, says
):
    caller = await taught(model=model)
    refusal = await refused(asked(caller, public, texts))
    assert (refusal.reason, says in refusal.sentence) == (Reason.TRAINING, True), refusal.sentence
    assert charged() == []


async def test_more_outcomes_than_there_are_tokens_are_refused_before_anything_is_charged(
    taught, release, charged, size
):
    wide = release(outcomes=size + 2)
    caller = await taught(wide)
    refusal = await refused(asked(caller, np.zeros((TOKENS, size + 1), "<u4").tobytes()))
    assert f"the best {size + 1:,} of {size:,} tokens leave no other" in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize("votes", [False, True])
async def test_hidden_states_are_no_release_of_swing(taught, public, charged, votes):
    numbers = {"levels": 2, "noise": 12.0, "shares": 1, "distribution": "gaussian"}
    joint = plan_pb2.JointMechanism(hidden=plan_pb2.HiddenMechanism(layers=1, width=TOP + 1, clip=0.1, **numbers))
    if votes:
        joint.votes.CopyFrom(plan_pb2.VotesMechanism(classes=2, **numbers))
    hidden = plan_pb2.Release(name="differences", charges=TOKENS, form=plan_pb2.FORM_SUMMED, joint=joint)
    refusal = await refused(joined_and_asked(taught, public, hidden))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "recipes")
    assert charged() == []


@pytest.mark.parametrize("bad", [{"outcomes": 1}, {"tokens": 0}, {"clip": 0.0}, {"noise_multiplier": 0.0}])
async def test_a_release_that_bounds_nothing_is_refused(taught, release, public, charged, bad):
    refusal = await refused(joined_and_asked(taught, public, release(**bad)))
    assert refusal.reason is Reason.PLAN
    assert charged() == []


async def test_a_plan_may_ask_no_more_tokens_than_the_partys_policy_lets_it(taught, release, public, charged):
    refusal = await refused(joined_and_asked(taught, public, policy={"maximum_queries": TOKENS - 1}))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "maximum_queries")
    assert charged() == []


async def test_free_answers_are_no_release_of_swing(taught, descent, charged):
    training = descent("training", 66, weights=True)
    training.form = plan_pb2.FORM_TRAINING
    free = plan_pb2.Release(
        name="differences", charges=1, form=plan_pb2.FORM_FREE,
        free=plan_pb2.FreeAnswers(after="training", classes=0, layers=1, width=TOP + 1, clip=1.0, levels=2**20),
    )  # fmt: skip
    with pytest.raises(Refusal) as refusal:
        await taught(training, free)
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "recipes")
    assert charged() == []


@pytest.mark.parametrize("recipe", ["dped", "pate", "distildp", "dp_sgd", "privdistil"])
async def test_no_plan_of_another_recipe_is_given_it(taught, release, public, charged, recipe):
    rules = {"recipes": ["swing", recipe]}
    refusal = await refused(joined_and_asked(taught, public, recipe=recipe, policy=rules))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "recipes")
    assert charged() == []


async def test_a_record_that_is_a_pair_of_words_is_refused(taught, public, charged):
    refusal = await refused(joined_and_asked(taught, public, record=plan_pb2.RECORD_PAIR, policy={"record": "pair"}))
    assert "a text model learns from texts" in refusal.sentence
    assert charged() == []


async def test_more_than_the_party_has_room_for_is_refused_before_anything_is_charged(
    taught, release, public, size, charged
):
    """A thousand teachers, 600 tokens and 41 numbers each, in three copies in double precision, are 563 MiB."""
    texts = [list(range(1, 16))] * 40
    caller = await taught(release(tokens=600, outcomes=41), limits={"memory_mib": 256})
    refusal = await refused(
        asked(caller, np.tile(np.arange(40, dtype="<u4") << 16, (600, 1)).tobytes(), written(texts), teachers=1000)
    )
    assert refusal.reason is Reason.MEMORY
    assert "what 1,000 teachers say of 600 tokens takes 563 MiB" in refusal.sentence
    assert "memory_mib of the party file allows 256" in refusal.sentence
    assert charged() == []


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["differences-0", "differences-1"])
async def test_other_texts_are_not_asked_under_the_same_charge(taught, release, public, charged, operation):
    caller = await taught()
    await asked(caller, public)
    before = await clean(caller, release())
    others = written([[each + 1 for each in text] for text in ASKED])
    for changes in ({"texts": others}, {"teachers": 2}, {"descent": descent(epochs=3)}):
        refusal = await refused(asked(caller, public, operation=operation, **changes))
        assert refusal.reason is Reason.CONFLICT
    assert np.array_equal(before, await clean(caller, release()))
    assert [name for name, _ in charged()] == ["differences"]


TOLD = {
    "honest": {},
    "wild": {"descent": descent(learning_rate=1e38)},
    "a lie": {"teachers": 0},
    "other texts": {"texts": written([*ASKED, [5]])},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
async def test_no_outcome_depends_on_what_a_shard_holds(taught, public, films, tmp_path, charged, name):
    found = []
    for rows in ([("good film", "yes"), ("a secret " * 9, "no")], [("\ud800", "yes")], []):
        films(rows)
        caller = await taught(insecure_reproducible_noise=False, policy={"simulation": False})
        try:
            said = await asked(caller, public, **TOLD[name])
            (block,) = await caller.answer(caller.batch(0, 0, TOKENS, "differences"), columns=TOP + 1)
            ends = ([each.percent for each in said if each.finished], block.shape)
        except Refusal as refusal:
            ends = (refusal.reason, refusal.sentence)
        found.append((ends, charged()))
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    assert found[0] == found[1] == found[2]
