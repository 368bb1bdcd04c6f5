"""How long a node takes to answer a health check: idle, and while four parties train on this machine.

    python benchmarks/health.py [--parties 4] [--seconds 10] [--out FILE]

Every party is `party serve` as a process of its own, its shard 200,000 made-up records. Each is asked every 10 ms over
a connection of its own, by this process; a time runs from the call to its answer, so the caller's own wait for a
processor is in it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from learning.text.words import Vocabulary
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.digest import artefact_digest, plan_hash

INTERVAL = 0.01
RECORDS = 200_000
WORDS = tuple(f"word{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(500))
FILE = """
name = "party-{number}"
listen = "127.0.0.1:0"
plaintext = true
[shard]
source = "text.jsonl"
part = {{ parts = {parties}, part = {number} }}
[policy]
epsilon = 10.0
delta = 1e-6
recipes = ["dped"]
simulation = true
"""


@contextlib.contextmanager
def parties(folder: Path, count: int) -> Iterator[list[str]]:
    """Serve `count` parties; their addresses. All are ended afterwards."""
    started: list[subprocess.Popen[str]] = []
    try:
        for number in range(count):
            path = folder / f"party-{number}.toml"
            path.write_text(FILE.format(number=number, parties=count))
            command = [sys.executable, "-m", "party.console.command", "serve", "--config", str(path), "--json"]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True))
        yield [json.loads(each.stdout.readline())["address"] for each in started if each.stdout]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()


async def asked(address: str, until: asyncio.Event) -> list[float]:
    """Milliseconds of one health check after the other until told to stop."""
    times = []
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        await stub.Check(health_pb2.HealthCheckRequest())
        while not until.is_set():
            began = time.perf_counter()
            await stub.Check(health_pb2.HealthCheckRequest())
            times.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(INTERVAL)
    return times


def plan_for(count: int) -> plan_pb2.Plan:
    """A plan that the parties admit."""
    counts = plan_pb2.CountsMechanism(
        clip=16.0, levels=256, noise_multiplier=1.0, shares=count, distribution="gaussian"
    )
    privacy = plan_pb2.Privacy(
        epsilon=9.0,
        delta=1e-6,
        unit=plan_pb2.UNIT_RECORD,
        record=plan_pb2.RECORD_DOCUMENT,
        trust=plan_pb2.TRUST_TRUSTED_AGGREGATOR,
    )
    terms = plan_pb2.Terms(
        recipe="dped",
        parties=[f"party-{number}" for number in range(count)],
        minimum_parties=count,
        privacy=privacy,
        releases=[plan_pb2.Release(name="counts", charges=1, form=plan_pb2.FORM_SUMMED, counts=counts)],
    )
    return plan_pb2.Plan(document="{}", terms=terms)


async def begin(address: str, plan: plan_pb2.Plan) -> Any:
    """Join and provide; returns the training call, begun."""
    channel = grpc.aio.insecure_channel(address)
    stub: Any = PartyStub(channel)
    run = party_pb2.RunContext(run_id="health", plan_hash=plan_hash(plan))
    vocabulary = Vocabulary(WORDS).to_bytes()
    sha256 = artefact_digest(vocabulary)
    await stub.Join(party_pb2.JoinRequest(protocol_version=PROTOCOL_VERSION, run=run, plan=plan))
    header = party_pb2.ArtefactHeader(run=run, kind="vocabulary", sha256=sha256, size=len(vocabulary))
    await stub.Provide(iter([party_pb2.ProvideRequest(header=header), party_pb2.ProvideRequest(data=vocabulary)]))
    task = party_pb2.CooccurrenceTask(release="counts", vocabulary_sha256=sha256, window=5)
    call = stub.Train(party_pb2.TrainRequest(run=run, operation_id="counts-0", cooccurrence=task))
    await call.read()
    return call


async def measure(addresses: Sequence[str], seconds: float) -> dict[str, Any]:
    """Health checks of all parties at once, idle and then training."""

    async def over(length: float, calls: Sequence[Any] = ()) -> tuple[list[float], float]:
        done = asyncio.Event()
        checks = [asyncio.create_task(asked(address, done)) for address in addresses]
        began = time.monotonic()
        ends = [asyncio.create_task(_end_of(call)) for call in calls]
        await asyncio.wait(ends, timeout=length, return_when=asyncio.FIRST_COMPLETED) if ends else None
        await asyncio.sleep(0 if ends else length)
        lasted = time.monotonic() - began
        done.set()
        times = [each for check in checks for each in await check]
        for call in calls:
            call.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        return times, lasted

    idle, _ = await over(seconds / 2)
    plan = plan_for(len(addresses))
    calls = await asyncio.gather(*(begin(address, plan) for address in addresses))
    training, lasted = await over(seconds, calls)
    return {"idle": summary(idle), "training": summary(training), "seconds_of_training": lasted}


async def _end_of(call: Any) -> None:
    while not (await call.read()).finished:
        pass


def summary(times: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    return {
        "checks": len(times),
        "p50_ms": float(np.percentile(times, 50)),
        "p99_ms": float(np.percentile(times, 99)),
        "worst_ms": max(times),
    }


def main() -> int:
    """Measure, print one line, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parties", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to ask while the parties train")
    parser.add_argument("--out", type=Path, metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conclave-health-") as name:
        folder, draw = Path(name), random.Random(0)
        with (folder / "text.jsonl").open("w") as file:
            for _ in range(RECORDS):
                file.write(json.dumps({"text": " ".join(draw.choices(WORDS, k=40))}) + "\n")
        with parties(folder, given.parties) as addresses:
            result = asyncio.run(measure(addresses, given.seconds))
    result |= {"parties": given.parties, "cores": os.cpu_count()}
    print(
        f"health check, {given.parties} parties on {os.cpu_count()} cores: "
        f"training p99 {result['training']['p99_ms']:.1f} ms, worst {result['training']['worst_ms']:.1f} ms; "
        f"idle p99 {result['idle']['p99_ms']:.1f} ms, worst {result['idle']['worst_ms']:.1f} ms "
        f"({result['training']['checks']} checks in {result['seconds_of_training']:.1f} s of training)"
    )
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
