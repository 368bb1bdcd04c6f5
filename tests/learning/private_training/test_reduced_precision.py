"""In reduced precision the bound holds of what is really added, and its margin is needed."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.pytorch_utils import Conv1D

from aggregation.mechanisms.gradients import SINGLE_MARGIN, GradientMechanism, fine_levels
from learning.models.batching import Tokens, losses
from learning.models.compute import SCALE, Compute, loss_scale, passing, running
from learning.models.reduced import reduced
from learning.private_training import per_example
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits

HALVES = ["bfloat16", "float16"]
UNITS, POSITIONS, WIDTH = 5, 40, 24
PROCESSOR = torch.device("cpu")


class Layer(nn.Module):
    """One layer of a kind, over positions."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        made = {
            "linear": lambda: nn.Linear(WIDTH, WIDTH),
            "conv1d": lambda: Conv1D(WIDTH, WIDTH),
            "embedding": lambda: nn.Embedding(7, WIDTH),
            "norm": lambda: nn.LayerNorm(WIDTH),
        }
        self.layer = made[kind]()

    def forward(self, given):
        return self.layer(given)


def given(kind, how, dtype, rng):
    """What a layer is given, and what comes back to it: [units, positions, width], in a precision."""
    inputs = torch.randn(UNITS, POSITIONS, WIDTH, generator=rng)
    slopes = torch.randn(UNITS, POSITIONS, WIDTH, generator=rng)
    small, large = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    if how == "large":
        inputs, slopes = inputs * min(large, 1e9) / 8, slopes * 8
    elif how == "subnormal":
        inputs, slopes = inputs * small / 4, slopes * small * 64
    elif how == "cancelling":  # equal and opposite, but for one position that is far smaller than they are
        inputs[:, 1::2], slopes[:, 1::2] = inputs[:, ::2], -slopes[:, ::2]
        slopes[:, -1] *= 1 + torch.finfo(dtype).eps
    if kind == "embedding":
        inputs = torch.randint(0, 7, (UNITS, POSITIONS), generator=rng)
        if how == "cancelling":
            inputs[:, 1::2] = inputs[:, ::2]
        return inputs, slopes.to(dtype)
    return inputs.to(dtype), slopes.to(dtype)


def recorded(kind, how, precision):
    """A layer's gradients after one pass in a precision, the bounds, and what each unit adds, [units, parameters]."""
    dtype, rng = getattr(torch, precision), torch.Generator().manual_seed(5)
    model = Layer(kind)
    gradients = PerExample(model)
    inputs, slopes = given(kind, how, dtype, rng)
    with gradients.recording(UNITS, scale=loss_scale()):
        with passing(PROCESSOR):
            said = model(inputs)
        # The slope that comes back is this one, times the scale, in the precision of what the layer said.
        said.backward((slopes.to(said.dtype).double() * loss_scale()).to(said.dtype))
    bounds, added = gradients.bounds(), []
    for unit in range(UNITS):
        total = {name: torch.zeros(each.shape, dtype=torch.float64) for name, each in gradients.parameters.items()}
        gradients.add_weighted(torch.eye(UNITS, dtype=torch.float64)[unit], total)
        added.append(torch.cat([each.flatten() for each in total.values()]))
    return gradients, bounds, torch.stack(added)


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("kind", ["linear", "conv1d", "embedding", "norm"])
@pytest.mark.parametrize("how", ["random", "large", "subnormal", "cancelling"])
def test_what_a_unit_adds_is_within_its_bound(kind, how, precision):
    """The norm in double precision of what is really added, and of the exact sum of what was recorded."""
    with running(Compute("cpu", precision)):
        gradients, bounds, added = recorded(kind, how, precision)
    sound = torch.isfinite(bounds)
    assert sound.all() or how == "large"
    assert (added.norm(dim=1)[sound] <= bounds[sound]).all()
    exact = torch.zeros(UNITS, dtype=torch.float64)
    for terms in gradients._terms.values():
        exact += sum(wide(term) for term in terms).flatten(1).square().sum(dim=1)
    assert (exact.sqrt()[sound] <= bounds[sound]).all()
    for each in gradients.recorded():  # whatever the pass was in
        assert not each.is_floating_point() or each.dtype == torch.float32


def wide(term):
    """The gradients of a term in double precision, [units, ...]."""
    names = {name: getattr(term, name) for name in term.__slots__}
    doubled = {name: each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each
               for name, each in names.items()}  # fmt: skip
    return type(term)(**doubled).dense(slice(None))


@pytest.mark.parametrize("precision", HALVES)
def test_without_its_margin_the_bound_would_not_hold(precision, monkeypatch):
    monkeypatch.setattr(per_example, "off", lambda additions: 0.0)
    monkeypatch.setattr(per_example, "ROUNDING", 0.0)
    over = 0.0
    with running(Compute("cpu", precision)):
        for kind in ("linear", "embedding"):
            for how in ("random", "cancelling"):
                _, bounds, added = recorded(kind, how, precision)
                sound = torch.isfinite(bounds) & (added.norm(dim=1) > 0)
                over = max(over, float((added.norm(dim=1) / bounds)[sound].max()))
    assert over > 1


def small():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def summed(model, rows, labels, taken, told=None):
    units = TextUnits(model.config, rows, labels, tokens_at_once=64)
    gradients = PerExample(model)
    mechanism = GradientMechanism(
        clip=0.05, levels=fine_levels(0.05, gradients.count), noise_multiplier=1.0, sampling_probability=0.5, steps=6,
        parameters=gradients.count,
    )  # fmt: skip
    return clipped_sum(gradients, units.micro_batches(np.array(taken)), losses, mechanism, told)


ROWS = [Tokens(np.random.default_rng(n).integers(1, 29, 3 + n % 6).astype(np.int32), 3 + n % 6) for n in range(16)]
LABELS = torch.arange(16) % 2


@pytest.mark.slow
@pytest.mark.parametrize("precision", HALVES)
def test_one_unit_moves_a_sum_by_the_clip_at_most(precision):
    model = small()
    everyone = list(range(16))
    with running(Compute("cpu", precision)):
        whole = summed(model, ROWS, LABELS, everyone)
        for unit in (0, 5, 11):
            alone = summed(model, ROWS, LABELS, [unit])
            without = summed(model, ROWS, LABELS, [each for each in everyone if each != unit])
            assert np.linalg.norm(alone) <= 0.05 * (1 - SINGLE_MARGIN * 0.9)
            assert np.linalg.norm(whole - without) <= 0.05
            np.testing.assert_allclose(whole - without, alone, atol=1e-14)
    plain = summed(model, ROWS, LABELS, everyone)
    assert 0 < np.linalg.norm(whole - plain) < 0.1 * np.linalg.norm(plain)  # it was another precision, and near


@pytest.mark.parametrize("precision", HALVES)
def test_a_batch_without_padding_goes_the_way_of_one_with_it(precision):
    """Attention of the first needs no mask; a unit has the same bits in both, so that several go together."""
    model, found = small(), []
    model.set_attn_implementation("eager")  # as models are loaded
    for lengths in ([8, 8, 8, 8], [8, 5, 6, 7]):
        rows = [Tokens(np.arange(1, 1 + each, dtype=np.int32), each) for each in lengths]
        units, gradients = TextUnits(model.config, rows, LABELS[:4], tokens_at_once=64), PerExample(model)
        (batch,) = units.micro_batches(np.arange(4))
        with running(Compute("cpu", precision)), gradients.recording(4, scale=loss_scale()):
            (losses(model, batch.inputs, batch.labels).sum() * loss_scale()).backward()
        found.append([each[list(batch.inputs["input_ids"][:, 7] != 0).index(True)] for each in gradients.recorded()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("softmax", [torch.softmax, torch.Tensor.softmax, nn.functional.softmax, torch.log_softmax])
def test_softmax_is_in_single_precision_and_products_are_not(softmax):
    values = torch.randn(4, 4)
    with reduced("cpu", torch.bfloat16):
        product = values @ values
        assert product.dtype == torch.bfloat16
        assert torch.equal(softmax(product, dim=-1), softmax(product.float(), -1))
    assert softmax(product, -1).dtype == torch.bfloat16  # and not after it


@pytest.mark.slow
def test_a_unit_that_overflows_counts_as_empty_and_changes_no_other():
    model, told = small(), []
    rows = [*ROWS[:5], Tokens(np.full(4, 29, np.int32), 4), *ROWS[6:]]
    with torch.no_grad():
        model.bert.embeddings.LayerNorm.weight[3] = 1.0
        model.bert.embeddings.word_embeddings.weight[29] = 1e38  # its squares are no numbers
    with running(Compute("cpu", "float16")):
        with_it = summed(model, rows, LABELS, range(16), told.append)
        without = summed(model, rows, LABELS, [each for each in range(16) if each != 5])
    assert told == [1]
    np.testing.assert_allclose(with_it, without, rtol=0, atol=1e-15)


def test_small_slopes_survive_half_precision_by_the_public_scale():
    layer = nn.Linear(4, 4, bias=False)
    smallest = torch.finfo(torch.float16).smallest_normal / 2**10  # a slope that is its last step above 0

    def norm(scale):
        gradients = PerExample(layer)
        with gradients.recording(1, scale=scale):
            with passing(PROCESSOR):
                said = layer(torch.ones(1, 4))
            said.backward(torch.full((1, 4), smallest / 4 * scale).to(said.dtype))
        return float(gradients.norms()[0])

    with running(Compute("cpu", "float16")):
        assert norm(1.0) == 0
        assert norm(SCALE) == pytest.approx(smallest / 4 * 4, rel=1e-6)
