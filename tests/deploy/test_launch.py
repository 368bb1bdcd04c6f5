"""The `ray` launcher: parties that answer, one sentence when one cannot start, and nothing left, however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest
import ray
from ray._private.node import Node

from coordinator.identity import provisioning
from coordinator.transport.launchers import LaunchRequest, find_launcher
from deploy import launch
from deploy.embedded import _UNUSED, LONGEST_TEMPORARY, embedded, short_folder, sweep, why_not_started
from deploy.launch import RayLauncher
from deploy.launching import LaunchError, native_handler
from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.identity.credentials import bearer

MARK = "CONCLAVE_TEST_MARK"


def tables(parties):
    return {
        f"party-{number}": {
            "shard": {"source": "notes.jsonl", "part": {"parts": parties, "part": number}},
            "policy": {"epsilon": 8.0, "delta": 1e-6, "recipes": ["dped"], "simulation": True},
        }
        for number in range(parties)
    }


@pytest.fixture
def request_for(tmp_path):
    """Makes the launch request of some parties over one small source."""
    (tmp_path / "notes.jsonl").write_text('{"text": "apple bread"}\n' * 10)
    provisioning.ensure(tmp_path / "identity")

    def request(parties):
        made = tables(parties)
        return LaunchRequest(
            made, tmp_path / "run" / "parties", tmp_path, partial(provisioning.vouched, tmp_path / "identity")
        )

    return request


def marked(mark):
    """All processes that were started, at any depth, with this mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


def left_of(mark, seconds=20):
    """Those that are still there after some time to end."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


async def names_of(addresses):
    names = []
    for each in addresses:
        async with grpc.aio.insecure_channel(each.address) as channel:
            answer = await PartyStub(channel).Describe(
                party_pb2.DescribeRequest(nonce=bytes(32)), metadata=bearer(each.token)
            )
            names.append(answer.name)
    return names


def test_the_entry_point_is_found():
    assert isinstance(find_launcher("ray"), RayLauncher)


def test_a_long_temporary_folder_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/x" * LONGEST_TEMPORARY)
    assert short_folder() == "/tmp"


def test_folders_of_runs_that_were_killed_are_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for owner in (ended.pid, os.getpid()):
        (tmp_path / f"conclave-ray-{owner}-x" / "logs").mkdir(parents=True)
    (tmp_path / "conclave-ray-other").mkdir()
    sweep(tmp_path, "conclave-ray-")
    assert {each.name for each in tmp_path.iterdir()} == {f"conclave-ray-{os.getpid()}-x", "conclave-ray-other"}


def test_a_ray_that_does_not_start_is_told_in_a_sentence(monkeypatch):
    def late(**options):
        raise Exception("The current node timed out during startup. This could happen because\nof something.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(LaunchError, match="not up within 30 s, 2 times") as error, embedded(1):
        pass
    assert "\n" not in str(error.value)
    assert why_not_started(ValueError()) == "Ray could not be started: ValueError."
    assert not list(Path("/tmp").glob(f"conclave-ray-{os.getpid()}-*"))


@pytest.mark.parametrize(
    "said",
    ["The current node timed out during startup.", "Timed out waiting for file /tmp/0/session/gcs_server_port."],
)
def test_a_ray_that_is_late_once_is_started_again_in_another_folder(monkeypatch, said):
    folders = []

    def start(**options):
        folders.append(options["_temp_dir"])
        if len(folders) == 1:
            raise Exception(said)

    monkeypatch.setattr(ray, "init", start)
    with embedded(1) as found:
        assert found is ray
    first, second = folders
    assert first != second
    assert not Path(first).parent.exists()


def test_what_a_ray_that_was_late_had_started_is_ended(monkeypatch):
    """Ray keeps its processes until this one ends: after a late start they would stand beside the second's."""
    begun, found = [], []
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "elsewhere"])

    def start(**options):
        if not begun:
            idle = "import time; time.sleep(60)"
            inner = [sys.executable, "-c", idle]  # as one that has only begun: its command line tells nothing
            outer = f"import subprocess; print(subprocess.Popen({inner!r}).pid, flush=True); {idle}"
            process = subprocess.Popen(
                [sys.executable, "-c", outer, f"--session={options['_temp_dir']}/s"], stdout=subprocess.PIPE, text=True
            )
            begun.extend((psutil.Process(process.pid), psutil.Process(int(process.stdout.readline()))))
            raise Exception("The current node timed out during startup.")
        found.extend(each for each in begun if each.is_running() and each.status() != psutil.STATUS_ZOMBIE)

    monkeypatch.setattr(ray, "init", start)
    try:
        with embedded(1):
            assert len(begun) == 2
            assert found == []
            assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_ray_that_cannot_start_is_not_tried_twice(monkeypatch):
    tried = []

    def failing(**options):
        tried.append(options)
        raise ValueError("no such option")

    monkeypatch.setattr(ray, "init", failing)
    with pytest.raises(LaunchError, match=r"^Ray could not be started: no such option\.$"), embedded(1):
        pass
    assert len(tried) == 1


@pytest.mark.slow
def test_of_rays_own_processes_those_run_that_somebody_asks():
    """The others cost a start more than these do, as long as Ray calls by the same names what starts them."""
    methods = [vars(Node)[name] for name in _UNUSED]
    with embedded(1):
        started = [" ".join(each.cmdline()) for each in psutil.Process().children(recursive=True)]
        assert any("raylet" in each for each in started)
        assert not [each for each in started if "monitor.py" in each or "dashboard.py" in each]
    assert [vars(Node)[name] for name in _UNUSED] == methods


@pytest.fixture
def interrupted_by_sigterm():
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.slow
def test_parties_answer_in_the_order_asked_and_leave_nothing(
    request_for, monkeypatch, tmp_path, interrupted_by_sigterm
):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = dict(os.environ)
    handler, native = signal.getsignal(signal.SIGTERM), native_handler(signal.SIGTERM)
    request = request_for(3)
    with RayLauncher().launch(request) as addresses:
        assert asyncio.run(names_of(addresses)) == list(request.parties)
        assert len({each.token for each in addresses}) == 3
        assert all(each.address.startswith("127.0.0.1:") for each in addresses)
        assert marked(mark)
        (folder,) = Path("/tmp").glob(f"conclave-ray-{os.getpid()}-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        sockets = [path for path in folder.rglob("*") if path.is_socket()]
        assert sockets
        assert max(len(str(path)) for path in sockets) < 104
    assert not folder.exists()
    assert dict(os.environ) == environment
    assert (signal.getsignal(signal.SIGTERM), native_handler(signal.SIGTERM)) == (handler, native)
    assert [each for each in left_of(mark) if each.pid != os.getpid()] == []
    assert not (tmp_path / "home").exists()
    assert (request.folder.stat().st_mode & 0o777) == 0o700
    with RayLauncher().launch(request_for(1)) as addresses:  # and again in the same process
        assert asyncio.run(names_of(addresses)) == ["party-0"]


@pytest.mark.slow
def test_parties_that_were_begun_in_advance_answer_and_leave_nothing(
    request_for, monkeypatch, capfd, interrupted_by_sigterm
):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    environment, handler, launcher = dict(os.environ), signal.getsignal(signal.SIGTERM), RayLauncher()
    request = request_for(2)
    native = native_handler(signal.SIGTERM)
    with launcher.begun(list(request.parties)), launcher.launch(request) as addresses:
        assert native_handler(signal.SIGTERM) == native
        assert asyncio.run(names_of(addresses)) == list(request.parties)
    assert dict(os.environ) == environment
    assert (signal.getsignal(signal.SIGTERM), native_handler(signal.SIGTERM)) == (handler, native)
    assert [each for each in left_of(mark) if each.pid != os.getpid()] == []
    with launcher.launch(request_for(1)) as addresses:  # and without, in the same process
        assert asyncio.run(names_of(addresses)) == ["party-0"]
    said, logged = capfd.readouterr()
    assert said == ""
    # gRPC itself may tell of a fork, where other threads of this process call it.
    assert [line for line in logged.splitlines() if "fork_posix.cc" not in line] == []


@pytest.mark.slow
def test_a_party_that_cannot_start_is_named(request_for, monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    for change, said in [
        ({"source": "gone.jsonl"}, "gone.jsonl"),
        ({"sauce": "notes.jsonl"}, "sauce"),
        ({"part": {"parts": 2, "part": 5}}, "part = 5"),
    ]:
        request = request_for(2)
        request.parties["party-1"]["shard"].update(change)
        with pytest.raises(LaunchError) as error, RayLauncher().launch(request):
            pass
        assert str(error.value).startswith("party party-1 could not be started: ")
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    assert [each for each in left_of(mark) if each.pid != os.getpid()] == []


@pytest.mark.slow
def test_parties_that_take_too_long_are_named(request_for, monkeypatch):
    class Silent:
        def __init__(self, names):
            pass

        def prepare(self):
            pass

        def request(self):
            time.sleep(30)

        def stop(self):
            pass

    monkeypatch.setattr(launch, "PartyActor", Silent)
    monkeypatch.setattr(launch, "START_SECONDS", 0.1)
    monkeypatch.setattr(launch, "ACTOR_SECONDS", 0.2)
    monkeypatch.setattr(launch, "STOP_SECONDS", 0.1)
    late = pytest.raises(LaunchError, match=r"^party party-0, party-1: not started after 0\.504 s\.")
    with late, RayLauncher().launch(request_for(2)):
        pass


DRIVER = """
import sys, time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
import ray
from coordinator.identity import provisioning
from coordinator.transport.launchers import LaunchRequest
from deploy.launch import RayLauncher
from test_tables import tables
base = Path(sys.argv[1])
vouch = partial(provisioning.vouched, base / "identity")
launcher, how = RayLauncher(), sys.argv[2]
request = LaunchRequest(tables, base / "parties", base, vouch)
try:
    with nullcontext() if how == "launched" else launcher.begun(list(tables)):
        for _ in range(600 if how == "begun" else 0):
            if ray.is_initialized():
                break
            time.sleep(0.1)
        else:
            if how == "begun":
                sys.exit("Ray did not start.")
        with nullcontext() if how == "begun" else launcher.launch(request):
            print("ready", flush=True)
            time.sleep(120)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("how", ["launched", "begun", "begun and launched"])
def test_nothing_is_left_when_the_coordinator_ends(request_for, tmp_path, ending, how):
    request = request_for(2)
    (tmp_path / "test_tables.py").write_text(f"tables = {request.parties!r}\n")
    mark = uuid.uuid4().hex
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), how],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            assert driver.stdout.readline() == "ready\n"
            assert len(marked(mark)) > 3
            if ending == signal.SIGINT:
                os.killpg(driver.pid, ending)  # as a terminal does
            else:
                driver.send_signal(ending)
            driver.wait(timeout=120)
        finally:
            driver.kill()
    assert left_of(mark, seconds=90) == []  # Ray's agents take up to a minute to report that their Ray is gone
