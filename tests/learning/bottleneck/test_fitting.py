"""Training a form: it learns, its divergences have weight, and what was released is all that a reader is trained on."""

import copy

import pytest
import torch

from aggregation.errors import ConclaveError
from learning.bottleneck.fitting import Fitting, fitted, refitted, said, samplers
from learning.bottleneck.forms import NAMES, Form
from learning.bottleneck.states import TokenStates, paired_states, states_of_rows, token_states


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made_up(count: int, seed: int = 0) -> tuple[TokenStates, torch.Tensor]:
    """Texts of up to five tokens whose class is the sign of one coordinate of all."""
    rng = torch.Generator().manual_seed(seed)
    classes = torch.randint(2, (count,), generator=rng)
    vectors = torch.randn((count, 5, 12), generator=rng)
    vectors[:, :, 0] = (classes * 4.0 - 2)[:, None]
    mask = torch.arange(5) < torch.randint(1, 6, (count, 1), generator=rng)
    vectors = vectors.masked_fill(~mask.unsqueeze(2), 0.0)
    return TokenStates(vectors.half(), mask, torch.where(mask, 7, -1).int()), classes


def form(name: str, outputs: int = 2) -> Form:
    return Form(name, 12, 8, 5, outputs, heads=2)


def right(model, states, classes) -> float:
    answers = said(model, samplers(model, states), torch.Generator().manual_seed(1))
    return float((answers.argmax(dim=1) == classes).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_form_learns_and_is_the_same_again_from_its_seed(name):
    (texts, classes), (others, truth) = made_up(600), made_up(200, 1)
    fitting = Fitting(1e-3, epochs=6, rate=1e-2)
    model = fitted(form(name), texts, classes, fitting, 3)
    assert right(model, others, truth) > 0.9
    again = fitted(form(name), texts, classes, fitting, 3)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nvib", "vtdp", "vib-learned"])
def test_a_large_weight_leaves_the_prior_and_nothing_to_learn_from(name):
    (texts, classes), (others, truth) = made_up(600), made_up(200, 1)
    light, heavy = (fitted(form(name), texts, classes, Fitting(w, epochs=12, rate=1e-2), 3) for w in (1e-3, 10.0))
    near, far = (float(sum(each.mean() for each in m.kl(samplers(m, others)))) for m in (heavy, light))
    assert near < far / 4
    assert right(heavy, others, truth) < right(light, others, truth) - 0.1


@pytest.mark.slow
def test_scores_are_learned_and_classes_are_no_scores():
    texts, classes = made_up(400)
    model = fitted(form("nvib", 1), texts, classes * 2.0 - 1, Fitting(1e-3, rate=1e-2), 0)
    answers = said(model, samplers(model, texts), torch.Generator().manual_seed(1))[:, 0]
    assert float(torch.corrcoef(torch.stack([answers, classes.float()]))[0, 1]) > 0.8
    with pytest.raises(ConclaveError, match="do not fit"):
        fitted(form("nvib", 1), texts, classes, Fitting(1e-3), 0)
    with pytest.raises(ConclaveError, match="do not fit"):
        fitted(form("nvib"), texts, classes[:-1], Fitting(1e-3), 0)


@pytest.mark.slow
def test_a_reader_is_trained_on_samples_alone_and_the_bottleneck_stays():
    (texts, classes), (others, truth) = made_up(600), made_up(200, 1)
    model = fitted(form("nvib"), texts, 1 - classes, Fitting(1e-3, rate=1e-2), 3)
    assert right(model, others, truth) < 0.1
    before = copy.deepcopy(model.bottleneck.state_dict())
    sample = model.sample(samplers(model, texts), torch.Generator().manual_seed(9))
    refitted(model, sample, classes, Fitting(1e-3, rate=1e-2), 3)
    assert right(model, others, truth) > 0.9
    assert all(torch.equal(each, before[key]) for key, each in model.bottleneck.state_dict().items())


@pytest.mark.parametrize(
    "wrong", [{"weight": -1.0}, {"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"weight": float("nan")}]
)
def test_a_training_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ConclaveError, match="makes no sense"):
        Fitting(**{"weight": 1e-3, **wrong})


@pytest.fixture(scope="module")
def tiny(tiny_bert):
    from learning.models.encoders import encoder

    return encoder(str(tiny_bert))


def test_token_vectors_are_the_encoders_own(tiny):
    model, tokenizer = tiny
    texts = ["the film was good", "bad", "a good actor and a bad plot"]
    found = token_states(model, tokenizer, texts, tokens=12)
    for place, text in enumerate(texts):
        row = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            own = model(**row).last_hidden_state[0][:12]
        assert int(found.mask[place].sum()) == len(own)
        assert torch.allclose(found.vectors[place, : len(own)].float(), own, atol=5e-3)
        assert found.pieces[place, : len(own)].tolist() == row["input_ids"][0, :12].tolist()
        assert not found.vectors[place, len(own) :].any()
        assert (found.pieces[place, len(own) :] == -1).all()
    with pytest.raises(ConclaveError, match="Ask for fewer"):
        token_states(model, tokenizer, texts, tokens=100_000)


def test_rows_are_cut_to_the_tokens(tiny):
    from learning.models.batching import encode

    model, tokenizer = tiny
    rows = encode(tokenizer, ["a good actor and a bad plot", "good"], longest=16).rows
    found = states_of_rows(model, rows, tokens=4)
    assert found.vectors.shape[1] == 4
    assert found.pieces[0].tolist() == rows[0].ids[:4].tolist()


def test_a_pair_says_for_each_token_how_far_its_counterpart_is(tiny):
    model, tokenizer = tiny
    one, other = (token_states(model, tokenizer, texts, tokens=6) for texts in (["good", "good"], ["good", "bad plot"]))
    found = paired_states(one, other)
    width = one.vectors.shape[2]
    assert found.vectors.shape == (2, 12, 2 * width)
    assert torch.equal(found.vectors[:, :6, :width], one.vectors)
    assert torch.equal(found.mask, torch.cat([one.mask, other.mask], dim=1))
    near, far = (found.vectors[place, :, width:].float().norm() for place in (0, 1))
    assert near < far
    assert not found.vectors[~found.mask].any()
    with pytest.raises(ConclaveError, match="no pairs"):
        paired_states(one, other.of(slice(1)))
