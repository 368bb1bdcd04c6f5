"""What happens in a run comes out as figures and log lines, which are all documented and hold nothing private."""

import ast
import io
import json
import logging
import math
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.errors import PlanError, RunError
from coordinator.progress.events import Everyone, Logged, Metrics, Unobserved, serve_metrics, traced_to
from protos.telemetry.logs import FIELDS, json_lines

HOUSE = Path(__file__).parents[3]
DOCUMENT = (HOUSE / "docs/metrics.md").read_text()
CODE = [path for room in ("coordinator", "party", "protos") for path in sorted((HOUSE / room).rglob("*.py"))]
SECRET = "the patient in room nine"


def tell(observer):
    observer.named("7f3a-demo")
    observer.stage("prepare", "began")
    observer.opened("7f3a-demo", 3.98, 4.0)
    observer.stage("aggregate", "began")
    observer.block("counts", "north", 0.5, 1000)
    observer.block("counts", "north", 1.5, 24)
    observer.stored("counts", 1, 3)
    observer.retry("east", "answer", f"its node failed with INTERNAL: {SECRET}")
    observer.lost("east", f"a message was over the size limit ({SECRET})")
    observer.spent(2.9)
    observer.stage("aggregate", "finished")


@pytest.fixture
def registry():
    return CollectorRegistry()


def test_what_happened_is_counted(registry):
    tell(Metrics(registry))

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("conclave_run_epsilon") == 3.98
    assert value("conclave_run_epsilon_budget") == 4.0
    assert value("conclave_run_epsilon_spent") == 2.9
    assert value("conclave_run_stage", stage="aggregate") == 0
    assert value("conclave_run_blocks_stored", release="counts") == 1
    assert value("conclave_run_blocks_expected", release="counts") == 3
    assert value("conclave_run_block_bytes_total", party="north") == 1024
    assert value("conclave_run_block_seconds_count", party="north") == 2
    assert value("conclave_run_block_seconds_sum", party="north") == 2.0
    assert value("conclave_run_block_seconds_bucket", party="north", le="1.0") == 1
    assert value("conclave_run_retries_total", party="east") == 1
    assert value("conclave_run_parties_lost_total", party="east") == 1


def test_a_stage_that_goes_on_is_1(registry):
    Metrics(registry).stage("train", "began")
    assert registry.get_sample_value("conclave_run_stage", {"stage": "train"}) == 1


def test_a_run_that_promises_nothing_does_not_show_a_small_epsilon(registry):
    metrics = Metrics(registry)
    assert math.isnan(registry.get_sample_value("conclave_run_epsilon"))
    assert math.isnan(registry.get_sample_value("conclave_run_epsilon_spent"))
    metrics.opened("7f3a-demo", None, 4.0)
    assert registry.get_sample_value("conclave_run_epsilon") == math.inf


def test_every_event_is_logged_with_listed_fields_and_without_a_nodes_own_words():
    stream, logger = io.StringIO(), logging.getLogger("test.observing")
    logger.setLevel(logging.DEBUG)
    handler = json_lines(stream)
    logger.addHandler(handler)
    try:
        tell(Logged(logger))
    finally:
        logger.removeHandler(handler)
    logged = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in logged] == [
        "stage",
        "opened",
        "stage",
        "block",
        "block",
        "stored",
        "retry",
        "lost",
        "spent",
        "stage",
    ]
    assert {line["run"] for line in logged} == {"7f3a-demo"}
    assert {key for line in logged for key in line} <= FIELDS | {"time", "level", "event", "message"}
    retry, lost, spent = logged[6:9]
    assert spent["epsilon"] == 2.9
    assert (retry["level"], retry["party"], retry["doing"]) == ("warning", "east", "answer")
    assert retry["reason"] == "its node failed with INTERNAL"
    assert (lost["level"], lost["reason"]) == ("error", "a message was over the size limit")
    assert SECRET not in stream.getvalue()


def test_everyone_is_told_in_order():
    told = []

    class Noted:
        def __init__(self, name):
            self.name = name

        def __getattr__(self, verb):
            return lambda *arguments: told.append((self.name, verb))

    tell(Everyone([Noted("one"), Noted("two"), Unobserved()]))
    verbs = ("named", "stage", "opened", "stage", "block", "block", "stored", "retry", "lost", "spent", "stage")
    assert told == [(name, verb) for verb in verbs for name in ("one", "two")]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_metrics_are_served_and_the_port_is_free_again(registry, host):
    Metrics(registry).stored("counts", 2, 3)
    try:
        with serve_metrics(f"{host}:0", registry) as address:
            assert address.startswith(f"{host}:")
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                assert 'conclave_run_blocks_stored{release="counts"} 2.0' in answer.read().decode()
    except RunError:
        if host != "[::1]":
            raise
        pytest.skip("no IPv6 here")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with serve_metrics(f"127.0.0.1:{port}", registry), pytest.raises(RunError, match=f"at 127.0.0.1:{port}.*free port"):
        serve_metrics(f"127.0.0.1:{port}", registry).__enter__()
    with serve_metrics(f"127.0.0.1:{port}", registry):
        pass


@pytest.mark.parametrize(
    "address", ["", "9464", ":9464", "here", "here:", "a b:1", "::1:9464", "h:99999", "h:-1", "h:x"]
)
def test_an_address_that_is_none_is_a_plans_error(registry, address):
    with pytest.raises(PlanError, match=re.escape(f'"{address}" is not an address') + ".*127.0.0.1:9464"):
        serve_metrics(address, registry).__enter__()


def metric_names():
    """As Prometheus shows them, from the calls that make them."""
    found = set()
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                continue
            if node.func.id.endswith("MetricFamily") and isinstance(node.args[0], ast.Constant):
                found.add(node.args[0].value + ("_total" if node.func.id.startswith("Counter") else ""))
            if node.func.id in ("Counter", "Gauge", "Histogram", "Summary") and isinstance(node.args[0], ast.Constant):
                found.add(node.args[0].value + ("_total" if node.func.id == "Counter" else ""))
    return found


def event_names():
    """Of every dictionary that names an event, or is given one of several."""
    found = set()
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                pairs = [(ast.Constant(node.targets[0].id), node.value)]
            else:
                continue
            for key, value in pairs:
                if isinstance(key, ast.Constant) and key.value == "event":
                    choices = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
                    found |= {e.value for e in choices if isinstance(e, ast.Constant) and isinstance(e.value, str)}
    return found


def test_a_place_for_traces_that_is_none_is_told_before_anything_begins(tmp_path):
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    with pytest.raises(PlanError, match=r'--traces: "ftp://here" is no address'), traced_to("ftp://here"):
        raise AssertionError("something began")
    with pytest.raises(RunError, match=r"cannot be written: No such file or directory"), traced_to("/no/such/file"):
        raise AssertionError("something began")


@pytest.mark.slow
def test_the_documentation_names_every_metric_and_no_other():
    names = metric_names()
    assert "conclave_run_epsilon" in names
    assert set(re.findall(r"^\| `(conclave_\w+)`", DOCUMENT, re.MULTILINE)) == names


@pytest.mark.slow
def test_the_documentation_names_every_event_and_no_other():
    documented = DOCUMENT.partition("## Events")[2]
    first = "".join(re.findall(r"^\|([^|]+)\|", documented, re.MULTILINE))
    assert set(re.findall(r"`([\w-]+)`", first)) == event_names() | {"other"}


def test_the_documentation_names_every_field_that_passes():
    sentence = DOCUMENT.partition("These fields pass:")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", sentence)) == FIELDS
