"""What Opacus computes of one step of DP-SGD, our own code computes too: clipped sum, sample and price."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from aggregation.accounting.price import price
from aggregation.mechanisms.gradients import SINGLE_MARGIN, GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.per_example import PerExample

UNITS, WIDTH, CLASSES, CLIP = 64, 12, 3, 2.5


@pytest.fixture(autouse=True)
def _no_warnings_of_opacus():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def mechanism(clip=CLIP, sampling=0.25, steps=1, noise=1.1):
    parameters = WIDTH * CLASSES + CLASSES
    return GradientMechanism(clip, fine_levels(noise, parameters), noise, sampling, steps, parameters)


def test_the_clipped_sum_is_that_of_opacus_per_sample_gradients():
    from opacus.grad_sample import GradSampleModule

    torch.manual_seed(0)
    layer, vectors = nn.Linear(WIDTH, CLASSES), torch.randn(UNITS, WIDTH)
    labels = torch.randint(0, CLASSES, (UNITS,))
    units = FeatureUnits(vectors.numpy(), labels)
    ours = clipped_sum(PerExample(layer), units.micro_batches(np.arange(UNITS)), head_losses, mechanism())

    copy = nn.Linear(WIDTH, CLASSES)
    copy.load_state_dict(layer.state_dict())
    recorded = GradSampleModule(copy, loss_reduction="sum")
    functional.cross_entropy(recorded(vectors), labels, reduction="sum").backward()
    apart = torch.cat([copy.bias.grad_sample, copy.weight.grad_sample.flatten(1)], dim=1).double()
    norms = apart.norm(dim=1)
    factors = (CLIP * (1 - SINGLE_MARGIN) / norms).clamp(max=1.0)
    assert 0.1 < (factors < 1).double().mean() < 1, "some gradients are clipped, some are not"
    # Parameters are in the order of their names: bias, weight.
    # Our factor is of an upper bound of the norm, at most a thousandth above it.
    off = np.linalg.norm(ours - (apart * factors[:, None]).sum(dim=0).numpy())
    assert off < 1e-3 * float((norms * factors).sum())


@pytest.mark.slow
def test_samples_have_the_law_of_opacus_poisson_loader():
    """Each unit by itself: sizes and the places taken, over 4,000 samples, within five standard deviations."""
    from opacus.data_loader import DPDataLoader

    count, rate = 4_000, 0.25
    data = TensorDataset(torch.arange(UNITS))
    sampler = DPDataLoader(data, sample_rate=rate, generator=torch.Generator().manual_seed(3)).batch_sampler
    theirs = np.zeros((count, UNITS), bool)
    place = 0
    while place < count:
        for batch in sampler:
            theirs[place % count, batch] = True
            place += 1
            if place == count:
                break
    stream, ours = NoiseStream.insecure(3, "sample"), np.zeros((count, UNITS), bool)
    for number in range(count):
        ours[number, mechanism(sampling=rate).batch(UNITS, stream)] = True
    spread = np.sqrt(rate * (1 - rate) / count)
    for taken in (ours, theirs):
        assert np.abs(taken.mean(axis=0) - rate).max() < 5 * spread
        variance = UNITS * rate * (1 - rate)
        assert taken.sum(axis=1).var() == pytest.approx(variance, rel=5 * np.sqrt(2 / count))


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "steps", "noise"), [(0.01, 1000, 1.1), (0.2, 60, 2.0), (1.0, 5, 4.0)])
def test_prices_are_those_of_opacus_accountants(sampling, steps, noise):
    from opacus.accountants import PRVAccountant, RDPAccountant

    delta = 1e-6
    ours = price([mechanism(sampling=sampling, steps=steps, noise=noise).event()], delta)
    theirs, tight = RDPAccountant(), PRVAccountant()
    theirs.history = tight.history = [(noise, sampling, steps)]
    assert ours.rdp_epsilon == pytest.approx(theirs.get_epsilon(delta), rel=0.02)
    upper = tight.get_epsilon(delta, eps_error=0.01, delta_error=delta / 1000)
    assert upper - 0.03 < ours.epsilon <= upper + 0.01
