"""A whole private training as a suspect: from units to a trained model, which is all that is looked at.

`learning.audits.mechanisms.of_gradients` sees every step of DP-SGD. Here the training itself runs, with its gradients
by units, its clipping and its optimiser, and the scores are read from the parameters at its end.
"""

from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.audits.suspects import Coins, Floats, Suspect
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.feature_units import INPUT, FeatureUnits
from learning.private_training.optimisation import Optimisation

PAST_CLIP: Final = 10.0
_SETTINGS: Final = Optimisation(1.0, 1.0, "sgd", Schedule("constant", 0.0), momentum=0.0)


def of_training(mechanism: GradientMechanism) -> Suspect:
    """A linear model, trained by `learning.private_training.dp_sgd.train_private`, of units with one feature each.

    A canary's feature is its own, ten clips large, and its loss is what the model says of it: so its gradient is the
    same at every step, far past the clip, and along a parameter of its own. There are as many canaries as parameters.
    The optimiser adds the steps up, and a score is how far a parameter went. `mechanism` trains alone.
    """
    canaries = mechanism.parameters

    def play(coins: Coins, stream: NoiseStream) -> Floats:
        model = nn.Linear(canaries, 1, bias=False)
        nn.init.zeros_(model.weight)
        own = np.flatnonzero(coins)
        vectors = np.zeros((len(own), canaries), np.float32)
        vectors[np.arange(len(own)), own] = PAST_CLIP * mechanism.clip
        units = FeatureUnits(vectors, torch.zeros(len(own), dtype=torch.int64), examples_at_once=256)
        train_private(model, units, _says, mechanism, _SETTINGS, stream=stream)
        return np.asarray(-model.weight.detach().double().numpy()[0])

    return Suspect("training", canaries, [mechanism.event()], play)


def _says(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None) -> Tensor:
    """What the model says of each example, as its loss, [examples]."""
    said: Tensor = model(inputs[INPUT])
    return said[:, 0]
