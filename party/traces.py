"""Where a party's spans go: only where its own administrator says."""

from pathlib import Path

from party.config import PartyConfig, TracesTable
from party.errors import PartyError
from protos import tracing


def tracer_of(config: PartyConfig) -> tracing.Tracer | None:
    """What keeps this party's spans; None where the party file asks for none.

    Raises `PartyError` for a URL that is none, a file that cannot be written, and without OpenTelemetry.
    """
    if config.traces is None:
        return None
    to = config.traces.to
    try:
        return tracing.tracer(to, Path("/"), "conclave-party", config.name)
    except (ValueError, ImportError) as error:
        raise PartyError(f"party {config.name}, [traces] to: {error}") from None
    except OSError as error:
        raise PartyError(
            f"party {config.name} cannot write {to}: {error.strerror}. Name another file in [traces] to."
        ) from None


def located_traces(traces: TracesTable | None, base: Path) -> TracesTable | None:
    """The table with a file made absolute from `base`, the folder of the party file."""
    if traces is None or tracing.is_url(traces.to):
        return traces
    return TracesTable(to=str((base / traces.to).absolute()))
