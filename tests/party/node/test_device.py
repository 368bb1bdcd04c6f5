"""A party's device: told where it joins, refused before anything is charged, and never a reason to lose its text."""

import logging

import numpy as np
import pytest
import torch

from learning.errors import EXHAUSTED
from learning.models.compute import Compute
from party.errors import PartyError
from party.ledger.accounts import read_account
from party.tasks.machine import Machine
from party.tasks.result import load_counts
from party.tasks.step import training
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
VECTOR = np.linspace(-0.1, 0.1, HEAD, dtype=np.float32)
HALF = Compute("cpu", "bfloat16")


def on(caller, machine):
    """Have a started node compute with something else from now on."""
    caller.node.verbs.machine = caller.node.verbs.trainings._machine = machine


def charged(folder):
    return [each.release for each in read_account(folder / "north.party/ledger.sqlite", "north").reservations]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        pytest.param({"device": "cuda:99"}, 'There is no device "cuda:99" on this machine', marks=pytest.mark.slow),
        ({"threads": 4000}, "threads = 4000 are more than"),
    ],
)
async def test_a_node_does_not_start_on_what_is_not_there(opened, table, said):
    """Quick tests ask torch of a device in tests/party/tasks/test_machine.py alone: a process imports it each time."""
    wrong = r"party north cannot compute as its file says\. \[compute\]: "
    with pytest.raises(PartyError, match=wrong + said):
        await opened(compute=table)


async def test_a_party_tells_the_kind_of_its_device_where_text_models_run_on_it(learner, terms):
    machine = Machine(Compute("auto", "bfloat16"), Compute("cuda:1", "bfloat16"))
    reads = await learner(insecure_reproducible_noise=False)
    told = await reads.join()
    assert (told.device, told.precision) == ("", "")
    on(reads, machine)
    told = await reads.join()
    assert (told.device, told.precision) == ("cuda", "bfloat16")
    assert machine.computed(terms()).usual, "words are counted on the processor"


async def test_noise_that_is_reproduced_is_on_the_processor_unless_the_file_says_otherwise(learner):
    caller = await learner()
    on(caller, Machine(Compute("auto"), Compute("cuda:1")))
    assert (await caller.join()).device == ""
    on(caller, Machine(Compute("cuda:1"), Compute("cuda:1")))
    assert (await caller.join()).device == "cuda"


async def test_a_device_that_is_gone_is_refused_before_anything_is_charged(learner, tmp_path):
    caller = await learner()
    on(caller, Machine(Compute("cuda:9"), Compute("cuda:9")))
    with pytest.raises(
        Refusal, match='training at party north: There is no device "cuda:9" on this machine'
    ) as refused:
        await caller.step(0, caller.model, VECTOR)
    assert refused.value.reason == Reason.MEMORY
    assert charged(tmp_path) == []
    on(caller, Machine(Compute("cpu"), Compute("cpu")))
    await caller.step(0, caller.model, VECTOR)
    assert charged(tmp_path) == ["steps.0"]


async def test_a_device_that_is_full_after_the_charge_costs_no_text_and_no_second_charge(
    learner, tmp_path, monkeypatch, caplog
):
    """That it is full is made up: it is the processor in half the precision."""
    caller = await learner(policy={"simulation": False}, insecure_reproducible_noise=False, peers=("south",))
    on(caller, Machine(HALF, HALF))
    step, tried = training.step, []

    def full(job, work, mechanism, kept):
        tried.append((job.compute, work.key, job.reading.shard.source))
        if job.compute == HALF:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return step(job, work, mechanism, kept)

    monkeypatch.setattr(training, "step", full)
    with caplog.at_level(logging.ERROR, logger="conclave.party"):
        await caller.step(0, caller.model, VECTOR)
    assert [compute.precision for compute, _, _ in tried] == ["bfloat16", "float32"]
    assert len({(key, source) for _, key, source in tried}) == 1, "the same draws, of the same text"
    assert charged(tmp_path) == ["steps.0"]
    assert np.abs(load_counts(tmp_path / "north.party/runs/run-1/steps.0.counts.npz")).max() > 0
    assert EXHAUSTED in caplog.text
    assert "steps.0 is done again on the processor" in caplog.text
    assert "without this party's text" not in caplog.text
