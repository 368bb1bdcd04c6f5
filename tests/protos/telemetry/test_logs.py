"""Logs for machines show what is listed, one JSON object a line, and nothing else."""

import io
import json
import logging
from datetime import UTC, datetime

import numpy as np
import pytest

from protos.telemetry.logs import FIELDS, LONGEST, WITHHELD, json_lines

SECRET = "the patient in room nine"


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def logger(stream, request):
    logger = logging.getLogger(f"test.logs.{request.node.name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(json_lines(stream))
    return logger


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_object_a_line_with_time_level_sentence_and_fields(logger, stream):
    before = datetime.now(UTC)
    logger.info("north joined", extra={"event": "joined", "run": "7f3a", "party": "north"})
    logger.warning("a block\nof %d bytes", 12, extra={"event": "answered", "bytes": np.int64(12), "seconds": 0.5})
    first, second = lines(stream)
    assert abs((datetime.fromisoformat(first.pop("time")) - before).total_seconds()) < 5
    assert first == {"level": "info", "event": "joined", "message": "north joined", "run": "7f3a", "party": "north"}
    assert second.pop("time").endswith("Z")
    assert second == {
        "level": "warning",
        "event": "answered",
        "message": "a block\nof 12 bytes",
        "bytes": 12,
        "seconds": 0.5,
    }


def test_a_field_that_is_not_listed_is_left_out(logger, stream):
    logger.info("x", extra={"event": "joined", "text": SECRET, "answer": [1, 2], "key": b"k"})
    assert lines(stream)[0].keys() == {"time", "level", "event", "message"}
    assert not FIELDS & {"text", "answer", "key", "loss", "query", "label", "path"}


@pytest.mark.parametrize("value", [[SECRET], {"a": SECRET}, SECRET.encode(), np.zeros(3), object(), ValueError(SECRET)])
def test_a_listed_field_holds_a_plain_value_or_nothing(logger, stream, value):
    logger.info("x", extra={"event": "joined", "reason": value})
    assert "reason" not in lines(stream)[0]
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_json_has_no_number_for_is_null(logger, stream, value):
    logger.info("x", extra={"event": "joined", "epsilon": value})
    assert lines(stream)[0]["epsilon"] is None


def test_an_exception_is_its_type_without_message_or_traceback(logger, stream):
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        logger.exception("training failed: %s", error, extra={"event": "training-failed"})
        logger.error(error, extra={"event": "training-failed"})
        logger.error("x", exc_info=error, stack_info=True)
    one, two, three = lines(stream)
    assert (one["message"], one["error"]) == ("training failed: ValueError", "ValueError")
    assert two["message"] == "ValueError"
    assert three["error"] == "ValueError"
    assert SECRET not in stream.getvalue()
    assert "Traceback" not in stream.getvalue()
    assert __file__ not in stream.getvalue()


def test_what_a_library_logs_is_withheld(logger, stream):
    logger.warning("could not parse %s", SECRET, extra={"run": SECRET})
    (line,) = lines(stream)
    assert line.pop("time")
    assert line == {"level": "warning", "event": "other", "message": WITHHELD, "logger": logger.name}


def test_long_sentences_and_fields_are_cut(logger, stream):
    logger.info("a" * 10_000, extra={"event": "b" * 10_000, "reason": "c" * 10_000})
    (line,) = lines(stream)
    assert len(line["message"]) == len(line["event"]) == len(line["reason"]) == LONGEST


def test_a_sentence_that_does_not_fit_its_arguments_is_shown_without_them(stream, capsys):
    record = logging.makeLogRecord({"msg": "%d of %d", "args": (SECRET,), "event": "joined"})
    json_lines(stream).handle(record)
    assert lines(stream)[0]["message"] == "%d of %d"
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_neither_raises_nor_shows_the_record_elsewhere(stream, capsys):
    handler = json_lines(stream)
    stream.close()
    handler.handle(logging.makeLogRecord({"msg": SECRET, "event": "joined"}))
    assert capsys.readouterr().err == ""
