"""The same private training on the processor and on a device of this machine: the same student, at the same price."""

import copy

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.noise.stream import NoiseStream
from learning.models.adapting import flatten
from learning.models.batching import Tokens, losses
from learning.models.compute import Compute, available, on_device, running
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits, tokens_at_once

NEAR = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""How far the student may be from the processor's in float32, in parts of how far it was trained. A step's sums are
rounded to the grid before they are noised, and a gradient's rounding moves some of them by one grid unit.
"""


@pytest.mark.parametrize("precision", NEAR)
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_a_student_is_the_processors_within_rounding_and_costs_the_same(precision, optimiser):
    device = available()[0]
    if device.device == "cpu":
        pytest.skip("this machine has no device but its processor")
    if precision not in device.precisions:
        pytest.skip(f"{device} has no {precision}")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
    )  # fmt: skip
    start = BertForSequenceClassification(config)
    rng = np.random.default_rng(0)
    rows = [Tokens(rng.integers(1, 100, 5 + n % 20).astype(np.int32), 5 + n % 20) for n in range(64)]
    labels = torch.tensor([int(row.ids[0]) % 2 for row in rows])

    def student(compute):
        with running(compute):
            model = on_device(copy.deepcopy(start))
            count = len(flatten(model))
            at_once = tokens_at_once(next(model.parameters()).device.type)
            trained = train_private(
                model,
                TextUnits(config, rows, labels, tokens_at_once=at_once),
                losses,
                GradientMechanism(0.5, fine_levels(0.5, count), 0.5, 0.5, 8, count),
                Optimisation(32, 0.01 if optimiser == "adamw" else 0.1, optimiser),
                stream=NoiseStream.insecure(1, "training"),
            )
            return flatten(model), trained.event

    here, cost = student(Compute("cpu"))
    there, price = student(Compute(device.device, precision))
    assert price == cost
    assert (there - here).norm() <= NEAR[precision] * (here - flatten(start)).norm()
