"""Private training of a model: bounds, batches and noise as charged, resuming to the same end, and what is refused."""

import dataclasses
import stat

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.gradients import SINGLE_MARGIN, GradientMechanism, fine_levels
from aggregation.noise import NoiseStream
from learning.adapting import flatten
from learning.batching import Tokens, losses
from learning.checkpoints import ModelError
from learning.per_example import PerExample
from learning.private_training import Descent, MicroBatch, Optimisation, clipped_sum, noised, train_private
from learning.schedules import Schedule
from learning.text_units import TextUnits, probe_of

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


def test_an_empty_batch_is_a_step_of_noise_alone():
    model = small()
    start = flatten(model).clone()
    mechanism = mechanism_for(model, sampling_probability=1e-9, steps=1)
    settings = Optimisation(expected_batch=10.0, learning_rate=0.1, optimiser="sgd", schedule=Schedule("constant"))
    moved = trained(model, mechanism=mechanism, settings=settings) - start
    noise = noised(np.zeros(mechanism.parameters), mechanism, stream().child("noise", 0))
    np.testing.assert_allclose(moved.numpy(), -0.1 * noise / 10.0, atol=1e-6)
    expected = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    assert noise.std() == pytest.approx(expected, rel=0.05)


def test_it_learns_what_noise_leaves_to_learn():
    model = small()
    units = units_of(model, 300)
    mechanism = mechanism_for(model, noise_multiplier=0.02, clip=1.0, steps=60, levels=4000)
    settings = Optimisation(expected_batch=150.0, learning_rate=0.02, schedule=Schedule("linear", 0.1))
    event = train_private(model, units, losses, mechanism, settings, stream=stream()).event
    rows, labels = texts(200, seed=5)
    (batch,) = TextUnits(model.config, rows, labels, tokens_at_once=10_000).micro_batches(np.arange(200))
    right = (model(**batch.inputs).logits.argmax(dim=1) == batch.labels).float().mean()
    assert right > 0.8
    assert event == SelfComposedDpEvent(PoissonSampledDpEvent(0.5, GaussianDpEvent(0.02)), 60)


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


@pytest.mark.parametrize("targets", [3, 0, None])
def test_a_probe_suits_every_kind_of_target(targets):
    probe = probe_of(small().config, targets)
    assert probe.units == len(probe.inputs["input_ids"]) == len(probe.weights)
    assert (probe.labels is None) == (targets is None)
    assert trained(probe=probe_of(small().config, 2)).shape == flatten(small()).shape


def test_a_mechanism_for_another_number_of_parameters_is_refused():
    with pytest.raises(ConclaveError, match="the mechanism bounds 7"):
        trained(mechanism=mechanism_for(small(), parameters=7))


def test_a_loss_that_is_no_number_is_refused():
    def endless(model, inputs, labels):
        return losses(model, inputs, labels) * float("inf")

    model = small()
    gradients = PerExample(model)
    with pytest.raises(IntegrityError, match="no finite number"):
        clipped_sum(gradients, units_of(model).micro_batches(np.arange(4)), endless, mechanism_for(model))


def test_a_training_that_goes_to_infinity_says_so():
    settings = dataclasses.replace(SETTINGS, learning_rate=1e9)
    with pytest.raises(ConclaveError, match="went to infinity"):
        trained(settings=settings)


@pytest.mark.parametrize("wrong", [{"expected_batch": 0.0}, {"learning_rate": float("nan")}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ConclaveError, match="must be a number above 0"):
        dataclasses.replace(SETTINGS, **wrong)


def test_a_state_of_another_shape_is_refused():
    descent = Descent(torch.zeros(4), SETTINGS, 6)
    other = Descent(torch.zeros(5), SETTINGS, 6)
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
