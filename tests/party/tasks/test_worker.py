"""The process that stays for the steps of a run: what it reads it reads once, and it ends with whatever it served."""

import ast
import asyncio
import sys
import time

import numpy as np
import psutil
import pytest

from party.tasks import worker
from party.tasks.counts.request import CountsWork
from party.tasks.job import Failure, Job
from party.tasks.step.request import StepWork
from party.tasks.text.request import Lesson, TextModel
from party.tasks.worker import Worker, Workers

HEAD = 2 * 32 + 2
START = np.zeros(HEAD, np.float32)
DOES = """
import json, sys
for line in iter(sys.stdin.readline, ''):
    job = json.loads(line)
    print(json.dumps({"prepared": True}), flush=True)
    assert json.loads(sys.stdin.readline()) == {"key": "6b"}
    print(json.dumps({"percent": 50}), flush=True)
    if job["release"] == "sleeps":
        sys.stdin.read()
    if job["release"] == "fails":
        print(json.dumps({"kind": "TrainingError", "sentence": "no.", "private": False}), flush=True)
        sys.exit(1)
    print(json.dumps({"finished": True}), flush=True)
    if "step" not in job["work"]:
        sys.exit(0)
"""


async def gone(pid):
    for _ in range(100):
        if not psutil.pid_exists(pid):
            return True
        await asyncio.sleep(0.05)
    return False


def job(release="", kind="step"):
    step = StepWork(TextModel({}, "", "head", 0, 0, 16, 0), Lesson(), "", "")
    return Job(1, {}, {}, "document", False, release, "", "", step if kind else CountsWork("", 1))


def done(percent):
    """What is told of progress here: nothing."""


async def charge():
    """What puts the cost into the ledger: here nothing does."""
    return "6b"


@pytest.fixture
async def workers(monkeypatch):
    """Workers whose processes say what training says, and do nothing."""

    async def start(cls, log_file, threads=0):
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, "-c", DOES, stdin=pipe, stdout=pipe))

    monkeypatch.setattr(Worker, "start", classmethod(start))
    made = Workers()
    yield made
    await made.end_all()


async def test_steps_of_a_run_have_one_process_and_other_trainings_one_each(workers):
    told = []
    for _ in range(3):
        assert await workers.do("run-1", job(), told.append, charge) is None
    first = workers.kept("run-1")
    assert told == [50, 50, 50]
    assert await workers.do("run-1", job(kind=""), done, charge) is None
    assert workers.kept("run-1") == first
    assert await workers.do("run-2", job(), done, charge) is None
    assert workers.kept("run-2") not in (None, first)


async def test_a_process_ends_with_its_run_and_all_end_with_the_node(workers):
    for run in ("run-1", "run-2", "run-3"):
        await workers.do(run, job(), done, charge)
    pids = [workers.kept(run) for run in ("run-1", "run-2", "run-3")]
    await workers.end("run-1")
    await workers.end("run-1")
    assert await gone(pids[0])
    assert psutil.pid_exists(pids[1])
    await workers.end_all()
    assert await gone(pids[1])
    assert await gone(pids[2])


async def test_a_process_that_failed_is_ended_and_another_takes_its_place(workers):
    await workers.do("run-1", job(), done, charge)
    first = workers.kept("run-1")
    assert await workers.do("run-1", job("fails"), done, charge) == Failure("TrainingError", "no.")
    assert workers.kept("run-1") is None
    assert await gone(first)
    assert await workers.do("run-1", job(), done, charge) is None


async def test_a_process_that_somebody_else_ended_is_replaced_unseen(workers):
    await workers.do("run-1", job(), done, charge)
    first = workers.kept("run-1")
    psutil.Process(first).kill()  # and nobody has looked since
    assert await workers.do("run-1", job(), done, charge) is None
    assert workers.kept("run-1") not in (None, first)


async def test_an_idle_process_ends(workers, monkeypatch):
    monkeypatch.setattr(worker, "IDLE", 0.1)
    await workers.do("run-1", job(), done, charge)
    assert await gone(workers.kept("run-1"))
    assert workers.kept("run-1") is None


async def test_a_step_that_is_cancelled_ends_its_process(workers):
    await workers.do("run-1", job(), done, charge)
    first = workers.kept("run-1")
    begun = asyncio.Event()
    step = asyncio.create_task(workers.do("run-1", job("sleeps"), lambda percent: begun.set(), charge))
    await begun.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert await gone(first)
    assert workers.kept("run-1") is None


@pytest.mark.slow
async def test_a_real_process_reads_once_and_ends_with_its_pipe_and_with_its_run(learner, descent):
    caller = await learner(descent(steps=8), limits={"memory_mib": 4096})
    workers = caller.node.verbs.workers
    took, pids = [], []
    for number in range(3):
        begun = time.monotonic()
        await caller.step(number, caller.model, START + number)
        await caller.answer(caller.batch(0, 0, 1, f"steps.{number}"), columns=HEAD)
        took.append(time.monotonic() - begun)
        pids.append(workers.kept("run-1"))
    first = pids[0]
    assert set(pids) == {first}
    assert psutil.Process(first).nice() > psutil.Process().nice()
    assert max(took[1:]) < took[0] / 3
    workers._kept["run-1"]._process.stdin.close()  # as when its node is killed
    assert await gone(first)
    await caller.step(3, caller.model, START)
    second = workers.kept("run-1")
    await caller.leave()
    assert await gone(second)
    assert workers.kept("run-1") is None


@pytest.mark.slow
async def test_a_training_of_one_party_alone_has_a_process_of_its_own(learner, descent):
    caller = await learner(descent("weights", weights=True))
    said = await caller.train_alone(caller.model, START)
    assert said[-1].finished
    assert caller.node.verbs.workers.kept("run-1") is None
    (block,) = await caller.answer(caller.batch(0, 0, 1, "weights"), columns=HEAD)
    assert 0 < np.abs(block.view(np.float32)).max() < 100


async def test_a_training_gives_freed_memory_back_unless_the_administrator_says_otherwise(monkeypatch, tmp_path):
    """Its allocator is told at its start: later it has arenas already, and arrays in them."""
    told = "import os; print({name: value for name, value in os.environ.items() if 'M' in name})"
    monkeypatch.setattr(worker.sys, "executable", program(tmp_path, told))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    started = await Worker.start(None)
    said = ast.literal_eval((await started._process.stdout.readline()).decode())
    await started.end()
    assert said["MALLOC_ARENA_MAX"] == "7"
    assert said["MALLOC_MMAP_THRESHOLD_"] == "4194304"
    assert said["MALLOC_TRIM_THRESHOLD_"] == "33554432"
    assert said["THP_MEM_ALLOC_ENABLE"] == "1"


def program(folder, code):
    """An interpreter that runs this instead of what it is asked for."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c \"{code}\"\n")
    path.chmod(0o700)
    return str(path)
