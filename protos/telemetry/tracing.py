"""The spans of a run at either end, in one trace: what was done and for how long, never its content.

Spans use OpenTelemetry's API; only `protos.telemetry.exporting` uses its SDK, and is imported where traces are asked
for. Otherwise nothing is recorded, and `span` and `begin` do next to nothing. `checked` decides what a span may
contain.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context

from protos.conclave.v1 import party_pb2
from protos.refusal import Refusal

ATTRIBUTES: Final = frozenset(
    {
        "attempt",
        "batch",
        "bytes",
        "made",
        "outcome",
        "party",
        "reason",
        "release",
        "resumed",
        "round",
        "run",
        "stage",
        "try",
        "verb",
    }
)
"""The attributes that a span may have, each under the prefix `conclave.`; besides them it has only its name and its
times.
"""

TRACEPARENT: Final = "traceparent"
"""The key of the W3C Trace Context in a call's metadata."""

_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_MOST: Final = 2**63

Value = str | bool | int
Ids = tuple[int, int]
"""A trace and a span in it, 128 and 64 bits."""


_SAMPLED: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_WELL: Final = frozenset({"answered", "done"})


class Part:
    """A span of something in progress; only attributes that `checked` accepts are set."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        """The header with which the other end's spans become children of this one; empty where nothing is recorded."""
        ids = self._span.get_span_context()
        return f"00-{ids.trace_id:032x}-{ids.span_id:016x}-01" if ids.is_valid else ""

    def begin(self, name: str, attributes: Mapping[str, object]) -> "Part":
        """Begin a child span."""
        if self is OFF:
            return OFF
        # A call's span is one half of a pair; the other half is at a party.
        kind = trace.SpanKind.CLIENT if "verb" in attributes else trace.SpanKind.INTERNAL
        told, above = checked(attributes), trace.set_span_in_context(self._span, Context())
        return Part(self._tracer, self._tracer.start_span(name, above, kind=kind, attributes=told))

    def set(self, attributes: Mapping[str, object]) -> None:
        """Set more attributes."""
        if self._span.is_recording():
            self._span.set_attributes(checked(attributes))

    def end(self, outcome: str, reason: str = "") -> None:
        """End the span; calling it again does nothing. outcome: `answered` or `done` where all is well."""
        if self._span.is_recording():
            self._span.set_attributes(checked({"outcome": outcome, "reason": reason}))
            if outcome not in _WELL:
                self._span.set_status(trace.Status(trace.StatusCode.ERROR))
            self._span.end()


class Tracer:
    """Begins root spans. `protos.telemetry.exporting` says where they are delivered."""

    def __init__(
        self,
        tracer: trace.Tracer,
        being: Callable[[Ids], AbstractContextManager[None]],
        close: Callable[[], None],
    ) -> None:
        """being: gives the span that is begun inside it these ids. close: delivers what is left, or drops it soon."""
        self._tracer = tracer
        self._being = being
        self.close = close

    def run(self, run: str, resumed: int) -> Part:
        """Begin the span of driving a run, or of driving it again, then linked to the first; ids come from its run
        id.
        """
        links = [trace.Link(_context(ids_of(run, 0)))] if resumed else []
        told = checked({"run": run, "resumed": resumed})
        with self._being(ids_of(run, resumed)):
            root = self._tracer.start_span("run", Context(), links=links)
        root.set_attributes(told)
        return Part(self._tracer, root)

    def serve(self, verb: str, parent: Ids | None, attributes: Mapping[str, object]) -> Part:
        """Begin the span of a served call, below the caller's span where it named one."""
        above = Context()
        if parent is not None:
            above = trace.set_span_in_context(trace.NonRecordingSpan(_context(parent)), above)
        told = checked(attributes)
        return Part(self._tracer, self._tracer.start_span(verb, above, kind=trace.SpanKind.SERVER, attributes=told))


OFF: Final = Part(trace.NoOpTracer(), trace.INVALID_SPAN)
_part: ContextVar[Part] = ContextVar("conclave_part", default=OFF)
"""This is not OpenTelemetry's own current span: parties must not learn what a surrounding program traces, and that
program's libraries need not know of our spans.
"""
_tracer: ContextVar[Tracer | None] = ContextVar("conclave_tracer", default=None)


def is_url(to: str) -> bool:
    """Whether spans go to an address instead of a file."""
    return _URL.match(to) is not None


def checked(attributes: Mapping[str, object]) -> dict[str, Value]:
    """The attributes of a span: under `conclave.`, and only those of `ATTRIBUTES`.

    A value that is neither a boolean, a number from 0 to 2**63 - 1 nor a name of at most 80 letters, digits and `._:-`
    is left out: nothing that was written by people or quotes a record passes. Raises ValueError for another attribute.
    """
    if unknown := attributes.keys() - ATTRIBUTES:
        raise ValueError(
            f"a span does not tell {', '.join(sorted(unknown))}; `protos.telemetry.tracing` says what it may tell."
        )
    return {f"conclave.{name}": value for name, each in attributes.items() if (value := _plain(each)) is not None}


def _plain(value: object) -> Value | None:
    match value:
        case bool():
            return value
        case int() if 0 <= value < _MOST:
            return value
        case str() if _NAME.fullmatch(value):
            return str(value)
    return None


def current() -> Part:
    """The current span."""
    return _part.get()


def begin(name: str, **attributes: object) -> Part:
    """Begin a child of the current span; the caller ends it."""
    return _part.get().begin(name, attributes)


@contextmanager
def span(name: str, **attributes: object) -> Iterator[Part]:
    """A child of the current span, which is current inside the context."""
    if _part.get() is OFF:
        yield OFF
        return
    with _inside(begin(name, **attributes)) as part:
        yield part


@contextmanager
def within(outer: Part) -> Iterator[None]:
    """Make `outer` the current span inside the context."""
    before = _part.set(outer)
    try:
        yield
    finally:
        _part.reset(before)


@contextmanager
def on(tracer: Tracer) -> Iterator[None]:
    """Use this tracer for the runs driven inside the context, and close it at the end."""
    before = _tracer.set(tracer)
    try:
        yield
    finally:
        _tracer.reset(before)
        tracer.close()


@contextmanager
def run(name: str, resumed: int) -> Iterator[None]:
    """The root span of a whole run."""
    tracer = _tracer.get()
    with _inside(OFF if tracer is None else tracer.run(name, resumed)):
        yield


def serving(tracer: Tracer | None, verb: str, request: object, metadata: Iterable[tuple[str, str | bytes]]) -> Part:
    """The span of an admitted call; the caller can only choose which of its own spans is the parent.

    It is current for the rest of the call's own task.
    """
    if tracer is None:
        return OFF
    named = getattr(getattr(request, "run", None), "run_id", None)
    served = tracer.serve(verb, parent_of(metadata), {"verb": verb, "run": named})
    _part.set(served)
    return served


def _context(ids: Ids) -> trace.SpanContext:
    return trace.SpanContext(*ids, is_remote=True, trace_flags=_SAMPLED)


def parent_of(metadata: Iterable[tuple[str, str | bytes]]) -> Ids | None:
    """The caller's span by the call's metadata; None where it names none or several, or where it is malformed.

    The caller does not decide whether anything is recorded, so its flags are not read.
    """
    given = [value for key, value in metadata if key == TRACEPARENT]
    found = _PARENT.fullmatch(given[0]) if len(given) == 1 and isinstance(given[0], str) else None
    ids = (0, 0) if found is None else (int(found[1], 16), int(found[2], 16))
    return ids if all(ids) else None


def metadata() -> tuple[tuple[str, str], ...]:
    """The metadata that tells a call's receiver the current span; empty while no tracer is on."""
    said = _part.get().traceparent
    return ((TRACEPARENT, said),) if said else ()


def ids_of(run: str, resumed: int) -> Ids:
    """The ids of a run's trace and of the span of driving it, computed from its random id, so that they are the same
    after a kill.
    """
    trace = hashlib.sha256(f"conclave trace\0{run}".encode()).digest()
    root = hashlib.sha256(f"conclave root\0{run}\0{resumed}".encode()).digest()
    return int.from_bytes(trace[:16]) or 1, int.from_bytes(root[:8]) or 1


def round_name(number: int) -> str:
    """The name of a round of the secure sum, also for an unknown number."""
    try:
        return party_pb2.SumRound.Name(number).removeprefix("SUM_ROUND_").lower()  # type: ignore[arg-type]
    except ValueError:
        return "unknown"


def failed(part: Part, error: BaseException) -> None:
    """End a span with an exception, of which only the type is recorded."""
    if isinstance(error, Refusal):
        part.end("refused", str(error.reason))
    else:
        part.end(
            "cancelled" if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt) else "failed"
        )


@contextmanager
def _inside(part: Part) -> Iterator[Part]:
    with within(part):
        try:
            yield part
        except BaseException as error:
            failed(part, error)
            raise
        part.end("done")
