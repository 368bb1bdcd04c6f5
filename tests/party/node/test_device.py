"""A party's device: told where it joins, refused before anything is charged, and never a reason to lose its text."""

import contextlib
import io
import json
import logging
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learning.errors import EXHAUSTED
from learning.models.compute import PRECISIONS, Compute
from party.config import ComputeTable
from party.errors import PartyError
from party.ledger.accounts import read_account
from party.node.training import Training
from party.tasks import machine
from party.tasks.job import Job
from party.tasks.machine import Machine
from party.tasks.result import load_counts
from party.tasks.step import training
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import plan_hash
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
VECTOR = np.linspace(-0.1, 0.1, HEAD, dtype=np.float32)
HALF = Compute("cpu", "bfloat16")


def on(caller, found):
    """Have a started node compute with something else from now on."""
    caller.node.verbs.machine = caller.node.verbs.trainings._machine = found


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


@pytest.mark.slow
async def test_a_party_tells_the_kind_of_its_device_where_text_models_run_on_it(learner, terms):
    found = Machine(Compute("auto", "bfloat16"), Compute("cuda:1", "bfloat16"))
    reads = await learner(insecure_reproducible_noise=False)
    told = await reads.join()
    assert (told.device, told.precision) == ("", "")
    on(reads, found)
    told = await reads.join()
    assert (told.device, told.precision) == ("cuda", "bfloat16")
    assert found.computed(terms()).usual, "words are counted on the processor"


async def test_noise_that_is_reproduced_is_on_the_processor_unless_the_file_says_otherwise(learner):
    caller = await learner()
    on(caller, Machine(Compute("auto"), Compute("cuda:1")))
    assert (await caller.join()).device == ""
    on(caller, Machine(Compute("cuda:1"), Compute("cuda:1")))
    assert (await caller.join()).device == "cuda"


@pytest.mark.slow
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


ASKED = ("cuda:99", "bfloat16", "threads = 77")
"""What a coordinator would have a party compute with."""


def meddled(message, depth=8):
    """The same message, with fields that nobody knows in it and in every message that it holds."""
    for field, value in message.ListFields():
        if field.message_type is not None and depth and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else [value]:
                meddled(each, depth - 1)
    for number, word in enumerate(ASKED):
        content = word.encode()
        message.MergeFromString(bytes([0xA2 + 8 * number, 0x7D, len(content)]) + content)  # fields 2004 to 2006
    return message


@pytest.mark.slow
async def test_no_message_chooses_what_a_party_computes_with(learner, pooled, tmp_path, monkeypatch):
    """Not in the plan that is joined, its terms or its document, and not in what is asked to be trained."""
    caller = await learner()
    own = Compute("cpu", threads=1)
    on(caller, Machine(own, own))
    jobs, works = [], Training._work

    async def seen(training, job, charge):
        jobs.append(job)
        return await works(training, job, charge)

    monkeypatch.setattr(Training, "_work", seen)
    await caller.leave()
    caller.plan.document = json.dumps({"run": dict(zip(("device", "precision", "threads"), ASKED, strict=True))})
    meddled(caller.plan)
    caller.run = party_pb2.RunContext(run_id="run-2", plan_hash=plan_hash(caller.plan))
    meddled(caller.run)
    told = await caller.join()
    assert (
        told.SerializeToString()
        == party_pb2.JoinResponse(party="north", protocol_version=PROTOCOL_VERSION).SerializeToString()
    )
    await caller.provide_model(pooled)
    await caller.step(0, meddled(caller.model), VECTOR)
    assert [job.compute for job in jobs] == [own]
    assert jobs[0].compute == Job.from_json(jobs[0].to_json().encode()).compute
    assert caller.node.verbs.machine == Machine(own, own)
    assert charged(tmp_path) == ["steps.0"]
    attested = await caller.attest()
    assert not any(word.encode() in attested.SerializeToString() for word in ASKED)


NAMES = ("NVIDIA H200", "east-hospital room 4", "\x1b[2J**cuda**", "x" * 5000, "")


@pytest.fixture
def named(monkeypatch, tmp_path):
    """`named(name)`: a machine with two accelerators of this name, as torch would tell in a process of its own."""

    def makes(name):
        (tmp_path / "nvidia0").touch()
        monkeypatch.setattr("learning.models.machine._DEVICES", tmp_path)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
        memory = SimpleNamespace(total_memory=len(name) * 10**9)
        monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: memory)

        def asked(command, **settings):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                machine.main(command[command.index("party.tasks.machine") + 1 :])
            return subprocess.CompletedProcess(command, 0, said.getvalue().encode(), b"")

        monkeypatch.setattr("party.tasks.machine.subprocess.run", asked)

    return makes


@pytest.mark.parametrize("name", NAMES)
def test_joining_tells_a_word_of_a_fixed_set_whatever_the_machine_calls_its_devices(name, named, terms, descent):
    named(name)
    learns = terms(recipe="dp_sgd", releases=[descent()], labelled=plan_pb2.LabelledText(labels=["no", "yes"]))
    words, sizes = set(), set()
    for device in ("auto", "cuda", "cuda:1", "cpu"):
        for precision in PRECISIONS:
            found = Machine.looked_up(ComputeTable(device=device, precision=precision))
            if device != "cpu":
                assert any(name in each for each in found.there), "the machine's own name was never seen"
            told = found.computed(learns)
            words.add((told.device, told.precision))
            sizes.add(party_pb2.JoinResponse(**told.fields).ByteSize())
    assert words == {(device, precision) for device in ("cpu", "cuda") for precision in PRECISIONS}
    assert sizes == {
        0,
        *(party_pb2.JoinResponse(device=d, precision=p).ByteSize() for d, p in words - {("cpu", "float32")}),
    }


@pytest.mark.parametrize("name", NAMES[:3])
async def test_a_refusal_for_a_device_names_none_of_the_machine(name, named, learner, tmp_path, caplog):
    caller = await learner(policy={"simulation": False}, insecure_reproducible_noise=False, peers=("south",))
    named(name)
    for missing in (Compute("cuda:9"), Compute("cuda:9", "bfloat16")):
        on(caller, Machine(missing, missing))
        with caplog.at_level(logging.ERROR, logger="conclave.party"), pytest.raises(Refusal) as refused:
            await caller.step(0, caller.model, VECTOR)
        assert refused.value.sentence == (
            "training at party north: what its [compute] asks for is not there any more. Its own log says what is."
        )
        assert refused.value.reason == Reason.MEMORY
    assert name in caplog.text
    assert charged(tmp_path) == []


@pytest.mark.slow
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
