"""The floor of noisy counts: of all texts, and of those of each control code."""

import numpy as np
import pytest
from pydantic import ValidationError

from coordinator.errors import PlanError
from coordinator.language_models.counts import count_releases
from coordinator.language_models.floor import Floor, floor_of, read_floor, write_floor
from coordinator.store.store import RunStore
from coordinator.systems.distildp.public import prepare
from learning.text.codes import MOST_COUNTS


@pytest.fixture(scope="module")
def public(distildp_plan, tmp_path_factory):
    folder = tmp_path_factory.mktemp("public")
    return prepare(distildp_plan(), folder, folder / "cache")


def counts_of(public, noise, seed=0):
    """Counts of two codes, each of which has a word that the other has not, with noise."""
    counts = np.zeros((2, public.tokens))
    counts[:, 3] = 4000
    counts[0, 5] = counts[1, 7] = 2000
    return counts + np.random.default_rng(seed).normal(0, noise, counts.shape)


@pytest.mark.slow
def test_each_codes_texts_are_spoken_of_by_their_own_counts(distildp_plan, public):
    floor = floor_of(distildp_plan(), public, counts_of(public, 5.0), 5.0, lambda *told: None)
    assert floor.by_code.shape == (2, public.tokens)
    np.testing.assert_allclose(floor.by_code.sum(axis=1), 1, rtol=1e-4)
    assert floor.by_code[0, 5] == pytest.approx(1 / 3, rel=0.1)
    assert floor.by_code[0, 7] < 0.02
    assert floor.unigram[5] == pytest.approx(1 / 6, rel=0.1)
    tilts, floors = floor.voices(0.75)
    assert tilts.shape == floors.shape == (3, public.tokens)
    np.testing.assert_array_equal(tilts[2], floor.tilt)
    np.testing.assert_array_equal(floors[2], floor.unigram)
    moved = tilts[:2] - tilts[2]
    np.testing.assert_allclose(moved, 0.75 * np.log(floor.by_code / floor.unigram), atol=1e-5)
    assert moved[0, 5] > 0 > moved[0, 7]


@pytest.mark.slow
def test_codes_that_do_not_differ_are_drawn_to_all_texts_more_than_their_noise_says(distildp_plan, public):
    counts = np.zeros((2, public.tokens))
    counts[:, 3] = 4000
    counts[:, 5] = 2000
    noisy = counts + np.random.default_rng(0).normal(0, 60.0, counts.shape)
    floor = floor_of(distildp_plan(), public, noisy, 60.0, lambda *told: None)
    for own, counted in zip(floor.by_code, np.maximum(noisy, 0), strict=True):
        away = np.abs(own - floor.unigram).sum() / 2
        assert away < 0.15
        assert away < 0.3 * np.abs(counted / counted.sum() - floor.unigram).sum() / 2


@pytest.mark.slow
def test_counts_of_all_texts_together_make_one_voice(distildp_plan, public):
    plan = distildp_plan(floor={"by_code": False})
    assert plan.apart == 0
    floor = floor_of(plan, public, counts_of(public, 5.0).sum(axis=0, keepdims=True), 5.0, lambda *told: None)
    assert floor.by_code is None
    tilt, unigram = floor.voices(0.75)
    np.testing.assert_array_equal(tilt, floor.tilt)
    np.testing.assert_array_equal(unigram, floor.unigram)


def test_a_stored_floor_is_read_as_it_was(tmp_path):
    store = RunStore.create(tmp_path / "run", "floor", "floor", b"p" * 32)
    for by_code in (None, np.full((2, 4), 0.25, np.float32)):
        write_floor(store, Floor(np.full(4, 0.25, np.float32), np.arange(4, dtype=np.float32), by_code))
        found = read_floor(store)
        assert (found.by_code is None) == (by_code is None)
        np.testing.assert_array_equal(found.tilt, np.arange(4))
    store.close()


def test_counting_codes_apart_costs_no_more(distildp_plan):
    plans = [distildp_plan(floor={"by_code": apart}) for apart in (True, False)]
    apart, together = (count_releases(plan, 300)[0] for plan in plans)
    assert (apart.columns, together.columns) == (600, 300)
    assert apart.event == together.event


def test_what_cannot_be_counted_apart_is_said(distildp_plan):
    with pytest.raises(ValidationError, match="the plan has no"):
        distildp_plan(codes=None, floor={"by_code": True})
    with pytest.raises(PlanError, match="by_code = false"):
        count_releases(distildp_plan(floor={"by_code": True}), MOST_COUNTS // 2 + 1)
