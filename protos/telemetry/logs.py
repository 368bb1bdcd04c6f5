"""Logs for machines: one JSON object a line, with only the fields that are allowed.

Both ends log in the same way, because both hold data that must not be logged: a party its text and answers, a
coordinator keys and what it is trusted with. Lists in this module decide what may be shown:

    logger.info("north joined the run", extra={"event": "joined", "run": run_id, "party": "north"})
    {"time": "2026-11-02T10:03:12.345Z", "level": "info", "event": "joined", "message": "north joined the run", ...}

An event's sentence comes from the code that logs it and is shown, so it must not quote a record, an answer or an error.
"""

import json
import logging
import math
from datetime import UTC, datetime
from numbers import Integral, Real
from typing import Any, Final, TextIO

FIELDS: Final = frozenset(
    {
        "batch",
        "batches",
        "bytes",
        "doing",
        "done",
        "epsilon",
        "operation",
        "party",
        "reason",
        "release",
        "rule",
        "run",
        "seconds",
        "stage",
        "state",
        "total",
    }
)
"""The extra fields that a log line may have. All others are left out, whoever set them."""

LONGEST: Final = 300
"""The most characters of a sentence or field that are shown; the rest is cut."""

WITHHELD: Final = "not shown: it was not written for this log"


def json_lines(stream: TextIO) -> logging.Handler:
    """A handler that writes every record to `stream` as one line of JSON, flushed at once.

    Shown: time (UTC), level, `event`, the sentence, and the extra fields named in `FIELDS` when they are numbers,
    truths or short strings. Of an exception its type, never its message or traceback: they may quote a record. Of a
    record without an `event`, as libraries write them, the logger's name only.
    """
    handler = _Lines(stream)
    handler.setFormatter(_OneObject())
    return handler


class _Lines(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the record: logging's own handler would print message and arguments, and a full disk must not end a
        run.
        """


class _OneObject(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = vars(record)
        event = fields.get("event")
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        shown: dict[str, Any] = {"time": time.replace("+00:00", "Z"), "level": record.levelname.lower()}
        if isinstance(event, str):
            shown |= {"event": _cut(event), "message": _cut(_sentence(record))}
            shown |= {name: value for name in sorted(FIELDS & fields.keys()) if (value := _plain(fields[name])) != ()}
        else:
            shown |= {"event": "other", "message": WITHHELD, "logger": _cut(record.name)}
        if record.exc_info and record.exc_info[0] is not None:
            shown["error"] = record.exc_info[0].__name__
        return json.dumps(shown, allow_nan=False)


def _sentence(record: logging.LogRecord) -> str:
    """The message with its arguments; exceptions in it are replaced by their type."""
    if isinstance(record.msg, BaseException):
        return type(record.msg).__name__
    message = str(record.msg)
    if not isinstance(record.args, tuple) or not record.args:
        return message
    safe = tuple(type(each).__name__ if isinstance(each, BaseException) else each for each in record.args)
    try:
        return message % safe
    except (TypeError, ValueError):
        return message


def _plain(value: Any) -> Any:
    """A number, boolean, string or None as JSON has it; `()` for everything else, which is left out."""
    match value:
        case None | bool():
            return value
        case str():
            return _cut(value)
        case Integral():
            return int(value)
        case Real():
            return float(value) if math.isfinite(value) else None
    return ()


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
