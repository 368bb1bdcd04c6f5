"""Gradients of every unit apart: against a loop, for every kind of layer and objective; models that mix examples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from learning.models.adapting import adapt
from learning.models.batching import losses
from learning.models.checkpoints import ModelError
from learning.private_training.gradient_terms import PART, WIDE, Dense, Outer, Rows
from learning.private_training.per_example import PerExample, check_apart
from learning.private_training.term_norms import inner, off

EXAMPLES, LENGTH, WORDS = 4, 9, 60


@pytest.fixture(autouse=True, params=["layer by layer", "layers of like shapes together"])
def _as_on_a_device(request, monkeypatch):
    """Every test of this file, as the processor works and as a device does."""
    monkeypatch.setattr(
        "learning.private_training.per_example._together", lambda device: request.param.endswith("together")
    )


def looped(model, loss, examples):
    """Every example's gradient by itself, by autograd: a list of dictionaries."""
    found = []
    for place in range(examples):
        model.zero_grad()
        loss(slice(place, place + 1)).sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    return found


def compare(model, loss, examples=EXAMPLES, each=1):
    """Norms, bounds and weighted sums of units of `each` examples are those of the loop."""
    alone = looped(model, loss, examples)
    units = [alone[start : start + each] for start in range(0, examples, each)]
    names = sorted(name for name, p in model.named_parameters() if p.requires_grad)
    true = [{name: sum(one.get(name, torch.zeros(1)) for one in unit) for name in names} for unit in units]
    gradients = PerExample(model)
    with gradients.recording(len(units), each):
        loss(slice(0, examples)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert list(gradients.parameters) == names

    norms = torch.stack([sum(g.double().square().sum() for g in unit.values()).sqrt() for unit in true])
    torch.testing.assert_close(gradients.norms(), norms, rtol=2e-6, atol=1e-9)
    assert (gradients.bounds() >= norms * (1 - 1e-9)).all()
    assert (gradients.bounds() <= norms * 1.001 + 1e-6).all()

    weights = torch.linspace(0.1, 1.0, len(units), dtype=torch.float64)
    totals = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in gradients.parameters.items()}
    gradients.add_weighted(weights, totals)
    for name in names:
        want = sum(w * unit[name].double() for w, unit in zip(weights, true, strict=True))
        torch.testing.assert_close(totals[name], want.expand_as(totals[name]), rtol=1e-4, atol=1e-6)
    return gradients


def inputs(words=WORDS, **more):
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(3, words, (EXAMPLES, LENGTH), generator=rng)
    ids[:, 4] = ids[:, 2]  # one word twice in a text
    mask = torch.ones_like(ids)
    for place in range(EXAMPLES):
        mask[place, LENGTH - place :] = 0
    ids[mask == 0] = 0
    places = torch.arange(LENGTH).expand(EXAMPLES, LENGTH).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "position_ids": places, **more}


def loss_of(model, given, labels):
    return lambda part: losses(
        model, {name: each[part] for name, each in given.items()}, None if labels is None else labels[part]
    )


def bert(labels=3, **how):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=labels,
        **how,
    )
    return BertForSequenceClassification(config)


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


TYPES = {"token_type_ids": torch.zeros(EXAMPLES, LENGTH, dtype=torch.long)}
CLASSES = torch.tensor([0, 2, 1, 1])


@pytest.mark.parametrize("how", ["head", "lora", "full"])
def test_of_an_encoder_that_classifies_whatever_of_it_is_trained(how):
    model = bert()
    adapt(model, how, seed=1)
    if how == "lora":
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
    compare(model, loss_of(model, inputs(**TYPES), CLASSES))


def test_of_a_regression():
    model = bert(labels=1)
    compare(model, loss_of(model, inputs(**TYPES), torch.tensor([0.5, -0.2, 0.9, 0.0])))


def test_of_a_causal_language_model_whose_embeddings_are_tied():
    model = gpt2()
    assert model.lm_head.weight is model.transformer.wte.weight
    gradients = compare(model, loss_of(model, inputs(), None))
    assert "lm_head.weight" not in gradients.parameters


def test_of_a_model_with_layers_that_are_known_by_differentiating_them():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    model = LlamaForCausalLM(config)
    compare(model, loss_of(model, inputs(), None))


@pytest.mark.parametrize("each", [2, 4])
def test_of_units_with_several_examples(each):
    model = gpt2()
    compare(model, loss_of(model, inputs(), None), each=each)


class Scaled(nn.Module):
    """A layer of no known kind, with a parameter beside a layer in it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.inner = nn.Linear(8, 8)

    def forward(self, values, shift=None):
        made = self.inner(values * self.scale)
        return made if shift is None else made + shift


LAYERS = {
    "linear": lambda: nn.Linear(8, 8),
    "linear without bias": lambda: nn.Linear(8, 8, bias=False),
    "conv1d of transformers": lambda: Conv1D(8, 8),
    "layer norm": lambda: nn.LayerNorm(8),
    "layer norm of two axes": lambda: nn.LayerNorm((5, 8)),
    "layer norm without bias": lambda: nn.LayerNorm(8, bias=False),
    "rms norm": lambda: nn.RMSNorm(8),
    "group norm": lambda: nn.GroupNorm(1, 5),
    "convolution": lambda: nn.Conv1d(5, 5, 3, padding=1),
    "prelu": lambda: nn.PReLU(),
    "of no known kind": Scaled,
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("twice", [False, True], ids=["once", "used twice"])
def test_of_every_kind_of_layer(kind, twice):
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    model = nn.ModuleDict({"layer": layer, "last": nn.Linear(8, 1)})
    given = torch.randn(EXAMPLES, 5, 8)

    def loss(part):
        values = layer(given[part])
        if twice:
            values = layer(values.tanh())
        return model["last"](values).square().sum(dim=(1, 2))

    compare(model, loss)
    check_apart(PerExample(model), loss, EXAMPLES)


def test_of_a_layer_that_is_told_more_by_name():
    torch.manual_seed(0)
    model, given = Scaled(), torch.randn(EXAMPLES, 5, 8)
    compare(model, lambda part: model(given[part], shift=given[part] * 2).square().sum(dim=(1, 2)))


@pytest.mark.parametrize("padding", [None, 0])
def test_of_an_embedding(padding):
    torch.manual_seed(0)
    model = nn.Embedding(WORDS, 8, padding_idx=padding)
    ids = inputs()["input_ids"]
    pulls = torch.randn(EXAMPLES, LENGTH, 8)
    compare(model, lambda part: (model(ids[part]) * pulls[part]).sum(dim=(1, 2)))


def test_what_is_frozen_below_is_not_differentiated():
    model = bert()
    adapt(model, "head", seed=1)
    gradients = PerExample(model)
    seen = []
    layer = model.bert.encoder.layer[0].output.dense
    layer.register_forward_hook(lambda layer, given, output: seen.append(output.requires_grad))
    with gradients.recording(EXAMPLES):
        loss_of(model, inputs(**TYPES), CLASSES)(slice(0, EXAMPLES)).sum().backward()
    assert seen == [False]
    assert all(p.requires_grad for p in gradients.parameters.values())


def forms(rng, units, positions, p, q, kind):
    if kind == "outer":
        return Outer(torch.randn(units, positions, p, generator=rng), torch.randn(units, positions, q, generator=rng))
    if kind == "rows":
        index = torch.randint(0, p, (units, positions), generator=rng)
        return Rows(index, torch.randn(units, positions, q, generator=rng), p)
    values = torch.randn(units, p, q, generator=rng)
    return Dense(values, values.flatten(1).norm(dim=1))


def test_a_norm_leaves_what_was_recorded_as_it_was():
    for kind in (torch.float32, torch.float64):
        values = torch.randn(4, 3, 5, dtype=kind)
        term, before = Dense(values, torch.zeros(4)), values.clone()
        assert torch.allclose(inner(term, term).float(), before.square().sum(dim=(1, 2)).float())
        assert torch.equal(values, before)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.tuples(st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(*[st.sampled_from(["outer", "rows", "dense"])] * 2),
)
def test_inner_products_are_those_of_the_matrices_whatever_the_forms(seed, units, positions, shape, kinds):
    rng = torch.Generator().manual_seed(seed)
    one, other = (forms(rng, units, t, *shape, kind) for t, kind in zip(positions, kinds, strict=True))
    whole = slice(0, units)
    true = (one.dense(whole).double() * other.dense(whole).double()).sum(dim=(1, 2))
    torch.testing.assert_close(inner(one, other).double(), true, rtol=1e-4, atol=1e-4)
    own = one.dense(whole).double().flatten(1).norm(dim=1)
    torch.testing.assert_close(inner(one, one).double().sqrt(), own, rtol=1e-4, atol=1e-4)
    assert (one.size().double() >= own * (1 - 1e-5)).all()


@pytest.mark.parametrize("kind", ["outer", "rows"])
@pytest.mark.parametrize(
    ("left", "right"), [(1.0, 1.0), (1e-23, 1e18), (1e-12, 1e15), (1e18, 1e-30), (1e10, 1e10), (1e-30, 1e-30)]
)
@pytest.mark.parametrize("cancels", [False, True])
@pytest.mark.parametrize("positions", [2, 40])
@pytest.mark.parametrize(("p", "q"), [(30, 20), (2500, 90)])
def test_no_gradient_is_larger_than_its_bound_whatever_was_recorded(kind, left, right, cancels, positions, p, q):
    """Numbers at the ends of single precision, and terms that all but cancel: what is added never exceeds the bound."""
    rng = torch.Generator().manual_seed(3)
    term = forms(rng, 6, positions, p, q, kind)
    values = torch.randn(6, positions, q, generator=rng) * right
    if cancels:
        values[:, 1::2] = -values[:, ::2] * (1 + 2e-7)
    if kind == "outer":
        first = torch.randn(6, positions, p, generator=rng) * left
        first[:, 1::2] = first[:, ::2] if cancels else first[:, 1::2]
        term = Outer(first, values)
    else:
        term = Rows(term.index.clone(), values * left, p)
        term.index[:, 1::2] = term.index[:, ::2] if cancels else term.index[:, 1::2]
    gradients = PerExample(nn.Linear(q, p, bias=False))
    gradients._terms = {"weight": [term]}
    bounds = gradients.bounds()
    for place in range(6):
        total = {"weight": torch.zeros(p, q, dtype=torch.float64)}
        weights = torch.zeros(6, dtype=torch.float64)
        weights[place] = 1.0
        gradients.add_weighted(weights, total)
        assert total["weight"].norm() <= bounds[place]


@pytest.mark.parametrize("features", [WIDE, WIDE + 1, 5000])
def test_an_inner_product_over_many_features_is_off_by_no_more_than_is_stated(features):
    """Features alike but for their sign, so that rounding has a size of its own to be seen against."""
    rng = torch.Generator().manual_seed(features)
    left = 1 + torch.rand(4, 3, features, generator=rng)
    left[:, 1] *= torch.randint(0, 2, (4, features), generator=rng) * 2 - 1
    term = Outer(left, torch.randn(4, 3, 700, generator=rng))
    made = (left.double().transpose(1, 2) @ term.right.double()).square().sum(dim=(1, 2))
    assert ((inner(term, term) - made).abs() <= off(term.additions) * term.size().square()).all()
    if features > WIDE:
        assert term.additions == PART + 700
        assert ((inner(term, term) - made).abs() <= off(PART) * term.size().square()).all()


def test_a_unit_with_any_number_that_is_none_or_a_norm_out_of_range_has_no_bound():
    rng = torch.Generator().manual_seed(0)
    for value in (float("nan"), float("inf"), 1e35):
        term = forms(rng, 3, 5, 4, 4, "outer")
        term.left[1, 2, 3] = value
        gradients = PerExample(nn.Linear(4, 4, bias=False))
        gradients._terms = {"weight": [term]}
        assert torch.isfinite(gradients.bounds()).tolist() == [True, False, True]


@pytest.mark.parametrize("positions", [1, 3, 8, 39, 41])
@pytest.mark.parametrize(("p", "q"), [(5, 300), (300, 5), (90, 70), (300, 400), (20_000, 4)])
def test_a_weighted_sum_is_that_of_the_matrices_and_no_unit_changes_what_another_adds(positions, p, q):
    """In every way that it is computed: of few and many positions, of matrices that are narrow, wide and large."""
    rng = torch.Generator().manual_seed(positions)
    term = forms(rng, 6, positions, p, q, "outer")
    term.left[1] *= 1e12  # its rounding in single precision is larger than all that the others add
    weights = torch.rand(6, dtype=torch.float64, generator=rng)
    weights[1] *= 1e-12
    true = torch.einsum("u,utp,utq->pq", weights, term.left.double(), term.right.double())
    total = torch.ones(p, q, dtype=torch.float64)
    term.add_weighted(weights, total)
    torch.testing.assert_close(total - 1, true, rtol=1e-4, atol=1e-4)
    alone = torch.zeros(p, q, dtype=torch.float64)
    term.without(torch.arange(6) != 1).add_weighted(weights, alone)
    others = torch.zeros(p, q, dtype=torch.float64)
    term.without(torch.arange(6) == 1).add_weighted(weights, others)
    assert (total - 1 - alone - others).abs().max() < 1e-12


def test_much_is_worked_on_in_parts(monkeypatch):
    class Largest(TorchDispatchMode):
        cells = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **kwargs or {})
            if function is torch.ops.aten.bmm.default:
                self.cells = max(self.cells, made.numel())
            return made

    rng = torch.Generator().manual_seed(0)
    one = forms(rng, 7, 6, 50, 50, "outer")
    with Largest() as at_once:
        whole = inner(one, one)
    assert at_once.cells == 7 * 36
    monkeypatch.setattr("learning.private_training.term_norms.CELLS_AT_ONCE", 72)
    with Largest() as in_parts:
        torch.testing.assert_close(inner(one, one), whole)
    assert in_parts.cells == 72


# What cannot be told apart.


def refused(model, loss, examples=EXAMPLES):
    def record():
        gradients = PerExample(model)
        with gradients.recording(examples):
            loss(slice(0, examples)).sum().backward()

    with pytest.raises(ModelError) as error:
        record()
    return str(error.value)


def test_a_layer_that_mixes_examples_is_named():
    assert "mixes examples" in refused(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), None)


def test_a_model_that_makes_its_own_positions_is_told_to_be_given_them():
    model, given = bert(), inputs(**TYPES)
    del given["position_ids"]
    said = refused(model, loss_of(model, given, CLASSES))
    assert "bert.embeddings.position_embeddings" in said
    assert "pass position_ids as [examples, length]" in said


def test_a_parameter_that_no_layer_shows_is_named():
    class Bypassed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, values):
            return nn.functional.linear(values, self.layer.weight)

    model, given = Bypassed(), torch.randn(EXAMPLES, 8)
    model.layer.bias.requires_grad_(False)
    extra = nn.ModuleDict({"bypassed": model, "seen": nn.Linear(8, 8)})
    said = refused(extra, lambda part: extra["seen"](model(given[part])).sum(dim=1))
    assert "bypassed.layer.weight" in said


def test_a_layer_that_gives_no_tensor_is_named():
    model, given = nn.ModuleDict({"reader": nn.LSTM(8, 8, batch_first=True)}), torch.randn(EXAMPLES, 5, 8)
    said = refused(model, lambda part: model["reader"](given[part])[0].sum(dim=(1, 2)))
    assert "layer reader is a LSTM" in said
    assert "What to do" in said


def test_an_embedding_scaled_by_frequency_is_refused():
    model = nn.Embedding(WORDS, 8, scale_grad_by_freq=True)
    ids = inputs()["input_ids"]
    assert "mixes examples" in refused(model, lambda part: model(ids[part]).sum(dim=(1, 2)))


def test_a_model_with_nothing_to_train_is_refused():
    model = nn.Linear(8, 8).requires_grad_(False)
    with pytest.raises(ModelError, match="nothing to train"):
        PerExample(model)


@pytest.mark.parametrize("mixing", ["of the batch's mean", "of a neighbour"])
def test_examples_that_have_a_part_in_each_other_are_found(mixing):
    torch.manual_seed(0)
    model, given = nn.Linear(8, 8), torch.randn(EXAMPLES, 8)

    def loss(part):
        values = model(given[part])
        mixed = values - values.mean(dim=0) if mixing == "of the batch's mean" else values + values.roll(1, 0)
        return mixed.square().sum(dim=1)

    with pytest.raises(ModelError, match="cannot be told apart by examples"):
        check_apart(PerExample(model), loss, EXAMPLES)


def test_a_parameter_used_half_out_of_sight_is_found():
    torch.manual_seed(0)
    model, given = nn.Linear(8, 8), torch.randn(EXAMPLES, 8)

    def loss(part):
        return (model(given[part]) + given[part] @ model.weight).square().sum(dim=1)

    with pytest.raises(ModelError, match="cannot be told apart by examples"):
        check_apart(PerExample(model), loss, EXAMPLES)
