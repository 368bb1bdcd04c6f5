"""A node that is told to end: it takes no more work, finishes what it has, and says so to whoever asks."""

import asyncio
import os
import signal
import time

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from party.node import lifecycle
from party.node import node as node_module
from party.node.training import Training
from party.releasing import answers as answers_module
from protos.framing import framed
from protos.identity.credentials import bearer
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.slow


async def draining(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.reason == Reason.DRAINING
    assert "party north is about to end" in refusal.value.sentence


async def health_of(caller):
    health = health_pb2_grpc.HealthStub(caller.channel)
    asked = health_pb2.HealthCheckRequest(service="conclave.v1.Party")
    return (await health.Check(asked, metadata=bearer(caller.token))).status


@pytest.fixture
def slow_training(monkeypatch, trains_here):
    """Training that waits for the returned dictionary's event; and how often it began."""
    here, state = Training._work, {"goes_on": asyncio.Event(), "begun": 0}

    async def slow(training, job, charge):
        state["begun"] += 1
        await state["goes_on"].wait()
        return await here(training, job, charge)

    monkeypatch.setattr(Training, "_work", slow)
    return state


async def test_new_work_is_refused_and_health_says_so(opened, slow_training):
    slow_training["goes_on"].set()
    caller = await (await opened(drain_seconds=60)).ready()
    slow_training["goes_on"].clear()
    other = await opened(node=caller.node)
    other.run.run_id = "run-2"
    await other.join()
    await other.provide()
    training = asyncio.create_task(other.train())
    while slow_training["begun"] < 2:
        await asyncio.sleep(0.02)
    ending = asyncio.create_task(caller.node.drain())
    await asyncio.sleep(0.1)
    assert await health_of(caller) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await caller.describe()).name == "north"
    for waiting in (caller.join(), caller.train(), caller.provide(), caller.answer(caller.batch(0, 0, 3))):
        await draining(waiting)
    await caller.leave()
    assert not ending.done()
    slow_training["goes_on"].set()
    assert (await training)[-1].finished
    await asyncio.wait_for(ending, 10)


@pytest.mark.usefixtures("trains_here")
async def test_a_block_in_the_making_is_finished_and_sent(opened, monkeypatch):
    caller = await (await opened()).ready()
    begun, made, real = [], [], answers_module.noised

    def slow(*arguments):
        begun.append(None)
        time.sleep(0.5)
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(answers_module, "noised", slow)
    came = []

    async def asks():
        calling = caller.stub.Answer(
            iter([caller.batch(0, 0, 3), caller.batch(1, 3, 6)]), metadata=bearer(caller.token)
        )
        async for response in calling:
            came.append(response)

    asking = asyncio.create_task(caller.ask(asks()))
    while not begun:
        await asyncio.sleep(0.02)
    await caller.node.drain()
    await draining(asking)
    assert [each.batch for each in came] == [0]
    assert came[0].chunk.data == np.ascontiguousarray(made[0], "<i4").tobytes()
    assert len(made) == 1


@pytest.mark.usefixtures("trains_here")
async def test_a_stream_that_waits_for_its_caller_is_ended(opened):
    caller = await (await opened()).ready()
    calling = caller.stub.Answer(metadata=bearer(caller.token))
    await calling.write(caller.batch(0, 0, 3))
    assert (await calling.read()).batch == 0
    await caller.node.drain()

    async def ended():
        await calling.read()

    await draining(asyncio.wait_for(caller.ask(ended()), 2))


@pytest.mark.parametrize("leaves", [True, False], ids=["goes away", "stops reading"])
@pytest.mark.usefixtures("trains_here")
async def test_a_caller_that_takes_no_more_does_not_hold_the_node(opened, monkeypatch, leaves):
    caller = await (await opened()).ready()
    message = next(framed(0, np.zeros((1, 1_000_000), np.int32)))
    monkeypatch.setattr(node_module, "framed", lambda *_: (message for _ in range(100)))
    monkeypatch.setattr(lifecycle, "SENDING", 20.0 if leaves else 0.5)
    calling = caller.stub.Answer(iter([caller.batch(0, 0, 3)]), metadata=bearer(caller.token))
    await calling.read()
    await asyncio.sleep(0.2)
    if leaves:
        calling.cancel()
    begun = time.monotonic()
    await caller.node.drain()
    assert time.monotonic() - begun < 10
    await asyncio.wait_for(caller.node.stop(), 5)


async def test_training_past_its_time_is_ended_and_begun_again_when_asked(opened, slow_training):
    caller = await opened(drain_seconds=0.3)
    await caller.join()
    await caller.provide()
    training = asyncio.create_task(caller.train())
    while not slow_training["begun"]:
        await asyncio.sleep(0.02)
    await asyncio.wait_for(caller.node.drain(), 10)
    await caller.node.stop()
    await draining(training)
    slow_training["goes_on"].set()
    again = await opened()
    assert (await again.train())[-1].finished
    assert slow_training["begun"] == 2


LONG = '{"text": "apple bread cheese door egg fish"}\n' * 400_000


async def training_in(process, caller):
    """A training that has begun in a process of its own, of a text that takes long."""
    await caller.join()
    await caller.provide()
    training = asyncio.create_task(caller.train())
    while not (workers := psutil.Process(process.pid).children()):
        await asyncio.sleep(0.02)
    return training, workers


async def gone(process, workers, seconds):
    assert await asyncio.to_thread(process.wait, seconds) is not None
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []
    return process.returncode


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_a_second_signal_ends_it_at_once(opened, killable, tmp_path, second, code):
    (tmp_path / "long.jsonl").write_text(LONG)
    process, node = killable(shard={"source": "long.jsonl"}, drain_seconds=60.0)
    caller = await opened(node=node)
    training, workers = await training_in(process, caller)
    process.send_signal(signal.SIGTERM)
    while await health_of(caller) == health_pb2.HealthCheckResponse.SERVING:
        await asyncio.sleep(0.02)
    await draining(caller.join())
    assert process.poll() is None
    begun = time.monotonic()
    process.send_signal(second)
    assert await gone(process, workers, 10) == code
    assert time.monotonic() - begun < 8
    with pytest.raises((Refusal, grpc.aio.AioRpcError)):
        await training


@pytest.mark.parametrize(("only", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_one_signal_ends_it_in_its_time(opened, killable, tmp_path, only, code):
    (tmp_path / "long.jsonl").write_text(LONG)
    process, node = killable(shard={"source": "long.jsonl"}, drain_seconds=0.2)
    caller = await opened(node=node)
    training, workers = await training_in(process, caller)
    os.kill(process.pid, only)
    await draining(training)
    assert await gone(process, workers, 10) == code
