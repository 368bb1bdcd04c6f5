"""Language models at a party: steps of them, counts of tokens and of control codes, and what a hostile plan gets."""

import json
import shutil
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from scipy import sparse

from aggregation.noise.stream import NoiseStream
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.batching import encode_documents, losses
from learning.models.encoders import language_model
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits
from party.ledger.accounts import read_account
from party.releasing.mechanisms import mechanism_of
from party.store.keys import insecure_key
from party.tasks.result import load_counts
from party.tasks.text import documents
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

LANGUAGE = party_pb2.OBJECTIVE_LANGUAGE
CODES = {"no": "Is bad", "yes": "Is good"}


@pytest.fixture(scope="module")
def spoken(tiny_gpt2):
    """The model as every party has it at the start, with adapters that are not zero, its tokenizer and gradients."""
    model, tokenizer = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    start = flatten(model).numpy()
    start = start + np.random.default_rng(0).normal(0, 0.05, len(start)).astype(np.float32)
    return model, tokenizer, PerExample(model), start


@pytest.fixture
def start(spoken):
    return spoken[3].copy()


@pytest.fixture
def steps(descent, start):
    """A release of steps in which every unit is in the sample."""
    return descent(parameters=len(start), sampling_probability=1.0, levels=4000)


@pytest.fixture
def counts():
    """Makes a release of counts."""

    def makes(name="unigram", clip=4.0, levels=400):
        numbers = {"clip": clip, "levels": levels, "noise_multiplier": 1.0, "shares": 1, "distribution": "gaussian"}
        return plan_pb2.Release(
            name=name, charges=1, form=plan_pb2.FORM_SUMMED, counts=plan_pb2.CountsMechanism(**numbers)
        )

    return makes


@pytest.fixture
def charged(tmp_path):
    """The names of what the party's ledger charged."""

    def reads():
        account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
        return [each.release for each in account.reservations]

    return reads


def tilt_of(model, seed=0):
    tokens = model.config.vocab_size
    return np.random.default_rng(seed).normal(0, 1, tokens).astype("<f4")


async def tilted(caller, tilt):
    content = np.asarray(tilt, "<f4").tobytes()
    await caller.provide(content, kind="tilt")
    return {"tilt_sha256": artefact_digest(content)}


async def counted(caller, kind, release="unigram", operation="counts-0", **changes):
    task = {"tokens": party_pb2.TokensTask, "codes": party_pb2.CodesTask}[kind]
    model = {"model": caller.model} if kind == "tokens" else {}
    asked = task(**{"release": release} | model | changes)
    return await caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id=operation, **{kind: asked}))


async def clean(caller, release, columns, name):
    """What a party answers, less the noise that anybody knows here."""
    mechanism = mechanism_of(release)
    (block,) = await caller.answer(caller.batch(0, 0, 1, name), columns=columns)
    return (
        block[0].astype(np.int64) - mechanism.noise_share(block.shape, NoiseStream.insecure(7, "north", name, "0"))[0]
    )


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


def step_wanted(spoken, release, texts, codes, tilt=None, longest=24):
    """The sum that a step must be, by the learning room alone."""
    model, tokenizer, gradients, start = spoken
    unflatten(model, torch.from_numpy(start))
    rows = encode_documents(tokenizer, texts, longest=longest, codes=codes).rows
    units = TextUnits(model.config, rows, None)
    mechanism = mechanism_of(release)
    stream = NoiseStream.from_key(insecure_key(7, "north", "steps.0 sample 0")).child("batch")
    taken = mechanism.batch(len(units), stream)
    tilted = losses if tilt is None else partial(losses, tilt=torch.from_numpy(np.array(tilt, np.float32)))
    return mechanism.contribute(clipped_sum(gradients, units.micro_batches(taken), tilted, mechanism))


@pytest.mark.slow
async def test_a_step_of_a_language_model_learns_what_stands_after_each_rows_code_under_the_tilt(
    speaker, spoken, steps, films, start
):
    rows = [*films(), ("a purple film", "purple"), ("and the end", "")]
    films(rows)
    texts, labels = zip(*rows[:-2], strict=True)  # the others have no public value: units of nothing
    tilt = tilt_of(spoken[0])
    caller = await speaker(steps)
    more = await tilted(caller, tilt)
    said = await caller.step(0, caller.model, start, objective=LANGUAGE, **more)
    assert {each.percent for each in said} <= {255, 100}
    found = await clean(caller, steps, len(start), "steps.0")
    codes = [CODES[label] for label in labels]
    right = step_wanted(spoken, steps, texts, codes, tilt)
    assert np.abs(right).max() > 50
    assert np.abs(found - right).max() <= 1
    for other in (step_wanted(spoken, steps, texts, codes), step_wanted(spoken, steps, texts, None, tilt)):
        assert np.abs(found - other).max() > 20


@pytest.mark.slow
async def test_each_step_has_a_tilt_of_its_own_and_text_is_read_once(speaker, spoken, steps, films, start, monkeypatch):
    read, reads = documents.plain_units, []
    monkeypatch.setattr(documents, "plain_units", lambda *given, **more: reads.append(1) or read(*given, **more))
    texts, labels = zip(*films(), strict=True)
    codes = [CODES[label] for label in labels]
    caller = await speaker(steps)
    for number, seed in enumerate((0, 1, None)):
        tilt = None if seed is None else tilt_of(spoken[0], seed)
        more = {} if tilt is None else await tilted(caller, tilt)
        await caller.step(number, caller.model, start, objective=LANGUAGE, **more)
        found = await clean(caller, steps, len(start), f"steps.{number}")
        assert np.abs(found - step_wanted(spoken, steps, texts, codes, tilt)).max() <= 1
    assert len(reads) == 1


@pytest.mark.slow
async def test_without_codes_a_step_learns_whole_texts_and_sentences_too(speaker, spoken, steps, films, start):
    films([("the film was good. we saw a dull story.", "no"), ("good actor", "yes")])
    sentences = ["the film was good.", "we saw a dull story.", "good actor"]
    caller = await speaker(
        steps, coded=None, shard={"codes": None}, record=plan_pb2.RECORD_SENTENCE, policy={"record": "sentence"}
    )
    await caller.step(0, caller.model, start, objective=LANGUAGE)
    found = await clean(caller, steps, len(start), "steps.0")
    assert np.abs(found - step_wanted(spoken, steps, sentences, None)).max() <= 1


@pytest.mark.slow
async def test_a_language_model_of_one_party_has_codes_and_a_tilt_too(speaker, spoken, descent, start, films):
    from learning.models.optimisers import Schedule
    from learning.private_training.dp_sgd import train_private
    from learning.private_training.optimisation import Optimisation

    release = descent(
        "weights", len(start), weights=True, sampling_probability=1.0, noise_multiplier=0.1, steps=2, levels=4000
    )
    rows, tilt = films(), tilt_of(spoken[0])
    caller = await speaker(release)
    more = await tilted(caller, tilt)
    await caller.train_alone(caller.model, start, objective=LANGUAGE, **more)
    (block,) = await caller.answer(caller.batch(0, 0, 1, "weights"), columns=len(start))
    model, tokenizer, _, _ = spoken
    unflatten(model, torch.from_numpy(start))
    texts = encode_documents(
        tokenizer, [text for text, _ in rows], longest=24, codes=[CODES[label] for _, label in rows]
    ).rows
    stream = NoiseStream.from_key(insecure_key(7, "north", "weights"))
    settings = Optimisation(4.0, 0.1, "sgd", Schedule("constant"), 0.9, 0.0)
    tilting = partial(losses, tilt=torch.from_numpy(tilt))
    train_private(model, TextUnits(model.config, texts, None), tilting, mechanism_of(release), settings, stream=stream)
    wanted = flatten(model).numpy()
    assert np.abs(wanted - start).max() > 1e-3
    np.testing.assert_allclose(block[0].view(np.float32), wanted, atol=np.abs(wanted - start).max() / 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tilt", "says"),
    [
        (lambda tokens: np.zeros(tokens - 1), "bytes, and the model's"),
        (lambda tokens: np.zeros(tokens + 1), "bytes, and the model's"),
        (lambda tokens: np.full(tokens, np.nan), "holds NaN, or numbers above 1,000"),
        (lambda tokens: np.where(np.arange(tokens) == 7, np.inf, 0), "holds NaN, or numbers above 1,000"),
        (lambda tokens: np.where(np.arange(tokens) == 7, -3e38, 0), "holds NaN, or numbers above 1,000"),
    ],
)
async def test_a_hostile_tilt_is_refused_before_anything_is_charged(
    speaker, spoken, steps, start, charged, films, tilt, says
):
    films([("a word", "yes")])
    caller = await speaker(steps)
    more = await tilted(caller, tilt(spoken[0].config.vocab_size))
    refusal = await refused(caller.step(0, caller.model, start, objective=LANGUAGE, **more))
    assert refusal.reason == Reason.TRAINING
    assert says in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        ({"objective": party_pb2.OBJECTIVE_DOMAIN}, Reason.POLICY, "is given by step for language, not by step"),
        ({"objective": party_pb2.OBJECTIVE_UNSPECIFIED}, Reason.POLICY, "is given by step for language, not by step"),
        ({"tilt_sha256": b"t" * 32}, Reason.ARTEFACT, "the tilt was never provided"),
        ({"tilt_sha256": b"t"}, Reason.ARTEFACT, "the tilt was never provided"),
    ],
)
async def test_a_step_that_makes_no_sense_is_refused_before_it_is_charged(
    speaker, steps, start, charged, change, reason, says
):
    caller = await speaker(steps)
    refusal = await refused(caller.step(0, caller.model, start, **{"objective": LANGUAGE} | change))
    assert refusal.reason == reason
    assert says in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"objective": party_pb2.OBJECTIVE_DOMAIN}, "a step is of labels or of language"),
        ({"objective": 77}, "a step is of labels or of language"),
        ({"objective": party_pb2.OBJECTIVE_LABELS, "tilt_sha256": b"t" * 32}, "this step is of another model"),
        ({"objective": LANGUAGE}, "steps of dp_sgd is given by step, not by step for language"),
    ],
)
async def test_a_step_of_labels_has_neither_a_domain_nor_a_tilt_nor_becomes_one_of_language(
    learner, descent, change, says
):
    caller = await learner(recipe="dp_sgd")
    assert (
        says.replace("steps of", "steps.0 of")
        in (await refused(caller.step(0, caller.model, np.zeros(66, np.float32), **change))).sentence
    )


@pytest.mark.slow
async def test_labels_that_are_said_are_labels_that_are_not_said(learner, descent, tmp_path):
    found = []
    for objective in (party_pb2.OBJECTIVE_UNSPECIFIED, party_pb2.OBJECTIVE_LABELS):
        caller = await learner()
        await caller.step(0, caller.model, np.zeros(66, np.float32), objective=objective)
        found.append(await clean(caller, descent(), 66, "steps.0"))
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    assert np.array_equal(*found)


@pytest.mark.parametrize("kind", ["step", "tokens"])
async def test_a_code_that_leaves_no_room_is_named_before_anything_is_charged(
    speaker, steps, counts, coded, start, charged, kind
):
    caller = await speaker(steps, counts(), coded=coded(template="The opinion of this text is {opinion}"))
    if kind == "step":
        refusal = await refused(caller.step(0, caller.model, start, objective=LANGUAGE))
    else:
        refusal = await refused(counted(caller, "tokens"))
    assert refusal.reason == Reason.TRAINING
    assert "The code 'The opinion of this text is bad' and what stands before it take" in refusal.sentence
    assert "Use a shorter template, or longer texts." in refusal.sentence
    assert charged() == []


def own_tokens(tokenizer, text, opened, longest=24):
    body = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return body[: longest - opened]


def bounded(units, release, tokens):
    """The clipped sum of units, each the tokens that it has."""
    rows = np.zeros((len(units), tokens), np.int64)
    for row, own in zip(rows, units, strict=True):
        np.add.at(row, own, 1)
    return mechanism_of(release).contribute(sparse.csr_array(rows)).toarray()[0]


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("with_codes", [False, True])
async def test_tokens_are_those_of_each_units_own_texts_clipped_and_no_weights_are_needed(
    speaker, spoken, counts, films, with_codes, by_user, charged
):
    model, tokenizer, _, _ = spoken
    tokens = model.config.vocab_size
    rows = [*films(), ("the plot was very slow and " * 4, "yes"), ("purple", "purple")]
    films(rows)
    release = counts()
    unit = {"unit": plan_pb2.UNIT_USER} if by_user else {}
    coded = {} if with_codes else {"coded": None}
    caller = await speaker(release, policy={"unit": "user" if by_user else "record"}, **coded, **unit)
    files = [file for file in caller.model.files if not file.name.endswith(".safetensors")]
    weightless = party_pb2.TextModel(files=files, longest=24)
    never = party_pb2.ModelFile(name="model.safetensors", sha256=b"w" * 32)
    weightless.files.append(never)  # named, and never sent
    await counted(caller, "tokens", model=weightless)
    assert charged() == ["unigram"]
    found = await clean(caller, release, tokens, "unigram")
    opened = {None: 1} | {
        label: 1 + len(tokenizer(f"{code}\n", add_special_tokens=False)["input_ids"]) for label, code in CODES.items()
    }
    each = [
        [] if with_codes and label not in CODES else own_tokens(tokenizer, text, opened[label if with_codes else None])
        for text, label in rows
    ]
    units = [list(chain.from_iterable(each[user::3])) for user in range(3)] if by_user else each
    assert np.array_equal(found, bounded(units, release, tokens))
    assert found.max() > 0
    assert any(np.linalg.norm(np.bincount(own, minlength=tokens)) > 4 for own in units if own)  # it is clipped


@pytest.mark.parametrize("by_user", [False, True])
async def test_tokens_of_each_code_are_counted_apart_and_a_units_codes_are_clipped_together(
    speaker, spoken, counts, films, by_user, charged
):
    model, tokenizer, _, _ = spoken
    tokens = model.config.vocab_size
    rows = [*films(), ("the plot was very slow and " * 4, "yes"), ("purple", "purple")]
    films(rows)
    release = counts()
    unit = {"unit": plan_pb2.UNIT_USER} if by_user else {}
    caller = await speaker(release, policy={"unit": "user" if by_user else "record"}, **unit)
    await counted(caller, "tokens", by_code=True)
    assert charged() == ["unigram"]
    found = await clean(caller, release, 2 * tokens, "unigram")
    each = []
    for text, label in rows:
        opened = 1 + len(tokenizer(f"{CODES.get(label)}\n", add_special_tokens=False)["input_ids"])
        cell = list(CODES).index(label) if label in CODES else None
        each.append([] if cell is None else [cell * tokens + one for one in own_tokens(tokenizer, text, opened)])
    units = [list(chain.from_iterable(each[user::3])) for user in range(3)] if by_user else each
    assert np.array_equal(found, bounded(units, release, 2 * tokens))
    assert found[:tokens].any()
    assert found[tokens:].any()
    if by_user:
        assert any(min(own) < tokens <= max(own) for own in units), "a user has texts of both codes"


async def test_counts_by_code_are_refused_under_a_plan_without_codes(speaker, counts, charged):
    release = counts()
    caller = await speaker(release, coded=None, shard={"codes": None})
    refusal = await refused(counted(caller, "tokens", by_code=True))
    assert refusal.reason is Reason.REQUEST
    assert "no codes" in refusal.sentence
    assert not charged()


@pytest.mark.parametrize("operation", ["counts-0", "counts-1"])
@pytest.mark.parametrize("first", [False, True])
async def test_a_release_is_not_counted_again_in_another_way_under_the_same_noise(
    speaker, spoken, counts, charged, operation, first
):
    tokens = spoken[0].config.vocab_size * (2 if first else 1)
    caller = await speaker(counts())
    await counted(caller, "tokens", by_code=first)
    (before,) = await caller.answer(caller.batch(0, 0, 1, "unigram"), columns=tokens)
    await refused(counted(caller, "tokens", operation=operation, by_code=not first))
    (after,) = await caller.answer(caller.batch(0, 0, 1, "unigram"), columns=tokens)
    assert np.array_equal(before, after)
    assert charged() == ["unigram"]


async def test_more_counts_by_code_than_a_party_makes_are_refused_before_text_is_read(
    speaker, spoken, counts, films, monkeypatch
):
    from party.tasks.tokens import training

    monkeypatch.setattr(training, "MOST_COUNTS", 2 * spoken[0].config.vocab_size - 1)
    monkeypatch.setattr(documents, "plain_units", lambda *given, **more: pytest.fail("text was read"))
    caller = await speaker(counts())
    assert "by_code = false" in (await refused(counted(caller, "tokens", by_code=True))).sentence


async def test_tokens_are_counted_in_sentences_where_these_are_records(speaker, spoken, counts, films):
    model, tokenizer, _, _ = spoken
    films([("the film was good. we saw a dull story.", "no")])
    release = counts(clip=100.0)
    caller = await speaker(
        release, coded=None, shard={"codes": None}, record=plan_pb2.RECORD_SENTENCE, policy={"record": "sentence"}
    )
    await counted(caller, "tokens")
    units = [own_tokens(tokenizer, each, 1) for each in ("the film was good.", "we saw a dull story.")]
    found = await clean(caller, release, model.config.vocab_size, "unigram")
    assert np.array_equal(found, bounded(units, release, model.config.vocab_size))


@pytest.mark.parametrize("by_user", [False, True])
async def test_the_histogram_of_codes_is_the_clipped_sum_of_each_units(speaker, counts, coded, films, by_user):
    rows = [*films(), ("a purple film", "purple"), ("the plot", " yes ")]
    films(rows)
    release = counts("histogram", clip=1.0, levels=100)
    unit = {"unit": plan_pb2.UNIT_USER} if by_user else {}
    caller = await speaker(release, policy={"unit": "user" if by_user else "record"}, **unit)
    await counted(caller, "codes", "histogram")
    found = await clean(caller, release, 2, "histogram")
    cells = [{"no": [0], "yes": [1]}.get(label.strip(), []) for _, label in rows]
    units = [list(chain.from_iterable(cells[user::3])) for user in range(3)] if by_user else cells
    assert np.array_equal(found, bounded(units, release, 2))
    assert (found > 0).all()


async def test_rows_without_a_code_are_told_in_the_partys_own_log_alone(speaker, counts, films, caplog):
    films([("good film", "yes"), ("odd film", "purple"), ("", "no")])
    caller = await speaker(counts("histogram"), counts())
    for kind, name in (("codes", "histogram"), ("tokens", "unigram")):
        caplog.clear()
        said = await counted(caller, kind, name, f"{kind}-0")
        assert "1 rows were left out: their columns of codes hold none of the plan's values" in caplog.text
        assert {each.percent for each in said} <= {255, 100}


async def test_a_simulation_without_any_code_is_told_before_it_joins(speaker, counts, steps, films):
    films([("good film", "purple"), ("odd film", "")])
    refusal = await refused(speaker(counts(), steps))
    assert refusal.reason == Reason.SHARD
    assert 'no row holds values of the plan in "stars". Name the values as the rows hold them' in refusal.sentence


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "codes", "step"])
async def test_a_party_without_any_code_is_not_told(speaker, counts, steps, start, films, kind):
    films([("good film", "purple"), ("odd film", "")])
    caller = await speaker(counts(), steps, policy={"simulation": False}, insecure_reproducible_noise=False)
    asked = caller.step(0, caller.model, start, objective=LANGUAGE) if kind == "step" else counted(caller, kind)
    assert (await asked)[-1].percent == 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "codes"])
async def test_a_plan_that_leaves_one_person_alone_with_a_code_gets_no_more_than_what_it_pays(
    speaker, counts, coded, films, charged, tmp_path, kind, steps, start
):
    """Every row but one is a unit of nothing: the same outcome, size and charge as without that one."""
    values = plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=["mallory", "nobody"])
    found = []
    for rows in ([("a film", "no"), ("a secret", "mallory")], [("a film", "no")]):
        films(rows)
        caller = await speaker(
            counts(), steps, coded=coded(columns=[values]), insecure_reproducible_noise=False,
            policy={"simulation": False, "trust": "trusted-aggregator"},
        )  # fmt: skip
        ends = [sorted({each.percent for each in await counted(caller, kind)} | {255})]
        ends.append(
            sorted({each.percent for each in await caller.step(0, caller.model, start, objective=LANGUAGE)} | {255})
        )
        columns = {"tokens": caller_tokens(tmp_path), "codes": 2}[kind]
        (block,) = await caller.answer(caller.batch(0, 0, 1, "unigram"), columns=columns)
        assert np.count_nonzero(block) >= columns // 2  # noise is on every cell, and one in a thousand is 0
        found.append((ends, block.shape, charged()))
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    assert found[0] == found[1]
    assert found[0][2] == ["unigram", "steps.0"]


def caller_tokens(folder):
    config = next(folder.glob("north.party/runs/run-1/models/*/config.json"))
    return json.loads(config.read_bytes())["vocab_size"]


async def test_a_release_that_one_task_made_is_not_made_by_the_other(speaker, spoken, counts, charged):
    release = counts()
    caller = await speaker(release)
    await counted(caller, "codes")
    refusal = await refused(counted(caller, "tokens", operation="counts-1"))
    assert refusal.reason == Reason.CONFLICT
    assert "one release is one result" in refusal.sentence
    with pytest.raises(Exception, match=r"shape|bytes|header"):  # whoever expects tokens has no such block
        await caller.answer(caller.batch(0, 0, 1, "unigram"), columns=spoken[0].config.vocab_size)
    assert charged() == ["unigram"]


@pytest.mark.parametrize("kind", ["tokens", "codes"])
async def test_counts_are_no_other_release_and_codes_need_some(speaker, steps, counts, charged, kind):
    caller = await speaker(steps, counts(), coded=None)
    refusal = await refused(counted(caller, kind, "steps.0"))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "recipes")
    if kind == "codes":
        assert "the plan declares no control codes" in (await refused(counted(caller, "codes"))).sentence
    else:
        broken = party_pb2.TextModel(files=caller.model.files, longest=1)
        assert "examples of 1 tokens make no sense" in (await refused(counted(caller, kind, model=broken))).sentence
        broken = party_pb2.TextModel(files=caller.model.files[1:2], longest=16)
        assert "no config.json" in (await refused(counted(caller, kind, model=broken))).sentence
    assert charged() == []


async def test_a_tokenizer_that_is_none_is_a_sentence_without_a_path(speaker, counts, charged, tmp_path):
    caller = await speaker(counts())
    content = b'{"model": 1}'
    await caller.provide(content, kind="model")
    files = [file for file in caller.model.files if file.name != "tokenizer.json"]
    files.append(party_pb2.ModelFile(name="tokenizer.json", sha256=artefact_digest(content)))
    refusal = await refused(counted(caller, "tokens", model=party_pb2.TextModel(files=files, longest=16)))
    assert refusal.reason == Reason.TRAINING
    assert "tokenizer" in refusal.sentence
    assert str(tmp_path) not in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize("huge", [3e38, *(pytest.param(huge, marks=pytest.mark.slow) for huge in (-1e30, 1e7))])
async def test_parameters_that_overflow_tell_nothing_of_what_a_shard_holds(
    speaker, steps, start, films, tmp_path, huge, charged
):
    start[:] = huge
    found = []
    for rows in ([("good film", "yes"), ("a secret " * 9, "no")], [("good film", "yes")], []):
        films(rows)
        caller = await speaker(steps, insecure_reproducible_noise=False, policy={"simulation": False})
        said = await caller.step(0, caller.model, start, objective=LANGUAGE)
        (block,) = await caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=len(start))
        found.append(([each.percent for each in said if each.finished], block.shape, charged()))
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
async def test_a_step_of_zeros_is_stored_for_a_sum_that_nothing_is_in(speaker, steps, counts, films, tmp_path):
    films([("odd film", "purple")])
    caller = await speaker(steps, counts(), insecure_reproducible_noise=False, policy={"simulation": False})
    await counted(caller, "codes")
    assert load_counts(tmp_path / "north.party/runs/run-1/unigram.counts.npz").sum() == 0
