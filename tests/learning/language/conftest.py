"""Small speakers made from scratch."""

import numpy as np
import pytest
import torch

from learning.language.generation import Texts
from learning.language.speaker import Speaker
from learning.models.encoders import language_model


@pytest.fixture
def model(tiny_gpt2):
    """A GPT-2 of two layers, loaded anew: 32 tokens at most, the first of which ends texts."""
    return language_model(str(tiny_gpt2))[0]


@pytest.fixture
def speaker(model):
    """The same with a tilt and a floor."""
    size = model.config.vocab_size
    chance = torch.Generator().manual_seed(1)
    floor = torch.softmax(torch.randn(size, generator=chance), dim=0)
    return Speaker(model, torch.randn(size, generator=chance), floor, 0.3)


@pytest.fixture
def texts(model):
    """Forty made-up texts of 3 to 9 tokens, most of which end."""
    rng = np.random.default_rng(0)
    size = model.config.vocab_size
    made = [rng.integers(1, size, rng.integers(3, 9)).astype(np.int32) for _ in range(40)]
    made = [np.append(each, 0).astype(np.int32) if place % 4 else each for place, each in enumerate(made)]
    return Texts.joined(made, 0)
