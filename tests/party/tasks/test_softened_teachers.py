"""What a party's one teacher says, softened: hotter near clue words, noise on the likeliest, one answer a text."""

import numpy as np
import pytest
import torch

from aggregation.mechanisms.said import SoftenedTargets
from aggregation.noise.stream import NoiseStream
from learning.language.generation import Texts
from learning.language.soft_targets import STEP
from learning.language.speaker import Speaker
from learning.models.adapting import flatten
from learning.models.encoders import language_model
from learning.swing.clues import Clues, marked
from party.errors import TrainingError
from party.tasks.language_teachers.softening import softening_of

CLUE, OTHER = "the film was good name is here", "the film was good plot is here"
CLUES = 'personal = ["name"]\n'
TOP = 5


@pytest.fixture(scope="module")
def spoken(tiny_gpt2):
    return language_model(str(tiny_gpt2))


@pytest.fixture
def asked(spoken, tmp_path):
    """`asked(texts, key, ...)`: what the teacher says of texts under a mechanism, codes [tokens, top], and ids."""
    model, tokenizer = spoken
    path = tmp_path / "clues.toml"
    path.write_text(CLUES)

    def says(texts, key=b"k" * 32, clues=CLUES, **changes):
        path.write_text(clues)
        numbers = {
            "top": TOP, "tokens": model.config.vocab_size, "protection": "none", "scale": 0.0, "protected": 0,
            "temperature": 2.0, "strength": 1.0, "cap": 20.0,
        } | changes  # fmt: skip
        mechanism = SoftenedTargets(**numbers)
        ids = [np.asarray(tokenizer(each, add_special_tokens=False)["input_ids"], np.int32) for each in texts]
        given = Texts.joined(ids, 0)
        grown = path if mechanism.strength else None
        softening = softening_of(mechanism, grown, given, tokenizer, model.config.vocab_size, flatten(model))
        folder = tmp_path / f"said-{len(list(tmp_path.iterdir()))}"
        found = softening.said(Speaker(model), given, [[0]] * len(given), NoiseStream.from_key(key), folder)
        return found, given, softening

    return says


def test_near_a_clue_word_what_is_said_is_flatter_and_elsewhere_as_at_the_constant_temperature(asked, spoken):
    found, given, softening = asked([CLUE])
    clues = marked(Clues(personal=("name",)), given, spoken[1])
    assert clues.any()
    where = np.flatnonzero(clues)
    assert (softening.each[where] == 20.0).all()
    n, first = len(given.ids), int(where[0])
    assert softening.each[0] == pytest.approx(min(20.0, 2.0 + n / first))
    plain, _, constant = asked([CLUE], strength=0.0)
    assert (constant.each == 2.0).all()
    for place in where:  # a larger code is a smaller probability, of the likeliest outcome
        assert found.codes[place, 0] > plain.codes[place, 0]


def test_what_is_said_is_the_teachers_softmax_under_each_tokens_temperature(asked, spoken):
    model, _ = spoken
    found, given, softening = asked([CLUE])
    with torch.no_grad():
        logits = model(torch.tensor([[0, *given[0].tolist()]])).logits[0, :-1]
    said = torch.log_softmax(logits / torch.from_numpy(softening.each).float()[:, None], dim=-1)
    wanted = said.gather(1, torch.from_numpy(found.ids.astype(np.int64))).numpy()
    assert np.abs(-STEP * found.codes - wanted).max() < 1e-3


@pytest.mark.slow
def test_a_text_that_is_asked_twice_gets_one_answer_so_that_noise_is_not_averaged_away(asked):
    noisy = {"protection": "top", "protected": 3, "scale": 0.2}
    found, given, _ = asked([CLUE, OTHER, CLUE], **noisy)
    size = len(given[0])
    last = slice(int(given.stops[2]), int(given.stops[3]))
    assert np.array_equal(found.ids[:size], found.ids[last])
    assert np.array_equal(found.codes[:size], found.codes[last])
    again, *_ = asked([CLUE, OTHER, CLUE], **noisy)
    assert np.array_equal(again.codes, found.codes)  # a training that is begun again draws nothing new
    other, *_ = asked([CLUE, OTHER, CLUE], key=b"q" * 32, **noisy)
    assert not np.array_equal(other.codes, found.codes)


@pytest.mark.parametrize(
    ("clues", "said"),
    [("personal = [", "is no TOML"), ('medical = ["x"]', "no category"), ('personal = [""]', "an empty entry")],
)
def test_clue_words_that_cannot_be_used_are_named_without_a_place_of_this_party(asked, tmp_path, clues, said):
    with pytest.raises(TrainingError, match=said) as error:
        asked([CLUE], clues=clues)
    assert str(tmp_path) not in str(error.value)


def test_terms_of_another_model_are_refused(asked):
    with pytest.raises(TrainingError, match="the plan's terms say 999"):
        asked([CLUE], tokens=999)
