"""Simulated parties that share training processes: each job is its own party's, and none ends another's."""

import asyncio
import json

import numpy as np
import psutil
import pytest

from learning.text.words import Vocabulary
from party.config import PolicyTable
from party.shard_table import ShardTable
from party.tasks.counts.request import CountsWork
from party.tasks.job import Failure, Job
from party.tasks.pool import Pool
from party.tasks.result import load_counts
from party.tasks.worker import Worker, Workers
from protos.conclave.v1 import plan_pb2

pytestmark = pytest.mark.slow

WORDS = ("apple", "bread", "cider")
COUNTS = plan_pb2.Release(
    name="counts", charges=1, form=plan_pb2.FORM_SUMMED,
    counts=plan_pb2.CountsMechanism(clip=4.0, levels=64, noise_multiplier=1.0, shares=2, distribution="gaussian"),
)  # fmt: skip


def nothing(percent):
    """What is told of progress here."""


async def charge():
    return "6b" * 32


@pytest.fixture
def job(tmp_path):
    """`job(number)`: the counts of one of three parts of a source."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": f"apple bread cider apple {n}"}) + "\n" for n in range(60))
    )
    (tmp_path / "vocabulary").write_bytes(Vocabulary(WORDS).to_bytes())

    def makes(number, **changes):
        part = {"parts": 3, "part": number}
        shard = {"source": str(tmp_path / "rows.jsonl"), "part": part} | changes.pop("shard", {})
        policy = {"epsilon": 1.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True}
        settings = {
            "parent": 0, "shard": ShardTable(**shard).model_dump(), "policy": PolicyTable(**policy).model_dump(),
            "record": "document", "by_user": False, "release": COUNTS.SerializeToString().hex(),
            "cache": str(tmp_path / "cache"), "result": str(tmp_path / f"result-{number}.npz"),
            "work": CountsWork(str(tmp_path / "vocabulary"), 2),
        }  # fmt: skip
        import os

        return Job(**settings | {"parent": os.getpid()} | changes)

    return makes


@pytest.fixture
async def pool(tmp_path):
    made = Pool(1, tmp_path)
    yield made
    await made.end()


def counted(job):
    return np.asarray(load_counts(job.result).todense() if hasattr(load_counts(job.result), "todense") else
                      load_counts(job.result))  # fmt: skip


async def test_parties_of_one_process_count_what_they_would_in_their_own(job, pool, tmp_path):
    workers = Workers(tmp_path / "alone.log")
    alone = []
    for number in range(3):
        assert await workers.do("run", job(number), nothing, charge) is None
        alone.append(counted(job(number)))
    await workers.end_all()
    own = [pool.workers(f"party-{number}") for number in range(3)]
    for number in range(3):
        assert await own[number].do("run", job(number), nothing, charge) is None
    together = [counted(job(number)) for number in range(3)]
    assert len(pool.pids) == 1
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(together[0], together[1])


async def test_a_job_that_fails_says_why_and_the_others_go_on_in_the_same_process(job, pool):
    first, second = pool.workers("party-0"), pool.workers("party-1")
    assert await first.do("run", job(0), nothing, charge) is None
    (process,) = pool.pids
    failed = await second.do("run", job(1, shard={"source": "/nowhere.jsonl"}), nothing, charge)
    assert isinstance(failed, Failure)
    assert "nowhere" in failed.sentence
    assert await first.do("run", job(0), nothing, charge) is None
    assert pool.pids == [process]


async def test_a_process_that_was_killed_is_started_anew_for_whoever_is_next(job, pool):
    first, second = pool.workers("party-0"), pool.workers("party-1")
    assert await first.do("run", job(0), nothing, charge) is None
    (process,) = pool.pids
    psutil.Process(process).kill()
    await asyncio.sleep(0.2)
    assert await second.do("run", job(1), nothing, charge) is None
    assert pool.pids != [process]


async def test_a_job_waits_for_its_turn_and_one_that_is_given_up_takes_no_others_down(job, pool):
    first, second = pool.workers("party-0"), pool.workers("party-1")
    never = asyncio.Event()

    async def waits():
        await never.wait()
        return "6b" * 32

    slow = asyncio.ensure_future(first.do("run", job(0), nothing, waits))
    await asyncio.sleep(1.0)
    quick = asyncio.ensure_future(second.do("run", job(1), nothing, charge))
    await asyncio.sleep(0.5)
    assert not quick.done()
    slow.cancel()
    assert await asyncio.wait_for(quick, 30) is None


async def test_ending_a_partys_run_has_its_text_read_again_and_ends_no_process(job, pool, monkeypatch):
    seen = []
    own = Worker.do

    async def told(self, job, *given):
        seen.append((job.party, job.anew))
        return await own(self, job, *given)

    monkeypatch.setattr(Worker, "do", told)
    first = pool.workers("party-0")
    await first.do("run", job(0), nothing, charge)
    (process,) = pool.pids
    await first.end("run")
    await first.do("run", job(0), nothing, charge)
    assert seen == [("party-0", 0), ("party-0", 1)]
    assert pool.pids == [process]


async def test_the_end_of_a_pool_ends_its_processes(job, tmp_path):
    made = Pool(2, tmp_path)
    both = [made.workers(f"party-{number}") for number in range(2)]
    await asyncio.gather(*(each.do("run", job(number), nothing, charge) for number, each in enumerate(both)))
    pids = made.pids
    assert len(pids) == 2
    await made.end()
    assert not made.pids
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)
