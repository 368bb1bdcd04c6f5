"""Units of a language model with openings: each one's gradient is of its own text, clipped alone, the same bits among
any others.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from aggregation.mechanisms.gradients import GradientMechanism
from learning.models.adapting import Lora, adapt
from learning.models.batching import BEGINS, Tokens, losses
from learning.models.compute import on_device
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits
from learning.private_training.units import cut, joined

WORDS, UNITS = 60, 14
SLOW = pytest.mark.slow
TILT = torch.linspace(-1, 1, WORDS)


def gpt2(how):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=24, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, initializer_range=0.3, bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel._from_config(config, attn_implementation="eager")
    assert model.lm_head.weight is model.transformer.wte.weight
    adapt(model, how, seed=1, lora=Lora(2, 4))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return model


def documents(number=UNITS):
    rng = np.random.default_rng(0)
    lengths, openings = rng.integers(6, 20, number), rng.integers(0, 6, number)
    return [Tokens(rng.integers(3, WORDS, n).astype(np.int32), int(k)) for n, k in zip(lengths, openings, strict=True)]


def gradient_of(model, row):
    """One document's gradient by autograd, its loss written out."""
    ids = torch.from_numpy(row.ids.astype(np.int64))
    first = max(row.second, 1)
    logits = model(input_ids=ids[None]).logits[0] + TILT
    loss = functional.cross_entropy(logits[first - 1 : -1], ids[first:])
    own = [each for _, each in sorted(model.named_parameters()) if each.requires_grad]
    return torch.cat([each.reshape(-1) for each in torch.autograd.grad(loss, own)]).double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "by_user"),
    [
        ("lora", True),
        ("lora-all", False),
        ("full", False),
        *(pytest.param(how, users, marks=SLOW) for how, users in (("lora", False), ("lora-all", True), ("full", True))),
    ],
)
def test_clipped_sums_are_those_of_autograd_one_by_one(how, by_user):
    model, rows = gpt2(how), documents()
    members = [range(start, min(start + 3, UNITS)) for start in range(0, UNITS, 3)] if by_user else None
    alone = [gradient_of(model, row) for row in rows]
    whole = [np.mean([alone[place] for place in own], axis=0) for own in members or [[n] for n in range(UNITS)]]
    norms = np.array([np.linalg.norm(each) for each in whole])
    clip = float(np.median(norms))
    gradients = PerExample(model)
    units = TextUnits(model.config, rows, None, members=members, tokens_at_once=128)

    def total(clip, taken):
        mechanism = GradientMechanism(clip, 400, 1.0, 1.0, 1, gradients.count)
        return clipped_sum(gradients, units.micro_batches(taken), partial(losses, tilt=TILT), mechanism)

    everyone = np.arange(len(units))
    np.testing.assert_allclose(total(1e3 * clip, everyone), np.sum(whole, axis=0), atol=1e-5 * norms.max())
    assert (norms > clip).any()
    assert (norms < clip).any()
    wanted = sum(each * min(1, clip / norm) for each, norm in zip(whole, norms, strict=True))
    assert np.linalg.norm(total(clip, everyone) - wanted) < 0.02 * np.linalg.norm(wanted)  # bounds are above norms
    for unit in (int(norms.argmax()), int(norms.argmin())):
        size = np.linalg.norm(total(clip, np.array([unit])))
        assert 0.97 * min(norms[unit], clip) < size <= clip


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lora", pytest.param("full", marks=SLOW)])
def test_a_documents_part_is_the_same_bits_whoever_else_is_there(how):
    model, rows = gpt2(how), documents(30)
    gradients = PerExample(model)
    mechanism = GradientMechanism(1e6, 4, 1.0, 1.0, 1, gradients.count)
    units = TextUnits(model.config, rows, None, tokens_at_once=256)
    parts, recorded = [], gradients.add_weighted

    def keep(weights, totals):
        parts.append((weights.clone(), [each.clone() for each in gradients.recorded()]))
        recorded(weights, totals)

    gradients.add_weighted = keep

    def bits(taken):
        parts.clear()
        clipped_sum(gradients, units.micro_batches(taken), partial(losses, tilt=TILT), mechanism)
        return {
            tuple(each[place].numpy().tobytes() for each in own)
            for weights, own in parts
            for place in range(len(weights))
            if weights[place]
        }

    everyone = bits(np.arange(30))
    assert len(everyone) == 30
    rng = np.random.default_rng(0)
    for _ in range(3):
        taken = np.flatnonzero(rng.random(30) < 0.4)
        some = bits(taken)
        assert len(some) == len(taken)
        assert some <= everyone


def test_micro_batches_are_cut_joined_and_made_up_with_where_texts_begin():
    model, rows = gpt2("lora"), documents(6)
    units = TextUnits(model.config, rows, None, tokens_at_once=1024)
    seen = 0
    for batch in units.micro_batches(np.arange(6)):
        made = batch.shape.made_up([0, 1])
        assert made.inputs.keys() == batch.inputs.keys()
        assert {name: each.shape[1:] for name, each in made.inputs.items()} == {
            name: each.shape[1:] for name, each in batch.inputs.items()
        }
        both = joined(cut(batch, 0, 1), made)
        assert both.inputs[BEGINS].tolist() == [batch.inputs[BEGINS][0], 1, 1]
        seen += batch.units
    assert seen == 6


def test_a_shape_does_not_depend_on_where_a_text_begins():
    """An opening is public, but which of them a row has is not."""
    model = gpt2("lora")
    ids = np.arange(3, 15, dtype=np.int32)
    names = set()
    for second in (0, 1, 7, 12):
        (batch,) = TextUnits(model.config, [Tokens(ids, second)], None).micro_batches(np.arange(1))
        names.add((batch.shape.name, batch.shape.most))
    assert len(names) == 1


def total(place):
    model, rows = gpt2("lora"), documents()
    place(model)
    gradients = PerExample(model)
    mechanism = GradientMechanism(1.0, 400, 1.0, 1.0, 1, gradients.count)
    units = TextUnits(model.config, rows, None, tokens_at_once=128)
    return clipped_sum(gradients, units.micro_batches(np.arange(UNITS)), partial(losses, tilt=TILT), mechanism)


@pytest.fixture
def here():
    """The sum on the processor, before there is anything else."""
    return total(lambda model: model)


@SLOW
def test_on_another_device_sums_under_a_tilt_are_those_of_the_processor(here, elsewhere):
    np.testing.assert_allclose(total(on_device), here, atol=1e-5)
