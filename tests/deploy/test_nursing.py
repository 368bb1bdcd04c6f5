"""The process that trainings are forked from has one thread and no secret, and what it forks ends in time."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from deploy.embedded import embedded
from deploy.nursing import nursery
from learning.text.words import Vocabulary
from party.config import PolicyTable
from party.shard_table import ShardTable
from party.tasks.counts.request import CountsWork
from party.tasks.forked import Forked
from party.tasks.job import Job
from party.tasks.result import load_counts
from party.tasks.worker import Worker, Workers, training_environment
from protos.conclave.v1 import plan_pb2

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="other systems have no nursery")]

SECRET, CENSUS, KEY = "5ec4e7" * 8, "ce4505ca" * 8, "6b65795f" * 8
COUNTS = plan_pb2.Release(
    name="counts",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    counts=plan_pb2.CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=1, distribution="gaussian"),
)


@pytest.fixture
def job(tmp_path):
    """A count of two texts."""
    rows, vocabulary = tmp_path / "rows.jsonl", tmp_path / "vocabulary"
    rows.write_text("".join(json.dumps({"text": each}) + "\n" for each in ("apple bread apple", "bread apple")))
    vocabulary.write_bytes(Vocabulary(("apple", "bread")).to_bytes())
    return Job(
        parent=os.getpid(),
        shard=ShardTable(source=str(rows)).model_dump(),
        policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"]).model_dump(),
        record="document",
        by_user=False,
        release=COUNTS.SerializeToString().hex(),
        cache=str(tmp_path / "cache"),
        result=str(tmp_path / "result.npz"),
        work=CountsWork(str(vocabulary), 2),
        census=str(tmp_path / "census"),
        census_key=CENSUS,
    )


@pytest.fixture
def forks(monkeypatch):
    """A nursery's socket, for nodes with the settings that Ray gives them."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PARTYS_TOKEN", SECRET)
    with nursery("") as socket:
        yield socket


def process_of(socket):
    """The nursery that this process started for a socket."""
    (found,) = [each for each in psutil.Process().children() if "party.tasks.nursery" in " ".join(each.cmdline())]
    return found


async def gone(process):
    for _ in range(200):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.05)
    return False


async def paid():
    return KEY


def nobody(percent):
    """What is told of progress here: nothing."""


async def waiting(socket, job, log=None):
    """A forked process that waits for its first job."""
    found = await Worker.forked(socket, job, log)
    assert found is not None
    return found, psutil.Process(found.pid)


async def test_a_forked_process_gives_what_a_started_one_gives(forks, job, tmp_path, monkeypatch):
    assert await Workers(tmp_path / "log").do("run", job, nobody, paid) is None
    expected = load_counts(Path(job.result)).toarray()
    monkeypatch.setattr(Worker, "start", None)
    again = replace(job, result=str(tmp_path / "again.npz"))
    assert await Workers(tmp_path / "log", nursery=forks).do("run", again, nobody, paid) is None
    np.testing.assert_array_equal(load_counts(Path(again.result)).toarray(), expected)
    assert expected.any()


async def test_a_forked_process_has_its_node_s_environment_session_and_log(forks, job, tmp_path):
    found, process = await waiting(forks, job, tmp_path / "log")
    assert process.ppid() == process_of(forks).pid
    for _ in range(100):  # until it is a training process
        if os.getsid(found.pid) == found.pid:
            break
        await asyncio.sleep(0.05)
    assert os.getsid(found.pid) == found.pid
    opened = {os.readlink(f"/proc/{found.pid}/fd/{number}") for number in os.listdir(f"/proc/{found.pid}/fd")}
    assert str(tmp_path / "log") in opened
    assert not [each for each in opened if each.startswith("socket:")]
    await found.end()
    assert await gone(process)


async def test_a_forked_process_ends_with_its_node(forks, job, tmp_path):
    """A node that is killed says nothing any more: the kernel closes its connection."""
    node = tmp_path / "node.py"
    node.write_text(
        textwrap.dedent("""
        import asyncio, os, sys
        from pathlib import Path
        from party.tasks.forked import Forked
        from party.tasks.worker import training_environment
        async def main():
            found = await Forked.ask(Path(sys.argv[1]), "cooccurrence", training_environment(), 2)
            print(found.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """)
    )
    with subprocess.Popen([sys.executable, str(node), str(forks)], stdout=subprocess.PIPE, text=True) as asked:
        process = psutil.Process(int(await asyncio.to_thread(asked.stdout.readline)))
        process.suspend()  # it cannot see the end of its input
        asked.kill()
    assert await gone(process)


async def test_forked_processes_end_with_their_nursery_and_a_node_then_starts_its_own(forks, job):
    found, process = await waiting(forks, job)
    process_of(forks).kill()
    assert await gone(process)
    assert await found._process.wait() == -9
    assert await Workers(nursery=forks).do("run", job, nobody, paid) is None


async def test_a_node_with_other_settings_starts_its_own(forks, job, monkeypatch):
    assert await Worker.forked(forks, job, None, threads=2) is None
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    assert await Worker.forked(forks, job, None) is None
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    found, _ = await waiting(forks, job)
    await found.end()


async def test_nothing_of_a_party_stays_where_processes_are_forked(job, tmp_path, monkeypatch):
    """All memory of a nursery, after it forked a training that had a key, a census key and a token."""
    monkeypatch.setattr("party.store.memory.keep_private", None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = tmp_path / "python"  # one whose memory its user may read
    program.write_text(
        f"#!{sys.executable}\nimport os, runpy, sys\nsys.argv = sys.argv[3:]\n"
        "import party.store.memory\nparty.store.memory.keep_private = lambda: None\n"
        "runpy.run_module('party.tasks.nursery', run_name='__main__', alter_sys=False)\n"
    )
    program.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr("deploy.nursing.sys.executable", str(program))
        started = nursery("")
        socket = started.__enter__()
    monkeypatch.setenv("PARTYS_TOKEN", SECRET)
    try:
        workers = Workers(nursery=socket)
        monkeypatch.setattr(Worker, "start", None)
        assert await workers.do("run", job, nobody, paid) is None
        (found,) = [each for each in psutil.Process().children() if str(program) in each.cmdline()]
        memory = readable(found.pid)
        assert b"cooccurrence" in memory
        for secret in (SECRET, CENSUS, KEY, str(tmp_path / "rows.jsonl")):
            assert secret.encode() not in memory
            assert bytes.fromhex(secret) not in memory if secret in (SECRET, CENSUS, KEY) else True
        assert found.num_threads() == 1
    finally:
        started.__exit__(None, None, None)


def test_the_folder_of_a_nursery_whose_launcher_was_killed_goes_with_the_next(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="n-") as short:  # a socket's path is short
        _left_folders_are_swept(monkeypatch, Path(short))


def _left_folders_are_swept(monkeypatch, folder):
    monkeypatch.setattr("deploy.nursing.short_folder", lambda: str(folder))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for owner in (dead.pid, os.getppid()):
        (folder / f"conclave-nursery-{owner}-x").mkdir()
    with nursery("") as socket:
        kept = {socket.parent.name, f"conclave-nursery-{os.getppid()}-x"}
        assert {each.name for each in folder.iterdir()} == kept
        assert socket.parent.stat().st_mode & 0o777 == 0o700
    assert not socket.parent.exists()


def readable(pid):
    """All memory of a process that it may write."""
    found = []
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, how, *_ = line.split()
            if how.startswith("rw"):
                start, stop = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                found.append(memory.read(stop - start))
    return b"".join(found)


def test_the_generators_of_forked_processes_are_drawn_anew(tmp_path):
    said = in_process("""
        import os, random, sys
        import numpy as np
        from party.tasks.nursery import _forget_random_state
        for anew in (False, True):
            for _ in range(2):
                if (pid := os.fork()) == 0:
                    if anew:
                        _forget_random_state()
                    print(np.random.random(), flush=True)
                    os._exit(0)
                os.waitpid(pid, 0)
    """)
    assert said[0] == said[1]
    assert len(set(said)) == 3


def test_what_is_imported_for_models_leaves_one_thread_and_no_noise():
    said = in_process("""
        import gc, os
        from aggregation.noise.stream import NoiseStream
        from cryptography.hazmat.primitives.ciphers import CipherContext
        from party.tasks import nursery
        for task in ("step", "text_model", "teachers", "cooccurrence"):
            assert nursery._import(task)
        import torch
        print(len(os.listdir("/proc/self/task")))
        print(sum(isinstance(each, (NoiseStream, CipherContext)) for each in gc.get_objects()))
        print(torch.cuda.is_initialized())
    """)
    assert said == ["1", "0", "False"]


def test_a_nursery_with_a_second_thread_forks_nothing(job, monkeypatch):
    said = in_process("""
        import asyncio, os, socket, threading, time
        from pathlib import Path
        from party.tasks import nursery
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        sides = socket.socketpair()
        made = object.__new__(nursery.Nursery)
        print(made._fork(sides[0], {"task": "cooccurrence", "read": nursery.read_when_loaded(os.environ)}, [0, 1, 2]))
    """)
    assert said == ["threads"]


def in_process(code):
    """What a program says, line by line, with the environment of a nursery."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)],
        env=training_environment({**os.environ, "OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_parties_on_ray_have_the_settings_of_their_nursery(monkeypatch):
    """Otherwise every training would be started, and import what the nursery has imported."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    class Asks:
        def ask(self, socket):
            async def asked():
                found = await Forked.ask(Path(socket), "cooccurrence", training_environment(), 2)
                found.kill()
                return await found.wait()

            return asyncio.run(asked())

    with nursery("") as socket, embedded(1) as ray:
        actor = ray.remote(Asks).options(num_cpus=0).remote()
        assert ray.get(actor.ask.remote(str(socket))) == -9


@pytest.mark.parametrize(
    "libraries",
    [
        "sklearn",
        pytest.param(
            "datasets, dp_accounting, gensim, matplotlib, opacus, ray, sentence_transformers, torch, transformers",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_libraries_that_a_coordinator_imports_change_no_setting_that_a_nursery_compares(libraries):
    """A node inherits what they set in a coordinator, after the nursery was started: it would be refused every time."""
    program = f"""
        import os
        from party.tasks.forked import read_when_loaded
        from party.tasks.worker import training_environment
        before = read_when_loaded(training_environment(os.environ))
        import {libraries}
        after = read_when_loaded(training_environment(os.environ))
        print(set(after.items()) ^ set(before.items()))
    """
    bare = {name: os.environ[name] for name in ("PATH", "HOME")} | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
    }
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=bare, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "set()"
