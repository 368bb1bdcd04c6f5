"""Steps that parties take together, at one party: its sample, its clipped sum, what is charged, kept and dropped."""

import functools
import itertools
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aggregation.noise.stream import NoiseStream
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.batching import encode, losses
from learning.models.encoders import classifier
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits
from learning.text.labelled import LabelMap
from party.admission.admit import event_of
from party.ledger.accounts import read_account
from party.node.training import Training
from party.provided import weights as provided_weights
from party.releasing.mechanisms import mechanism_of
from party.store.keys import insecure_key
from party.tasks.result import load_counts
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal
from protos.steps import step_of

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
ADAPTED = {"head": party_pb2.ADAPT_HEAD, "full": party_pb2.ADAPT_FULL}


@pytest.fixture(scope="module")
def start(pooled):
    """Makes the model as every party has it at the start, its tokenizer, and what is trained of it."""

    def makes(how="head"):
        model, tokenizer = classifier(str(pooled), LabelMap(("no", "yes")), seed=7)
        adapt(model, how, seed=7, lora=Lora(2, 4))
        return model, tokenizer

    return makes


@pytest.fixture(scope="module")
def head(start):
    return flatten(start()[0]).numpy()


@pytest.fixture
def vector(head):
    """The parameters of the head that every party starts from."""
    return head.copy()


@pytest.fixture(scope="module")
def begun(start):
    """Models as at the start but for what is trained, which is set each time; with tokenizers and gradients."""

    @functools.cache
    def makes(how):
        model, tokenizer = start(how)
        return model, tokenizer, PerExample(model)

    return makes


@pytest.fixture
def expected(begun, descent, films):
    """The sum that a step must be, recomputed by the model as a whole; and how many units its sample has."""

    def recomputes(vector, number, attempt=0, how="head", release=None, members=None):
        rows = films()
        model, tokenizer, gradients = begun(how)
        mechanism = mechanism_of(release or descent())
        unflatten(model, torch.from_numpy(vector))
        texts = encode(tokenizer, [text for text, _ in rows], longest=16).rows
        labels = torch.tensor([["no", "yes"].index(label) for _, label in rows])
        units = TextUnits(model.config, texts, labels, members=members)
        stream = NoiseStream.from_key(insecure_key(7, "north", f"steps.{number} sample {attempt}")).child("batch")
        taken = mechanism.batch(len(units), stream)
        total = clipped_sum(gradients, units.micro_batches(taken), losses, mechanism)
        return mechanism.contribute(total), len(taken)

    return recomputes


async def clean(caller, number, release):
    """What a party answers, less the noise that anybody knows here."""
    mechanism = mechanism_of(release)
    width = mechanism.parameters
    (block,) = await caller.answer(caller.batch(0, 0, 1, f"steps.{number}"), columns=width)
    stream = NoiseStream.insecure(7, "north", f"steps.{number}", "0")
    return block[0].astype(np.int64) - mechanism.noise_share((width,), stream)


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


def there(folder, kind=""):
    return sorted(path.name for path in folder.glob(f"*{kind}*"))


@pytest.mark.slow
async def test_a_step_is_the_clipped_sum_of_its_secret_sample(learner, descent, expected, vector):
    caller = await learner()
    for number in range(2):
        await caller.step(number, caller.model, vector)
        found = await clean(caller, number, descent())
        wanted, size = expected(vector, number)
        assert 0 < size < 8
        assert np.abs(wanted).max() > 10
        assert np.abs(found - wanted).max() <= 1  # the layer on its own, and the whole model: rounding on the grid
        vector = vector + 0.1


@pytest.mark.slow
async def test_adapters_are_clipped_with_the_head_and_users_as_one(learner, descent, start, expected):
    vector = flatten(start("lora")[0]).numpy()
    release = descent(parameters=len(vector), sampling_probability=0.9)
    caller = await learner(release, model={"adapt": party_pb2.ADAPT_LORA}, unit=plan_pb2.UNIT_USER)
    await caller.step(0, caller.model, vector)
    found = await clean(caller, 0, release)
    orders = [[[0, 3, 6], [1, 4, 7], [2, 5]][i] for i in (0, 1, 2)]
    sizes = {tuple(each): each for each in orders}
    wanted = [
        expected(vector, 0, how="lora", release=release, members=[sizes[each] for each in order])
        for order in itertools.permutations(sizes)  # users come in an order of their own
    ]
    assert min(np.abs(found - each).max() for each, _ in wanted) <= 1
    assert all(np.abs(each).max() > 10 for each, _ in wanted)


@pytest.mark.slow
async def test_an_empty_sample_is_noise_alone(learner, descent, vector):
    release = descent(sampling_probability=1e-9)
    caller = await learner(release)
    await caller.step(0, caller.model, vector)
    (block,) = await caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD)
    noise = mechanism_of(release).noise_share((HEAD,), NoiseStream.insecure(7, "north", "steps.0", "0"))
    assert np.array_equal(block[0], noise)
    assert np.abs(noise).min() >= 0 < np.abs(noise).max()


@pytest.mark.slow
async def test_samples_and_noise_are_secret_where_they_are_not_asked_to_be_known(learner, vector, tmp_path):
    caller = await learner(insecure_reproducible_noise=False)
    found = []
    for number in range(4):
        await caller.step(number, caller.model, vector)
        path = tmp_path / f"north.party/runs/run-1/steps.{number}.counts.npz"
        found.append(load_counts(path).tobytes())
    assert len(set(found)) > 2  # of eight units, other samples


@pytest.mark.slow
async def test_each_step_is_charged_once_and_given_again_at_no_cost(learner, vector, tmp_path):
    caller = await learner()
    await caller.step(0, caller.model, vector)
    batch = caller.batch(0, 0, 1, "steps.0")
    (first,) = await caller.answer(batch, columns=HEAD)
    (again,) = await caller.answer(batch, columns=HEAD)
    assert np.array_equal(first, again)
    account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
    assert [each.release for each in account.reservations] == ["steps.0"]
    assert account.reservations[0].event == event_of(step_of(caller.plan.terms.releases[0], "steps.0"))


@pytest.mark.slow
async def test_steps_go_on_after_the_node_was_started_again(learner, vector, tmp_path):
    caller = await learner()
    await caller.step(0, caller.model, vector)
    await caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD)
    await caller.step(1, caller.model, vector)
    await caller.node.stop()
    again = await learner()
    assert [each.percent for each in await again.step(1, again.model, vector)] == [100]  # it was trained
    await again.answer(again.batch(0, 0, 1, "steps.1"), columns=HEAD)
    await again.step(2, again.model, vector)
    await again.answer(again.batch(0, 0, 1, "steps.2"), columns=HEAD)
    account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
    assert [each.release for each in account.reservations] == ["steps.0", "steps.1", "steps.2"]


@pytest.mark.slow
async def test_what_was_read_is_in_the_ledger_before_a_step_can_be_answered(learner, vector, monkeypatch):
    caller = await learner()
    recorded, ledger = [], caller.node.verbs.ledger

    async def record(path):
        recorded.append(path.stat().st_size)
        return await type(ledger).record(ledger, path)

    monkeypatch.setattr(ledger, "record", record)
    for number in range(2):
        await caller.step(number, caller.model, vector)
    assert len(recorded) == 1
    assert recorded[0] >= 17 * 8


@pytest.mark.slow
async def test_what_a_step_left_goes_when_the_next_is_trained(learner, vector, tmp_path):
    caller = await learner()
    folder = tmp_path / "north.party/runs/run-1"
    for number in range(3):
        await caller.step(number, caller.model, vector + number)
        await caller.answer(caller.batch(0, 0, 1, f"steps.{number}"), columns=HEAD)
        assert there(folder, "steps.") == [
            f"steps.{number}.0.block", f"steps.{number}.counts.npz", f"steps.{number}.operation.json"
        ]  # fmt: skip
        assert len(there(folder, ".parameters")) == 1
        assert len(caller.node.verbs._answers._counts) == 1
    over = await refused(caller.step(1, caller.model, vector, operation="steps-again"))
    assert (over.reason, over.sentence) == (Reason.CONFLICT, "step steps.1 is over: step 2 of steps was trained.")
    assert (await refused(caller.answer(caller.batch(0, 0, 1, "steps.1"), columns=HEAD))).reason == Reason.REQUEST


@pytest.mark.slow
async def test_a_step_that_was_answered_from_and_lost_is_not_trained_again(learner, vector, tmp_path):
    caller = await learner()
    folder = tmp_path / "north.party/runs/run-1"
    await caller.step(0, caller.model, vector)
    (folder / "steps.0.operation.json").unlink()
    await caller.step(0, caller.model, vector)  # nothing had left
    await caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD)
    (folder / "steps.0.operation.json").unlink()
    refusal = await refused(caller.step(0, caller.model, vector))
    assert refusal.reason == Reason.CONFLICT
    assert "was answered from already" in refusal.sentence


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        ({"attempt": 1}, Reason.REQUEST, "one under a trusted aggregator"),
        ({"release": "steps"}, Reason.REQUEST, "is not one that step can give"),
        ({"release": "steps.4"}, Reason.REQUEST, "has no release"),
        ({"parameters_sha256": b"x" * 32}, Reason.ARTEFACT, "the parameters were never provided"),
    ],
)
async def test_a_step_that_makes_no_sense_is_refused(learner, vector, change, reason, says):
    caller = await learner()
    refusal = await refused(caller.step(0, caller.model, vector, **change))
    assert refusal.reason == reason
    assert says in refusal.sentence


@pytest.mark.parametrize(
    ("vector", "parameters", "says"),
    [
        (np.zeros(65), HEAD, "are 65 numbers, and the plan's terms bound 66"),
        (np.zeros(9), 9, "the model trains 66 numbers, and the plan's terms bound 9"),
        (np.full(HEAD, np.nan), HEAD, "hold NaN or infinity"),
    ],
)
async def test_parameters_that_do_not_fit_are_named(learner, descent, vector, parameters, says):
    caller = await learner(descent(parameters=parameters))
    assert says in (await refused(caller.step(0, caller.model, vector))).sentence


@pytest.mark.parametrize("name", ["../config.json", "model.bin", "modeling_film.py", "tokenizer.model/x", "pickle.pkl"])
async def test_a_models_files_are_those_that_hold_no_code(learner, vector, name):
    caller = await learner()
    files = [*caller.model.files, party_pb2.ModelFile(name=name, sha256=caller.model.files[0].sha256)]
    caller.model.ClearField("files")
    caller.model.files.extend(files)
    assert (
        "is no file of a model that this party takes" in (await refused(caller.step(0, caller.model, vector))).sentence
    )


async def test_a_model_that_is_none_is_a_sentence_without_a_path(learner, vector, tmp_path):
    caller = await learner()
    files = [file for file in caller.model.files if file.name != "model.safetensors"]
    caller.model.ClearField("files")
    caller.model.files.extend(files)
    refusal = await refused(caller.step(0, caller.model, vector))
    assert refusal.reason == Reason.TRAINING
    assert refusal.sentence.startswith("the model that was provided has no weights")
    assert str(tmp_path) not in refusal.sentence


async def test_a_plan_without_labels_has_no_steps_of_a_classifier(learner, vector):
    caller = await learner(labelled=None)
    refusal = await refused(caller.step(0, caller.model, vector))
    assert "the plan declares no labelled text, and step learns from labels" in refusal.sentence


ONE_CLASS = [("good film", "yes")] * 3
NO_EXAMPLE = [("odd film", "purple"), ("", "yes")]


@pytest.mark.parametrize(("rows", "why"), [(ONE_CLASS, "one class only"), (NO_EXAMPLE, "the shard has no example")])
async def test_a_shard_that_nothing_can_be_learned_of_is_told_in_a_simulation_alone(learner, vector, films, rows, why):
    caller = await learner()
    films(rows)
    refusal = await refused(caller.step(0, caller.model, vector))
    assert refusal.reason == Reason.SHARD
    assert why in refusal.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "warning"),
    [
        (None, ""),
        (ONE_CLASS, "one class only"),
        (NO_EXAMPLE, "the shard has no example"),
        ([("good film", "yes"), ("odd film", "purple"), ("bad film", "no")], "1 a label outside the label map"),
        ([], "Training goes on, and learns nothing"),
    ],
)
async def test_whatever_private_rows_hold_a_step_has_the_same_form_of_answer(
    learner, vector, films, rows, warning, caplog
):
    caller = await learner(policy={"simulation": False}, insecure_reproducible_noise=False)
    if rows is not None:
        films(rows)
    progress = await caller.step(0, caller.model, vector)
    assert {each.percent for each in progress} <= {255, 100}
    assert [each.percent for each in progress if each.finished] == [100]
    (block,) = await caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD)
    assert (block.shape, block.dtype) == ((1, HEAD), np.int32)
    assert warning in caplog.text


@pytest.mark.slow
async def test_a_row_of_another_label_is_an_empty_unit_among_the_others(learner, descent, expected, vector, films):
    whole, release = films(), descent(sampling_probability=1.0)
    caller = await learner(release)
    films([*whole[:2], ("odd film", "purple"), *whole[2:], ("", "no")])
    await caller.step(0, caller.model, vector)
    found = await clean(caller, 0, release)
    films(whole)
    wanted, _ = expected(vector, 0, release=release)
    assert np.abs(found - wanted).max() <= 1


@pytest.mark.slow
async def test_fewer_units_than_declared_and_texts_that_were_cut_are_told_in_the_partys_own_log_alone(
    learner, films, vector, caplog
):
    films([("good film", "yes"), ("bad film " * 40, "no")])
    caller = await learner(policy={"declared_size": 5000})
    said = await caller.step(0, caller.model, vector)
    assert "1 of 2 examples are longer than 16 tokens" in caplog.text
    assert "the shard has 2 units, fewer than the 5,000 of [policy] declared_size" in caplog.text
    assert all(each.percent in (255, 100) for each in said)


@pytest.mark.slow
@pytest.mark.parametrize("adapted", ["head", "full"])
async def test_a_word_that_overflows_in_the_model_shows_in_no_outcome_and_no_other_units_part(
    learner, descent, pooled, films, start, tmp_path, caplog, adapted, monkeypatch
):
    """As if a huge embedding had passed the checks: who holds that word has no gradient, and the step tells nothing."""
    monkeypatch.setitem(provided_weights.KINDS, "F32", replace(provided_weights.KINDS["F32"], most=255))
    folder = tmp_path / "attack"
    shutil.copytree(pooled, folder)
    weights = load_file(folder / "model.safetensors")
    word = start()[1].convert_tokens_to_ids("awful")
    table = next(name for name in weights if name.endswith("word_embeddings.weight"))
    weights[table][word] = 3e38
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    rows = [*(("good film", "yes"), ("bad film", "no")) * 4]
    size = HEAD if adapted == "head" else len(flatten(start(adapted)[0]))
    attacked, _ = classifier(str(folder), LabelMap(("no", "yes")), seed=7)
    adapt(attacked, adapted, seed=7)
    vector = flatten(attacked).numpy()
    release = descent(parameters=size, sampling_probability=1.0)
    found = []
    for secret in ("awful", "great", None):
        films([*rows, (f"{secret} film", "yes")] if secret else rows)
        caller = await learner(release, folder=folder, model={"adapt": ADAPTED[adapted]})
        said = await caller.step(0, caller.model, vector)
        total = await clean(caller, 0, release)
        found.append(({(each.percent, each.ByteSize()) for each in said}, len(total), total))  # they come as time goes
        await caller.node.stop()
        shutil.rmtree(tmp_path / "north.party")
    with_it, without, fewer = found
    assert with_it[:2] == without[:2]
    assert "1 times a unit's loss or gradient was no finite number" in caplog.text
    assert np.array_equal(with_it[2], fewer[2])  # an empty unit: the others' parts are what they were
    assert not np.array_equal(without[2], fewer[2])


@pytest.mark.slow
@pytest.mark.parametrize(("took", "waits"), [(0.2, 0.3), (0.7, 0.3)])
async def test_a_step_takes_a_public_time_and_cannot_be_asked_about_before(
    learner, vector, monkeypatch, took, waits, caplog
):
    caller = await learner(policy={"step_seconds": 0.5})
    monkeypatch.setattr(Training, "seconds", property(lambda training: took))
    waited = []

    async def pauses(seconds):
        refusal = await refused(caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD))
        waited.append((seconds, refusal.sentence))

    caller.node.verbs.trainings._pause = pauses
    await caller.step(0, caller.model, vector)
    ((seconds, said),) = waited
    assert seconds == pytest.approx(waits)
    assert "is not trained yet" in said
    assert ("took longer than [policy] step_seconds" in caplog.text) == (took > 0.5)
