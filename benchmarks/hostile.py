"""A run beside a thousand bad or hostile requests a second: whether it comes to the same, and what that takes.

    python benchmarks/hostile.py [--rate 1000] [--seconds 60] [--out FILE]

Two `party serve` nodes under mutual TLS and a `coordinator run` of one plan, with counts and teachers that train, all
under `insecure_reproducible_noise`: undisturbed, then again and again for so many seconds beside the flood, then
undisturbed once more. The flood comes from two processes, one a node, each over a few connections with calls sent by
the clock whether the earlier ones were answered or not. `KINDS` says of what kinds, and how much of each. Nodes,
coordinator, trainings and senders share the machine, so a run is slowed by the sending as well.

The nodes may answer `CALLS` calls a second, fewer than the default, so that a coordinator can ask too much: the run's
own calls are then among those that are refused as busy and made again.

Then whole runs with one hostile party of four each (`benchmarks/hostile_parties.py`).
"""

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import random
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil

from protos.conclave.v1 import party_pb2
from protos.identity.certificates import Role
from protos.identity.identity import load_identity
from protos.identity.tls import channel_credentials, channel_options
from protos.refusal import REASON_KEY

ROOT = Path(__file__).resolve().parents[1]

BUSY, FULL, LATE = "RESOURCE_EXHAUSTED busy", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"
OVERLOADED = frozenset({FULL, LATE, "CANCELLED"})
"""What may come of any call that a node has no time for: FULL without a reason, and CANCELLED, are gRPC's own words."""
CLOSED = frozenset({"closed", LATE})
UNKNOWN = OVERLOADED | {"UNAUTHENTICATED authentication"}


@dataclass(frozen=True)
class Kind:
    """One kind of badness: how many of a hundred requests are of it, and what may come of them."""

    share: int
    outcomes: frozenset[str]


KINDS = {
    "plain text": Kind(4, CLOSED),
    "no certificate": Kind(4, CLOSED),
    "another authority's certificate": Kind(4, CLOSED),
    "another party's certificate": Kind(4, CLOSED),
    "connection that says nothing": Kind(1, CLOSED | {"open at the end"}),
    "call that says nothing": Kind(1, UNKNOWN | {"open at the end"}),
    "revoked certificate": Kind(21, UNKNOWN),
    "revoked, and garbage": Kind(5, UNKNOWN),
    "unknown method": Kind(10, OVERLOADED | {"UNIMPLEMENTED"}),
    "garbage": Kind(15, OVERLOADED | {"INVALID_ARGUMENT request", BUSY}),
    "unknown run": Kind(10, OVERLOADED | {"FAILED_PRECONDITION not-joined", BUSY}),
    "message over the limit": Kind(1, OVERLOADED | {BUSY}),
    "asked too often": Kind(20, OVERLOADED | {"OK", BUSY}),
}
"""The first five are connections of their own. The rest are calls over standing connections, whose certificate was a
coordinator's and was revoked; from "unknown method" on it is the run's own coordinator's."""
CALLS = 200
"""What a node answers a second, of whoever may call."""
UNANSWERED = frozenset({LATE, "open at the end", "CANCELLED"})
CONNECTIONS = 2
"""Standing connections of each caller to each node."""
AT_ONCE = 1000
"""Calls of one sender that may wait for their answer; above it one that is due is left out, and counted."""
TICK = 0.01
DEADLINE = 10.0
OVERSIZE = bytes(4 * 2**20 + 1)
GARBAGE = b"\xff" * 64
TLS_ALERT = 21
NAMES = tuple(method.name for method in party_pb2.DESCRIPTOR.services_by_name["Party"].methods)
SERVICE = party_pb2.DESCRIPTOR.services_by_name["Party"].full_name


class Flood:
    """One sender, towards one node."""

    def __init__(self, name: str, address: str, folder: Path, party: str) -> None:
        """folder: of a scene that was made `ready`. party: another party, whose certificate is shown here."""
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._ended = asyncio.Event()
        self._number = 0
        federation = folder / "federation"
        self._revoked = self._channels(name, address, folder / "revoked.pem")
        self._coordinator = self._channels(name, address, federation / "coordinator.pem")
        authority = federation / "ca.pem"
        nobody, party_s, stranger_s = (
            tls_context(authority, bundle)
            for bundle in (None, folder / f"{party}.pem", folder / "stranger/coordinator.pem")
        )
        unknown = party_pb2.RunContext(run_id="nobodys-run", plan_hash=bytes(32))
        self._describe = party_pb2.DescribeRequest(nonce=bytes(16)).SerializeToString()
        self._attest = party_pb2.AttestRequest(run=unknown).SerializeToString()
        self._train = party_pb2.TrainRequest(run=unknown, operation_id="none").SerializeToString()
        self._answer = party_pb2.AnswerRequest(run=unknown, release="votes").SerializeToString()
        self._makes: dict[str, Callable[[], Awaitable[str]]] = {
            "plain text": lambda: self._connection(None),
            "no certificate": lambda: self._connection(nobody),
            "another authority's certificate": lambda: self._connection(stranger_s),
            "another party's certificate": lambda: self._connection(party_s),
            "connection that says nothing": self._silent,
            "call that says nothing": self._silent_call,
            "revoked certificate": lambda: self._called(self._revoked, self._verb(), b""),
            "revoked, and garbage": lambda: self._called(self._revoked, self._verb(), GARBAGE),
            "unknown method": lambda: self._called(self._coordinator, "Conspire", b""),
            "garbage": lambda: self._called(self._coordinator, self._verb(), GARBAGE),
            "unknown run": self._unknown_run,
            "message over the limit": lambda: self._called(self._coordinator, "Describe", OVERSIZE),
            "asked too often": lambda: self._called(self._coordinator, "Describe", self._describe),
        }

    async def send(self, rate: float, told: Callable[[dict[str, Any]], None]) -> None:
        """Send so many requests a second until standard input ends.

        told: once when the flood is on, and once with what came of it.
        """
        for channel in self._revoked + self._coordinator:
            await channel.channel_ready()
        cycle = [kind for kind, each in KINDS.items() for _ in range(each.share)]
        random.Random(0).shuffle(cycle)
        outcomes = {kind: Counter[str]() for kind in KINDS}
        times: list[float] = []
        waiting: set[asyncio.Task[None]] = set()
        offered = left_out = 0

        async def one(kind: str) -> None:
            sent = time.monotonic()
            outcome = await self._makes[kind]()
            outcomes[kind][outcome] += 1
            if outcome not in UNANSWERED and "nothing" not in kind:
                times.append(time.monotonic() - sent)

        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        began, at = time.monotonic(), psutil.Process().cpu_times()
        told({"on": True})
        while not ended.done():
            while offered + left_out < (time.monotonic() - began) * rate:
                if len(waiting) >= AT_ONCE:
                    left_out += 1
                    continue
                task = asyncio.create_task(one(cycle[offered % len(cycle)]))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                offered += 1
            await asyncio.sleep(TICK)
        seconds, now = time.monotonic() - began, psutil.Process().cpu_times()
        self._ended.set()
        if waiting:
            await asyncio.wait(waiting, timeout=DEADLINE + 5)
        for channel in self._revoked + self._coordinator:
            await channel.close()
        told(
            {
                "seconds": round(seconds, 2),
                "offered": offered,
                "left_out": left_out,
                "outcomes": {kind: dict(counts) for kind, counts in outcomes.items()},
                "answer_ms": {
                    f"p{at}": round(1000 * float(np.percentile(times or [0], at)), 1) for at in (50, 99, 100)
                },
                "processor_seconds": round(now.user + now.system - at.user - at.system, 2),
            }
        )

    def _channels(self, name: str, address: str, bundle: Path) -> list[grpc.aio.Channel]:
        who = load_identity(bundle, bundle.with_suffix(".key"), role=Role.COORDINATOR, authority=None, revoked=None)
        options = (*channel_options(name), ("grpc.use_local_subchannel_pool", 1))
        return [grpc.aio.secure_channel(address, channel_credentials(who), options=options) for _ in range(CONNECTIONS)]

    def _verb(self) -> str:
        self._number += 1
        return NAMES[self._number % len(NAMES)]

    async def _unknown_run(self) -> str:
        self._number += 1
        verb, content = (("Attest", self._attest), ("Train", self._train), ("Answer", self._answer))[self._number % 3]
        return await self._called(self._coordinator, verb, content)

    async def _called(self, channels: list[grpc.aio.Channel], verb: str, content: bytes) -> str:
        """One message to a verb, whatever it takes, as bytes; the status, and the reason that came with it."""
        self._number += 1
        call = channels[self._number % CONNECTIONS].unary_unary(f"/{SERVICE}/{verb}")
        try:
            await call(content, timeout=DEADLINE)
        except grpc.aio.AioRpcError as error:
            return said(error)
        return "OK"

    async def _silent_call(self) -> str:
        """A call of a verb that takes one message, which does not come."""

        call = self._revoked[0].stream_unary(f"/{SERVICE}/Describe")()
        ended = asyncio.create_task(self._ended.wait())
        answered = asyncio.create_task(call.code())
        await asyncio.wait([answered, ended], return_when=asyncio.FIRST_COMPLETED)
        if not answered.done():
            call.cancel()
            return "open at the end"
        ended.cancel()
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return said(error)
        return "OK"

    async def _connection(self, tls: ssl.SSLContext | None) -> str:
        """A connection that starts to speak HTTP/2, in plain text or after a handshake; "heard" if it is answered."""
        try:
            reader, writer = await asyncio.open_connection(
                self._host, self._port, ssl=tls, server_hostname="" if tls else None
            )
            with contextlib.closing(writer):
                writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
                heard = await asyncio.wait_for(reader.read(64), DEADLINE)
                return "heard" if heard and (tls is not None or heard[0] != TLS_ALERT) else "closed"
        except TimeoutError:
            return LATE
        except (ssl.SSLError, OSError):
            return "closed"

    async def _silent(self) -> str:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        with contextlib.closing(writer):
            reading, ended = asyncio.create_task(reader.read()), asyncio.create_task(self._ended.wait())
            done, _ = await asyncio.wait([reading, ended], return_when=asyncio.FIRST_COMPLETED)
            return "closed" if reading in done else "open at the end"


def said(error: grpc.aio.AioRpcError) -> str:
    """A status by its name, with the reason of a refusal."""
    reasons = [str(value) for key, value in tuple(error.trailing_metadata() or ()) if key == REASON_KEY]
    return " ".join([error.code().name, *reasons])


def tls_context(authority: Path, bundle: Path | None) -> ssl.SSLContext:
    """What a caller over HTTP/2 takes for its handshake: the certificate that it shows, if any."""
    context = ssl.create_default_context(cafile=authority)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if bundle is not None:
        context.load_cert_chain(bundle, bundle.with_suffix(".key"))
    return context


@contextmanager
def flood(folder: Path, addresses: dict[str, str], rate: float) -> Iterator[list[dict[str, Any]]]:
    """One sender for each node, sending while the block runs; what came of each is in the list at the end.

    addresses: of the parties' nodes in a scene's folder, by name. rate: requests a second, of all senders together.
    """
    senders, found = [], []
    try:
        for name, address in addresses.items():
            party = next(other for other in addresses if other != name)
            asked = [name, address, str(folder), party]
            command = [sys.executable, __file__, "--send", json.dumps(asked), "--rate", str(rate / len(addresses))]
            senders.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
        for sender in senders:
            assert sender.stdout is not None
            assert sender.stdout.readline(), "a sender did not come as far as sending"
        yield found
    finally:
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.close()
        for sender in senders:
            assert sender.stdout is not None
            found += [json.loads(line) for line in sender.stdout]
            sender.wait(60)


def ready(scene: Any) -> None:
    """Make who else calls, before anybody of a scene under TLS serves, and have the parties limit their calls."""
    from coordinator.identity import provisioning

    federation = scene.folder / "federation"
    for end in ("pem", "key"):
        shutil.copy(federation / f"coordinator.{end}", scene.folder / f"revoked.{end}")
    provisioning.revoke(federation, "coordinator.example")
    provisioning.renew(federation, fresh_keys=True)
    provisioning.make(scene.folder / "stranger", "coordinator.elsewhere")
    for name in scene.parties:
        path = scene.folder / f"{name}.toml"
        known = path.read_text().replace("authority = ", 'revoked = "federation/revoked.pem", authority = ')
        path.write_text(f"{known}[limits]\ncalls_per_second = {CALLS}\n")


def together(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What came of all senders. What was answered is what has an outcome but those of `UNANSWERED`."""
    outcomes = {kind: sum((Counter(each["outcomes"][kind]) for each in found), Counter[str]()) for kind in KINDS}
    seconds = statistics.mean(each["seconds"] for each in found)
    offered = sum(each["offered"] for each in found)
    answered = sum(n for each in outcomes.values() for outcome, n in each.items() if outcome not in UNANSWERED)
    return {
        "seconds": round(seconds, 1),
        "offered": offered,
        "offered_a_second": round(offered / seconds),
        "answered_a_second": round(answered / seconds),
        "left_out": sum(each["left_out"] for each in found),
        "outcomes": {kind: dict(each) for kind, each in outcomes.items()},
        "answer_ms": [each["answer_ms"] for each in found],
        "processor_seconds": round(sum(each["processor_seconds"] for each in found), 1),
    }


def unexpected(outcomes: dict[str, dict[str, int]]) -> list[str]:
    """Outcomes that a kind may not have, and kinds that were not sent."""
    found = [f"{kind}: none was sent" for kind, each in outcomes.items() if not each]
    return found + [
        f"{kind}: {outcome} ({count:,})"
        for kind, each in outcomes.items()
        for outcome, count in each.items()
        if outcome not in KINDS[kind].outcomes
    ]


PLAN = """
[run]
name = "hostile"
recipe = "dped"
seed = 3
[privacy]
epsilon = 8.0
delta = 1e-6
insecure_reproducible_noise = true
[federation]
launch = "connect"
identity = "federation"
parties = [{parties}]
[vocabulary]
source = "public.jsonl"
size = {words}
[dped]
signals = ["votes", "hidden", "counts"]
dimension = 32
teachers_per_party = 2
queries = {words}
block_rows = 20
[student]
publish = "published"
"""
WORDS, LETTERS, PUBLIC = 600, 4000, 400


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second, of all senders together")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long at least the flood goes on")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--send", metavar="JSON", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        asyncio.run(sending(json.loads(options.send), options.rate))
        return 0
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        found = measured(Path(name) / "scene", options.rate, options.seconds)
    print(table(found))
    found["parties"] = parties = hostile_parties().measured()
    print(hostile_parties().table(parties))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    odd = any(each["wrong"] for each in parties.values())
    return int(bool(found["differs"] or found["unexpected"] or odd))


async def sending(asked: list[str], rate: float) -> None:
    """What a sender's process does."""
    name, address, folder, party = asked
    await Flood(name, address, Path(folder), party).send(rate, lambda told: print(json.dumps(told), flush=True))


def measured(folder: Path, rate: float, seconds: float) -> dict[str, Any]:
    """The runs, undisturbed and beside the flood, and what differs between them."""
    found: dict[str, Any] = {"rate": rate, "cores": os.cpu_count(), "runs": []}
    with scene_module().Scene(folder, hosts={}) as scene:
        write_texts(folder)
        ready(scene)
        scene.serve_all()
        plan = folder / "plan.toml"
        entries = ", ".join(f'{{ name = "{name}", address = "{scene.address(name)}" }}' for name in scene.parties)
        plan.write_text(PLAN.format(parties=entries, words=WORDS))
        runs = found["runs"]
        runs.append(one_run(scene, plan, "before", flooded=False))
        memory = resident(scene)
        with flood(folder, {name: scene.address(name) for name in scene.parties}, rate) as senders:
            began, number, nodes = time.monotonic(), 0, processor(scene)
            while time.monotonic() < began + seconds:
                runs.append(one_run(scene, plan, f"beside-{number}", flooded=True))
                number += 1
            nodes = round(processor(scene) - nodes, 1)
        found["flood"] = together(senders)
        found["nodes_processor_seconds_beside_it"] = nodes
        found["nodes_mib"] = {"before": memory, "most": runs[-1]["nodes_most_mib"], "after": resident(scene)}
        runs.append(one_run(scene, plan, "after", flooded=False))
        found["differs"] = [each for run in runs[1:] for each in differing(scene, runs[0], run)]
        found["unexpected"] = unexpected(found["flood"]["outcomes"])
        scene.stop()
        found["left"] = scene.left()
    return found


def one_run(scene: Any, plan: Path, output: str, *, flooded: bool) -> dict[str, Any]:
    """Run a plan; its seconds, those of its stages, and the nodes' processor seconds meanwhile."""
    from coordinator.store.store import RunStore

    began, at = time.monotonic(), processor(scene)
    process = scene.coordinator("run", plan, "--output", output, "--json", cold=True)
    most = resident(scene)
    while process.poll() is None:
        time.sleep(0.05)
        most = {name: max(most[name], size) for name, size in resident(scene).items()}
    seconds, nodes = time.monotonic() - began, processor(scene) - at
    code, said = scene.outcome(process)
    if code:
        raise SystemExit(f"the run {output} ended with {code}: {said[-3000:]}")
    with closing(RunStore(scene.folder / output)) as store:
        stages = {name: round(ended - start, 2) for name, (start, ended, _) in store.stages().items() if ended}
    run = {"output": output, "flooded": flooded, "seconds": round(seconds, 2), "stages": stages}
    return run | {
        "nodes_processor_seconds": round(nodes, 2),
        "nodes_most_mib": most,
        "run": scene_module().last_json(said)["run"],
        "called_again": said.count("retrying"),
    }


def differing(scene: Any, was: dict[str, Any], run: dict[str, Any]) -> list[str]:
    """What of a run is not as in the first: model files, charges, and blocks claimed."""
    undisturbed = scene_module().Undisturbed(
        scene.student(was["output"]), scene.charged(was["run"]), scene.claimed(was["run"])
    )
    return [f"{run['output']}: {each}" for each in scene.differs(undisturbed, run["run"], run["output"])]


def processor(scene: Any) -> float:
    """Processor seconds of all nodes so far, without their trainings."""
    times = [psutil.Process(node.pid).cpu_times() for node in scene.nodes.values()]
    return sum(each.user + each.system for each in times)


def resident(scene: Any) -> dict[str, int]:
    """What each node holds, MiB."""
    return {name: round(psutil.Process(node.pid).memory_info().rss / 2**20) for name, node in scene.nodes.items()}


def write_texts(folder: Path) -> None:
    """Letters of twelve senders, and public text, in the same made-up words."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)}" for n in range(WORDS)])
    chances = 1 / np.arange(1, WORDS + 1)
    for name, rows, length in (("letters", LETTERS, 60), ("public", PUBLIC, 200)):
        with (folder / f"{name}.jsonl").open("w") as file:
            for number in range(rows):
                text = " ".join(rng.choice(words, length, p=chances / chances.sum()))
                file.write(json.dumps({"text": text, "sender": f"s{number % 12}"}) + "\n")


def scene_module() -> Any:
    """`tests/faults/scene.py`, which is in no package."""
    if "faults_scene" not in sys.modules:
        spec = importlib.util.spec_from_file_location("faults_scene", ROOT / "tests/faults/scene.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["faults_scene"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["faults_scene"]


def hostile_parties() -> Any:
    """`benchmarks/hostile_parties.py`, which is in no package."""
    if "hostile_parties" not in sys.modules:
        spec = importlib.util.spec_from_file_location("hostile_parties", ROOT / "benchmarks/hostile_parties.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["hostile_parties"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["hostile_parties"]


def table(found: dict[str, Any]) -> str:
    """What was found, to be read."""
    sent = found["flood"]
    alone = [run["seconds"] for run in found["runs"] if not run["flooded"]]
    beside = [run["seconds"] for run in found["runs"] if run["flooded"]]
    lines = [
        f"{sent['offered_a_second']:,} requests a second offered, {sent['answered_a_second']:,} answered, for "
        f"{sent['seconds']:g} s ({sent['left_out']:,} left out)",
        f"run, seconds: undisturbed {alone}, beside the flood {beside}",
        f"processor seconds beside it: nodes {found['nodes_processor_seconds_beside_it']}, senders "
        f"{sent['processor_seconds']}; nodes, MiB: {found['nodes_mib']}",
        *(
            f"  {kind}: " + ", ".join(f"{n:,} {what}" for what, n in each.items())
            for kind, each in sent["outcomes"].items()
        ),
        *(f"DIFFERS {each}" for each in found["differs"]),
        *(f"UNEXPECTED {each}" for each in found["unexpected"]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
