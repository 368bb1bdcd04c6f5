"""In reduced precision the bound holds of what is really added, and its margin is needed."""

from dataclasses import replace

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
from learning.private_training import per_example, reduced_products
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.gradient_terms import Outer
from learning.private_training.per_example import PerExample
from learning.private_training.term_norms import norms_of
from learning.private_training.text_units import TextUnits

HALVES = ["bfloat16", "float16"]
UNITS, POSITIONS = 5, 40
NARROW, WIDE = 24, 72
"""Features of a layer; the matrices of wide ones are made in bfloat16."""
PROCESSOR = torch.device("cpu")


class Layer(nn.Module):
    """One layer of a kind, over positions."""

    def __init__(self, kind, width):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        made = {
            "linear": lambda: nn.Linear(width, width),
            "conv1d": lambda: Conv1D(width, width),
            "embedding": lambda: nn.Embedding(7, width),
            "norm": lambda: nn.LayerNorm(width),
        }
        self.layer = made[kind]()

    def forward(self, given):
        return self.layer(given)


def given(kind, how, dtype, rng, width):
    """What a layer is given, and what comes back to it: [units, positions, width], in a precision."""
    inputs = torch.randn(UNITS, POSITIONS, width, generator=rng)
    slopes = torch.randn(UNITS, POSITIONS, width, generator=rng)
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


@pytest.fixture(autouse=True)
def multiplies(monkeypatch):
    """Matrices are made in bfloat16 also where the processor does not: there in single precision, and rounded."""
    if not reduced_products._multiplies():
        monkeypatch.setattr(reduced_products, "_multiplies", lambda: True)
        monkeypatch.setattr(reduced_products, "made", lambda left, right: (left.float().T @ right.float()).bfloat16())
    reduced_products.relied_on.cache_clear()
    yield
    reduced_products.relied_on.cache_clear()


def recorded(kind, how, precision, width=NARROW):
    """A layer's gradients after one pass in a precision, the bounds, and what each unit adds, [units, parameters]."""
    dtype, rng = getattr(torch, precision), torch.Generator().manual_seed(5)
    model = Layer(kind, width)
    gradients = PerExample(model)
    inputs, slopes = given(kind, how, dtype, rng, width)
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
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_what_a_unit_adds_is_within_its_bound(kind, how, precision, width):
    """The norm in double precision of what is really added, and of the exact sum of what was recorded."""
    with running(Compute("cpu", precision)):
        gradients, bounds, added = recorded(kind, how, precision, width)
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


@pytest.mark.parametrize("kind", ["linear", "conv1d"])
def test_matrices_of_what_was_multiplied_in_bfloat16_are_made_in_it_and_rounding_is_within_the_bound(kind, monkeypatch):
    with running(Compute("cpu", "bfloat16")):
        gradients, bounds, added = recorded(kind, "random", "bfloat16", WIDE)
        (term,) = gradients._terms["layer.weight"]
        weights = term.left.double().transpose(1, 2) @ term.right.double()
        own = added[:, WIDE:]  # after the bias
        apart = (own.view_as(weights) - weights).flatten(1).norm(dim=1) / weights.flatten(1).norm(dim=1)
        assert (apart > reduced_products.ROUNDING / 10).all(), "it is rounded to bfloat16"
        assert (apart <= reduced_products.ROUNDING).all()
        plain = per_example.norms_of
        monkeypatch.setattr(per_example, "norms_of", lambda terms: replace(plain(terms), rounded=torch.zeros(UNITS)))
        without = gradients.bounds()
    room = bounds - without
    assert (room >= 0.9 * reduced_products.ROUNDING * weights.flatten(1).norm(dim=1)).all()


def test_a_processor_that_rounds_more_than_it_should_makes_no_matrices_in_bfloat16(monkeypatch):
    def cut_off(left, right):
        whole = (left.double().T @ right.double()).float()
        return (whole.view(torch.int32) & -65536).view(torch.float32).bfloat16()

    def added_in_bfloat16(left, right):
        total = torch.zeros(left.shape[1], right.shape[1], dtype=torch.bfloat16)
        for one, other in zip(left, right, strict=True):
            total += one[:, None].bfloat16() * other[None, :].bfloat16()
        return total

    rng = torch.Generator().manual_seed(0)
    left, right = (torch.randn(3, POSITIONS, WIDE, generator=rng).bfloat16().float() for _ in range(2))
    term = Outer(left, right, reduced=True)
    assert term.rounding == reduced_products.ROUNDING
    for worse in (cut_off, added_in_bfloat16):
        reduced_products.relied_on.cache_clear()
        monkeypatch.setattr(reduced_products, "made", worse)
        assert term.rounding == 0
        total, weights = torch.zeros(WIDE, WIDE, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
        term.add_weighted(weights, total)
        torch.testing.assert_close(total, torch.einsum("utp,utq->pq", left, right).double(), rtol=1e-4, atol=1e-4)


def test_terms_that_cancel_are_rounded_each_by_its_own_size():
    """Two uses of one parameter that take each other away: rounding is of what each makes, not of what is left."""
    rng = torch.Generator().manual_seed(1)
    left, right = (torch.randn(4, POSITIONS, WIDE, generator=rng).bfloat16().float() for _ in range(2))
    other = torch.cat([right[:, :1] * 1.5, right[:, 1:]], dim=1)
    gradients = PerExample(nn.Linear(WIDE, WIDE, bias=False))
    gradients._terms = {"weight": [Outer(left, right, reduced=True), Outer(-left, other, reduced=True)]}
    bounds = gradients.bounds()
    for unit in range(4):
        total = {"weight": torch.zeros(WIDE, WIDE, dtype=torch.float64)}
        gradients.add_weighted(torch.eye(4, dtype=torch.float64)[unit], total)
        assert total["weight"].norm() <= bounds[unit]
    found = norms_of(gradients._terms["weight"])
    each = norms_of(gradients._terms["weight"][:1])
    assert (found.rounded > 1.9 * reduced_products.ROUNDING * each.squared.sqrt()).all()


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
