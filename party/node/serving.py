"""The gRPC server of a node: its options, its port, and how messages are parsed and serialised."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from party.errors import PartyError
from protos.identity.identity import Identity
from protos.identity.tls import server_credentials

MORE_CALLS: Final = 4
"""The server accepts this many times the calls that the limits admit: health checks, and calls that it refuses with a
reason.
"""

HANDSHAKE_MS: Final = 20_000
"""Milliseconds in which a caller must show its certificate and speak HTTP/2; gRPC's own limit is 2 minutes."""

SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 4 * 2**20),
    ("grpc.max_metadata_size", 64 * 2**10),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


class Malformed:
    """Stands for bytes that are not a request of the expected type. The guards refuse it."""


class AsTheyCome:
    """Stands for the server when the stubs register their methods.

    Every verb gets its messages as a stream, also one that takes a single message: gRPC would otherwise wait for the
    message before the caller is authenticated, and a caller that sends none would occupy one of the concurrent calls.
    `Answer` alone is not serialised again. Bytes that are not a request become `Malformed`: gRPC would log a traceback
    for each of them.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Do nothing: registering methods by name is enough."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register the methods in both forms that servers know."""
        own = {
            verb: each._replace(
                request_streaming=True,
                request_deserializer=_or_malformed(each.request_deserializer),
                stream_unary=each.unary_unary or each.stream_unary,
                stream_stream=each.unary_stream or each.stream_stream,
                unary_unary=None,
                unary_stream=None,
            )
            for verb, each in handlers.items()
        }
        if "Answer" in own:
            own["Answer"] = own["Answer"]._replace(response_serializer=None)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
        self._server.add_registered_method_handlers(service, own)


def _or_malformed(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def parsed(content: bytes) -> object:
        try:
            return parse(content)
        except DecodeError:
            return Malformed()

    return parsed


def listen(server: grpc.aio.Server, host: str, port: int, identity: Identity | None) -> int:
    """Open the port, for mutual TLS where there is an identity, and return it. Raises RuntimeError as gRPC does."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if identity is None:
        return int(server.add_insecure_port(address))
    return int(server.add_secure_port(address, server_credentials(identity)))


def listen_here(server: grpc.aio.Server, path: Path, identity: Identity) -> None:
    """Listen at a socket of this machine alone, for mutual TLS. Raises RuntimeError as gRPC does."""
    server.add_secure_port(f"unix:{path}", server_credentials(identity))


def check_free(name: str, host: str, port: int) -> None:
    """Try the port with the system first, which says why it fails; gRPC only says that it failed. Raises
    `PartyError`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PartyError(no_port(name, host, port, (error.strerror or str(error)).lower()), code="C305") from None


def no_port(name: str, host: str, port: int, why: str) -> str:
    """The sentence that says why a port cannot be had."""
    return f"party {name} cannot listen on {host}:{port}: {why}. Stop what is there, or set another port in listen."
