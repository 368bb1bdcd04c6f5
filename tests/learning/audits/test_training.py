"""A whole training under audit: honest it passes, and a training that is broken inside is caught by its model alone."""

from dataclasses import replace

import numpy as np
import pytest

from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.audits.suspects import refutes
from learning.audits.training import of_training

DELTA = 1e-5
STEPS, CANARIES = 3, 600


def mechanism(chance=1.0, kind=GradientMechanism):
    """Three steps of epsilon 7.9, 5.8 and 6.0 at delta 1e-5."""
    noise = {1.0: 1.05, 0.5: 1.0, 0.1: 0.6}[chance]
    return kind(2.0, fine_levels(noise, CANARIES), noise, chance, STEPS, CANARIES)


def caught(suspect):
    return refutes(suspect, NoiseStream.from_key(bytes(32)), np.random.default_rng(0), delta=DELTA)


@pytest.mark.parametrize("chance", [pytest.param(1.0, marks=pytest.mark.slow), 0.5])
def test_an_honest_training_is_not_caught(chance):
    """Less than one key in 10,000 would say otherwise."""
    assert not caught(of_training(mechanism(chance)))


@pytest.mark.slow
def test_half_the_noise_is_caught():
    """Power: 6 standard deviations beyond what the claim allows."""
    honest = mechanism()
    broken = replace(honest, noise_multiplier=honest.noise_multiplier / 2)
    assert caught(replace(of_training(broken), events=[honest.event()]))


class _Unclipped(GradientMechanism):
    __slots__ = ()

    def scales(self, norms, margin=0.0):
        return np.ones_like(norms)


class _Unsampled(GradientMechanism):
    __slots__ = ()

    def batch(self, units, stream):
        return np.arange(units)


@pytest.mark.slow
def test_gradients_outside_the_clip_are_caught():
    """Certain: they are ten times the clip."""
    assert caught(of_training(mechanism(kind=_Unclipped)))


@pytest.mark.slow
def test_whole_batches_charged_as_sampled_are_caught():
    """Power: certain, as every unit is in every batch and a sample would leave nine of ten out."""
    assert caught(of_training(mechanism(0.1, _Unsampled)))


def test_a_model_moves_by_its_canaries_alone():
    """Hardly any noise: each canary that is in moves its own parameter by the clip at every step, and no other."""
    quiet = GradientMechanism(2.0, 1000, 0.02, 1.0, STEPS, CANARIES)
    coins = np.arange(CANARIES) % 3 == 0
    scores = of_training(quiet).play(coins, NoiseStream.from_key(bytes(32)))
    assert scores[coins] == pytest.approx(STEPS * 2.0, rel=0.1)
    assert scores[~coins] == pytest.approx(0.0, abs=0.6)
