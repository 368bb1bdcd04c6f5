"""The optimiser on noisy sums has the bits of the plain loop over formulas, whatever kernel it takes."""

import numpy as np
import torch

from learning.models.optimisers import Schedule
from learning.private_training.optimisation import Optimisation, Training

STEPS = 6
SETTINGS = Optimisation(expected_batch=7.0, learning_rate=1e-3, schedule=Schedule("linear", warm_up=0.2), decay=0.01)


def test_adamw_has_the_bits_of_the_plain_loop():
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.standard_normal(100_003).astype(np.float32))
    found = Training(start, SETTINGS, STEPS)
    plain = torch.nn.Parameter(start.clone())
    loop = torch.optim.AdamW([plain], SETTINGS.learning_rate, weight_decay=SETTINGS.decay, foreach=False)
    for step in range(STEPS):
        noisy = (rng.standard_normal(len(start)) * 10.0 ** rng.integers(-9, 4)).astype(np.float32)
        for group in loop.param_groups:
            group["lr"] = SETTINGS.learning_rate * SETTINGS.schedule.scale(step, STEPS)
        plain.grad = torch.from_numpy(noisy.copy()).div_(SETTINGS.expected_batch)
        loop.step()
        found.step(noisy)
        assert torch.equal(found.point, plain.detach())
    assert not torch.equal(found.point, start)
