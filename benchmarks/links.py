"""Whole small runs over links that delay, lose and cut: how long they take, and whether anything is lost or paid twice.

    python benchmarks/links.py [--only calls,slow,cut] [--cuts 1000] [--repetitions 3] [--out FILE]

Real processes on loopback, under mutual TLS, as `tests/faults` has them. Between a party and its coordinator stands a
TCP proxy, whichever of the two connects.

calls: a small call, at a port and over a dialled connection, in turn. slow: whole runs of two parties, both of which
listen or both of which dial; `asking_s` are the seconds of the stages in which parties are asked. The proxy holds every
byte back for 25 ms each way. Of segments of 1,448 bytes it loses one in a hundred: that one, and all that is behind it,
comes 250 ms later, as after a retransmission timeout. (A kernel that has netem would lose real packets; the one of
these figures has none.)

cut: north dials, south listens, and the connections of each are reset a thousand times, after 3,000 to 24,000 bytes
both ways: in handshakes, between blocks and amid them. The student and the ledgers are compared with
those of the same run undisturbed.
"""

import argparse
import asyncio
import functools
import importlib.util
import itertools
import json
import random
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dialling
import numpy as np

from coordinator.transport.dialled.way import DialledWay, opened_gate
from coordinator.transport.grpc_link import GrpcLink
from protos.dialling.thread import LoopThread
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import Identity, parse_identity

ROOT = Path(__file__).resolve().parents[1]
SEGMENT = 1448
WAITING = 4 * 2**20
"""Bytes that a link holds of one direction."""
ONE_WAY, AGAIN = 0.025, 0.25
"""Seconds that a byte takes, and that a lost segment comes later."""
SHORTEST, LONGEST = 3_000, 24_000
"""Bytes both ways between two cuts."""
WORDS = 1_200
"""Words of the run that is cut: as many blocks, of 5 kB each."""


@dataclass
class Fault:
    """What a link does. loss: the part of segments that is lost. cuts: how often it is still to be cut."""

    delay: float = 0.0
    loss: float = 0.0
    cuts: int = 0


KINDS = {"no link": Fault(), "50 ms": Fault(ONE_WAY), "50 ms, 1% lost": Fault(ONE_WAY, 0.01)}


class Link:
    """A TCP proxy on a thread of its own. cut: how often connections were reset. carried: how many bytes came."""

    def __init__(self, target: int, fault: Fault, seed: int = 0) -> None:
        self._target, self._fault = target, fault
        self._rng = random.Random(seed)
        self._thread = LoopThread("link")
        self._open: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._left = self._rng.uniform(SHORTEST, LONGEST)
        self.cut = self.carried = self.connections = 0
        self.port = 0

    def __enter__(self) -> "Link":
        self._thread.__enter__()
        self.port = self._thread.run(self._begin())
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.__exit__()

    async def _begin(self) -> int:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._fault.delay)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        ends = writer, far_writer
        self._open.add(ends)
        try:
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        finally:
            self._open.discard(ends)
            for each in ends:
                each.close()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WAITING // SEGMENT)
        sending = asyncio.create_task(self._send(way, sink))
        due = 0.0
        try:
            while piece := await source.read(SEGMENT):
                lost = AGAIN if self._rng.random() < self._fault.loss else 0.0
                due = max(due, time.monotonic() + self._fault.delay + lost)
                await way.put((due, piece))
                self.carried += len(piece)
                self._count(len(piece))
            await way.put((due, b""))
            await sending
        except OSError:
            pass
        finally:
            sending.cancel()

    async def _send(self, way: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                due, piece = await way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not piece:
                    sink.write_eof()
                    return
                sink.write(piece)
                await sink.drain()

    def _count(self, size: int) -> None:
        if self.cut >= self._fault.cuts:
            return
        self._left -= size
        if self._left <= 0:
            self.cut += 1
            self._left = self._rng.uniform(SHORTEST, LONGEST)
            for ends in self._open:
                for writer in ends:
                    with suppress(OSError):  # both sides see a reset
                        writer.get_extra_info("socket").setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )
                    writer.transport.abort()


@functools.cache
def beside(name: str) -> Any:
    """A module of `tests/faults`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/faults/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scenes() -> Any:
    """`tests/faults/scene.py`; its processes may take hours."""
    module = beside("scene")
    module.SECONDS = 10_000
    return module


@contextmanager
def imported(folder: Path) -> Iterator[dict[str, Any]]:
    """What forks the processes of each command, with all that they import: how long that takes is not measured."""
    plan = scenes().Scene(folder / "imported").plan()
    with beside("warm").Warm("party") as party, beside("warm").Warm("coordinator", plan) as coordinator:
        yield {"party": party, "coordinator": coordinator}


@contextmanager
def linked(scene: Any, faults: dict[str, Fault], write: Callable[..., Path]) -> Iterator[tuple[dict[str, Link], Path]]:
    """Every party of a scene behind a link of its own; the links, and the plan with their addresses. Parties serve."""
    with ExitStack() as stack:
        links = {
            name: stack.enter_context(Link(scene.gate if name in scene.dials else scene.ports[name], faults[name], n))
            for n, name in enumerate(scene.parties)
        }
        gate = scene.gate
        for name in scene.parties:
            scene.gate = links[name].port if name in scene.dials else gate
            scene.serve(name)
        scene.gate = gate
        direct = {name: f"127.0.0.1:{link.port}" for name, link in links.items() if name not in scene.dials}
        yield links, write(scene, direct)
        scene.stop()


def ran(scene: Any, plan: Path, output: str) -> tuple[float, str]:
    """Seconds of a run from the command to its end, and its id."""
    began = time.monotonic()
    code, said = scene.outcome(scene.run(plan, output=output))
    seconds = time.monotonic() - began
    if code != 0:
        raise SystemExit(said)
    return seconds, str(scenes().last_json(said)["run"])


def asked(path: Path) -> dict[str, float]:
    """Seconds of each stage of a finished run in which parties are asked."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as sql:
        stages = sql.execute("SELECT name, finished - started FROM stages").fetchall()
    return {name: seconds for name, seconds in stages if name in ("join", "provide", "train", "aggregate", "attest")}


def slow(folder: Path, repetitions: int, warm: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a small run by link and by who connects; all of them in turn, so often."""
    kinds, parties = KINDS, ("north", "south")
    found: dict[str, dict[str, Any]] = {}
    students = []
    for number, way, kind in itertools.product(range(repetitions), ("direct", "dialled"), kinds):
        place = folder / f"{number}-{way}-{list(kinds).index(kind)}"
        dials = parties if way == "dialled" else ()
        with scenes().Scene(place, parties, warm, dials=dials, hosts={}) as scene:
            faults = dict.fromkeys(parties, kinds[kind])
            with linked(scene, faults, lambda scene, at: scene.plan(at, deadline=20)) as (links, plan):
                seconds, run = ran(scene, plan, "run")
                carried = sum(link.carried for link in links.values())
            asking = sum(asked(scene.folder / "run" / "run.sqlite").values())
            students.append(scene.student())
            charges = {len(each) for each in scene.charged(run).values()}
        none: dict[str, list[float]] = {"seconds": [], "asking_s": [], "bytes": [], "charges_a_party": []}
        kept = found.setdefault(way, {}).setdefault(kind, none)
        kept["seconds"].append(round(seconds, 2))
        kept["asking_s"].append(round(asking, 2))
        kept["bytes"].append(carried)
        kept["charges_a_party"] = sorted({*kept["charges_a_party"], *charges})
        print(way, kind, kept, flush=True)
    for kept in (each for way in found.values() for each in way.values()):
        kept |= {f"{name}_median": round(statistics.median(kept[name]), 2) for name in ("seconds", "asking_s")}
    return found | {"same_student": all(each == students[0] for each in students)}


async def called(own: Identity, way: DialledWay, port: int, count: int) -> dict[str, Any]:
    """Milliseconds of a small call at a port and over a dialled connection, in turn."""
    links = {
        "direct": GrpcLink("north", f"127.0.0.1:{port}", identity=own, deadline=60),
        "dialled": GrpcLink("north", way.address, identity=own, way=way, deadline=60),
    }
    taken: dict[str, list[float]] = {name: [] for name in links}
    try:
        assert await way.missing(60) is None
        for number in range(count + 3):
            for name, link in links.items():
                seconds = await dialling.call(link)
                if number >= 3:  # the first make the connection
                    taken[name].append(seconds)
    finally:
        for link in links.values():
            await link.close()
    return {f"{name}_ms": dialling.spread(seconds, 1e3) for name, seconds in taken.items()}


def calls(count: int) -> dict[str, Any]:
    """What a small call takes by link and by who connects."""
    found = {}
    authority = new_authority("benchmark")
    bundle, keys = dialling.issued(authority, "coordinator.here", Role.COORDINATOR)
    own = parse_identity(bundle, keys, role=Role.COORDINATOR)
    for kind, fault in KINDS.items():
        with ExitStack() as stack:
            way = stack.enter_context(opened_gate("127.0.0.1:0", ["north"], own))["north"]
            gate = stack.enter_context(Link(int(way.gate.address.rpartition(":")[2]), fault))
            command = [sys.executable, dialling.__file__, "--serve", f"127.0.0.1:{gate.port}"]
            party = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(party)
            assert party.stdin is not None
            assert party.stdout is not None
            party.stdin.write(json.dumps([each.decode() for each in dialling.issued(authority, "north", Role.PARTY)]))
            party.stdin.write("\n")
            party.stdin.flush()
            link = stack.enter_context(Link(int(party.stdout.readline()), fault, 1))
            found[kind] = asyncio.run(called(own, way, link.port, count))
            party.stdin.close()
        print("calls", kind, found[kind], flush=True)
    return found


def write_words(folder: Path) -> None:
    """Letters of twelve senders and public text, in more made-up words than `tests/faults` has."""
    rng = np.random.default_rng(0)
    sounds = [start + end for start in "bdfgklmnprst" for end in ("a", "e", "i", "o")]
    words = [one + other for one in sounds for other in sounds][: WORDS + 100]

    def rows(count: int) -> Iterator[str]:
        for number in range(count):
            yield json.dumps({"text": " ".join(rng.choice(words, 60)), "sender": f"s{number % 12}"})

    (folder / "letters.jsonl").write_text("\n".join(rows(400)))
    (folder / "public.jsonl").write_text("\n".join(rows(400)))


def cut(folder: Path, cuts: int, warm: dict[str, Any]) -> dict[str, Any]:
    """What comes of a run whose connections are cut so often."""
    dials = ("north",)

    def write(scene: Any, addresses: dict[str, str]) -> Path:
        path = Path(scene.plan(addresses, deadline=20, retry=600))
        path.write_text(path.read_text().replace("size = 40", f"size = {WORDS}").replace("rows = 4", "rows = 1"))
        return path

    with scenes().Scene(folder / "cut", warm=warm, dials=dials) as scene:
        write_words(scene.folder)
        scene.serve_all()
        began = time.monotonic()
        undisturbed = scene.undisturbed(write(scene, {}), "undisturbed")
        calm = time.monotonic() - began
        scene.stop()
        with linked(scene, dict.fromkeys(scene.parties, Fault(cuts=cuts)), write) as (links, plan):
            seconds, run = ran(scene, plan, "run")
        return {
            "cuts": {name: link.cut for name, link in links.items()},
            "connections": {name: link.connections for name, link in links.items()},
            "bytes": {name: link.carried for name, link in links.items()},
            "blocks_a_party": len(undisturbed.claimed["north"]),
            "seconds": round(seconds, 1),
            "seconds_undisturbed": round(calm, 1),
            "charges_a_party": {name: len(each) for name, each in scene.charged(run).items()},
            "differs": scene.differs(undisturbed, run),
            "left": [each for each in scene.left() if not each.startswith("file tmp")],
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="calls,slow,cut")
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(given.out.read_text()) if given.out is not None and given.out.exists() else {}

    def keep(name: str, part: dict[str, Any]) -> None:
        found[name] = part
        if given.out is not None:
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    wanted = set(given.only.split(","))
    if "calls" in wanted:
        keep("calls", calls(given.calls))
    if wanted & {"slow", "cut"}:
        with tempfile.TemporaryDirectory(prefix="links-") as name, imported(Path(name)) as warm:
            if "slow" in wanted:
                keep("slow", slow(Path(name), given.repetitions, warm))
            if "cut" in wanted:
                keep("cut", cut(Path(name), given.cuts, warm))
    print(json.dumps(found, indent=1))
    if found.get("cut", {}).get("differs"):
        sys.exit("the run that was cut is not the one that was not")


if __name__ == "__main__":
    main()
