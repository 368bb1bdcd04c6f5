"""From texts to the certified form and back: one path over all pieces, with small models."""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Released
from aggregation.noise.stream import NoiseStream
from learning.language.generation import Texts
from learning.language.soft_targets import STEP, graded, stored
from learning.language.speaker import Speaker
from learning.models.encoders import language_model
from learning.swing.answers import cells_of_texts, differences_of_texts
from learning.swing.clues import Clues, marked
from learning.swing.differences import mechanism
from learning.swing.protection import Protection, Protector
from learning.swing.shrinking import answers_of
from learning.swing.temperature import Temperature, temperatures

TOP = 12


@pytest.fixture
def world(tiny_gpt2):
    """A public model, three teachers near it, and query texts with clues in them."""
    public, tokenizer = language_model(str(tiny_gpt2))
    teachers = []
    for seed in range(3):
        model = language_model(str(tiny_gpt2))[0]
        chance = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for each in model.parameters():
                each.add_(0.05 * torch.randn(each.shape, generator=chance))
        teachers.append(Speaker(model))
    lines = ["the film @ a plot", "we saw it, and call me at a fast end", "not good", "actor: id 4 4"]
    texts = Texts.joined([np.array(tokenizer(line)["input_ids"], np.int32) for line in lines], 0)
    found = temperatures(
        Temperature(1.0, 0.05, 6.0),
        marked(Clues(personal=("id",), contact=("@", "call ... at")), texts, tokenizer),
        texts.stops,
    )
    return Speaker(public), teachers, texts, [[0]] * len(texts), found


@pytest.mark.slow
def test_without_noise_the_targets_are_the_mean_of_what_teachers_say_under_each_places_temperature(world, tmp_path):
    public, teachers, texts, openings, found = world
    assert found.clues > 3
    assert found.without == 1
    cells = cells_of_texts(public, texts, openings, found.each, TOP)
    each = np.stack([differences_of_texts(one, texts, openings, found.each, cells) for one in teachers])
    assert np.linalg.norm(each, axis=2).max() < 0.7
    certified = mechanism(len(texts.ids), TOP, clip=0.7, noise_multiplier=1.0, shares=1, levels=1 << 20)
    sums = certified.release(certified.contribute(each), 1).values
    chances = answers_of(Released(sums, 0.0), cells, len(teachers)).chances
    size = public.model.config.vocab_size
    whole = graded(teachers, texts, [openings] * 3, top=size, temperature=1.0, folder=tmp_path, temperatures=found.each)
    wanted = np.zeros((len(texts.ids), size))
    np.put_along_axis(wanted, whole.ids.astype(np.int64), np.exp(-STEP * whole.codes.astype(float)), axis=1)
    np.testing.assert_allclose(chances[:, :TOP], np.take_along_axis(wanted, cells.ids, 1), atol=3e-4)


def test_a_batch_says_of_a_token_what_it_says_alone(world, monkeypatch):
    public, teachers, texts, openings, found = world
    cells = cells_of_texts(public, texts, openings, found.each, TOP)
    together = differences_of_texts(teachers[0], texts, openings, found.each, cells)
    monkeypatch.setattr("learning.swing.answers._TOKENS", 1)
    np.testing.assert_allclose(
        differences_of_texts(teachers[0], texts, openings, found.each, cells), together, atol=1e-5
    )


@pytest.mark.slow
def test_all_parties_noise_gives_targets_that_a_student_can_learn_from(world, tmp_path):
    public, teachers, texts, openings, found = world
    cells = cells_of_texts(public, texts, openings, found.each, TOP)
    certified = mechanism(len(texts.ids), TOP, clip=0.3, noise_multiplier=3.0, shares=3)
    total = sum(
        certified.contribute(differences_of_texts(one, texts, openings, found.each, cells)[None])
        + certified.noise_share((len(texts.ids), TOP + 1), NoiseStream.insecure(party))
        for party, one in enumerate(teachers)
    )
    chances = answers_of(certified.release(total, 3), cells, len(teachers)).chances
    kept = stored(
        cells.ids, chances[:, :TOP], stops=texts.stops, tokens=public.model.config.vocab_size, temperature=1.0,
        folder=tmp_path,
    )  # fmt: skip
    ids, logs = kept.of(1)
    assert ids.shape == (len(texts[1]), TOP)
    assert (logs.exp().sum(dim=1) <= 1.001).all()


@pytest.mark.slow
def test_swing_as_published_is_flatter_near_clues_and_noised(world, tmp_path):
    _, teachers, texts, openings, found = world
    settings = {"top": TOP, "temperature": 1.0, "temperatures": found.each}
    plain = graded(teachers[:1], texts, [openings], top=TOP, temperature=1.0, folder=tmp_path / "kd")
    swing = graded(teachers[:1], texts, [openings], folder=tmp_path / "swing", **settings)
    sharpest = [np.exp(-STEP * each.codes[:, 0].astype(float)) for each in (plain, swing)]
    hot = found.each > 1
    assert (sharpest[1][hot] < sharpest[0][hot]).all()
    np.testing.assert_array_equal(sharpest[1][~hot], sharpest[0][~hot])
    protect = Protector(Protection("top", 1.0, 3), NoiseStream.insecure(0))
    noised = graded(teachers[:1], texts, [openings], folder=tmp_path / "noised", protect=protect, **settings)
    assert (noised.codes != swing.codes).any(axis=1).mean() > 0.9
    again = graded(teachers[:1], texts, [openings], folder=tmp_path / "again", protect=protect, **settings)
    np.testing.assert_array_equal(again.codes, noised.codes)


def test_what_does_not_match_is_refused(world):
    public, teachers, texts, openings, found = world
    cells = cells_of_texts(public, texts, openings, found.each, TOP)
    with pytest.raises(ConclaveError, match="are not those of"):
        cells_of_texts(public, texts, openings[1:], found.each, TOP)
    with pytest.raises(ConclaveError, match="are not those of"):
        cells_of_texts(public, texts, openings, found.each[1:], TOP)
    with pytest.raises(ConclaveError, match="The cells are of"):
        differences_of_texts(teachers[0], texts.of(np.array([0])), openings[:1], found.each[:3], cells)
