"""What the tensor codec costs: 64 MiB answered through it against bare bytes over the same gRPC, side by side.

    python benchmarks/streaming.py [--mebibytes 64] [--repetitions 15] [--out FILE]

The server is another process. All ways send pieces of the same size on the same channel, in turn, so that what else
the machine does falls on all. The codec's bytes end up in a checked int32 array; bare bytes are put into one buffer
("kept", what a receiver needs at least) or counted and thrown away ("dropped"). A ratio is the median over repetitions
of the codec's time over the other's next to it.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from protos.codec import CHUNK_BYTES, TensorReader
from protos.framing import framed, unframed

COLUMNS = 1024
MIB = 2**20


def tensor(mebibytes: int) -> "np.ndarray[Any, Any]":
    """What is sent: int32 [rows, 1024]."""
    return np.random.default_rng(0).integers(
        -(2**31), 2**31, (mebibytes * MIB // 4 // COLUMNS, COLUMNS), dtype=np.int32
    )


async def serve(mebibytes: int) -> None:
    """Answer both ways until the standard input closes."""
    array = tensor(mebibytes)
    raw = array.reshape(-1).view(np.uint8)

    async def coded(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for message in framed(1, array):
            yield message

    async def bare(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for offset in range(0, raw.size, CHUNK_BYTES):
            yield raw[offset : offset + CHUNK_BYTES].tobytes()

    server = grpc.aio.server()
    handlers = {
        "Coded": grpc.unary_stream_rpc_method_handler(coded),
        "Bare": grpc.unary_stream_rpc_method_handler(bare),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("benchmark.Streaming", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


async def measure(port: int, mebibytes: int, repetitions: int) -> dict[str, Any]:
    """Seconds of each way, in turn."""
    shape = (mebibytes * MIB // 4 // COLUMNS, COLUMNS)
    expected = tensor(mebibytes)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        coded_call = channel.unary_stream("/benchmark.Streaming/Coded", response_deserializer=unframed)
        bare_call = channel.unary_stream("/benchmark.Streaming/Bare")

        async def coded() -> float:
            began = time.perf_counter()
            reader, array = TensorReader(np.int32, shape), None
            async for piece in coded_call(b""):
                array = reader.put(piece.header, piece.offset, piece.data)
            took = time.perf_counter() - began
            assert array is not None
            assert np.array_equal(array, expected)
            return took

        async def kept() -> float:
            began, whole, at = time.perf_counter(), np.empty(mebibytes * MIB, np.uint8), 0
            async for piece in bare_call(b""):
                whole[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
                at += len(piece)
            assert at == len(whole)
            return time.perf_counter() - began

        async def dropped() -> float:
            began, size = time.perf_counter(), 0
            async for piece in bare_call(b""):
                size += len(piece)
            assert size == mebibytes * MIB
            return time.perf_counter() - began

        ways = {"codec": coded, "bare_kept": kept, "bare_dropped": dropped}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(repetitions + 1):
            for name in list(ways) if number % 2 else list(ways)[::-1]:
                took = await ways[name]()
                if number:  # the first warms the channel
                    seconds[name].append(took)
    size = mebibytes * MIB / 1e9

    def against(name: str) -> float:
        return statistics.median(codec / bare for codec, bare in zip(seconds["codec"], seconds[name], strict=True))

    return {
        "mebibytes": mebibytes,
        "repetitions": repetitions,
        "seconds": seconds,
        "gigabytes_per_second": {name: size / statistics.median(each) for name, each in seconds.items()},
        "codec_over_bare_kept": against("bare_kept"),
        "codec_over_bare_dropped": against("bare_dropped"),
    }


def main() -> int:
    """Measure, print one line, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(serve(given.mebibytes))
        return 0
    command = [sys.executable, __file__, "--serve", "--mebibytes", str(given.mebibytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        result = asyncio.run(measure(int(server.stdout.readline()), given.mebibytes, given.repetitions))
        server.communicate()
    speed = result["gigabytes_per_second"]
    print(
        f"{given.mebibytes} MiB: codec {speed['codec']:.2f} GB/s; bare bytes {speed['bare_kept']:.2f} GB/s kept, "
        f"{speed['bare_dropped']:.2f} GB/s dropped. The codec takes {result['codec_over_bare_kept']:.2f} times as long "
        f"as keeping them, {result['codec_over_bare_dropped']:.2f} times as long as dropping them."
    )
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
