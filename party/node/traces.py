"""Where a party's spans go: only where its own administrator says."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from party.config import PartyConfig, TracesTable
from party.errors import PartyError
from protos.telemetry import tracers, tracing


def tracer_of(config: PartyConfig) -> tracing.Tracer | None:
    """The tracer of this party; None where the party file asks for no traces.

    Raises `PartyError` for an invalid URL, a file that cannot be written, and without OpenTelemetry.
    """
    if config.traces is None:
        return None
    to = config.traces.to
    with _said(config.name, to):
        return tracers.tracer(to, Path("/"), "conclave-party", config.name)


def check_traces(config: PartyConfig, base: Path) -> None:
    """Raises `PartyError` where `tracer_of` would. Sends nothing, and makes no file. base: of the party file."""
    table = located_traces(config.traces, base)
    if table is None:
        return
    into_a_file = not tracing.is_url(table.to)
    with _said(config.name, table.to):
        # If a file is wanted, another is opened in its place: this still shows which package is missing.
        tracers.tracer(os.devnull if into_a_file else table.to, Path("/"), "conclave-party", config.name).close()
        if into_a_file:
            _check_writable(Path(table.to))


def _check_writable(path: Path) -> None:
    """Raises OSError where a file cannot be appended to, or made."""
    if os.path.lexists(path):
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
    elif not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def _said(party: str, to: str) -> Iterator[None]:
    """Why there are no traces, as a `PartyError`."""
    try:
        yield
    except (ValueError, ImportError) as error:
        raise PartyError(f"party {party}, [traces] to: {error}") from None
    except OSError as error:
        raise PartyError(
            f"party {party} cannot write {to}: {error.strerror}. Name another file in [traces] to."
        ) from None


def located_traces(traces: TracesTable | None, base: Path) -> TracesTable | None:
    """The table with a file made absolute from `base`, the folder of the party file."""
    if traces is None or tracing.is_url(traces.to):
        return traces
    return TracesTable(to=str((base / traces.to).absolute()))
