"""Exports spans through OpenTelemetry's SDK, to a collector or into a file. Imported only where traces are asked for.

Delivery never delays a run: spans wait in a bounded queue for a thread of their own; a span that finds the queue full,
or cannot be delivered soon, is dropped.
"""

import base64
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from protos.telemetry.tracing import Ids, Tracer, checked, is_url

QUEUE: Final = 4096
"""The most spans that wait to be delivered; a further one pushes out the oldest."""
BATCH: Final = 256
EVERY: Final = 1.0
"""Seconds between deliveries."""
PATIENCE: Final = 5.0
"""Seconds that one delivery may take."""
CLOSING: Final = 3.0
"""Seconds at the end for delivering what is left."""


def exporter(to: str, base: Path) -> SpanExporter:
    """The exporter to a collector, for `http://` and `https://` (OTLP over HTTP), otherwise into a file below `base`.

    A URL without a path gets `/v1/traces`. Raises ValueError for a URL without a host, OSError for a file that cannot
    be written.
    """
    if not is_url(to):
        return Lines(base / to)
    try:
        url = urlsplit(to)
        known = url.scheme in ("http", "https") and url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f'"{to}" is no address of a collector. Write http://host:4318, or the name of a file.')
    endpoint = f"{to.rstrip('/')}/v1/traces" if url.path in ("", "/") else to
    return OTLPSpanExporter(endpoint=endpoint, timeout=PATIENCE)


def delivering(delivers: SpanExporter, service: str, party: str = "") -> Tracer:
    """A tracer whose spans go only to this exporter.

    service: `conclave-coordinator` or `conclave-party`; party: its name. OpenTelemetry's own log messages about failed
    deliveries are silenced: one sentence says it once, and quotes no address and no answer. Closing the tracer delivers
    what is left, for a moment at most; a thread that is still delivering does not keep the process alive.
    """
    for library in ("opentelemetry.sdk", "opentelemetry.exporter"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    ids = _Ids()
    provider = _Provider(
        sampler=ALWAYS_ON,
        resource=Resource({"service.name": service, **checked({"party": party})}),
        shutdown_on_exit=False,
        id_generator=ids,
        span_limits=SpanLimits(max_attributes=32, max_attribute_length=128, max_events=0, max_links=1),
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            _Told(delivers, logging.getLogger(service.replace("-", "."))),
            max_queue_size=QUEUE,
            schedule_delay_millis=EVERY * 1000,
            max_export_batch_size=BATCH,
            export_timeout_millis=PATIENCE * 1000,
        )
    )

    def close() -> None:
        closing = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(CLOSING)

    return Tracer(provider.get_tracer("conclave"), ids.being, close)


class _Provider(TracerProvider):
    def _handle_fork(self) -> None:
        """In a child process only make the lock anew.

        The library also looks up what it knows of the process, in threads of a pool. Where another program is started
        from a thread, as Ray starts its own, that waits for ever for a lock that the fork left taken. The spans here
        have a resource that no process changes.
        """
        self._tracers_lock = threading.Lock()


class Lines(SpanExporter):
    """A file of OTLP in JSON, one delivery a line, as collectors read it (`otlpjsonfile`); only its owner may read
    it.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab", buffering=0)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append these spans."""
        try:
            said = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
            self._file.write(json.dumps(_hexadecimal(said)).encode() + b"\n")
        except (OSError, ValueError):  # a full disk; closed meanwhile
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


class _Told(SpanExporter):
    """Says once that nothing is delivered, and once that delivery works again."""

    def __init__(self, delivers: SpanExporter, log: logging.Logger) -> None:
        self._delivers = delivers
        self._log = log
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._delivers.export(spans)
        if (failing := result is not SpanExportResult.SUCCESS) != self._failing:
            self._failing = failing
            if failing:
                self._log.warning(
                    "traces cannot be delivered and are dropped; nothing waits for them", extra={"event": "traces"}
                )
            else:
                self._log.warning("traces are delivered again", extra={"event": "traces"})
        return result

    def shutdown(self) -> None:
        self._delivers.shutdown()


class _Ids(IdGenerator):
    """Random ids from the system, which neither a plan's seed nor a fork repeats; for a run's root span, fixed ids."""

    def __init__(self) -> None:
        self._given = threading.local()

    @contextmanager
    def being(self, ids: Ids) -> Iterator[None]:
        """The span that is begun inside the context, on this thread, gets these ids."""
        self._given.ids = ids
        try:
            yield
        finally:
            self._given.ids = None

    def generate_trace_id(self) -> int:
        given: Ids | None = getattr(self._given, "ids", None)
        return secrets.randbits(128) or 1 if given is None else given[0]

    def generate_span_id(self) -> int:
        given: Ids | None = getattr(self._given, "ids", None)
        return secrets.randbits(64) or 1 if given is None else given[1]


def _hexadecimal(said: Any) -> Any:
    """Ids in hexadecimal, as OTLP in JSON has them; protobuf's own JSON uses base64."""
    if isinstance(said, list):
        return [_hexadecimal(each) for each in said]
    if not isinstance(said, dict):
        return said
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64decode(each).hex() if key in ids else _hexadecimal(each) for key, each in said.items()}
