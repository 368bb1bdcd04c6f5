"""The server that a node is behind: its options, its port, and how answers get on the wire."""

import socket
from typing import Any, Final

import grpc

from party.errors import PartyError

SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)


class AnswersInBytes:
    """Stands for the server when the stubs register their methods; `Answer` alone is not serialised once more."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Nothing: what is registered by name is enough."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Pass the methods on by both ways that servers know them."""
        own = handlers | {"Answer": handlers["Answer"]._replace(response_serializer=None)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
        self._server.add_registered_method_handlers(service, own)


def check_free(name: str, host: str, port: int) -> None:
    """Ask the system for the port first: it says why not, where gRPC only says that it failed. Raises `PartyError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PartyError(no_port(name, host, port, (error.strerror or str(error)).lower())) from None


def no_port(name: str, host: str, port: int, why: str) -> str:
    """The sentence that says why a port cannot be had."""
    return f"party {name} cannot listen on {host}:{port}: {why}. Stop what is there, or set another port in listen."
