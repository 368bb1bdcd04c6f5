"""Language models in training processes of their own, as a party serves them."""

import numpy as np
import pytest

from learning.models.adapting import Lora, adapt, flatten
from learning.models.encoders import language_model
from party.tasks.result import load_counts
from protos.conclave.v1 import party_pb2, plan_pb2


@pytest.mark.slow
async def test_counts_and_steps_are_made_in_processes_of_their_own(speaker, descent, tiny_gpt2, tmp_path):
    model, tokenizer = language_model(str(tiny_gpt2))
    adapt(model, "lora", seed=7, lora=Lora(2, 4))
    start = flatten(model).numpy()
    numbers = {"clip": 4.0, "levels": 400, "noise_multiplier": 1.0, "shares": 1, "distribution": "gaussian"}
    counts = [
        plan_pb2.Release(name=name, charges=1, form=plan_pb2.FORM_SUMMED, counts=plan_pb2.CountsMechanism(**numbers))
        for name in ("unigram", "histogram")
    ]
    steps = descent(parameters=len(start), sampling_probability=1.0, levels=4000)
    caller = await speaker(steps, *counts)
    for operation, task in (
        ("tokens-0", {"tokens": party_pb2.TokensTask(release="unigram", model=caller.model)}),
        ("codes-0", {"codes": party_pb2.CodesTask(release="histogram")}),
    ):
        request = party_pb2.TrainRequest(run=caller.run, operation_id=operation, **task)
        assert [each.percent for each in await caller.trained(request) if each.finished] == [100]
    for number in range(2):
        await caller.step(number, caller.model, start, objective=party_pb2.OBJECTIVE_LANGUAGE)
    run = tmp_path / "north.party/runs/run-1"
    shapes = {name: load_counts(run / f"{name}.counts.npz").shape for name in ("unigram", "histogram", "steps.1")}
    assert shapes == {"unigram": (1, len(tokenizer)), "histogram": (1, 2), "steps.1": (1, len(start))}
    assert np.abs(load_counts(run / "steps.1.counts.npz")).max() > 10
