"""A node killed with -9 at the worst moments: the next goes on, with the same bytes, charged once."""

import asyncio
import os
import signal
import time

import grpc
import numpy as np
import psutil
import pytest

from party.ledger.accounts import open_account, read_account
from party.ledger.budget import statements
from party.ledger.ledger import Ledger
from party.node.lifecycle import start
from party.node.training import Training
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.slow

LONG = '{"text": "apple bread cheese door egg fish"}\n' * 3_000


@pytest.fixture
def charged(tmp_path):
    """Releases that the ledger charged, in order."""
    return lambda: [
        each.release for each in read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations
    ]


def leftovers(folder):
    return [path.name for path in folder.rglob(".*")]


SIMULATED = {"policy": {"simulation": True}}


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("party.releasing.answers:noised", "before", "1"), id="claimed, not on disk"),
        pytest.param(("os:fsync", "before", "1"), id="being written"),
        pytest.param(("party.store.runs:Run.keep_block", "after", "1"), id="on disk, not sent"),
        pytest.param(("party.ledger.charging:answered", "before", "1"), id="sent, not noted"),
    ],
)
@pytest.mark.usefixtures("trains_here")
async def test_a_block_is_the_same_after_a_kill_and_charged_once(opened, terms, killable, charged, tmp_path, moment):
    plan = terms(insecure_reproducible_noise=True)
    untouched = await (await opened(plan=plan, folder="other.party", **SIMULATED)).ready()
    expected = await untouched.answer(untouched.batch(0, 0, 4), untouched.batch(1, 4, 6))
    # Trained by a node that ends, so that the one that dies does nothing but answer.
    first = await (await opened(plan=plan, **SIMULATED)).ready()
    await first.node.stop()
    process, node = killable(dying=moment, **SIMULATED)
    caller = await opened(node=node, plan=plan)
    with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
        await caller.answer(caller.batch(0, 0, 4), caller.batch(1, 4, 6))
    assert process.wait(20) == -signal.SIGKILL
    again = await opened(plan=plan, **SIMULATED)
    assert leftovers(tmp_path / "north.party") == []
    found = await again.answer(again.batch(0, 0, 4), again.batch(1, 4, 6))
    for one, two in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, two)
    assert charged() == ["counts"]


@pytest.mark.usefixtures("trains_here")
async def test_true_noise_is_drawn_once_over_a_kill(opened, killable, tmp_path):
    """What was on its way out when the node died, and what the next node sends, are the same bytes."""
    first = await (await opened()).ready()
    await first.node.stop()
    process, node = killable(dying=("party.store.runs:Run.keep_block", "after", "1"))
    caller = await opened(node=node)
    with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
        await caller.answer(caller.batch(0, 0, 6))
    process.wait(20)
    (block,) = (tmp_path / "north.party" / "runs").rglob("*.block")
    kept = np.frombuffer(block.read_bytes(), "<i4").reshape(6, 6)
    block.unlink()
    again = await opened()
    (found,) = await again.answer(again.batch(0, 0, 6))
    np.testing.assert_array_equal(found, kept)


@pytest.mark.usefixtures("trains_here")
async def test_a_node_killed_while_it_counts_counts_again(opened, killable, charged, tmp_path):
    (tmp_path / "long.jsonl").write_text(LONG)
    shard = {"source": "long.jsonl"}
    process, node = killable(shard=shard)
    caller = await opened(node=node)
    await caller.join()
    await caller.provide()
    training = asyncio.create_task(caller.train())
    workers = await until(lambda: psutil.Process(process.pid).children())
    await until(lambda: workers[0].nice() >= 10)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    with pytest.raises(grpc.aio.AioRpcError):
        await training
    gone, _ = psutil.wait_procs(workers, timeout=5)
    assert len(gone) == len(workers)
    caller = await opened(shard=shard)
    assert (await caller.train())[-1].finished
    (block,) = await caller.answer(caller.batch(0, 0, 6))
    assert block.shape == (6, 6)
    assert charged() == ["counts"]
    assert leftovers(tmp_path / "north.party" / "runs") == []


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(("party.ledger.ledger:Ledger._record", "before", "1"), id="trained, records not in the ledger"),
        pytest.param(("party.ledger.ledger:Ledger._record", "after", "1"), id="records in the ledger"),
        pytest.param(("party.store.runs:Run.keep_operation", "before", "1"), id="afforded, not noted"),
        pytest.param(("party.store.runs:Run.keep_operation", "after", "1"), id="noted, census not removed"),
    ],
)
@pytest.mark.usefixtures("trains_here")
async def test_nothing_is_answered_before_what_was_read_is_in_the_ledger(opened, killable, charged, tmp_path, moment):
    process, node = killable(dying=moment, **SIMULATED)
    caller = await opened(node=node)
    await caller.join()
    await caller.provide()
    with pytest.raises(grpc.aio.AioRpcError):
        await caller.train()
    assert process.wait(20) == -signal.SIGKILL
    again = await opened(**SIMULATED)
    assert leftovers(tmp_path / "north.party" / "runs") == []
    if moment[:2] != ("party.store.runs:Run.keep_operation", "after"):
        with pytest.raises(Refusal, match="not trained yet"):
            await again.answer(again.batch(0, 0, 6))
    await again.train()
    (account,) = statements(tmp_path / "north.party")
    assert (account.documents, charged()) == (4, ["counts"])
    await again.answer(again.batch(0, 0, 6))
    assert charged() == ["counts"]


async def until(there, seconds=120.0):
    """What `there` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := there()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    return found


@pytest.mark.usefixtures("trains_here")
async def test_a_node_killed_in_private_training_trains_again_and_is_charged_once(
    opened, terms, releases, killable, charged
):
    plan = terms(releases=releases("training", "free"), epsilon=20.0, insecure_reproducible_noise=True)
    changes = {"policy": {"epsilon": 90.0, "simulation": True}}
    untouched = await (await opened(plan=plan, folder="other.party", **changes)).ready_to_teach()
    await untouched.teach()
    (expected,) = await untouched.answer(untouched.batch(0, 0, 4, "answers"), columns=11)
    process, node = killable(dying=("party.ledger.ledger:Ledger.reserve", "after", "1"), **changes)
    caller = await opened(node=node, plan=plan)
    await caller.ready_to_teach()
    with pytest.raises(grpc.aio.AioRpcError):
        await caller.teach()
    assert process.wait(20) == -signal.SIGKILL
    assert charged() == ["training"]
    again = await opened(plan=plan, **changes)
    assert (await again.teach())[-1].finished
    (found,) = await again.answer(again.batch(0, 0, 4, "answers"), columns=11)
    np.testing.assert_array_equal(found, expected)
    assert charged() == ["training", "answers"]


@pytest.mark.usefixtures("trains_here")
async def test_private_training_begun_again_has_the_noise_key_of_its_first_time(
    opened, terms, releases, charged, monkeypatch
):
    """With true noise: one draw of it, whatever was begun under it and lost."""
    here, keys = Training._work, []

    async def never_ends_at_first(training, job, charge):
        keys.append(await charge())
        if len(keys) == 1:
            await asyncio.sleep(600)
        return await here(training, job, charge)

    monkeypatch.setattr(Training, "_work", never_ends_at_first)
    plan, policy = terms(releases=releases("training", "free"), epsilon=20.0), {"epsilon": 90.0}
    caller = await (await opened(plan=plan, policy=policy)).ready_to_teach()
    training = asyncio.create_task(caller.teach())
    await until(lambda: keys)
    await caller.node.stop()
    with pytest.raises((Refusal, grpc.aio.AioRpcError)):
        await training
    again = await opened(plan=plan, policy=policy)
    assert (await again.teach())[-1].finished
    assert keys[0] == keys[1] != ""
    assert charged() == ["training"]


@pytest.mark.usefixtures("trains_here")
async def test_operations_and_batches_keep_their_meaning_over_a_restart(opened, tmp_path):
    caller = await (await opened()).ready()
    (one,) = await caller.answer(caller.batch(0, 0, 3))
    counts = next((tmp_path / "north.party" / "runs").rglob("*.counts.npz"))
    before = counts.stat().st_mtime_ns
    await caller.node.stop()
    again = await opened()
    assert [each.finished for each in await again.train()] == [True]
    assert counts.stat().st_mtime_ns == before
    for waiting in (again.train(window=3), again.train("counts-1"), again.answer(again.batch(0, 0, 4))):
        with pytest.raises(Refusal) as refusal:
            await waiting
        assert refusal.value.reason == Reason.CONFLICT
    (two,) = await again.answer(again.batch(0, 0, 3))
    np.testing.assert_array_equal(one, two)


async def test_what_a_killed_node_left_behind_is_removed_and_nothing_else(config, tmp_path):
    home = tmp_path / "north.party"
    (home / "runs" / "open").mkdir(parents=True)
    (home / "runs" / "ended").mkdir()
    cap = {"epsilon": 20.0, "delta": 1e-6, "simulation": False}
    open_account(home, "north", **cap)
    ledger = await Ledger.open(home, "north", **cap)
    for run in ("open", "ended"):
        await ledger.join(run, b"p" * 32, [])
    await ledger.leave("ended")
    await ledger.close()
    parts = [
        home / "runs" / "open" / ".counts.counts.npz.part",
        home / "runs" / "open" / ".counts.0.block.0a1b2c3d",
        home / "runs" / "open" / f".{'a' * 64}.artefact.0a1b2c3d",
        home / ".slots.key.0a1b2c3d",
        home / "runs" / "ended" / "counts.counts.npz",
    ]
    others = [home / ".hidden", home / "runs" / "open" / "counts.0.block"]
    others.append(home / "runs" / "open" / f"{'a' * 64}.artefact")
    for path in parts + others:
        path.write_bytes(b"x")
    await (await start(config(), token="t", base=tmp_path)).stop()
    assert [path.name for path in parts if path.exists()] == []
    assert all(path.exists() for path in others)
    assert not (home / "runs" / "ended").exists()
    assert os.path.isdir(home / "runs" / "open")
