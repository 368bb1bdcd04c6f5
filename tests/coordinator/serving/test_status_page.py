"""The status page: what it shows, to whom, and what it never shows; the last test looks at it in a browser."""

import http.client
import shutil
import socket
import subprocess
import time

import pytest
from prometheus_client import CollectorRegistry

from coordinator.errors import RunError
from coordinator.serving.config import StatusTable
from coordinator.serving.status import http as pages
from coordinator.serving.status.http import StatusServer
from coordinator.serving.status.metrics import Figures, Metrics
from coordinator.serving.status.page import STYLE, Status, page
from protos.conclave.v1 import coordinator_pb2


def run_of(**changes):
    run = coordinator_pb2.Submission(
        id="1a2b3c4d-letters",
        name="letters",
        recipe="dped",
        state=coordinator_pb2.STATE_RUNNING,
        submitted=1_790_000_000,
        parties=["north", "south"],
        states={"north": "counting 62%", "south": "lost: 3,214 records of ward B (node of south said so)"},
        stages=[coordinator_pb2.Stage(name="join", finished=True), coordinator_pb2.Stage(name="aggregate")],
        parts=[coordinator_pb2.Part(label="counts", done=3712, total=5000, note="epsilon 2.91 / 4.00")],
    )
    for name, value in changes.items():
        setattr(run, name, value)
    return run


def status_of(*runs, **changes):
    shown = {"dialled": {"north": True, "east": False}, "direct": ["south"], "free": 5_000_000_000} | changes
    return Status("coordinator.example", "0.1.0", 1_790_000_100.0, runs, **shown)


@pytest.fixture
def served():
    """A server of the page, with the status that `shows` holds."""

    class Shown:
        status = status_of(run_of())
        healthy = True

    metrics = Metrics(lambda: Figures({"running": 1}, {"north": True}, {"busy": 2}, 7))
    with StatusServer("127.0.0.1:0", lambda: Shown.status, lambda: Shown.healthy, metrics.registry) as server:
        Shown.address = server.address
        yield Shown


def asked(address, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection(address, timeout=5)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def test_it_shows_runs_stages_parties_and_budget():
    shown = page(status_of(run_of(), run_of(id="9-old", state=coordinator_pb2.STATE_FINISHED, epsilon=3.978)))
    for said in (
        "1a2b3c4d-letters",
        "running",
        "aggregate",
        "counts 3,712 / 5,000 · epsilon 2.91 / 4.00",
        "north counting 62%",
        "3.98",
    ):
        assert said in shown
    assert "<td>east</td><td>not connected</td>" in shown
    assert "<td>south</td><td>asked at its address</td>" in shown
    assert "No runs yet" in page(status_of())


def test_it_shows_no_word_of_a_party():
    shown = page(status_of(run_of(why="party south said: ward B has 3,214 records")))
    assert "south lost" in shown
    assert "3,214" not in shown
    assert "ward" not in shown


@pytest.mark.parametrize("field", ["id", "recipe"])
def test_every_value_is_escaped(field):
    evil = "<script>alert(1)</script>\"'&"
    run = run_of(**{field: evil})
    run.stages.add(name=evil)
    run.parts.add(label=evil, done=1)
    run.states[evil] = evil
    shown = page(status_of(run, dialled={evil: True}))
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


def test_it_is_read_only_has_no_script_and_lets_no_other_page_in(served):
    answer, content = asked(served.address)
    assert answer.status == 200
    assert "script" not in content
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert asked(served.address, method=method)[0].status == 501
    assert asked(served.address, "/../../etc/passwd")[0].status == 404
    assert asked(served.address, "/style.css")[1] == STYLE
    answer, content = asked(served.address, method="HEAD")
    assert (answer.status, content) == (200, "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_another_sites_page_in_a_browser_of_this_machine_reads_nothing(served, host):
    answer, content = asked(served.address, Host=host)
    assert answer.status == 421
    assert "letters" not in content


def test_health_and_metrics(served):
    assert asked(served.address, "/health")[1] == "up\n"
    served.healthy = False
    assert asked(served.address, "/health")[0].status == 503
    figures = asked(served.address, "/metrics")[1]
    for line in (
        'conclave_coordinator_submissions{state="running"} 1.0',
        'conclave_coordinator_submissions{state="queued"} 0.0',
        'conclave_coordinator_party_connected{party="north"} 1.0',
        'conclave_coordinator_refusals_total{reason="busy"} 2.0',
        "conclave_coordinator_disk_free_bytes 7.0",
    ):
        assert line in figures


def test_callers_that_say_nothing_hold_a_bounded_number_of_places_for_a_bounded_time(served, monkeypatch):
    monkeypatch.setattr(pages._Handler, "timeout", 0.5)
    host, _, port = served.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(pages.MOST_CALLERS + 5)]
    deadline = time.monotonic() + 10
    while True:
        try:
            if asked(served.address)[0].status == 200:
                break
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for each in silent:
        each.close()


def test_it_is_on_this_machine_alone_unless_told_otherwise():
    with pytest.raises(ValueError, match="it is on this machine alone"):
        StatusTable(listen="0.0.0.0:7446")
    assert StatusTable(listen="0.0.0.0:7446", public=True).public
    assert StatusTable().listen == "127.0.0.1:7446"


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=r"the status page cannot be served at .* in use"):
            StatusServer(address, status_of, lambda: True, CollectorRegistry())


BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here (Debian: apt-get install chromium)")
def test_a_browser_shows_it(served, tmp_path):
    served.status = status_of(run_of(), run_of(id="waiting-run", state=coordinator_pb2.STATE_QUEUED, before=1))
    common = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    url = f"http://{served.address}/"
    done = subprocess.run([*common, "--dump-dom", url], capture_output=True, text=True, timeout=120, check=True)
    for said in ("1a2b3c4d-letters", "counts 3,712 / 5,000", "queued, 1 before it", "not connected"):
        assert said in done.stdout
    picture = tmp_path / "page.png"
    taken = [*common, "--window-size=1200,700", f"--screenshot={picture}", url]
    done = subprocess.run(taken, capture_output=True, text=True, timeout=120, check=True)
    assert "Refused to" not in done.stderr, "the page keeps its own content policy"
    assert picture.stat().st_size > 5_000
