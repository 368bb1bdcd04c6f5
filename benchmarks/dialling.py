"""What dialling adds to a call and to a stream, and how long a party takes to be back after its connection was cut.

    python benchmarks/dialling.py [--calls 2000] [--repetitions 15] [--cuts 50] [--out FILE]

One party in another process serves the same gRPC server, under the same mutual TLS, at a port and over a connection
that it dialled. Both ways are measured in turn in one run, on loopback, so that what else the machine does falls on
both. A figure is a median; a ratio is the median over repetitions of the dialled way's time over the direct one's.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from coordinator.transport.dialled.way import DialledWay, opened_gate
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.link import Answered, Batch
from party.dialling.destination import destination
from party.dialling.dialler import dialling
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.dialling.sockets import socket_folder
from protos.framing import framed
from protos.identity.authority import Authority, new_authority
from protos.identity.certificates import Role
from protos.identity.identity import Identity, parse_identity
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.tls import server_credentials

COLUMNS = 1024
MEBIBYTES = 64
ROWS = MEBIBYTES * 2**20 // 4 // COLUMNS


def issued(authority: Authority, name: str, role: Role) -> tuple[bytes, bytes]:
    """A bundle and private keys of a name."""
    transport, signing = new_keys()
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return bundle.pem(), key_pem(transport, signing)


class Party(PartyServicer):
    """Describes itself and answers with one block of 64 MiB."""

    def __init__(self) -> None:
        self._block = np.random.default_rng(0).integers(-(2**31), 2**31, (ROWS, COLUMNS), dtype=np.int32)

    async def Describe(self, request: Any, context: Any) -> Any:  # noqa: N802
        return party_pb2.DescribeResponse(name="north", protocol_version=PROTOCOL_VERSION)

    async def Answer(self, requests: Any, context: Any) -> Any:  # noqa: N802
        async for request in requests:
            for message in framed(request.batch, self._block):
                yield party_pb2.AnswerResponse.FromString(message)


async def serve(gate: str) -> None:
    """Serve at a port, and dial the gate, until the standard input closes; identities come on its first line."""
    bundle, keys = (part.encode() for part in json.loads(sys.stdin.readline()))
    identity = parse_identity(bundle, keys, role=Role.PARTY)
    server = grpc.aio.server()
    add_PartyServicer_to_server(Party(), server)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(identity))
    with socket_folder() as folder:
        server.add_secure_port(f"unix:{folder}/node.sock", server_credentials(identity))
        await server.start()
        with dialling(destination(gate, "none"), identity, folder / "node.sock"):
            print(port, flush=True)
            await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


async def call(link: GrpcLink) -> float:
    """Seconds of one small call."""
    began = time.perf_counter()
    assert isinstance(await link.describe(b"n" * 32), Answered)
    return time.perf_counter() - began


async def stream(link: GrpcLink) -> float:
    """Seconds of 64 MiB."""
    began = time.perf_counter()
    async for outcome in link.answer("counts", [Batch(0, 0, ROWS)], COLUMNS):
        assert isinstance(outcome, Answered)
    return time.perf_counter() - began


def spread(seconds: list[float], scale: float) -> dict[str, float]:
    """Median, and the 10th and 90th of a hundred."""
    tenths = statistics.quantiles(seconds, n=10)
    return {
        name: round(value * scale, 3)
        for name, value in (("median", statistics.median(seconds)), ("p10", tenths[0]), ("p90", tenths[-1]))
    }


async def compared(links: dict[str, GrpcLink], calls: int, repetitions: int) -> dict[str, Any]:
    """Calls and streams over both ways in turn."""
    small: dict[str, list[float]] = {name: [] for name in links}
    large: dict[str, list[float]] = {name: [] for name in links}
    for link in links.values():
        for _ in range(50):
            await call(link)
        await stream(link)
    for _ in range(calls):
        for name, link in links.items():
            small[name].append(await call(link))
    for _ in range(repetitions):
        for name, link in links.items():
            large[name].append(await stream(link))
    ratios = [dialled / direct for direct, dialled in zip(large["direct"], large["dialled"], strict=True)]
    return {
        "call_ms": {name: spread(seconds, 1e3) for name, seconds in small.items()},
        "stream_s": {name: spread(seconds, 1.0) for name, seconds in large.items()},
        "stream_mib_a_second": {name: round(MEBIBYTES / statistics.median(each)) for name, each in large.items()},
        "stream_ratio": round(statistics.median(ratios), 2),
    }


async def cut(link: GrpcLink, way: DialledWay, cuts: int) -> dict[str, Any]:
    """Seconds from a cut until a call is answered again; and of a call over a channel made anew without a cut."""
    place = way.gate.places[way.name]
    back, lost = [], 0

    async def cuts_all() -> None:
        place.cut()

    for _ in range(cuts):
        assert isinstance(await link.describe(b"n" * 32), Answered)
        await way.thread.done(cuts_all())
        began = time.perf_counter()
        while not isinstance(await link.describe(b"n" * 32), Answered):
            lost += 1
        back.append(time.perf_counter() - began)
        await asyncio.sleep(0.5)  # so that the party's pace of dialling, which bounds a hostile gate, is not measured
    return {"cuts": cuts, "back_ms": spread(back, 1e3), "longest_ms": round(max(back) * 1e3), "calls_lost": lost}


async def measured(
    own: Identity, way: DialledWay, port: int, calls: int, repetitions: int, cuts: int
) -> dict[str, Any]:
    """All figures."""
    links = {
        "direct": GrpcLink("north", f"127.0.0.1:{port}", identity=own, deadline=30),
        "dialled": GrpcLink("north", way.address, identity=own, way=way, deadline=30),
    }
    try:
        assert await way.missing(30) is None
        found = await compared(links, calls, repetitions)
        return found | {"after_a_cut": await cut(links["dialled"], way, cuts)}
    finally:
        for link in links.values():
            await link.close()


def main() -> None:
    """Measure and print, or serve as the party."""
    parser = argparse.ArgumentParser(description="What dialling costs.")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", metavar="GATE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
        return
    authority = new_authority("benchmark")
    bundle, keys = issued(authority, "coordinator.here", Role.COORDINATOR)
    own = parse_identity(bundle, keys, role=Role.COORDINATOR)
    with opened_gate("127.0.0.1:0", ["north"], own) as ways:
        command = [sys.executable, __file__, "--serve", ways["north"].gate.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as party:
            assert party.stdin is not None
            assert party.stdout is not None
            party.stdin.write(json.dumps([part.decode() for part in issued(authority, "north", Role.PARTY)]) + "\n")
            party.stdin.flush()
            port = int(party.stdout.readline())
            found = asyncio.run(measured(own, ways["north"], port, given.calls, given.repetitions, given.cuts))
            party.stdin.close()
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
