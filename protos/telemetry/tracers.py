"""Makes tracers where traces are asked for; only then is OpenTelemetry's SDK imported."""

from pathlib import Path

from protos.telemetry.tracing import Tracer


def tracer(to: str, base: Path, service: str, party: str = "") -> Tracer:
    """A tracer that delivers to a collector, by its URL, or into a file below `base`; see `protos.telemetry.exporting`.

    Raises ImportError, with a sentence, where OpenTelemetry is not installed; ValueError, with one, for an invalid URL;
    OSError for a file that cannot be written.
    """
    try:
        from protos.telemetry import exporting
    except ImportError:
        raise ImportError(
            'traces need OpenTelemetry, which is not installed: pip install "conclave-distill[otel]".'
        ) from None
    return exporting.delivering(exporting.exporter(to, base), service, party)
