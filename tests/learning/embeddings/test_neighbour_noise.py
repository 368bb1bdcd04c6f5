"""The neighbour-aware baseline: noise in proportion to a word's public radius, and the same bound for every teacher."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.errors import IntegrityError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings import neighbour_noise
from learning.embeddings.neighbour_noise import from_local, radii, to_local

TEACHERS, QUERIES, LAYERS, WIDTH = 3, 5, 2, 4


def reference_states(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(QUERIES, LAYERS, WIDTH))


def states(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(TEACHERS, QUERIES, LAYERS, WIDTH))


RADII = np.array([0.1, 0.5, 1.0, 2.0, 8.0])


def test_a_radius_is_the_distance_to_the_kth_nearest_other_word() -> None:
    line = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0], [7.0, 0.0]])
    np.testing.assert_allclose(radii(line, 1), [1, 1, 2, 4])
    np.testing.assert_allclose(radii(line, 2), [3, 2, 3, 6])
    np.testing.assert_allclose(radii(line, 3), [7, 6, 4, 7])


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 30), st.data())
def test_radii_agree_with_distances_taken_one_by_one(size: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, size - 1))
    vectors = np.random.default_rng(size).normal(size=(size, 3)).astype(np.float32)
    by_hand = [np.sort(np.linalg.norm(vectors.astype(float) - vector, axis=1))[k] for vector in vectors]
    np.testing.assert_allclose(radii(vectors, k), by_hand, rtol=1e-6)


def test_blocks_do_not_change_radii(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 6))
    whole = radii(vectors, 4)
    monkeypatch.setattr(neighbour_noise, "_BLOCK_CELLS", 7 * 50)
    np.testing.assert_allclose(radii(vectors, 4), whole, rtol=1e-12)


def test_words_in_a_crowd_have_small_radii_and_twins_not_none() -> None:
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(0, 0.1, (20, 5)), rng.normal(0, 10, (30, 5)), np.ones((2, 5))])
    found = radii(vectors, 1)
    assert found[:20].max() < found[20:50].min()
    assert found[50:] == pytest.approx(1e-3 * np.median(found))


@pytest.mark.parametrize("k", [0, 4, -1])
def test_a_neighbour_that_cannot_be_is_refused(k: int) -> None:
    with pytest.raises(IntegrityError, match="no"):
        radii(np.eye(4), k)


@pytest.mark.parametrize(
    "reference", [np.ones(4), np.array([[np.nan], [1.0]]), np.array([[np.inf], [1.0]]), np.ones((4, 2))]
)
def test_a_reference_without_neighbourhoods_is_refused(reference: np.ndarray) -> None:
    with pytest.raises(IntegrityError, match="reference"):
        radii(reference, 1)


def test_to_local_and_back_changes_nothing() -> None:
    local = to_local(states(), reference_states(), RADII)
    assert local.shape == states().shape
    np.testing.assert_allclose(from_local(local.mean(axis=0), reference_states(), RADII), states().mean(axis=0))


def test_a_teacher_at_the_reference_is_at_the_origin_and_one_radius_off_has_norm_one() -> None:
    reference = reference_states()
    moved = reference.copy()
    moved[:, :, 0] += RADII[:, None]
    local = to_local(np.stack([reference, moved]), reference, RADII)
    np.testing.assert_array_equal(local[0], 0)
    np.testing.assert_allclose(np.linalg.norm(local[1], axis=-1), 1)


def test_a_teacher_comes_out_the_same_whoever_the_others_are() -> None:
    together = to_local(states(), reference_states(), RADII)
    np.testing.assert_array_equal(together[1:2], to_local(states()[1:2], reference_states(), RADII))


def test_the_noise_on_a_word_is_proportional_to_its_radius() -> None:
    width = 20_000
    mechanism = HiddenMechanism(layers=1, width=width, clip=1.0, levels=64, noise=2.0, shares=1)
    reference = np.zeros((QUERIES, 1, width))
    clean = mechanism.contribute(to_local(np.zeros((TEACHERS, QUERIES, 1, width)), reference, RADII))
    noise = mechanism.noise_share(clean.shape, NoiseStream.insecure(3))
    released = mechanism.release(clean + noise, 1)
    mean = from_local(released.values.reshape(QUERIES, 1, width) / TEACHERS, reference, RADII)
    np.testing.assert_allclose(mean.std(axis=-1)[:, 0], RADII * released.sigma / TEACHERS, rtol=0.03)  # 6 errors


@pytest.mark.parametrize("stretch", [1e-3, 1.0, 1e6])
def test_a_unit_moves_a_word_by_at_most_the_clip_both_ways_in_radii(stretch: float) -> None:
    mechanism = HiddenMechanism(layers=LAYERS, width=WIDTH, clip=1.5, levels=300, noise=1.0, shares=1)
    changed = states()
    changed[1] = states(2)[1] * stretch  # one unit changes one teacher, arbitrarily

    def released(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grid = mechanism.contribute(to_local(values, reference_states(), RADII))
        total = mechanism.release(grid, 1).values.reshape(QUERIES, LAYERS, WIDTH)
        return grid, from_local(total / TEACHERS, reference_states(), RADII)

    (before, mean), (after, moved) = released(states()), released(changed)
    assert np.linalg.norm(after - before, axis=1).max() <= mechanism.sensitivity * (1 + 1e-12)
    distances = np.linalg.norm((moved - mean).reshape(QUERIES, -1), axis=1)
    assert (distances <= 2 * 1.5 * np.sqrt(LAYERS) / TEACHERS * RADII * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("reference", "scale", "reason"),
    [
        (reference_states()[1:], RADII[1:], "do not fit"),
        (reference_states(), RADII[1:], "A radius a query"),
        (reference_states(), RADII * 0, "above 0"),
        (reference_states(), RADII * np.nan, "finite"),
        (reference_states() * np.inf, RADII, "finite"),
    ],
)
def test_what_does_not_fit_is_refused(reference: np.ndarray, scale: np.ndarray, reason: str) -> None:
    with pytest.raises(IntegrityError, match=reason):
        to_local(states(), reference, scale)
    with pytest.raises(IntegrityError, match=reason):
        from_local(states()[0], reference, scale)
