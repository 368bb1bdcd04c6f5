"""Private training of a model: bounds, batches and noise as charged, resuming to the same end, and what is refused."""

import dataclasses
import stat
import weakref

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.gradients import SINGLE_MARGIN, GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.errors import Diverged
from learning.models.adapting import adapt, flatten
from learning.models.agreement import divided
from learning.models.batching import Tokens, losses
from learning.models.checkpoints import ModelError
from learning.models.compute import Compute, running
from learning.models.optimisers import Schedule
from learning.private_training import dp_sgd
from learning.private_training.clipped_sum import adding, clipped_sum
from learning.private_training.dp_sgd import noised, train_private
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.optimisation import Optimisation, Training
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits, probe_of
from learning.private_training.units import MicroBatch

UNITS, LENGTH, WORDS = 40, 8, 30
SETTINGS = Optimisation(expected_batch=20.0, learning_rate=0.05, schedule=Schedule("constant"))


def small():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    return BertForSequenceClassification(config)


def texts(number=UNITS, seed=0, longest=LENGTH):
    """Texts whose class is the parity of their first word."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1, WORDS, rng.integers(2, longest + 1)).astype(np.int32) for _ in range(number)]
    return [Tokens(ids, len(ids)) for ids in rows], torch.tensor([int(ids[0]) % 2 for ids in rows])


def units_of(model, number=UNITS, **how):
    rows, labels = texts(number)
    return TextUnits(model.config, rows, labels, **how)


def mechanism_for(model, **changed):
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    given = {
        "clip": 0.5,
        "levels": fine_levels(1.0, parameters),
        "noise_multiplier": 1.0,
        "sampling_probability": 0.5,
        "steps": 6,
        "parameters": parameters,
    }
    return GradientMechanism(**given | changed)


def stream(seed=1):
    return NoiseStream.insecure(seed, "training")


def trained(model=None, **how):
    model = model or small()
    mechanism = how.pop("mechanism", None) or mechanism_for(model)
    given = {"stream": stream()} | how
    settings = given.pop("settings", SETTINGS)
    train_private(model, given.pop("units", None) or units_of(model), losses, mechanism, settings, **given)
    return flatten(model)


@pytest.mark.slow
def test_every_unit_moves_the_sum_by_the_clip_at_most_and_is_clipped_on_its_own():
    model = small()
    units, mechanism = units_of(model, tokens_at_once=30), mechanism_for(model, clip=0.05)
    gradients = PerExample(model)
    everyone = np.arange(UNITS)
    whole = clipped_sum(gradients, units.micro_batches(everyone), losses, mechanism)
    for unit in range(0, UNITS, 7):
        without = clipped_sum(gradients, units.micro_batches(np.delete(everyone, unit)), losses, mechanism)
        alone = clipped_sum(gradients, units.micro_batches(np.array([unit])), losses, mechanism)
        assert np.linalg.norm(alone) <= 0.05 * (1 - SINGLE_MARGIN * 0.9)
        assert np.linalg.norm(whole - without) <= 0.05
        np.testing.assert_allclose(whole - without, alone, atol=2e-6)


@pytest.mark.slow
def test_a_sum_does_not_depend_on_how_units_share_micro_batches():
    model = small()
    gradients, mechanism = PerExample(model), mechanism_for(model)
    sums = [
        clipped_sum(
            gradients, units_of(model, tokens_at_once=tokens).micro_batches(np.arange(UNITS)), losses, mechanism
        )
        for tokens in (1, 40, 10_000)
    ]
    np.testing.assert_allclose(sums[0], sums[1], atol=2e-6)
    np.testing.assert_allclose(sums[0], sums[2], atol=2e-6)


def test_micro_batches_hold_every_unit_once_and_no_more_than_may_be():
    model = small()
    rows, labels = texts()
    members = [list(range(start, min(start + 1 + start % 3, UNITS))) for start in range(0, UNITS, 4)]
    units = TextUnits(model.config, rows, labels, members=members, tokens_at_once=32)
    seen = 0
    for batch in units.micro_batches(np.arange(len(members))):
        examples, length = batch.inputs["input_ids"].shape
        assert examples == batch.units * batch.examples_per_unit == len(batch.labels) == len(batch.weights)
        assert batch.units == 1 or examples * length <= 32
        assert torch.allclose(batch.weights.view(batch.units, -1).sum(dim=1), torch.ones(batch.units))
        seen += batch.units
    assert seen == len(members)


@pytest.mark.slow
def test_of_a_user_the_mean_loss_is_clipped_and_no_more_examples_count_than_said():
    model = small()
    rows, labels = texts(6)
    gradients, mechanism = PerExample(model), mechanism_for(model, clip=1e6, levels=4)
    user = TextUnits(model.config, rows, labels, members=[[0, 1, 2], [3]], most_examples=2)
    got = clipped_sum(gradients, user.micro_batches(np.array([0, 1])), losses, mechanism)
    one = TextUnits(model.config, rows, labels)
    first = clipped_sum(gradients, one.micro_batches(np.array([0, 1])), losses, mechanism)
    last = clipped_sum(gradients, one.micro_batches(np.array([3])), losses, mechanism)
    np.testing.assert_allclose(got, first / 2 + last, atol=1e-6)


@pytest.mark.slow
def test_an_empty_batch_is_a_step_of_noise_alone_and_every_step_has_its_own():
    model = small()
    start = flatten(model).clone()
    mechanism = mechanism_for(model, sampling_probability=1e-9, steps=2)
    settings = Optimisation(10.0, 0.1, optimiser="sgd", schedule=Schedule("constant"), momentum=0.0)
    moved = trained(model, mechanism=mechanism, settings=settings) - start
    nothing = np.zeros(mechanism.parameters)
    first, second = (noised(nothing, mechanism, stream().child("noise", step)) for step in range(2))
    np.testing.assert_allclose(moved.numpy(), -0.1 * (first + second) / 10.0, atol=1e-6)
    expected = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    assert first.std() == pytest.approx(expected, rel=0.05)
    assert (first - second).std() == pytest.approx(2**0.5 * expected, rel=0.05)


@pytest.mark.slow
def test_every_step_has_a_sample_of_its_own():
    model, seen = small(), []

    class Watched(TextUnits):
        def micro_batches(self, taken):
            seen.append(taken.tolist())
            return super().micro_batches(taken)

    rows, labels = texts()
    mechanism = mechanism_for(model, steps=4)
    trained(model, units=Watched(model.config, rows, labels), mechanism=mechanism)
    drawn = [mechanism.batch(UNITS, stream().child("batch", step)).tolist() for step in range(4)]
    assert seen == drawn
    assert len({tuple(each) for each in seen}) == 4


@pytest.mark.slow
def test_it_learns_what_noise_leaves_to_learn():
    model = small()
    units = units_of(model, 300)
    mechanism = mechanism_for(model, noise_multiplier=0.02, clip=1.0, steps=30, levels=4000)
    settings = Optimisation(expected_batch=150.0, learning_rate=0.04, schedule=Schedule("linear", 0.1))
    event = train_private(model, units, losses, mechanism, settings, stream=stream()).event
    rows, labels = texts(200, seed=5)
    (batch,) = TextUnits(model.config, rows, labels, tokens_at_once=10_000).micro_batches(np.arange(200))
    right = (model(**batch.inputs).logits.argmax(dim=1) == batch.labels).float().mean()
    assert right > 0.8
    assert event == SelfComposedDpEvent(PoissonSampledDpEvent(0.5, GaussianDpEvent(0.02)), 30)


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_one_that_was_stopped_goes_on_to_the_same_end(tmp_path, optimiser):
    settings = dataclasses.replace(SETTINGS, optimiser=optimiser, schedule=Schedule("linear", 0.2))
    whole = trained(settings=settings)
    checkpoint = tmp_path / "checkpoint.safetensors"
    done = []

    def stop(fraction):
        done.append(fraction)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(settings=settings, checkpoint=checkpoint, checkpoint_steps=3, on_step=stop)
    assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
    again = []
    resumed = trained(settings=settings, checkpoint=checkpoint, checkpoint_steps=3, on_step=again.append)
    assert again == pytest.approx([4 / 6, 5 / 6, 1.0])
    assert torch.equal(resumed, whole)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("other", ["stream", "settings", "mechanism", "units", "damage"])
def test_a_checkpoint_of_another_training_is_refused_and_left(tmp_path, other):
    checkpoint = tmp_path / "checkpoint.safetensors"

    def stop(fraction):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(checkpoint=checkpoint, checkpoint_steps=1, on_step=stop)
    model = small()
    changed = {
        "stream": {"stream": stream(2)},
        "settings": {"settings": dataclasses.replace(SETTINGS, learning_rate=0.1)},
        "mechanism": {"mechanism": mechanism_for(model, noise_multiplier=2.0)},
        "units": {"units": units_of(model, UNITS + 1)},
        "damage": {},
    }[other]
    if other == "damage":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    kept = checkpoint.read_bytes()
    with pytest.raises(IntegrityError, match="Remove it to begin anew"):
        trained(model, checkpoint=checkpoint, **changed)
    assert checkpoint.read_bytes() == kept


@pytest.mark.slow
def test_a_step_begins_with_nothing_of_the_last_sum(monkeypatch):
    """Of a large model a sum in double precision and a noisy one are 12 bytes a number; they are there once."""
    model, made = small(), []

    def sums(*arguments):
        assert all(each() is None for each in made)
        found = clipped_sum(*arguments)
        made.append(weakref.ref(found))
        return found

    def noises(*arguments):
        found = noised(*arguments)
        made.append(weakref.ref(found))
        return found

    monkeypatch.setattr(dp_sgd, "clipped_sum", sums)
    monkeypatch.setattr(dp_sgd, "noised", noises)
    train_private(model, units_of(model), losses, mechanism_for(model, steps=3), SETTINGS, stream=stream())
    assert len(made) == 6


def test_each_step_has_a_batch_and_noise_of_its_own_and_another_stream_has_others():
    mechanism = mechanism_for(small())
    draws = []
    for seed in (1, 2):
        for step in range(3):
            batch = mechanism.batch(200, stream(seed).child("batch", step))
            noise = mechanism.noise_share((200,), stream(seed).child("noise", step))
            draws += [tuple(batch), tuple(noise)]
    assert len(set(draws)) == len(draws)


def test_a_model_that_mixes_examples_is_found_before_it_is_trained():
    def mixed(model, inputs, labels):
        each = losses(model, inputs, labels)
        return each * (1 + each.sum())

    model = small()
    start = flatten(model).clone()
    mechanism = mechanism_for(model)
    with pytest.raises(ModelError, match="cannot be told apart"):
        train_private(
            model, units_of(model), mixed, mechanism, SETTINGS, stream=stream(), probe=probe_of(model.config, 2)
        )
    assert torch.equal(flatten(model), start)


@pytest.mark.slow
@pytest.mark.parametrize("targets", [3, 0, None])
def test_a_probe_suits_every_kind_of_target(targets):
    probe = probe_of(small().config, targets)
    assert probe.units == len(probe.inputs["input_ids"]) == len(probe.weights)
    assert (probe.labels is None) == (targets is None)
    assert trained(probe=probe_of(small().config, 2)).shape == flatten(small()).shape


def test_a_mechanism_for_another_number_of_parameters_is_refused():
    with pytest.raises(ConclaveError, match="the mechanism bounds 7"):
        trained(mechanism=mechanism_for(small(), parameters=7))


HUGE = 3e38


def broken(how):
    """A model that only what holds word 7 breaks: by an embedding that overflows, or by NaN in it."""
    model = small()
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = HUGE if how == "huge" else float("nan")
    return model


def endless(model, inputs, labels):
    """Losses of which those of texts with word 7 are infinite, and their gradients none."""
    found = losses(model, inputs, labels)
    return found.where(~(inputs["input_ids"] == 7).any(dim=1), found.detach() * float("inf"))


@pytest.mark.parametrize("adapted", ["full", "lora", "head"])
@pytest.mark.parametrize(("how", "loss"), [("huge", losses), ("nan", losses), ("whole", endless)])
def test_a_unit_whose_gradient_is_no_number_adds_zero_and_changes_no_bit_of_the_others(how, loss, adapted):
    model = small() if how == "whole" else broken(how)
    adapt(model, adapted, seed=1)
    rows, labels = texts(24)
    rows = [Tokens(np.where(row.ids == 7, 8, row.ids), len(row)) for row in rows]
    bad = Tokens(np.full_like(rows[5].ids, 7), len(rows[5]))
    gradients, mechanism, told = PerExample(model), mechanism_for(model, clip=0.05), []

    def total(five):
        units = TextUnits(model.config, [*rows[:5], five, *rows[6:]], labels, tokens_at_once=128)
        return clipped_sum(gradients, units.micro_batches(np.arange(24)), loss, mechanism, told.append)

    rest = TextUnits(model.config, rows, labels, tokens_at_once=128)
    without = clipped_sum(gradients, rest.micro_batches(np.delete(np.arange(24), 5)), loss, mechanism)
    with_bad = total(bad)
    assert told == [1]
    assert np.isfinite(with_bad).all()
    assert np.abs(without).max() > 0.001
    np.testing.assert_allclose(with_bad, without, rtol=0, atol=1e-15)  # what it adds is nothing
    # The same micro-batches, with a sound unit in its place that is given the weight zero: bit for bit.
    scales = type(mechanism).scales
    sound = TextUnits(model.config, rows, labels, tokens_at_once=128)
    place = []

    def spared(self, norms, margin):
        found = scales(self, norms, margin)
        if len(place) == where[0]:
            found[where[1]] = 0.0
        place.append(len(norms))
        return found

    where = _place_of(gradients, sound, bad_row=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientMechanism, "scales", spared)
        wanted = clipped_sum(gradients, sound.micro_batches(np.arange(24)), loss, mechanism)
    assert np.array_equal(wanted, with_bad)


def _place_of(gradients, units, bad_row):
    """In which part of a sum, and where in it, a unit goes."""
    marked, parts = units._rows[bad_row].ids, []
    for batch in units.micro_batches(np.arange(len(units))):
        start = 0
        for size in divided(batch.units, gradients.sizes[(batch.shape.most, *batch.shape.name)]):
            parts.append(batch.inputs["input_ids"][start : start + size])
            start += size
    found = [
        (number, row)
        for number, part in enumerate(parts)
        for row, ids in enumerate(part.tolist())
        if ids[: len(marked)] == marked.tolist()
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.slow
def test_a_training_goes_on_where_units_have_no_gradient_and_says_so_in_its_own_log(caplog):
    moved = trained(broken("nan"), mechanism=mechanism_for(small(), steps=2))
    assert torch.isfinite(moved[~torch.isnan(flatten(broken("nan")))]).all()
    assert "counted as an empty unit" in caplog.text


@pytest.mark.slow
def test_a_step_to_infinity_is_not_taken_and_the_training_ends(caplog):
    settings = dataclasses.replace(SETTINGS, learning_rate=1e9)
    assert torch.equal(trained(settings=settings), flatten(small()))
    assert "6 of 6 steps would have gone to infinity" in caplog.text


def test_a_training_that_all_share_says_that_it_goes_to_infinity_and_stays():
    descent = Training(torch.zeros(4), dataclasses.replace(SETTINGS, learning_rate=1e9), 6)
    with pytest.raises(Diverged, match="went to infinity"):
        descent.step(np.ones(4, np.float32))
    assert torch.equal(descent.point, torch.zeros(4))
    assert descent.done == 1


@pytest.mark.slow
@pytest.mark.parametrize("adapted", ["full", "lora", "head"])
@pytest.mark.parametrize("by_user", [False, True])
def test_the_bits_of_what_a_unit_adds_do_not_depend_on_who_else_is_there(adapted, by_user):
    check_bits(adapted, by_user)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_nor_do_they_in_a_reduced_precision(precision):
    with running(Compute("cpu", precision)):
        check_bits("full", by_user=True)


def check_bits(adapted, by_user):
    model = small()
    adapt(model, adapted, seed=1)
    # What one unit adds in its last bits a model may be made to magnify: here nothing but bits is compared.
    rows, labels = texts(30, longest=14)
    members = [list(range(start, min(start + 1 + start % 4, 30))) for start in range(30)] if by_user else None
    units = TextUnits(model.config, rows, labels, members=members, tokens_at_once=256)
    gradients, mechanism = PerExample(model), mechanism_for(model, clip=1e6, levels=4)
    seen = {}
    recorded = gradients.add_weighted

    def keep(weights, totals):
        seen.setdefault("parts", []).append((weights.clone(), [each.clone() for each in gradients.recorded()]))
        recorded(weights, totals)

    gradients.add_weighted = keep
    rng = np.random.default_rng(0)

    def bits(taken):
        seen.clear()
        clipped_sum(gradients, units.micro_batches(taken), losses, mechanism)
        return {
            tuple(each[place].numpy().tobytes() for each in own): float(weights[place])
            for weights, own in seen["parts"]
            for place in range(len(weights))
            if weights[place]
        }

    everyone = bits(np.arange(30))
    assert len(everyone) == 30
    for _ in range(4):
        taken = np.flatnonzero(rng.random(30) < 0.4)
        some = bits(taken)
        assert len(some) == len(taken)
        assert some.items() <= everyone.items()


@pytest.mark.slow
@pytest.mark.parametrize("adapted", ["full", "lora"])
def test_a_model_that_magnifies_rounding_lets_no_unit_change_the_others_parts(adapted):
    """What is normalised here is the rounding of sums that are zero but for it: all follows the order of adding."""
    model = small()
    bert, attention = model.bert, model.bert.encoder.layer[0].attention
    with torch.no_grad():
        bert.embeddings.LayerNorm.weight.zero_()
        bert.embeddings.LayerNorm.bias.fill_(1e4)
        sums = attention.self.value.weight.normal_()
        sums[:, -1] = -sums[:, :-1].sum(dim=1)
        attention.self.value.bias.zero_()
        attention.output.dense.weight.normal_().mul_(1e6)
    adapt(model, adapted, seed=1)
    units, mechanism = units_of(model, tokens_at_once=128), mechanism_for(model, clip=0.05)
    gradients, everyone = PerExample(model), np.arange(UNITS)
    whole = clipped_sum(gradients, units.micro_batches(everyone), losses, mechanism)
    for unit in range(0, UNITS, 9):
        without = clipped_sum(gradients, units.micro_batches(np.delete(everyone, unit)), losses, mechanism)
        alone = clipped_sum(gradients, units.micro_batches(np.array([unit])), losses, mechanism)
        assert np.linalg.norm(whole - without) <= 0.05 * (1 - SINGLE_MARGIN) * (1 + 1e-9)
        assert np.linalg.norm(whole - without - alone) <= 1e-12


@pytest.mark.parametrize("number", [(1 << 16) + 1, pytest.param(1 << 20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alike", [True, False], ids=["all in one direction", "random"])
def test_among_many_units_one_more_moves_the_sum_by_the_clip_at_most(alike, number):
    torch.manual_seed(0)
    head = nn.Linear(64, 2)
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1 if alike else number, 64)).astype(np.float32)
    vectors = np.broadcast_to(vectors, (number, 64)).copy()
    labels = torch.zeros(number, dtype=torch.int64) if alike else torch.from_numpy(rng.integers(0, 2, number))
    units, mechanism, gradients = FeatureUnits(vectors, labels), mechanism_for(head, clip=1e-3), PerExample(head)
    everyone = np.arange(number)
    whole = clipped_sum(gradients, units.micro_batches(everyone), head_losses, mechanism)
    for unit in (0, 4095, 30_000, number - 1):
        without = clipped_sum(gradients, units.micro_batches(np.delete(everyone, unit)), head_losses, mechanism)
        alone = clipped_sum(gradients, units.micro_batches(np.array([unit])), head_losses, mechanism)
        assert np.linalg.norm(whole - without) <= 1e-3 * (1 - SINGLE_MARGIN / 2)
        off = np.linalg.norm(whole - without - alone)
        assert off <= 1e-3 * adding(number, 4096, 2 * number)


def test_rounding_of_sums_is_within_the_margin_for_a_million_units_and_refused_beyond_it(monkeypatch):
    assert adding(1 << 16, 4096, 2 << 16) < SINGLE_MARGIN / 300
    assert adding(1 << 20, 1 << 14, 2 << 20) < SINGLE_MARGIN * 0.99
    assert adding(1 << 24, 4096, 2 << 24) > SINGLE_MARGIN
    model = small()
    batches = list(units_of(model).micro_batches(np.arange(UNITS)))
    monkeypatch.setattr("learning.private_training.clipped_sum._SPARE", 1e-12)
    with pytest.raises(IntegrityError, match="40 units are in one sum"):
        clipped_sum(PerExample(model), batches, losses, mechanism_for(model))


@pytest.mark.parametrize("wrong", [{"expected_batch": 0.0}, {"learning_rate": float("nan")}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConclaveError, match="must be a number above 0"):
        dataclasses.replace(SETTINGS, **wrong)


def test_a_state_of_another_shape_is_refused():
    descent = Training(torch.zeros(4), SETTINGS, 6)
    other = Training(torch.zeros(5), SETTINGS, 6)
    with pytest.raises(IntegrityError, match="not of this training"):
        descent.resume(other.state())


def test_a_plain_module_trains_too():
    torch.manual_seed(0)
    given, wanted = torch.randn(50, 4), torch.randn(50)

    class Points:
        def __len__(self):
            return 50

        def micro_batches(self, taken):
            if len(taken):
                yield MicroBatch({"values": given[taken]}, wanted[taken], torch.ones(len(taken)), len(taken), 1)

    model = nn.Linear(4, 1)
    mechanism = mechanism_for(model, steps=3)
    start = flatten(model).clone()
    train_private(
        model,
        Points(),
        lambda model, inputs, labels: (model(inputs["values"]).squeeze(1) - labels).square(),
        mechanism,
        SETTINGS,
        stream=stream(),
    )
    assert not torch.equal(flatten(model), start)
