"""A private training in clear, a row of a comparison, goes on after its last written step."""

import numpy as np
import pytest
import torch

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.comparing.simulated_run import kept_folder, kept_in
from coordinator.progress.progress import Silent
from coordinator.text_models import in_clear
from coordinator.text_models.in_clear import Trainable, trained_in_clear
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.optimisation import Optimisation

STEPS = 4


class Stopping(Silent):
    """Progress that is interrupted once so many steps are taken."""

    def __init__(self, at=STEPS + 1):
        self.at, self.seen = at, []

    def bar(self, label, done, total, note=""):
        self.seen.append(done)
        if done == self.at:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr(in_clear, "KEPT_EVERY", -1.0)


def training(progress, rate=0.1, units=20, start=0.0):
    """What a tiny head is after four steps, with noise from the seed."""
    rng = np.random.default_rng(0)
    head = torch.nn.Linear(3, 2)
    vectors, labels = rng.normal(size=(units, 3)).astype(np.float32), torch.arange(units) % 2
    work = Trainable(head, [FeatureUnits(vectors, labels)] * 2, head_losses)
    mechanism = GradientMechanism(1.0, 1 << 12, 1.0, 0.5, STEPS, 8)
    begun = np.full(8, start, np.float32)
    stream = lambda *labels: NoiseStream.insecure(3, *labels)  # noqa: E731
    return trained_in_clear(work, begun, mechanism, Optimisation(10, rate), stream, progress, kept_folder)


def test_a_training_that_was_stopped_goes_on_and_ends_the_same(tmp_path):
    whole = training(Silent())
    with kept_in(tmp_path / "kept"), pytest.raises(KeyboardInterrupt):
        training(Stopping(3))
    after = Stopping()
    with kept_in(tmp_path / "kept"):
        assert np.array_equal(training(after), whole)
    assert after.seen == [3, 4]
    after = Stopping()
    with kept_in(tmp_path / "kept"):
        assert np.array_equal(training(after), whole)
    assert after.seen == []


@pytest.mark.parametrize("other", [{"rate": 0.2}, {"units": 30}, {"start": 1.0}])
def test_the_state_of_another_training_is_not_taken_and_what_followed_it_is_not_either(other, tmp_path):
    alone = training(Silent(), **other)
    with kept_in(tmp_path / "kept"):
        training(Silent())
        second = training(Silent(), rate=0.3)
    first, again = Stopping(), Stopping()
    with kept_in(tmp_path / "kept"):
        assert np.array_equal(training(first, **other), alone)
        assert np.array_equal(training(again, rate=0.3), second)
    assert first.seen == again.seen == [1, 2, 3, 4]


def test_outside_of_a_comparison_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kept_folder(lambda folder: True) is None
    training(Silent())
    assert list(tmp_path.iterdir()) == []
