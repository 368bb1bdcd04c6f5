"""A party that ends the connection with an HTTP/2 error code of no meaning: an outcome, never the coordinator's end.

grpcio 1.84.0 to 1.85.1 aborts the process of a client that is told such a code, so the caller here is one of its own.
"""

import socket
import struct
import subprocess
import sys
import threading
from contextlib import closing

import pytest

pytestmark = pytest.mark.slow

SETTINGS, GOAWAY, RST_STREAM = 4, 7, 3
ACK = 1
ASKS = """
import asyncio, sys
from coordinator.transport.grpc_link import GrpcLink

async def ask():
    link = GrpcLink("north", sys.argv[1], deadline=1.0)
    print(type(await link.describe(b"n" * 32)).__name__)
    await link.close()

asyncio.run(ask())
"""


def frame(kind, flags, stream, payload):
    """One frame of HTTP/2 (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def goaway(code):
    return frame(GOAWAY, 0, 0, struct.pack(">II", 0, code))


def reset(code):
    return frame(RST_STREAM, 0, 1, struct.pack(">I", code))


def answering(listening, last):
    """Greets whoever connects as a node would, waits for the call, and answers it with `last` alone."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with closing(connection):
            heard = b""
            connection.sendall(frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACK, 0, b""))
            try:
                while b"/Describe" not in heard:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    heard += piece
                connection.sendall(last)
                while connection.recv(65536):
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("code", [13, 14, 200])
@pytest.mark.parametrize("ends", [goaway, reset])
def test_an_end_of_no_meaning_is_a_loss_and_not_the_coordinators_end(ends, code):
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        threading.Thread(target=answering, args=(listening, ends(code)), daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        asked = subprocess.run([sys.executable, "-c", ASKS, address], capture_output=True, text=True, timeout=60)
    assert (asked.returncode, asked.stdout) == (0, "Lost\n"), asked.stderr
