"""Guards around every verb of the node: who may call it, and what an error may reveal."""

import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final, NoReturn, Protocol, TypeVar

import grpc
from grpc_health.v1 import health

from party.admission.limits import Limits, Quieter
from party.node.serving import Malformed
from party.store.disk import full, is_full
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal, abort
from protos.telemetry import tracing

log = logging.getLogger("conclave.party")

Said = TypeVar("Said")
Context = Any
Messages = AsyncIterator[Any]

_SERVICE: Final = party_pb2.DESCRIPTOR.services_by_name["Party"]
_UNQUOTED: Final = frozenset({Reason.SHARD, Reason.TRAINING})
"""Refusals whose sentence may come from an error about the shard; the JSON log does not repeat it."""


class Guarded(Protocol):
    """The parts of a node that its guards use."""

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def quieter(self) -> Quieter: ...

    @property
    def tracer(self) -> tracing.Tracer | None: ...

    def authenticate(self, context: Context) -> None: ...

    def refused(self, reason: Reason) -> None: ...


def guarded(verb: Callable[..., Awaitable[Said]]) -> Callable[..., Awaitable[Said]]:
    """Authenticate and limit the caller; turn a refusal into a gRPC status, and any other error into one without
    details.
    """

    asked = _asked(verb.__name__)

    @functools.wraps(verb)
    async def guarding(node: Guarded, requests: Messages, context: Context) -> Said:
        try:
            node.authenticate(context)
            with node.limits.call():
                request = await asked(requests)
                with _traced(node, verb.__name__, request, context):
                    return await verb(node, request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - what it says is decided in one place
            await _failed(node, verb.__name__, error, context)

    return guarding


def guarded_stream(verb: Callable[..., AsyncIterator[Said]]) -> Callable[..., AsyncIterator[Said]]:
    """The same for a verb that answers with a stream."""

    asked = _asked(verb.__name__)

    @functools.wraps(verb)
    async def guarding(node: Guarded, requests: Messages, context: Context) -> AsyncIterator[Said]:
        try:
            node.authenticate(context)
            with node.limits.call():
                request = await asked(requests)
                with _traced(node, verb.__name__, request, context):
                    async for message in verb(node, request, context):
                        yield message
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            await _failed(node, verb.__name__, error, context)

    return guarding


@contextlib.contextmanager
def _traced(node: Guarded, verb: str, request: Any, context: Context) -> Iterator[None]:
    """Trace an admitted call as a span below the caller's, where the party keeps traces.

    A server interceptor would run before the caller is authenticated, and would record spans of strangers.
    """
    call = tracing.serving(node.tracer, verb, request, context.invocation_metadata() or ())
    try:
        yield
    except BaseException as error:
        tracing.failed(call, error)
        raise
    call.end("answered")


def _asked(verb: str) -> Callable[[Messages], Awaitable[Any]]:
    """How a verb gets its input: one message, read once its caller is authenticated, or the stream of messages."""
    return _stream if _SERVICE.methods_by_name[verb].client_streaming else _only


async def _only(requests: Messages) -> Any:
    """The one message of a call. Raises `Refusal` (REQUEST) where its bytes could not be parsed, or none came."""
    async for request in requests:
        return _whole(request)
    raise Refusal(Reason.REQUEST, "the call ended before its request came.")


async def _stream(requests: Messages) -> Messages:
    return _each(requests)


async def _each(requests: Messages) -> Messages:
    async for request in requests:
        yield _whole(request)


def _whole(request: Any) -> Any:
    """A parsed request. Raises `Refusal` (REQUEST) where its bytes could not be parsed."""
    if isinstance(request, Malformed):
        raise Refusal(Reason.REQUEST, "what came is no request of this protocol; its bytes cannot be read.")
    return request


class GuardedHealth(health.aio.HealthServicer):
    """The health service, for callers that may call the node."""

    def __init__(self, node: Guarded) -> None:
        super().__init__()
        self._node = node

    async def Check(self, requests: Messages, context: Context) -> Any:  # type: ignore[override]  # noqa: N802
        """Whether a service serves; strangers are refused."""
        return await super().Check(await self._asked(requests, context), context)

    async def Watch(self, requests: Messages, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """The same, from now on."""
        await super().Watch(await self._asked(requests, context), context)

    async def List(self, requests: Messages, context: Context) -> NoReturn:  # noqa: N802
        """Not implemented; gRPC's own version would log a traceback for each call."""
        await self._asked(requests, context)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ask for the health of one service.")
        raise AssertionError("unreachable")

    async def _asked(self, requests: Messages, context: Context) -> Any:
        try:
            self._node.authenticate(context)
            return await _only(requests)
        except Refusal as refusal:
            self._node.refused(refusal.reason)
            await abort(context, refusal)


async def _failed(node: Guarded, verb: str, error: Exception, context: Context) -> NoReturn:
    """End the call with an error without details; the party's own log has the rest."""
    if not isinstance(error, Refusal) and is_full(error):
        log.error("%s failed: %s", verb, error)
        error = full(node.name)
    if isinstance(error, Refusal):
        why = "" if error.reason in _UNQUOTED else f": {' '.join(error.sentence.split())}"
        event = "storage" if error.reason is Reason.STORAGE else "refused"
        level = logging.WARNING if event == "storage" else logging.INFO
        if (line := node.quieter.line(f"{verb} refused ({error.reason}){why}")) is not None:
            log.log(level, "%s", line, extra={"event": event, "reason": str(error.reason)})
        node.refused(error.reason)
        await abort(context, error)
    log.error("%s failed", verb, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"party {node.name} failed in {verb}; its own log says why.")
    raise AssertionError("unreachable")
