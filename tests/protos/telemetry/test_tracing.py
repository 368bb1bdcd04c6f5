"""What a span may hold, whose span a call hangs below, and that delivery holds nothing up."""

import ast
import json
import logging
import os
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.refusal import Reason, Refusal
from protos.telemetry import tracers, tracing

HOUSE = Path(__file__).parents[3]
WELL_FORMED = f"00-{'a' * 32}-{'b' * 16}-01"
SECRET = "the patient in room nine"


@pytest.fixture
def to_file(tmp_path):
    """A tracer into a file, and what reads the spans of the file."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    tracer = tracers.tracer("spans.jsonl", tmp_path, "conclave-coordinator")

    def read():
        tracer.close()
        return spans_of(tmp_path / "spans.jsonl")

    return tracer, read


def spans_of(path):
    """The spans of a file, each with who told it."""
    return [
        span | {"who": plain(resource["resource"])}
        for line in path.read_text().splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def plain(holder):
    """Attributes as a dictionary."""
    return {each["key"]: next(iter(each["value"].values())) for each in holder.get("attributes", ())}


def test_an_attribute_that_is_not_listed_is_refused():
    with pytest.raises(ValueError, match="a span does not tell loss, text"):
        tracing.checked({"run": "7f3a-demo", "loss": 0.5, "text": SECRET})


def test_a_recorded_span_refuses_it_too_however_it_is_told(to_file):
    tracer, _ = to_file
    with tracing.on(tracer), tracing.run("7f3a-demo", 0):
        with pytest.raises(ValueError, match="key"):
            tracing.begin("call Answer", key="k")
        with pytest.raises(ValueError, match="key"):
            tracing.current().set({"key": "k"})


@pytest.mark.slow
@given(st.one_of(st.text(), st.binary(), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_a_value_passes_as_a_name_a_number_or_a_truth_and_as_nothing_else(value):
    passed = tracing.checked({"release": value})
    number = isinstance(value, int) and 0 <= value < 2**63
    name = isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}", value)
    assert passed == ({"conclave.release": value} if number or name else {})


def test_a_sentence_and_a_path_do_not_pass():
    assert tracing.checked({"release": SECRET, "reason": "/srv/letters.jsonl", "run": "a\n"}) == {}


@pytest.mark.slow
def test_every_hook_tells_listed_attributes_alone():
    """Also where nothing is switched on, and a wrong name would go unnoticed."""
    told = set()
    for path in [*(HOUSE / "coordinator").rglob("*.py"), *(HOUSE / "party").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("tracing.span", "tracing.begin"):
                told |= {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    assert {"stage", "run", "release", "batch"} <= told <= tracing.ATTRIBUTES


def test_the_documentation_names_every_attribute_and_no_other():
    document = (HOUSE / "docs/traces.md").read_text().partition("| attribute |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", document, re.MULTILINE)) == tracing.ATTRIBUTES


def test_a_span_by_a_caller_that_is_well_formed_is_hung_below():
    assert tracing.parent_of([("x", "y"), ("traceparent", WELL_FORMED)]) == (int("a" * 32, 16), int("b" * 16, 16))


@pytest.mark.parametrize(
    "said",
    [
        "",
        "00",
        WELL_FORMED.upper(),
        WELL_FORMED + "-more",
        WELL_FORMED + "\n",
        " " + WELL_FORMED,
        WELL_FORMED.replace("00-", "ff-", 1),
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        WELL_FORMED.encode(),
        "0" * 60_000,
        f"00-{'a' * 60_000}",
        "00-" + "１" * 32 + f"-{'b' * 16}-01",
    ],
)
def test_one_that_is_not_is_as_none(said):
    assert tracing.parent_of([("traceparent", said)]) is None


def test_two_are_as_none():
    assert tracing.parent_of([("traceparent", WELL_FORMED), ("traceparent", WELL_FORMED)]) is None


@pytest.mark.slow
@given(st.one_of(st.text(), st.binary(), st.from_regex(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", fullmatch=True)))
def test_whatever_comes_is_a_span_or_none(said):
    found = tracing.parent_of([("traceparent", said)])
    assert found is None or (0 < found[0] < 2**128 and 0 < found[1] < 2**64)


@pytest.mark.slow
def test_without_a_tracer_nothing_is_recorded_sent_or_imported():
    code = (
        "import sys, coordinator.console.command, coordinator.progress.events, coordinator.transport.traced\n"
        "import party.node.lifecycle\n"
        "from protos.telemetry import tracing\n"
        "with tracing.run('7f3a-demo', 0), tracing.span('stage join', stage='join') as part:\n"
        "    assert part is tracing.OFF and tracing.metadata() == ()\n"
        "assert tracing.serving(None, 'Join', None, [('traceparent', 'x')]) is tracing.OFF\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    asked_for_by_others = os.environ | {"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=asked_for_by_others).stdout
    assert said == "[]\n"


def test_what_a_program_around_this_one_traces_is_neither_told_to_parties_nor_mixed_with_ours(to_file):
    from opentelemetry import trace

    tracer, read = to_file
    theirs = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(theirs):
        assert tracing.metadata() == ()
        with tracing.on(tracer), tracing.run("7f3a-demo", 0):
            assert trace.get_current_span() is theirs
            tracer.serve("Join", None, {"verb": "Join"}).end("answered")
    join, run = read()
    assert run["traceId"] != join["traceId"] != f"{1:032x}"
    assert not run.get("parentSpanId")
    assert not join.get("parentSpanId")


def test_without_the_extra_the_sentence_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "protos.telemetry.exporting", None)
    monkeypatch.delattr("protos.telemetry.exporting", raising=False)
    with pytest.raises(ImportError, match=re.escape('pip install "conclave-distill[otel]"')):
        tracers.tracer("spans.jsonl", tmp_path, "conclave-coordinator")


def test_of_what_was_raised_only_its_kind_is_told(to_file):
    tracer, read = to_file
    with tracing.on(tracer), tracing.run("7f3a-demo", 0):
        for error in (RuntimeError(SECRET), Refusal(Reason.SHARD, SECRET)):
            with pytest.raises(type(error)), tracing.span("training", release="counts"):
                raise error
    failed, refused, root = read()
    assert plain(failed) == {"conclave.release": "counts", "conclave.outcome": "failed"}
    assert plain(refused) == {
        "conclave.release": "counts",
        "conclave.outcome": "refused",
        "conclave.reason": "shard",
    }
    assert failed["status"] == refused["status"] == {"code": 2}
    assert failed["parentSpanId"] == refused["parentSpanId"] == root["spanId"]
    assert not any("events" in each for each in (failed, refused, root))


def test_a_resumed_run_has_the_same_trace_and_a_span_of_its_own_that_is_linked_to_the_first(to_file):
    tracer, read = to_file
    with tracing.on(tracer):
        for resumed in (0, 1, 2):
            with tracing.run("7f3a-demo", resumed):
                pass
        with tracing.run("0b1c-other", 0):
            pass
    first, second, third, other = read()
    assert first["traceId"] == second["traceId"] == third["traceId"] != other["traceId"]
    assert len({each["spanId"] for each in (first, second, third, other)}) == 4
    assert not any("parentSpanId" in each and each["parentSpanId"] for each in (first, second, third))
    assert "links" not in first
    for resumed in (second, third):
        ((link,),) = (resumed["links"],)
        assert (link["traceId"], link["spanId"]) == (first["traceId"], first["spanId"])


def test_the_file_is_its_owners(to_file, tmp_path):
    _, read = to_file
    assert read() == []
    assert (tmp_path / "spans.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("silent", [True, False], ids=["a collector that says nothing", "one that is not there"])
def test_a_dead_collector_holds_up_nothing_and_is_told_of_once(silent, caplog, monkeypatch):
    exporting = pytest.importorskip("protos.telemetry.exporting", reason="the extra `otel` is not installed")
    monkeypatch.setattr(exporting, "CLOSING", 0.5)
    others = {each.ident for each in threading.enumerate()} - {threading.get_ident()}  # of tests before, perhaps
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if not silent:
            listening.close()
        tracer = tracers.tracer(address, Path("/"), "conclave-coordinator")
        begun = time.monotonic()
        with caplog.at_level(logging.WARNING), tracing.on(tracer):
            with tracing.run("7f3a-demo", 0):
                for number in range(2 * exporting.QUEUE):
                    with tracing.span("block", batch=number):
                        pass
            worked = time.monotonic() - begun
        closed = time.monotonic() - begun - worked
    assert worked < exporting.PATIENCE, "a block in a span is not to wait for anybody"
    assert closed < exporting.CLOSING + 1
    told = [each for each in caplog.records if getattr(each, "event", "") == "traces" and each.thread not in others]
    assert len(told) <= 1
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_collector_gets_the_spans_by_otlp_and_nothing_about_this_machine(monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "host.name=secret")
    came = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            came.append((self.path, ExportTraceServiceRequest.FromString(content)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracer = tracers.tracer(f"http://127.0.0.1:{server.server_port}", Path("/"), "conclave-party", "north")
        tracer.serve("Join", (1, 2), {"verb": "Join", "run": "7f3a-demo"}).end("answered")
        tracer.close()
        server.shutdown()
    ((path, request),) = came
    assert path == "/v1/traces"
    (resource,) = request.resource_spans
    who = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert who == {"service.name": "conclave-party", "conclave.party": "north"}
    (span,) = resource.scope_spans[0].spans
    assert (span.name, int.from_bytes(span.trace_id), int.from_bytes(span.parent_span_id)) == ("Join", 1, 2)
    told = {each.key: each.value.string_value for each in span.attributes}
    assert told == {"conclave.verb": "Join", "conclave.run": "7f3a-demo", "conclave.outcome": "answered"}


def test_a_full_disk_fails_nothing(monkeypatch):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    tracer = tracers.tracer("/dev/full", Path("/"), "conclave-coordinator")
    with tracing.on(tracer), tracing.run("7f3a-demo", 0):
        pass


@pytest.mark.parametrize("to", ["ftp://collector", "http://", "http://host:port", "https://[::1", "http://host:99999"])
def test_a_url_that_is_no_collectors_is_a_sentence(to, tmp_path):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    with pytest.raises(ValueError, match="is no address of a collector"):
        tracers.tracer(to, tmp_path, "conclave-coordinator")


@pytest.mark.slow
def test_a_program_that_a_thread_starts_is_not_held_up_by_the_library(tmp_path):
    """Ray starts its own so, in a process forked from a thread; what the library does after a fork may wait there."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    lines = """
        import subprocess, sys, threading
        from pathlib import Path
        from protos.telemetry import tracers
        tracer = tracers.tracer("spans.jsonl", Path(sys.argv[1]), "conclave-coordinator")
        import concurrent.futures.thread  # what it does after a fork comes behind the library, as in a run
        starts = lambda: subprocess.run([sys.executable, "-c", "pass"], preexec_fn=lambda: None)
        thread = threading.Thread(target=starts)
        thread.start()
        thread.join()
        tracer.close()
        print("started")
    """
    command = [sys.executable, "-c", textwrap.dedent(lines), str(tmp_path)]
    done = subprocess.run(command, cwd=HOUSE, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["started"], done.stderr
