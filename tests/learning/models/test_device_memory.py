"""Where a device's memory is exhausted, work halves itself: the same result, in silence, or one constant sentence."""

from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from learning.classification.training import Fit, fit, predict
from learning.errors import EXHAUSTED, ComputeError
from learning.models.adapting import adapt, flatten, unflatten
from learning.models.batching import Tokens, losses
from learning.models.encoders import classifier, encoder
from learning.models.features import features, features_apart
from learning.private_training.clipped_sum import clipped_sum, tokens_held
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits, shape_of
from learning.text.labelled import LabelMap
from learning.transformers.distilling import Distillation, distil
from learning.transformers.layered_student import make_student

ROWS = [Tokens(np.random.default_rng(n).integers(5, 60, 5 + n % 3).astype(np.int32), 5 + n % 3) for n in range(30)]
LABELS = np.arange(30) % 2


@pytest.fixture
def model(tiny_bert):
    found, _ = classifier(str(tiny_bert), LabelMap(("no", "yes")), seed=1)
    adapt(found, "full", seed=1)
    return found


class Limited:
    """A model on a device whose memory holds some examples at a time. after: passes before it became so small."""

    def __init__(self, model, most, after=0):
        self.tried, self.passed = [], []
        self._most, self._after = most, after
        layer = model.get_input_embeddings()
        self._handle = layer.register_forward_pre_hook(self._checked)

    def _checked(self, layer, given):
        self.tried.append(len(given[0]))
        if len(given[0]) > self._most and len(self.tried) > self._after:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        self.passed.append(len(given[0]))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._handle.remove()


def summed(model, most=None, after=0, rows=ROWS):
    gradients = PerExample(model)
    mechanism = GradientMechanism(
        clip=0.05, levels=fine_levels(0.05, gradients.count), noise_multiplier=1.0, sampling_probability=0.5, steps=6,
        parameters=gradients.count,
    )  # fmt: skip
    units = TextUnits(model.config, rows, torch.from_numpy(LABELS), tokens_at_once=128)
    with Limited(model, most or 1 << 20, after) as limited:
        return clipped_sum(gradients, units.micro_batches(np.arange(30)), losses, mechanism), limited


@pytest.mark.slow
def test_the_sum_of_private_units_is_the_same_and_nothing_is_said(model, caplog, recwarn):
    whole, free = summed(model)
    halves, limited = summed(model, most=4)
    assert max(free.passed) == 16
    assert max(limited.passed) == 4
    assert max(limited.tried) == 16
    np.testing.assert_allclose(halves, whole, rtol=0, atol=1e-7)
    assert not caplog.records
    # An earlier test's open files are told of whenever they are collected.
    assert not [str(each.message) for each in recwarn.list if each.category is not ResourceWarning]


@pytest.mark.slow
def test_what_exhausts_memory_on_private_units_alone_changes_no_bit_of_any_unit(model):
    """Made-up units fitted: later ones go in sizes that agree, so that only the order of adding in float64 changes."""
    whole, free = summed(model)
    halves, limited = summed(model, most=4, after=len(free.tried) - 1)
    assert limited.tried[len(free.tried) - 1] > 4  # the last micro-batch did not fit after all
    assert max(limited.passed[len(free.tried) - 1 :]) <= 4
    np.testing.assert_allclose(halves, whole, rtol=0, atol=1e-16 * 0.05 * 30 * 100)


@pytest.mark.slow
def test_how_small_micro_batches_become_is_found_on_made_up_units(model):
    """Whatever the private texts are: the passes that failed, and those that did not, are the same."""
    _, one = summed(model, most=4)
    _, other = summed(model, most=4, rows=[Tokens(row.ids[::-1].copy(), len(row)) for row in ROWS])
    assert one.tried == other.tried


@pytest.mark.slow
def test_once_made_up_units_were_tried_no_text_exhausts_memory(model, monkeypatch):
    """Twins, of which one has a text of the longest kind: no pass of either fails after the trial."""
    held, failed, looks_up = 70, [], torch.nn.Embedding.forward

    def looked_up(layer, ids):
        if ids.numel() > held:
            failed.append(tuple(ids.shape))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return looks_up(layer, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", looked_up)
    gradients, shape_at = PerExample(model), partial(shape_of, model.config, torch.from_numpy(LABELS))
    mechanism = GradientMechanism(0.05, fine_levels(0.05, gradients.count), 1.0, 0.5, 6, gradients.count)
    tokens = tokens_held(gradients, shape_at, losses, longest=32, examples=1, tokens=256)
    assert tokens == 64
    assert failed == [(8, 32), (4, 32)]
    failed.clear()
    long = Tokens(np.arange(5, 35, dtype=np.int32), 30)
    for rows in (ROWS, [*ROWS[:-1], long]):
        units = TextUnits(model.config, rows, torch.from_numpy(LABELS), tokens_at_once=tokens)
        clipped_sum(gradients, units.micro_batches(np.arange(30)), losses, mechanism)
    assert failed == []
    held = 31
    with pytest.raises(ComputeError):
        tokens_held(gradients, shape_at, losses, longest=32, examples=1, tokens=256)


@pytest.mark.parametrize("kept", [slice(0, 5), slice(20, 30)])
def test_one_unit_too_large_is_an_error_whose_words_are_always_the_same(model, kept):
    gradients = PerExample(model)
    mechanism = GradientMechanism(0.05, fine_levels(0.05, gradients.count), 1.0, 0.5, 6, gradients.count)
    units = TextUnits(model.config, ROWS[kept], torch.from_numpy(LABELS[kept]))
    with Limited(model, 0), pytest.raises(ComputeError) as error:
        clipped_sum(gradients, units.micro_batches(np.arange(len(units))), losses, mechanism)
    assert str(error.value) == EXHAUSTED


def said(model):
    return predict(model, ROWS)


def seen(model):
    return features(model, ROWS)


def seen_apart(model):
    return features_apart(model, ROWS, {}, tokens=128)


def fitted(model):
    fit(model, ROWS, LABELS, Fit(epochs=1, batch=10, learning_rate=0.01, optimiser="sgd"), np.random.default_rng(0))
    return flatten(model).numpy()


@pytest.mark.parametrize("work", [said, seen, seen_apart, fitted])
def test_other_work_is_halved_too(work, model):
    before = flatten(model)
    expected = work(model)
    unflatten(model, before)
    with Limited(model, 3) as limited:
        np.testing.assert_allclose(work(model), expected, rtol=1e-4, atol=1e-5)
    assert max(limited.passed) <= 3
    with Limited(model, 0), pytest.raises(ComputeError):
        work(model)


@pytest.mark.slow
def test_distilling_is_halved_and_goes_on_so(tiny_bert):
    teacher, _ = encoder(str(tiny_bert))
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    settings = Distillation(passes=1, batch=8, micro_batch=8, learning_rate=1e-3, max_tokens=16)
    texts = ["the film was good and the plot was dull"] * 20

    def student(most):
        made = make_student(teacher, 1)
        with Limited(made, most) as limited:
            outcome = distil(teacher, made, lambda: texts, settings, tokenizer=tokenizer, seed=1)
        return list(outcome.losses.values()), limited

    whole, _ = student(8)
    halves, limited = student(3)
    np.testing.assert_allclose(halves, whole, rtol=1e-4)
    assert limited.tried.count(8) == 1  # found once, and kept
    with pytest.raises(ComputeError):
        student(0)


def test_other_errors_stay_what_they_are(model):
    def broken(layer, given):
        raise RuntimeError("something else")

    handle = model.get_input_embeddings().register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="something else"):
        predict(model, ROWS)
    handle.remove()
