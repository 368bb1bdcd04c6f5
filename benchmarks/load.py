"""Many parties under load: answers a second, what each party costs the coordinator, and whether its memory stays flat.

    python benchmarks/load.py [--parties N ...] [--queries N] [--minutes M] [--trust KIND] [--profile FOLDER] [--out F]

Nodes are the real ones behind mutual TLS, eight in a process so that 32 fit one machine. The coordinator's half of a
run, joining, providing, training and aggregating into a run store, is in a process of its own that reads its time and
memory. What is left out is learning: a training here takes the census of its shard, as every training does, and then
makes its result up, votes of two teachers among 50 classes and hidden states of 16 numbers a query. No student.

What is timed is the stage in which parties answer. `--minutes` adds a run whose parties answer so slowly that it lasts
that long, for the coordinator's memory over time.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from scipy import sparse

from protos.identity.requests import key_pem, make_request, new_keys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from secure_run import environment  # noqa: E402

if TYPE_CHECKING:
    from coordinator.systems.dped.plan import DpedPlan
    from coordinator.systems.dped.public import Public
    from party.tasks.job import Job

NODES_A_PROCESS = 8
WORDS = 12_000
CLASSES, WIDTH, TEACHERS = 50, 16, 2


def main() -> None:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parties", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--block-rows", type=int, default=500)
    parser.add_argument("--trust", default="trusted-aggregator")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="load-") as name:
        folder = Path(name)
        write_texts(folder)
        found: dict[str, Any] = {"queries": options.queries, "runs": []}
        with serving(folder, max(options.parties), None, options.profile) as addresses:
            for count in options.parties:
                found["runs"].append(measured(folder, dict(list(addresses.items())[:count]), options))
                print(json.dumps(found["runs"][-1]), flush=True)
        if options.minutes:
            rate = options.queries / (60 * options.minutes)
            with serving(folder, max(options.parties), rate, None) as addresses:
                found["slow"] = measured(folder, addresses, options, slow=True)
                print(json.dumps(found["slow"]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(
    folder: Path, addresses: dict[str, str], options: argparse.Namespace, *, slow: bool = False
) -> dict[str, Any]:
    """One run by a coordinator in a process of its own, as it measured itself."""
    asked = {
        "addresses": addresses,
        "queries": options.queries,
        "block_rows": max(1, options.block_rows // 10) if slow else options.block_rows,
        "trust": options.trust,
    }
    if options.profile is not None and not slow:
        options.profile.mkdir(parents=True, exist_ok=True)
        asked["profile"] = str((options.profile / f"coordinator-{len(addresses)}.txt").absolute())
    command = [sys.executable, __file__, "--coordinator", json.dumps(asked)]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


async def coordinate(asked: dict[str, Any]) -> dict[str, Any]:
    """The parties' half of a run, from joining to the last block stored."""
    from coordinator.federation.federation import Federation
    from coordinator.identity.identity import own_identity
    from coordinator.progress.events import Unobserved
    from coordinator.progress.progress import Silent
    from coordinator.store.store import RunStore
    from coordinator.systems.dped import recipe
    from coordinator.systems.registry import price_of
    from coordinator.transport.launchers import PartyAddress
    from protos.digest import plan_hash

    plan = asked_plan(asked)
    public = made_up_public(plan.vocabulary.size, asked["queries"])
    priced = price_of(plan, public)
    run_id = f"load-{time.monotonic_ns()}"
    store = RunStore.create(Path(run_id), run_id, "load", plan_hash(priced.binding))
    addresses = tuple(PartyAddress(name, address) for name, address in asked["addresses"].items())
    federation = Federation.at(addresses, priced, own_identity(plan, Path()), Silent(), Unobserved())
    seconds, samples, process = {}, [], psutil.Process()

    @contextmanager
    def stage(name: str) -> Iterator[dict[str, Any]]:
        began, at, result = time.perf_counter(), process.cpu_times(), {}
        yield result
        now = process.cpu_times()
        seconds[name] = time.perf_counter() - began, now.user + now.system - at.user - at.system
        seconds["bytes"] = result.get("bytes", 0), 0.0

    async def watched() -> None:
        while True:
            samples.append((time.perf_counter(), process.memory_info().rss / 2**20))
            await asyncio.sleep(0.25)

    try:
        await federation.open(run_id, priced)
        watching = asyncio.create_task(watched())
        await recipe.collect(priced, public, federation, store, stage)
        watching.cancel()
        await federation.leave()
    finally:
        await federation.close()
        store.close()
    wall, processor = seconds["aggregate"]
    memory = [round(each) for at, each in samples if at > samples[-1][0] - wall]
    return {
        "parties": len(addresses),
        "block_rows": asked["block_rows"],
        "train_seconds": round(seconds["train"][0], 2),
        "answer_seconds": round(wall, 2),
        "answers_a_second": round(len(addresses) * asked["queries"] / wall),
        "mebibytes": round(seconds["bytes"][0] / 2**20, 1),
        "coordinator_seconds": round(processor, 2),
        "memory_mib": {"first": memory[0], "largest": max(memory), "tenths": memory[:: max(1, len(memory) // 10)]},
    }


def made_up_public(words: int, queries: int) -> "Public":
    """A public side of so many words with any numbers in its reference."""
    from coordinator.systems.dped.public import Public
    from learning.embeddings.skipgram import SkipGram
    from learning.text.words import Vocabulary

    rng, every, letters = np.random.default_rng(0), np.arange(words), "abcdefghijklmnopqrstuvwxyz"
    inputs, outputs = (rng.normal(0, 0.3, (words, WIDTH)).astype(np.float32) for _ in range(2))
    return Public(
        Vocabulary(tuple("w" + "".join(letters[n // 26**place % 26] for place in (3, 2, 1, 0)) for n in every)),
        sparse.csr_array((words, words)),
        [],
        every[:queries],
        np.ones(queries, dtype=np.int64),
        every[:CLASSES],
        SkipGram(inputs, outputs, rng.normal(0, 0.3, words).astype(np.float32)),
        None,
        None,
    )


def asked_plan(asked: dict[str, Any]) -> "DpedPlan":
    """The plan of a run over so many parties."""
    from coordinator.systems.dped.plan import DpedPlan

    parties = [{"name": name, "address": address} for name, address in asked["addresses"].items()]
    return DpedPlan.model_validate(
        {
            "run": {"name": "load", "recipe": "dped", "seed": 3},
            "privacy": {"epsilon": 8.0, "delta": 1e-6, "trust": asked["trust"]},
            "federation": {"launch": "connect", "identity": "federation", "parties": parties},
            "vocabulary": {"source": "none.jsonl", "size": WORDS},
            "dped": {
                "signals": ["votes", "hidden"],
                "dimension": WIDTH,
                "queries": asked["queries"],
                "classes": CLASSES,
                "teachers_per_party": TEACHERS,
                "block_rows": asked["block_rows"],
            },
        }
    )


@contextmanager
def serving(folder: Path, count: int, rate: float | None, profile: Path | None) -> Iterator[dict[str, str]]:
    """So many provisioned nodes in processes of eight, by their addresses. rate: queries a second that each answers."""
    from coordinator.identity import provisioning
    from protos.identity.certificates import fingerprint, read_bundle
    from protos.identity.identity import write_private

    federation = folder / "federation"
    if not federation.exists():
        provisioning.make(federation, "coordinator.example")
    told = provisioning.authority_fingerprint(federation)
    names = [f"party-{number:02}" for number in range(1, count + 1)]
    tables: dict[str, dict[str, Any]] = {}
    signing: dict[str, str] = {}
    for number, name in enumerate(names):
        keys = new_keys()
        bundle, private = provisioning.vouched(federation, name, make_request(name, *keys)), key_pem(*keys)
        (folder / f"{name}.pem").write_bytes(bundle)
        (folder / f"{name}.key").unlink(missing_ok=True)
        write_private(folder / f"{name}.key", private)
        tables[name] = {
            "name": name,
            "listen": "127.0.0.1:0",
            "shard": {"source": "letters.jsonl", "part": {"parts": count, "part": number}},
            "policy": {"epsilon": 100000.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True},
            "identity": {"certificate": f"{name}.pem", "key": f"{name}.key", "authority": told},
            "limits": {} if rate is None else {"queries_per_second": rate},
        }
        signing[name] = fingerprint(read_bundle(bundle, name).signing)
    for name, table in tables.items():
        table["peers"] = {other: key for other, key in signing.items() if other != name}
    addresses = {}
    with ExitStack() as stack:
        for first in range(0, count, NODES_A_PROCESS):
            some = {name: tables[name] for name in names[first : first + NODES_A_PROCESS]}
            listed = folder / f"host-{first}.json"
            listed.write_text(json.dumps(some))
            command = [sys.executable, __file__, "--host", str(listed)]
            if profile is not None and first == 0:
                profile.mkdir(parents=True, exist_ok=True)
                command.append(str((profile / "parties.txt").absolute()))
            host = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            stack.callback(host.wait)
            assert host.stdin is not None
            stack.callback(host.stdin.close)
            assert host.stdout is not None
            addresses |= json.loads(host.stdout.readline())
        yield addresses


async def host(listed: Path) -> None:
    """Serve the nodes of a list until standard input ends."""
    from party.config import check_config
    from party.node.lifecycle import start
    from party.node.training import Training

    async def made_up(training: Training, job: "Job", charge: Callable[[], Awaitable[str]]) -> None:
        await charge()
        await asyncio.to_thread(result_of, job)

    Training._work = made_up  # type: ignore[method-assign, assignment]
    nodes = []
    for name, each in json.loads(listed.read_text()).items():
        nodes.append(await start(check_config(each, name), base=listed.parent, quiet=True))
    print(json.dumps({node.config.name: node.address for node in nodes}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await asyncio.gather(*(node.stop() for node in nodes))


def result_of(job: "Job") -> None:
    """A made-up bounded sum of the shape that the job asks for, and the census of its shard."""
    from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
    from party.releasing.mechanisms import answering
    from party.shard.counted import take_census
    from party.tasks.job import release_of
    from party.tasks.result import save_counts
    from party.tasks.teachers.request import TeachersWork

    assert isinstance(job.work, TeachersWork)
    take_census(job.reading)
    mechanism = answering(release_of(job.release))
    assert isinstance(mechanism, JointMechanism)
    rng, queries = np.random.default_rng(), len(job.work.queries)
    votes = rng.integers(0, mechanism.classes, (TEACHERS, queries))
    save_counts(
        Path(job.result), mechanism.contribute(TeacherSignal(votes, rng.normal(size=(TEACHERS, queries, 1, WIDTH))))
    )


def write_texts(folder: Path) -> None:
    """Letters for all shards."""
    rng = np.random.default_rng(0)
    with (folder / "letters.jsonl").open("w") as file:
        for _ in range(1600):
            file.write(json.dumps({"text": " ".join(f"w{number}" for number in rng.integers(0, 500, 40))}) + "\n")


@contextmanager
def sampled(where: str | None) -> Iterator[None]:
    """Write where the threads of this process were, looked at every 5 ms: of each, its own line and what called it."""
    if where is None:
        yield
        return
    ended, seen = threading.Event(), Counter[str]()

    def look() -> None:
        while not ended.wait(0.005):
            for thread, frame in sys._current_frames().items():
                if thread != threading.get_ident():
                    stack = [each for each in traceback.extract_stack(frame) if "/lib/python3" not in each.filename]
                    stack += traceback.extract_stack(frame)[-1:]
                    seen[" < ".join(f"{Path(each.filename).name}:{each.name}" for each in stack[:-4:-1])] += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        Path(where).write_text("".join(f"{count:6} {place}\n" for place, count in seen.most_common(60)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        with sampled(next(iter(sys.argv[3:]), None)):
            asyncio.run(host(Path(sys.argv[2])))
    elif sys.argv[1:2] == ["--coordinator"]:
        told = json.loads(sys.argv[2])
        with sampled(told.get("profile")):
            print(json.dumps(asyncio.run(coordinate(told))))
    else:
        main()
