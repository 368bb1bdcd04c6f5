"""The training subprocess: exact sums, nothing private in what it says, and an end whenever its node ends."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.cooccurrence import pair_counts, unit_counts
from learning.embeddings.moments import Directions, contribute
from learning.text.words import Vocabulary, tokenize
from party.config import PolicyTable
from party.errors import ShardError, TrainingError
from party.node.training import Training
from party.shard_table import ShardTable
from party.tasks.counts.request import CountsWork
from party.tasks.job import Job
from party.tasks.moments.request import MomentsWork
from party.tasks.process import attempt, work
from party.tasks.result import load_counts
from protos.conclave.v1 import plan_pb2

WORDS = ("apple", "bread", "cheese")
TEXTS = ("apple bread cheese apple", "cheese cheese bread", "bread apple bread unknown apple")
COUNTS = plan_pb2.Release(
    name="counts",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    counts=plan_pb2.CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=1, distribution="gaussian"),
)


@pytest.fixture
def job(tmp_path):
    """Makes a job over three texts of two people."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": t, "who": f"u{n % 2}"}) + "\n" for n, t in enumerate(TEXTS)))
    vocabulary = tmp_path / "vocabulary"
    vocabulary.write_bytes(Vocabulary(WORDS).to_bytes())

    def makes(**changes):
        shard = ShardTable(**({"source": str(rows), "user": "who"} | changes.pop("shard", {})))
        policy = PolicyTable(**({"epsilon": 1.0, "delta": 1e-6, "recipes": ["dped"]} | changes.pop("policy", {})))
        settings = {
            "parent": os.getpid(),
            "shard": shard.model_dump(),
            "policy": policy.model_dump(),
            "record": "document",
            "by_user": False,
            "release": COUNTS.SerializeToString().hex(),
            "cache": str(tmp_path / "cache"),
            "result": str(tmp_path / "result.npz"),
        }
        where = str(changes.pop("vocabulary", vocabulary))
        directions = changes.pop("directions", "")
        settings["work"] = MomentsWork(where, 2, directions) if directions else CountsWork(where, 2)
        return Job(**settings | changes)

    return makes


def encoded(text):
    return Vocabulary(WORDS).encode(tokenize(text))


def bounded(units):
    return CountsMechanism(2.0, 64, 1.0, 1).contribute(units).toarray().reshape(3, 3)


def counted(job):
    work(job, lambda percent: None)
    return load_counts(Path(job.result)).toarray()


def test_each_document_is_bounded_by_itself(job):
    expected = bounded(unit_counts([[encoded(text)] for text in TEXTS], 3, 2))
    np.testing.assert_array_equal(counted(job()), expected)


def test_chunks_do_not_change_the_sum(job, monkeypatch):
    whole = counted(job())
    monkeypatch.setattr("party.shard.counted._CHUNK_UNITS", 1)
    np.testing.assert_array_equal(counted(job()), whole)


def test_a_user_is_bounded_as_one(job):
    users = [[encoded(TEXTS[0]), encoded(TEXTS[2])], [encoded(TEXTS[1])]]
    np.testing.assert_array_equal(counted(job(by_user=True)), bounded(unit_counts(users, 3, 2)))


def test_each_pair_is_bounded_by_itself(job):
    pairs = pair_counts([encoded(text) for text in TEXTS], 3, 2)
    np.testing.assert_array_equal(counted(job(record="pair")), bounded(pairs))


def test_one_document_more_moves_the_sum_within_its_sensitivity(job, tmp_path):
    before = counted(job())
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"text": "apple bread cheese " * 500, "who": "u9"}) + "\n")
    assert 0 < np.linalg.norm(counted(job()) - before) <= 64


def test_the_result_is_whole_and_private(job, tmp_path):
    counted(job())
    assert [path.name for path in tmp_path.glob("*result*")] == ["result.npz"]
    assert (tmp_path / "result.npz").stat().st_mode & 0o777 == 0o600


def test_how_much_was_read_is_told_to_nobody(job):
    for policy in ({}, {"declared_size": 3, "tell": ["size-to-nearest-1000"]}):
        said = set()
        work(job(policy=policy), said.add)
        assert not said


def test_failures_are_sentences(job, tmp_path):
    (tmp_path / "broken").write_bytes(b"{")
    for broken, kind in [
        (job(vocabulary=str(tmp_path / "broken")), TrainingError),
        (job(by_user=True, shard={"user": None}), ShardError),
    ]:
        name, sentence, _ = attempt(broken, lambda percent: None)
        assert name == kind.__name__
        assert sentence.endswith(".")
    assert not list(tmp_path.glob("*result*"))


def started(job, **pipes):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "party.tasks.process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **pipes
    )
    process.stdin.write(job.to_json().encode() + b"\n")
    process.stdin.flush()
    return process


@pytest.mark.slow
def test_of_what_it_reads_it_says_nothing_but_the_end(job):
    with started(job()) as process:
        said = [json.loads(process.stdout.readline())]
        process.stdin.write(b'{"key": ""}\n')
        process.stdin.flush()
        said += [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
        process.stdin.close()
    assert said == [{"prepared": True}, {"finished": True}]


@pytest.mark.slow
async def test_the_shard_is_opened_when_the_job_is_charged_and_not_before(job, tmp_path):
    """The shard is a pipe here, and whoever opens it to read lets the writer through."""
    (tmp_path / "rows.jsonl").unlink()
    os.mkfifo(tmp_path / "rows.jsonl")
    charged, opened = [], threading.Event()

    def writes():
        with (tmp_path / "rows.jsonl").open("w") as rows:
            opened.set()
            rows.write('{"text": "apple bread cheese", "who": "u"}\n')

    writer = threading.Thread(target=writes, daemon=True)
    writer.start()

    async def charge():
        charged.append(opened.is_set())
        return ""

    assert await Training(b"", "counts")._work(job(), charge) is None
    writer.join(10)
    assert (charged, opened.is_set()) == ([False], True)


@pytest.mark.slow
async def test_what_was_provided_fails_before_anything_is_charged(job, tmp_path):
    async def charge():
        raise AssertionError("charged")

    (tmp_path / "broken").write_bytes(b"none")
    failure = await Training(b"", "counts")._work(job(vocabulary=str(tmp_path / "broken")), charge)
    assert (failure.kind, failure.private) == ("TrainingError", False)


@pytest.mark.slow
async def test_why_there_is_no_result_comes_back_from_the_process_whole(job):
    async def charge():
        return ""

    asked = job(by_user=True, shard={"user": None})
    failure = await Training(b"", "counts")._work(asked, charge)
    assert failure == attempt(asked, lambda percent: None)._replace(private=True)
    assert failure.kind == "ShardError"


def wait_until_it_works(process):
    deadline = time.monotonic() + 20
    niceness = min(19, os.nice(0) + 10)
    while process.nice() != niceness and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.nice() == niceness


@pytest.mark.slow
def test_it_ends_when_the_pipe_closes(job, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "apple bread cheese", "who": "u"}\n' * 500_000)
    with started(job()) as process:
        assert process.stdout.readline()
        process.stdin.write(b'{"key": ""}\n')
        process.stdin.flush()
        wait_until_it_works(psutil.Process(process.pid))
        process.stdin.close()
        assert process.wait(timeout=10) != 0
    assert not list(tmp_path.glob("*result*"))


NODE = """
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-P", "-m", "party.tasks.process"], stdin=subprocess.PIPE)
process.stdin.write(sys.stdin.buffer.readline() + b'{"key": ""}\\n')
process.stdin.flush()
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_node(job, tmp_path, ending):
    (tmp_path / "rows.jsonl").write_text('{"text": "apple bread cheese", "who": "u"}\n' * 500_000)
    with subprocess.Popen([sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        node.stdin.write(job(parent=node.pid).to_json().encode() + b"\n")
        node.stdin.flush()
        worker = psutil.Process(int(node.stdout.readline()))
        wait_until_it_works(worker)
        node.send_signal(ending)
        node.wait(timeout=5)
    gone, _ = psutil.wait_procs([worker], timeout=5)
    assert gone or worker.status() == psutil.STATUS_ZOMBIE


def test_moments_are_bounded_unit_by_unit_along_the_directions_that_were_provided(job, tmp_path):
    rng = np.random.default_rng(0)
    directions = Directions(
        rng.normal(size=(3, 2)).astype(np.float32), np.ones(2, np.float32), np.full(3, 0.5, np.float32)
    )
    path = tmp_path / "directions"
    path.write_bytes(directions.to_bytes())
    moments = plan_pb2.Release(
        name="moments",
        charges=1,
        form=plan_pb2.FORM_SUMMED,
        vectors=plan_pb2.VectorMechanism(clip=3.0, levels=512, noise_multiplier=1.0, shares=1, distribution="gaussian"),
    )
    asked = job(release=moments.SerializeToString().hex(), directions=str(path))
    work(asked, lambda percent: None)
    found = load_counts(Path(asked.result)).toarray()
    units = unit_counts([[encoded(text)] for text in TEXTS], 3, 2)
    expected = contribute(units, directions, VectorMechanism(3.0, 512, 1.0, 1))
    np.testing.assert_array_equal(found, expected[None, :])

    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"text": "apple bread cheese " * 500, "who": "u9"}) + "\n")
    work(asked, lambda percent: None)
    assert 0 < np.linalg.norm(load_counts(Path(asked.result)).toarray() - found) <= 512


@pytest.mark.parametrize("content", [b"{", "another vocabulary"])
def test_directions_that_do_not_fit_are_refused_in_a_sentence(job, tmp_path, content):
    if isinstance(content, str):
        ones = np.ones(4, np.float32)
        content = Directions(np.ones((4, 1), np.float32), ones[:1], ones).to_bytes()
    path = tmp_path / "directions"
    path.write_bytes(content)
    moments = plan_pb2.Release(
        name="moments",
        charges=1,
        form=plan_pb2.FORM_SUMMED,
        vectors=plan_pb2.VectorMechanism(clip=3.0, levels=512, noise_multiplier=1.0, shares=1, distribution="gaussian"),
    )
    asked = job(release=moments.SerializeToString().hex(), directions=str(path))
    kind, sentence, _ = attempt(asked, lambda percent: None)
    assert kind == "TrainingError"
    assert "directions that were provided" in sentence
    assert sentence.endswith(".")
    assert not Path(asked.result).exists()


LIMITED = """
import ctypes, mmap, resource, sys
from party.tasks import process

kernel = ctypes.CDLL(None)
kernel.mmap.restype = ctypes.c_ssize_t
kernel.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
if sys.argv[1] == "addresses":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
else:
    process._hold_at_most(1024)
NOTHING, PRIVATE, ANONYMOUS, NORESERVE = 0, 2, 0x20, 0x4000
found = {"reserved": kernel.mmap(None, 1 << 40, NOTHING, PRIVATE | ANONYMOUS | NORESERVE, -1, 0) != -1}
for name, takes in (("mapped", lambda: mmap.mmap(-1, 4 << 30)), ("held", lambda: bytearray(2 << 30))):
    try:
        takes()
        found[name] = True
    except (OSError, MemoryError):
        found[name] = False
import json
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory so")
@pytest.mark.parametrize(("how", "granted"), [("memory", True), ("addresses", False)])
def test_the_limit_of_memory_leaves_a_driver_its_addresses(how, granted):
    """A driver reserves a terabyte of addresses, and maps a device's memory: a limit of addresses would forbid both."""
    ended = subprocess.run([sys.executable, "-c", LIMITED, how], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == {"reserved": granted, "mapped": granted, "held": False}
