"""The meaning of a failed call: a refusal, or a loss that may pass or not. Bytes that are not a message are a loss."""

from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from coordinator.transport.silence import Silent, Stuck, Unheard
from protos.codec import MalformedTensor
from protos.refusal import Reason, Refusal, plain, printable, refusal_of


class Garbled(Unheard):
    """A party sent bytes that are not a message."""


class Garbage:
    """Stands for bytes that are not a message."""


class Readable:
    """Stands for a channel when the stubs register their methods: bytes that are not a message come as `Garbage`.

    gRPC would log a traceback for each of them, and return None.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        make = getattr(self._channel, kind)

        def made(path: str, *, response_deserializer: Callable[[bytes], object], **more: Any) -> Any:
            return make(path, response_deserializer=or_garbage(response_deserializer), **more)

        return made


def or_garbage(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A parser that never raises, whatever a party sent."""

    def parsed(content: bytes) -> object:
        try:
            return parse(content)
        except DecodeError:
            return Garbage()

    return parsed


def refused(error: BaseException) -> Refusal | None:
    """The refusal in a failed call, None where it is a loss: a node that is ending or busy may answer later."""
    refusal = refusal_of(error) if isinstance(error, grpc.aio.AioRpcError) else None
    return None if refusal is not None and refusal.reason in (Reason.DRAINING, Reason.BUSY) else refusal


def why_lost(error: BaseException, address: str) -> tuple[str, bool]:
    """Why a call to an address was lost, to complete "party north was lost: ...", and whether asking again may help."""
    match error:
        case Stuck():
            return str(error), False
        case Silent():
            return f"no answer for {error.seconds:g} s; its node at {address} does not answer health checks", True
        case Garbled():
            return "it sent bytes that are no answer of this protocol: another version of Conclave may run there", False
        case MalformedTensor():
            return f"it sent something that cannot be used: {printable(str(error))}", False
        case grpc.aio.AioRpcError():
            return _why_failed(error, address)
    return f"the connection to {address} broke", True


def _why_failed(error: grpc.aio.AioRpcError, address: str) -> tuple[str, bool]:
    refusal, details = refusal_of(error), plain(error.details() or "")
    if refusal is not None and refusal.reason == Reason.DRAINING:
        return f"its node at {address} is about to end", True
    if refusal is not None:
        return f"its node at {address} is asked too much at once", True
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return f"nothing answers at {address}", True
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers at {address} is not a Conclave party of this protocol", False
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "oncurrent RPC" in (error.details() or ""):
            return f"its node at {address} is asked too much at once", True
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return f"a message to or from {address} was over the size limit ({details})", False
        case code:
            return f"{address} failed with {code.name}: {details}", True
