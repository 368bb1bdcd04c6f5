"""Membership inference: what two normals allow is reached, and really trained models are told apart as far as they are
not private.
"""

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.audits.membership import by_each, coins, confidences, lira, lira_offline, rmia
from learning.audits.roc import LOW, draw, roc

APART = 2.0
ATTACKS = {"lira": lira, "lira_offline": lira_offline, "rmia": rmia}


def _normals(models, examples, seed=0, apart=APART):
    """Losses of models whose confidences are normal: a member's are higher by `apart` deviations; each example has a
    place and a spread of its own.
    """
    rng = np.random.default_rng(seed)
    members = coins(models, examples, rng)
    place, spread = rng.normal(0, 3, examples), rng.uniform(0.5, 2, examples)
    said = place + spread * (apart * members + rng.normal(0, 1, members.shape))
    return np.logaddexp(0, -said), members


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lira", "lira_offline"])
def test_lira_reaches_what_two_normals_of_this_distance_allow(name):
    """TPR = Phi(distance + Phi^-1(FPR)), area = Phi(distance / sqrt 2): the most that any test reaches. 64 models of
    each kind know means and deviations nearly. Ten false positives of 10,000 are a rate of 0.001 within a third, which
    moves the rate of true ones by 0.04.
    """
    losses, members = _normals(129, 20_000)
    curve = roc(ATTACKS[name](losses[0], losses[1:], members[1:]), members[0])
    assert curve.area == pytest.approx(float(ndtr(APART / np.sqrt(2))), abs=0.01)
    assert curve.at(0.01) == pytest.approx(float(ndtr(APART + ndtri(0.01))), abs=0.04)
    assert curve.at(0.001) == pytest.approx(float(ndtr(APART + ndtri(0.001))), abs=0.045)


def test_few_models_share_a_variance_and_still_tell():
    """Examples' spreads differ by a factor of 4, so that one variance for all costs power."""
    losses, members = _normals(9, 5000)
    curve = roc(lira(losses[0], losses[1:], members[1:]), members[0])
    assert 0.75 < curve.area < 0.95


@pytest.mark.parametrize("online", [True, False])
def test_rmia_ranks_members_above_others(online):
    losses, members = _normals(17, 5000)
    scores = rmia(losses[0], losses[1:], members[1:], online=online)
    assert roc(scores, members[0]).area > 0.75
    assert 0 <= scores.min() <= scores.max() <= 1


def test_rmia_is_the_share_of_pairs_that_its_equation_names():
    losses, members = _normals(7, 40)
    gamma = 1.5
    said = np.exp(-losses[1:])
    mean = np.array([(said[members[1:, x], x].mean() + said[~members[1:, x], x].mean()) / 2 for x in range(40)])
    ratios = np.exp(-losses[0]) / mean
    wanted = [np.mean([ratios[x] / ratios[z] >= gamma for z in range(40) if z != x]) for x in range(40)]
    np.testing.assert_allclose(rmia(losses[0], losses[1:], members[1:], gamma=gamma), wanted, atol=1e-12)


@pytest.mark.parametrize("name", ATTACKS)
def test_where_members_are_like_others_nothing_is_told(name):
    losses, members = _normals(17, 20_000, apart=0.0)
    curve = roc(ATTACKS[name](losses[0], losses[1:], members[1:]), members[0])
    assert curve.area == pytest.approx(0.5, abs=0.02)
    assert curve.at(0.01) < 0.02


def _data(examples=200, width=150, seed=0):
    """Examples with random labels: all that a model can learn of them is by heart."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (examples, width)) / np.sqrt(width), rng.integers(0, 2, examples).astype(np.float64)


def _logistic(inputs, labels, members):
    """Losses [models, examples] of logistic regressions, one for each row of members, trained until they overfit."""
    features, wanted = torch.tensor(inputs), torch.tensor(labels)
    weights = torch.zeros(len(members), inputs.shape[1], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([weights], lr=0.3)
    inside = torch.tensor(members, dtype=torch.float64)

    def losses():
        return torch.nn.functional.binary_cross_entropy_with_logits(
            weights @ features.T, wanted.expand(len(members), -1), reduction="none"
        )

    for _ in range(150):
        optimiser.zero_grad()
        (losses() * inside).sum().backward()
        optimiser.step()
    return losses().detach().numpy()


def _private(inputs, labels, members, noise, steps=30):
    """The same by DP-SGD, with the mechanism's own sampling, clipping, rounding and noise."""
    mechanism = GradientMechanism(1.0, fine_levels(noise, inputs.shape[1]), noise, 0.5, steps, inputs.shape[1])
    weights = np.zeros((len(members), inputs.shape[1]))
    for model, inside in enumerate(members):
        stream, own = NoiseStream.from_key(bytes([model]) * 32), np.flatnonzero(inside)
        for step in range(steps):
            taken = own[mechanism.batch(len(own), stream.child("batch", step))]
            errors = 1 / (1 + np.exp(-inputs[taken] @ weights[model])) - labels[taken]
            gradients = errors[:, None] * inputs[taken]
            scales = mechanism.scales(np.linalg.norm(gradients, axis=1))
            noisy = mechanism.contribute((gradients * scales[:, None]).sum(axis=0))
            noisy += mechanism.noise_share(noisy.shape, stream.child("noise", step))
            weights[model] -= 0.5 * mechanism.release(noisy).values
    return np.logaddexp(0, (1 - 2 * labels) * (weights @ inputs.T)), mechanism


@pytest.mark.slow
def test_a_model_that_overfits_is_told_from_what_it_was_trained_on_and_a_private_one_is_not():
    """24 models of 200 examples with random labels, each attacked in turn. The private ones cost epsilon 1.3 or less,
    and no attack may pass what that allows.
    """
    inputs, labels = _data()
    members = coins(24, 200, np.random.default_rng(1))
    open_losses = _logistic(inputs, labels, members)
    losses, mechanism = _private(inputs, labels, members, 6.0)
    epsilon = price([mechanism.event()], 1e-3).epsilon
    assert epsilon < 1.3
    for name, attack in ATTACKS.items():
        leaking = roc(*by_each(open_losses, members, attack))
        private = roc(*by_each(losses, members, attack))
        assert leaking.area > 0.8, name
        assert leaking.at(0.1) > 0.3, name
        assert private.area < 0.6, name
        for rate in (0.01, 0.1):
            assert private.at(rate) < np.exp(epsilon) * rate + 1e-3
            assert private.at(rate) < 2 * rate, name
    assert roc(*by_each(open_losses, members, lira)).at(0.01) > 0.15


def test_a_curve_is_the_rates_at_every_threshold():
    scores = np.array([0.9, 0.8, 0.8, 0.4, np.nan, 0.1])
    members = np.array([True, True, False, True, False, False])
    found = roc(scores, members)
    assert found.false.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 3, 2 / 3, 1])
    assert found.true.tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1, 1, 1])
    assert found.area == pytest.approx(7.5 / 9)
    assert found.at(0.34) == 1.0
    assert roc(-np.nan_to_num(scores, nan=-1.0), members).area == pytest.approx(1.5 / 9)


def test_too_few_examples_for_a_low_rate_are_an_error_that_says_how_many_it_takes():
    rng = np.random.default_rng(0)
    few = roc(rng.random(200), np.arange(200) < 100)
    with pytest.raises(ConclaveError, match=r"100 examples .* cannot show a rate of 0\.001\. It takes 1,000"):
        few.at(LOW[0])
    assert few.at(LOW[1]) >= 0
    with pytest.raises(ConclaveError, match="makes no sense"):
        few.at(0.0)


@pytest.mark.slow
def test_a_picture_is_the_same_bytes_for_the_same_curves(tmp_path):
    losses, members = _normals(9, 2000)
    curves = {name: roc(attack(losses[0], losses[1:], members[1:]), members[0]) for name, attack in ATTACKS.items()}
    for name in ("one", "two"):
        draw(curves, tmp_path / f"{name}.png", epsilon=2.0, delta=1e-5)
    first, second = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert first == second
    assert first[:4] == b"\x89PNG"
    with pytest.raises(ConclaveError, match="needs a curve"):
        draw({}, tmp_path / "none.png")


def test_coins_put_every_example_into_half_of_the_models():
    found = coins(7, 300, np.random.default_rng(0))
    assert (found.sum(axis=0) == 3).all()
    assert 90 < found[0].sum() < 170
    with pytest.raises(ConclaveError, match="Train 4 or more"):
        coins(3, 10, np.random.default_rng(0))


def test_confidences_are_logits_of_what_was_said():
    said = np.array([0.1, 0.5, 0.999])
    np.testing.assert_allclose(confidences(-np.log(said)), np.log(said / (1 - said)))
    assert np.isfinite(confidences(np.array([0.0, 800.0]))).all()


def test_arrays_that_do_not_fit_are_an_error_in_words():
    losses, members = _normals(9, 50)
    with pytest.raises(ConclaveError, match="do not fit"):
        lira(losses[0, :10], losses[1:], members[1:])
    with pytest.raises(ConclaveError, match="diverged"):
        rmia(losses[0] * np.nan, losses[1:], members[1:])
    with pytest.raises(ConclaveError, match="only 0 shadow models"):
        lira(losses[0], losses[1:], np.ones_like(members[1:]))
    with pytest.raises(ConclaveError, match="only 0 shadow models"):
        lira_offline(losses[0], losses[1:], np.ones_like(members[1:]))
    assert np.isfinite(lira_offline(losses[0], losses[1:], np.zeros_like(members[1:]))).all()
    with pytest.raises(ConclaveError, match="gamma of 0"):
        rmia(losses[0], losses[1:], members[1:], gamma=0.0)
    with pytest.raises(ConclaveError, match="make no curve"):
        roc(losses[0], np.ones(50, bool))
