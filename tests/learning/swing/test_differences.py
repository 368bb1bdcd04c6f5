"""Differences from a public model: their sensitivity, their price, and what is made of their noisy sum."""

import math

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Released
from aggregation.mechanisms.registry import made, numbers_of
from aggregation.noise.stream import NoiseStream
from learning.swing.differences import LARGEST_CLIP, Cells, cells_of, differences, mechanism
from learning.swing.shrinking import answers_of


def _said(rows, seed, scale=2.0, tokens=40):
    return torch.log_softmax(scale * torch.randn(rows, tokens, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_the_cells_are_the_public_models_likeliest_and_the_rest():
    said = _said(5, 0)
    cells = cells_of(said, 6)
    chances = said.double().exp().numpy()
    for row in range(5):
        assert set(cells.ids[row]) == set(np.argsort(-chances[row])[:6])
    np.testing.assert_allclose(cells.public[:, :6], np.take_along_axis(chances, cells.ids, 1), rtol=1e-5)
    np.testing.assert_allclose(cells.public.sum(axis=1), 1)


def test_a_difference_is_of_the_same_cells_and_adds_up_to_nothing():
    public, teacher = _said(5, 0), _said(5, 1)
    cells = cells_of(public, 6)
    found = differences(teacher, cells)
    chances = teacher.double().exp().numpy()
    wanted = np.take_along_axis(chances, cells.ids, 1) - cells.public[:, :6]
    np.testing.assert_allclose(found[:, :6], wanted, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(differences(public, cells), 0, atol=1e-12)


def test_a_teacher_that_says_no_number_counts_as_the_public_model():
    said = _said(5, 1)
    said[2, 3] = math.nan
    found = differences(said, cells_of(_said(5, 0), 6))
    assert (found[2] == 0).all()
    assert (found[3] != 0).any()


_CHANCES = arrays(np.float64, (3, 4, 6), elements=st.floats(0, 1)).filter(lambda each: (each.sum(axis=2) > 0.01).all())


@pytest.mark.slow
@given(_CHANCES, st.floats(0.01, LARGEST_CLIP), st.integers(1, 1 << 12))
def test_a_changed_teacher_moves_the_sum_by_no_more_than_is_charged(rows, clip, levels):
    public, one, other = rows / rows.sum(axis=2, keepdims=True)
    found = mechanism(4, 5, clip=clip, noise_multiplier=1e3, shares=1, levels=levels)
    before, after = (found.contribute((each - public)[None]) for each in (one, other))
    moved = np.linalg.norm(before - after)
    assert moved <= found.sensitivity == 2 * levels
    # Clipping brings no two points further apart; rounding moves each coordinate of either by less than one step.
    assert moved <= math.sqrt(2 * 4) * levels / found.clip + 2 * math.sqrt(24)


@pytest.mark.slow
@given(st.integers(1, 40), st.floats(0.01, LARGEST_CLIP), st.integers(1, 1 << 16), st.integers(0, 99))
def test_a_teachers_whole_matrix_is_bounded_however_it_is_spread_over_tokens(tokens, clip, levels, seed):
    rng = np.random.default_rng(seed)
    said = rng.normal(size=(1, tokens, 6)) * rng.choice([0.0, 1e-3, 1.0, 1e3], (1, tokens, 1))
    total = mechanism(tokens, 5, clip=clip, noise_multiplier=50.0, shares=1, levels=levels).contribute(said)
    assert (total.astype(object) ** 2).sum() <= levels**2


def test_few_large_differences_keep_their_length_where_all_others_are_small():
    said = np.zeros((1, 100, 4))
    said[0, 7] = [0.9, -0.5, -0.4, 0.0]
    found = mechanism(100, 3, clip=0.25, noise_multiplier=1.0, shares=1)
    np.testing.assert_allclose(found.contribute(said)[7] * found.granularity, said[0, 7], atol=1e-3)


def test_the_charged_sensitivity_is_reached():
    public = np.full((1, 4), 0.25)
    found = mechanism(1, 3, clip=0.2, noise_multiplier=1.0, shares=1, levels=1000)
    up = np.array([[[1.0, 0, 0, 0]]]) - public
    sums = [found.contribute(sign * 0.1 * up) for sign in (1, -1)]
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2 * np.linalg.norm(0.1 * up) / 0.2 * 1000, rel=1e-2)
    far = [found.contribute(sign * up) for sign in (1, -1)]
    assert np.linalg.norm(far[0] - far[1]) == pytest.approx(found.sensitivity, rel=2e-3)


def test_all_tokens_together_are_one_gaussian_event_and_as_many_queries():
    whole = mechanism(500, 8, clip=0.3, noise_multiplier=40.0, shares=4)
    event = whole.event()
    assert (whole.queries(1), whole.queries(3)) == (500, 1500)
    assert whole.clip == pytest.approx(0.3 * math.sqrt(500))
    assert isinstance(event, GaussianDpEvent)
    assert event.noise_multiplier == pytest.approx(40.0, rel=1e-12)
    skellam = mechanism(500, 8, clip=0.3, noise_multiplier=40.0, shares=4, levels=64, distribution="skellam")
    assert skellam.noise_multiplier_charged() == pytest.approx(40.0, rel=1e-9)


@pytest.mark.slow
def test_the_noise_of_tokens_that_are_charged_together_is_that_of_tokens_charged_one_by_one():
    """T releases of sensitivity 2 c under noise s are one Gaussian of s / (2 c sqrt(T))."""
    from dp_accounting import SelfComposedDpEvent

    from aggregation.accounting.price import price

    found = mechanism(64, 8, clip=0.25, noise_multiplier=0.9, shares=1)
    sigma = found.noise_multiplier * found.sensitivity * found.granularity
    one_by_one = SelfComposedDpEvent(GaussianDpEvent(sigma / (2 * 0.25)), 64)
    assert price([found.event()], 1e-5).epsilon == pytest.approx(price([one_by_one], 1e-5).epsilon, rel=1e-3)


def test_both_ends_make_the_same_mechanism():
    found = mechanism(7, 8, clip=0.3, noise_multiplier=40.0, shares=4)
    assert made(found.kind, numbers_of(found)) == found


@pytest.mark.slow
def test_the_shares_of_all_parties_are_the_charged_noise():
    found = mechanism(4000, 8, clip=0.3, noise_multiplier=2.0, shares=4)
    stream = NoiseStream.insecure(1)
    total = sum(found.noise_share((4000, 9), stream.child(party)) for party in range(4))
    released = found.release(total, 4)
    sigma = 2.0 * 2 * 0.3 * math.sqrt(4000)
    assert released.values.std() == pytest.approx(sigma, rel=0.02)
    assert released.sigma == pytest.approx(sigma, rel=1e-3)


@pytest.mark.parametrize("clip", [0.71, 1.0])
def test_a_clip_for_which_too_much_would_be_charged_is_refused(clip):
    with pytest.raises(ConclaveError, match=r"at most 0\.7071"):
        mechanism(9, 8, clip=clip, noise_multiplier=1.0, shares=1)


@pytest.mark.parametrize(("tokens", "top"), [(0, 4), (4, 0), (True, 4), (2.0, 4)])
def test_a_mechanism_of_no_token_or_of_one_outcome_is_none(tokens, top):
    with pytest.raises(ConclaveError, match="must be a whole number"):
        mechanism(tokens, top, clip=0.1, noise_multiplier=1.0, shares=1)


@pytest.mark.parametrize(
    "said", [np.zeros((1, 4, 6)), np.zeros((5, 6)), np.zeros((1, 5, 7)), [[0.0]], np.full((1, 5, 6), np.nan)]
)
def test_a_contribution_of_another_shape_or_of_no_numbers_is_refused(said):
    with pytest.raises(IntegrityError):
        mechanism(5, 5, clip=0.1, noise_multiplier=1.0, shares=1).contribute(said)


def test_what_does_not_fit_is_refused():
    cells = cells_of(_said(5, 0), 6)
    with pytest.raises(ConclaveError, match="make no sense"):
        cells_of(_said(5, 0), 40)
    with pytest.raises(IntegrityError, match="does not fit"):
        differences(_said(4, 1), cells)
    with pytest.raises(IntegrityError, match="does not fit"):
        differences(_said(5, 1, tokens=8), cells)
    with pytest.raises(IntegrityError, match="twice"):
        Cells(np.array([[1, 1]]), np.array([[0.2, 0.2, 0.6]]))
    with pytest.raises(IntegrityError, match="add up"):
        Cells(np.array([[1, 2]]), np.array([[0.2, 0.2, 0.2]]))
    with pytest.raises(ConclaveError, match="not of cells"):
        answers_of(Released(np.zeros((4, 7)), 1.0), cells, 3)


@pytest.mark.parametrize("few", [1, 7])
def test_without_noise_the_teachers_mean_comes_back(few):
    cells = cells_of(_said(30, 0, 0.7), 6)
    teachers = [_said(30, 2 + place, 0.7) for place in range(few)]
    found = mechanism(30, 6, clip=0.26, noise_multiplier=1.0, shares=1, levels=1 << 20)
    each = np.stack([differences(said, cells) for said in teachers])
    norms = np.linalg.norm(each, axis=(1, 2), keepdims=True)
    assert (norms > found.clip).any()
    clipped = each * np.minimum(1, found.clip / norms)
    sums = found.release(found.contribute(each), 1).values
    targets = answers_of(Released(sums, 0.0), cells, few).chances
    np.testing.assert_allclose(targets, cells.public + clipped.mean(axis=0), atol=1e-5)


def _world(tokens, top, teachers, rng, moved, rare):
    """A public model and teachers that all learned the same shift at a part of the places, and a little each alone."""
    public = np.exp(2.5 * rng.normal(size=(tokens, top + 1)))
    public /= public.sum(axis=1, keepdims=True)
    common = moved * rng.normal(size=(tokens, top + 1)) * (rng.random((tokens, 1)) < rare)
    logits = np.log(public) + common + 0.5 * rng.normal(size=(teachers, tokens, top + 1))
    chances = np.exp(logits)
    return public, chances / chances.sum(axis=2, keepdims=True)


def _worse(truth, found, public):
    """Mean cross-entropy of a token under the targets less that under the public model, nats."""
    return float((truth * (np.log(public) - np.log(found))).sum(axis=1).mean())


@pytest.mark.parametrize("tokens", [20, 200, 2000])
@pytest.mark.parametrize(("moved", "rare"), [(0.0, 0.0), (1.0, 0.2), (3.0, 0.2), (1.0, 1.0)])
def test_targets_are_never_worse_than_the_public_model_by_more_than_a_hundredth_of_a_nat(tokens, moved, rare):
    """At any noise: the raw noisy mean is worse by whole nats where the targets are not."""
    rng = np.random.default_rng([tokens, int(10 * moved), int(10 * rare)])
    teachers, clip = 40, 0.3
    public, each = _world(tokens, 16, teachers, rng, moved, rare)
    change = each - public
    change *= np.minimum(1, clip / np.linalg.norm(change, axis=2, keepdims=True))
    truth = each.mean(axis=0)
    cells = Cells(np.tile(np.arange(16), (tokens, 1)), public)
    gap = _worse(truth, truth, public)
    gained = {}
    for multiplier in (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1e4, 1e6):
        sigma = multiplier * 2 * clip
        released = Released(change.sum(axis=0) + sigma * rng.normal(size=change.shape[1:]), sigma)
        found = answers_of(released, cells, teachers).chances
        np.testing.assert_allclose(found.sum(axis=1), 1)
        assert (found > 0).all()
        gained[multiplier] = _worse(truth, found, public)
        assert gained[multiplier] < 0.01
    if tokens >= 200 and moved >= 1:
        assert gained[0.1] < 0.65 * gap
        assert gained[1.0] < 0.6 * gap
    raw = np.maximum(public + released.values / teachers, 1e-6)
    assert _worse(truth, raw / raw.sum(axis=1, keepdims=True), public) > 1


@pytest.mark.parametrize("moved", [0.0, 1.0, 3.0])
def test_the_weight_of_an_answer_follows_how_much_of_it_is_known(moved):
    """From all of it without noise to nothing in noise that drowns it; in between, what is really known: 1 - |m - e|^2
    / |m|^2, of an estimate e.
    """
    rng = np.random.default_rng(int(moved))
    teachers = 40
    public, each = _world(2000, 16, teachers, rng, moved, 1.0)
    truth = (each - public).mean(axis=0)
    cells = Cells(np.tile(np.arange(16), (2000, 1)), public)
    exact = answers_of(Released(teachers * truth, 0.0), cells, teachers)
    assert (exact.weights == 1).all()
    means = []
    for sigma in (0.05, 1.0, 4.0, 16.0, 1e4):
        found = answers_of(Released(teachers * truth + sigma * rng.normal(size=truth.shape), sigma), cells, teachers)
        known = 1 - ((found.chances - each.mean(axis=0)) ** 2).sum() / (truth**2).sum()
        assert ((found.weights >= 0) & (found.weights <= 1)).all()
        size = (truth**2).sum(axis=1)
        assert np.average(found.weights, weights=size) == pytest.approx(max(0, known), abs=0.08)
        means.append(found.weights.mean())
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.9
    assert means[-1] == 0


def test_noise_alone_has_no_weight():
    heeded = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        public, _ = _world(500, 8, 2, rng, 0.0, 0.0)
        cells = Cells(np.tile(np.arange(8), (500, 1)), public)
        heeded.append(answers_of(Released(rng.normal(size=public.shape), 1.0), cells, 40).weights.mean())
    assert np.count_nonzero(heeded) <= 2
    assert max(heeded) < 0.1


def test_drowned_in_noise_the_public_model_is_left():
    rng = np.random.default_rng(0)
    public, each = _world(500, 16, 10, rng, 1.0, 1.0)
    cells = Cells(np.tile(np.arange(16), (500, 1)), public)
    for sigma, hair in ((300.0, 0.01), (1e6, 1e-5)):
        values = (each - public).sum(axis=0) + sigma * rng.normal(size=public.shape)
        found = answers_of(Released(values, sigma), cells, 10).chances
        assert np.abs(found - public).max() < hair


def test_noisy_targets_are_kept_in_the_form_of_all_others(tmp_path):
    from learning.language.soft_targets import STEP, opened, stored

    cells = cells_of(_said(5, 0), 6)
    stops = np.array([0, 2, 5])
    kept = stored(cells.ids, cells.public[:, :6], stops=stops, tokens=40, temperature=2.0, folder=tmp_path)
    ids, logs = kept.of(1)
    assert (ids.numpy() == cells.ids[2:]).all()
    np.testing.assert_allclose(logs.numpy(), np.log(cells.public[2:, :6]), atol=STEP)
    again = opened(tmp_path, stops, 6, 40, 2.0)
    assert (again.codes == kept.codes).all()
    with pytest.raises(ConclaveError, match="not those of"):
        stored(cells.ids, cells.public, stops=stops, tokens=40, temperature=2.0, folder=tmp_path)


@pytest.mark.parametrize("weights", [np.ones(4), np.array([0.5, 0, 1, 1.1, 0]), np.array([0.5, 0, np.nan, 1, 0])])
def test_weights_that_are_no_shares_are_refused(weights, tmp_path):
    from learning.language.soft_targets import stored

    cells, stops = cells_of(_said(5, 0), 6), np.array([0, 2, 5])
    with pytest.raises(ConclaveError, match="between 0 and 1"):
        stored(
            cells.ids, cells.public[:, :6], stops=stops, tokens=40, temperature=2.0, folder=tmp_path, weights=weights
        )


def _with_words(places, rng, words=200, top=16):
    """A public model over a vocabulary, and a teacher that prefers some words of it wherever they stand."""
    logits = 1.5 * rng.normal(size=(places, words)) - np.log(np.arange(1, words + 1))
    taught = logits + 0.8 * rng.normal(size=words)
    public, teacher = (np.exp(each) / np.exp(each).sum(axis=1, keepdims=True) for each in (logits, taught))
    ids = np.argsort(-public, axis=1)[:, :top]
    over = [np.take_along_axis(each, ids, 1) for each in (public, teacher)]
    cells, truth = (np.concatenate([each, 1 - each.sum(axis=1, keepdims=True)], axis=1) for each in over)
    return Cells(ids, cells), truth


@pytest.mark.slow
def test_what_teachers_prefer_everywhere_is_found_where_every_single_place_is_drowned():
    rng = np.random.default_rng(0)
    cells, truth = _with_words(8000, rng)
    teachers, clip = 40, 0.3
    change = truth - cells.public
    change *= np.minimum(1, clip / np.linalg.norm(change, axis=1, keepdims=True))
    sigma = 40 * 2 * clip
    noise = sigma * rng.normal(size=change.shape)
    gap = _worse(truth, truth, cells.public)
    found = answers_of(Released(teachers * change + noise, sigma), cells, teachers).chances
    assert _worse(truth, found, cells.public) < 0.3 * gap < 0
    # The same sums with the words' names lost: each place alone says nothing.
    nameless = Cells(np.tile(np.arange(16), (8000, 1)) + 16 * np.arange(8000)[:, None], cells.public)
    alone = answers_of(Released(teachers * change + noise, sigma), nameless, teachers).chances
    assert _worse(truth, alone, cells.public) > 0.03 * gap
    # And noise alone teaches nothing.
    nothing = answers_of(Released(noise, sigma), cells, teachers).chances
    assert abs(_worse(cells.public, nothing, cells.public)) < 1e-3
