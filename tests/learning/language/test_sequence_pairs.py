"""Models with an encoder and a decoder: graded, distilled and written with as causal ones are."""

import copy
import math

import numpy as np
import pytest
import torch

from learning.language.distilling import Settings, distil
from learning.language.generation import Sampling, Texts, generate
from learning.language.perplexity import perplexity
from learning.language.soft_targets import STEP, graded
from learning.language.speaker import Speaker, own_logits
from learning.models.batching import BEGINS, IGNORED, Tokens, inputs_of, losses, next_tokens
from learning.models.checkpoints import ModelError
from learning.models.encoders import language_model, sequence_model


@pytest.fixture(params=["bart", "t5"])
def pair(request, tiny_sequence):
    return sequence_model(str(tiny_sequence(request.param)))[0]


@pytest.fixture
def lesson(pair):
    """Twenty openings of 2 to 6 tokens, and texts of 3 to 7."""
    rng = np.random.default_rng(0)
    size = pair.config.vocab_size
    openings = [rng.integers(3, size, rng.integers(2, 7)).tolist() for _ in range(20)]
    texts = Texts.joined([rng.integers(3, size, rng.integers(3, 8)).astype(np.int32) for _ in range(20)], 0)
    return openings, texts


def _alone(model, opening, text):
    """Logits of each token of a text, computed alone, by the library's own arguments, without padding."""
    start = model.config.decoder_start_token_id
    decoder = torch.tensor([[start, *map(int, text[:-1])]])
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(opening)]), decoder_input_ids=decoder).logits[0]


@pytest.mark.slow
def test_what_is_said_of_a_token_follows_from_the_opening_and_the_tokens_before_it(pair, lesson):
    openings, texts = lesson
    rows = [
        Tokens(np.concatenate([np.array(opening, np.int32), text]), len(opening))
        for opening, text in zip(openings, texts, strict=True)
    ]
    with torch.no_grad():
        logits, states = own_logits(pair, rows, hidden=True)
    wanted = torch.cat([_alone(pair, opening, text) for opening, text in zip(openings, texts, strict=True)])
    torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
    assert states.shape == (len(texts.ids), 32)


def test_another_opening_says_something_else(pair, lesson):
    openings, texts = lesson
    one, other = (
        own_logits(pair, [Tokens(np.concatenate([np.array(o, np.int32), texts[0]]), len(o))])[0] for o in openings[:2]
    )
    assert not torch.allclose(one, other, atol=1e-3)


def test_the_loss_is_the_librarys(pair, lesson):
    openings, texts = lesson
    rows = [Tokens(np.concatenate([np.array(openings[0], np.int32), texts[0]]), len(openings[0]))]
    inputs = inputs_of(pair.config, rows, documents=True)
    assert BEGINS not in inputs
    assert next_tokens(inputs)[0].tolist() == [*texts[0].tolist(), IGNORED]
    wanted = pair(
        input_ids=torch.tensor([openings[0]]), labels=torch.from_numpy(texts[0].astype(np.int64))[None],
        decoder_input_ids=torch.tensor([[pair.config.decoder_start_token_id, *texts[0][:-1].tolist()]]),
    ).loss  # fmt: skip
    torch.testing.assert_close(losses(pair, inputs, None)[0], wanted)


def test_a_batch_of_a_given_length_has_a_shape_that_follows_from_no_other_row(pair):
    """Private units share micro-batches: what a unit is padded to may not depend on those beside it."""
    rows = [Tokens(np.arange(3, 3 + size, dtype=np.int32), begins) for size, begins in ((8, 1), (8, 7), (5, 2))]
    for some in (rows, rows[2:]):
        assert {tuple(each.shape) for each in inputs_of(pair.config, some, 8, documents=True).values()} == {
            (len(some), 8)
        }


def test_conditional_soft_targets_are_graded_under_each_places_temperature(pair, lesson, tmp_path):
    openings, texts = lesson
    each = np.linspace(0.5, 9, len(texts.ids))
    found = graded(
        [Speaker(pair)], texts, [openings], top=12, temperature=2.0, folder=tmp_path, temperatures=each, hidden=True
    )
    for text in (0, 7, 19):
        part = slice(int(texts.stops[text]), int(texts.stops[text + 1]))
        logits = _alone(pair, openings[text], texts[text])
        said = torch.log_softmax(logits / torch.tensor(each[part], dtype=torch.float32)[:, None], dim=-1)
        best, _ = said.topk(12)
        torch.testing.assert_close(found.of(text)[1], best, atol=STEP, rtol=1e-4)


@pytest.mark.slow
def test_perplexity_is_of_the_text_given_its_opening(pair, lesson):
    openings, texts = lesson
    rows = [
        Tokens(np.concatenate([np.array(opening, np.int32), text]), len(opening))
        for opening, text in zip(openings, texts, strict=True)
    ]
    nats = 0.0
    for opening, text in zip(openings, texts, strict=True):
        said = torch.log_softmax(_alone(pair, opening, text), dim=-1)
        nats -= float(said.gather(1, torch.from_numpy(text.astype(np.int64))[:, None]).sum())
    found = perplexity([Speaker(pair)], rows)
    assert found.tokens == len(texts.ids)
    assert found.perplexity == pytest.approx(math.exp(nats / len(texts.ids)), rel=1e-4)


@pytest.mark.slow
def test_a_student_learns_from_a_teacher_of_its_kind(pair, lesson, tmp_path):
    openings, texts = lesson
    targets = graded([Speaker(pair)], texts, [openings], top=32, temperature=1.0, folder=tmp_path / "targets")
    student = copy.deepcopy(pair)
    torch.manual_seed(1)
    with torch.no_grad():
        for each in student.parameters():
            each.add_(0.1 * torch.randn_like(each))
    settings = Settings(passes=12, batch=5, micro_batch=3, held_out=0.2, learning_rate=3e-3, patience=100, mixing=1.0)
    still = Settings(passes=1, batch=5, micro_batch=3, held_out=0.2, learning_rate=1e-12, mixing=1.0)
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
    before = distil(
        copy.deepcopy(student), texts, openings, targets, still, seed=0, checkpoint=tmp_path / "before"
    ).losses
    after = distil(student, texts, openings, targets, settings, seed=0, checkpoint=tmp_path / "after").losses
    assert after["soft"] < 0.9 * before["soft"]


@pytest.mark.slow
def test_texts_are_written_after_openings_as_the_library_does(pair, lesson, tmp_path):
    """With the likeliest token alone, so that nothing is drawn; texts that end leave their block."""
    openings, _ = lesson
    known = pair.config.vocab_size
    texts = generate(
        Speaker(pair), openings, Sampling(longest=9, top_k=1, batch=8), end=0, seed=0, folder=tmp_path, known=known
    )
    for opening, text in zip(openings, texts, strict=True):
        decoder = [pair.config.decoder_start_token_id]
        while len(decoder) < 10 and decoder[1:][-1:] != [0]:
            with torch.no_grad():
                said = pair(input_ids=torch.tensor([opening]), decoder_input_ids=torch.tensor([decoder])).logits
            decoder.append(int(said[0, -1].argmax()))
        assert text.tolist() == decoder[1:]


def test_a_model_of_another_kind_is_refused(tiny_gpt2, tiny_sequence):
    with pytest.raises(ModelError):
        sequence_model(str(tiny_gpt2))
    with pytest.raises(ModelError, match="has an encoder and a decoder"):
        language_model(str(tiny_sequence("bart")))


def test_a_decoder_without_a_first_token_is_refused(pair):
    config = copy.deepcopy(pair.config)
    config.decoder_start_token_id = None
    with pytest.raises(ModelError, match="decoder_start_token_id"):
        inputs_of(config, [Tokens(np.array([3, 4], np.int32), 1)])
