"""Runs on a Ray cluster: several machines on this one, which differ by their loopback address.

One cluster serves the whole file; a test that ends a machine starts its own.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from coordinator import api
from coordinator.errors import PartyLost, RunStopped
from coordinator.progress.progress import Silent
from coordinator.run.before.checking import check
from coordinator.store.index import RunIndex
from coordinator.systems.registry import template
from coordinator.transport.launchers import Cluster, Place
from deploy import cluster as clusters
from deploy.cluster import joined
from deploy.launching import LaunchError, environment
from party.actor import Begin, PartyActor
from party.ledger.runs import read_runs
from protos import software_version

pytestmark = pytest.mark.slow

MARK = "CONCLAVE_TEST_MACHINE"
SOON = 30.0
"""Seconds within which a sentence says what is wrong with a cluster."""
PLAN = (
    template("ray")
    .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
    .replace("size   = 1000", "size   = 36")
    .replace("dimension = 100", "dimension = 8")
    .replace('source = "documentation"', 'source = "letters.jsonl"')
    .replace('source = "documentation-topics"', 'source = "public.jsonl"')
    .replace('source = "documentation-heldout"', 'source = "public.jsonl"')
    .replace('by = "package", parties = 4', 'by = "sender", parties = 2')
    .replace("dropouts = 0", "dropouts = 0\ninsecure_reproducible_noise = true")
)
APART = """
[federation.cluster.party.party-1]
resources = { one = 1 }

[federation.cluster.party.party-2]
resources = { two = 1 }

[vocabulary]"""


class Machines:
    """Ray's processes of one cluster, machine by machine; all of them end with this."""

    def __init__(self, folder, mode="token"):
        self.folder, self.mode = folder, mode
        self.token = folder / "token"
        self.token.write_text(secrets.token_hex(32))
        self.port = free_port()
        self.head = f"127.0.0.2:{self.port}"
        self.running = {}

    def start(self, host, *options):
        """A machine at a loopback address. The first is the head."""
        mark = uuid.uuid4().hex
        role = ["--head", f"--port={self.port}", f"--temp-dir={self.folder / 'r'}", "--include-dashboard=false"]
        if self.running:
            role = [f"--address={self.head}"]
        usual = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
        with (self.folder / f"{host}.log").open("w") as log:
            process = subprocess.Popen(
                [Path(sys.executable).parent / "ray", "start", f"--node-ip-address={host}", *role, *usual, *options],
                env={**os.environ, **self.environment, MARK: mark},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[host] = process, mark
        self._wait(lambda alive: host in alive, f"{host} did not join")

    def kill(self, host):
        """End a machine as a power cut does, and wait until the cluster noticed."""
        self._end(host)
        self._wait(lambda alive: host not in alive, f"{host} is still a machine of the cluster")

    def end(self):
        for host in reversed(list(self.running)):
            self._end(host)

    @property
    def environment(self):
        return {"RAY_AUTH_MODE": self.mode, "RAY_AUTH_TOKEN_PATH": str(self.token), "RAY_USAGE_STATS_ENABLED": "0"}

    def ours(self, name):
        """The processes of this name at all machines."""
        marks = {mark for _, mark in self.running.values()}
        return [each for each in psutil.process_iter() if mark_of(each) in marks and name in each.name()]

    def _end(self, host):
        process, mark = self.running.pop(host)
        for _ in range(3):
            for each in psutil.process_iter():
                if mark_of(each) == mark:
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
        process.wait(10)

    def _wait(self, there, sentence):
        code = f"import json, ray; ray.init(address={self.head!r}, log_to_driver=False, logging_level='ERROR'); "
        code += "print('alive', json.dumps([n['NodeManagerAddress'] for n in ray.nodes() if n['Alive']]))"
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            with suppress(subprocess.TimeoutExpired):
                asked = subprocess.run(
                    [sys.executable, "-c", code],
                    env={**os.environ, **self.environment},
                    capture_output=True,
                    text=True,
                    timeout=300,
                    check=False,
                )
                said = [line for line in asked.stdout.splitlines() if line.startswith("alive ")]  # and what Ray says
                if asked.returncode == 0 and there(json.loads(said[0].removeprefix("alive "))):
                    return
            time.sleep(0.5)
        raise AssertionError(sentence)


def mark_of(process):
    with suppress(psutil.AccessDenied, psutil.NoSuchProcess, OSError):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.environ().get(MARK)
    return None


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def machines_of(*wanted, mode="token"):
    folder = Path(tempfile.mkdtemp(prefix="cr-", dir="/tmp"))
    found = Machines(folder, mode)
    try:
        for host, *options in wanted:
            found.start(host, *options)
        yield found
    finally:
        found.end()
        shutil.rmtree(folder, ignore_errors=True)


def resource(**amounts):
    return f"--resources={json.dumps(amounts)}"


@pytest.fixture(scope="module")
def machines():
    with machines_of(
        ("127.0.0.2",),
        ("127.0.0.3", resource(one=1, desk=2), "--labels=zone=north"),
        ("127.0.0.4", resource(two=1, desk=2), "--labels=zone=south", "--num-gpus=1"),
    ) as found:
        yield found


@pytest.fixture
def here(machines, tmp_path, monkeypatch):
    """A home and a folder with private and public text, and the cluster's token."""
    return settle(machines, tmp_path, monkeypatch)


def settle(machines, folder, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(folder / "home"))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(machines.token))
    monkeypatch.chdir(folder)
    write_texts(folder)
    return folder


def write_texts(folder):
    rng = np.random.default_rng(0)
    words = [a + b for a in ("ba", "di", "fo", "gu", "ke", "lo") for b in ("lam", "ner", "pos", "qui", "rit", "sol")]

    def letter():
        return " ".join(rng.choice(words, 30))

    rows = [{"text": f"{letter()} {secret(number)}", "sender": f"s{number % 12}"} for number in range(200)]
    (folder / "letters.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "public.jsonl").write_text("\n".join(json.dumps({"text": letter()}) for _ in range(60)))


def secret(number):
    """A word that only one private row has."""
    return f"unheardof{number:04}privatetext"


SECRET = b"privatetext"


def plan_at(folder, text, address, tables=""):
    path = folder / "plan.toml"
    cluster = f'[federation.cluster]\naddress = "{address}"\n{tables}'
    path.write_text(text.replace("[vocabulary]", f"{cluster}\n[vocabulary]", 1))
    return path


def said_by(error, began):
    """The one sentence of an error that came soon."""
    assert time.monotonic() - began < SOON
    sentence = str(error.value)
    assert "\n" not in sentence
    return sentence


class Told(Silent):
    """What a run says; `then` is called when a party gets to a state."""

    def __init__(self, state="", then=lambda name: None):
        self.said, self.states = [], []
        self._state, self._then = state, then

    def say(self, sentence):
        self.said.append(sentence)

    def party(self, name, state):
        self.states.append((name, state))
        if state == self._state:
            self._state = ""
            self._then(name)


def content(result):
    return (result.student / "model.safetensors").read_bytes()


def regions(process):
    """The readable memory of a process, piece by piece, each with the end of the one before."""
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    with Path(f"/proc/{process.pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            if not line.split()[1].startswith("r") or "[v" in line:
                continue
            for first in range(start, end, 2**24):
                with suppress(OSError, ValueError, OverflowError):
                    memory.seek(first)
                    yield memory.read(min(2**24 + 64, end - first))


def where_is(mark, machines):
    """In which of Ray's files and processes, its object stores and head among them, the mark is."""
    files = [path for path in machines.folder.rglob("*") if path.is_file()]
    found = {str(path.relative_to(machines.folder)) for path in files if mark in path.read_bytes()}
    for name in ("raylet", "gcs_server"):
        processes = machines.ours(name)
        assert processes
        found |= {name for each in processes if any(mark in piece for piece in regions(each))}
    return found


def test_the_same_student_comes_from_a_cluster_and_from_this_machine(here, machines):
    plain = here / "plain.toml"
    plain.write_text(PLAN)
    tables = """
        [federation.cluster.party.party-1]
        resources = { one = 1 }

        [federation.cluster.party.party-2]
        labels = { zone = "south" }
        """
    told = Told()
    result = api.run(plan_at(here, PLAN, machines.head, tables), output=here / "spread", progress=told)
    assert result.verdict.ok
    assert "  2 parties on 2 machines of the Ray cluster" in told.said
    places = {name: (here / f"spread/parties/{name}.machine").read_text() for name in ("party-1", "party-2")}
    assert places == {"party-1": "127.0.0.3", "party-2": "127.0.0.4"}
    assert "One Ray cluster" in " ".join(result.statement.privacy["trust_means"])
    alone = api.run(plain, output=here / "alone")
    assert content(alone) == content(result)
    assert "One Ray cluster" not in " ".join(alone.statement.privacy["trust_means"])


def test_parties_that_share_actors_on_a_cluster_give_the_same_student(here, machines):
    plan = PLAN.replace('by = "sender", parties = 2', 'by = "hash", parties = 6')
    together = plan.replace('launch = "ray"', 'launch = "ray"\nparties_per_actor = 2')
    told = Told()
    result = api.run(plan_at(here, together, machines.head), output=here / "spread", progress=told)
    assert result.verdict.ok
    assert "  6 simulated parties in 3 actors" in told.said
    places = [(here / f"spread/parties/party-{number}.machine").read_text() for number in range(1, 7)]
    assert places[::2] == places[1::2], "each two share an actor, and so its machine"
    means = " ".join(result.statement.privacy["trust_means"])
    assert "One Ray cluster" in means
    assert "Shared processes: up to 2 of the simulated parties" in means
    plain = here / "plain.toml"
    plain.write_text(plan.replace('launch = "ray"', 'launch = "ray"\nparties_per_actor = 1'))
    alone = api.run(plain, output=here / "alone")
    assert content(alone) == content(result)


def test_nothing_private_is_in_rays_files_object_stores_or_head(here, machines):
    api.run(plan_at(here, PLAN, machines.head), output=here / "out")
    assert SECRET in (here / "letters.jsonl").read_bytes()
    assert where_is(SECRET, machines) == set()


def test_the_search_finds_what_is_put_there(here, machines):
    mark = uuid.uuid4().hex.encode()
    log = next((machines.folder / "r").rglob("raylet.out"))
    try:
        with joined(machines.head):
            kept = ray.put(np.frombuffer(mark * 50_000, np.uint8))
            assert "raylet" in where_is(mark, machines)
            del kept
        log.write_bytes(mark)
        assert str(log.relative_to(machines.folder)) in where_is(mark, machines)
    finally:
        log.write_bytes(b"")


def test_a_run_goes_on_at_another_machine_when_one_is_lost(tmp_path, monkeypatch):
    with machines_of(("127.0.0.2",), ("127.0.0.3", resource(one=1)), ("127.0.0.4", resource(two=1))) as machines:
        here = settle(machines, tmp_path, monkeypatch)
        apart = PLAN.replace("[vocabulary]", APART.lstrip(), 1)
        path = plan_at(here, apart.replace('launch = "ray"', 'launch = "ray"\nretry_seconds = 2'), machines.head)
        told = Told("counting", lambda name: machines.kill("127.0.0.4"))
        with pytest.raises(PartyLost, match="party-2"):
            api.run(path, output=here / "out", progress=told)
        run = RunIndex().entries()[0].id
        began = time.monotonic()
        with pytest.raises(LaunchError) as error:
            api.resume(run)
        assert "party party-2 asks for a machine with 1 of two, and the cluster has none" in said_by(error, began)
        machines.start("127.0.0.5", resource(two=1))
        result = api.resume(run)
        assert (here / "out/parties/party-2.machine").read_text() == "127.0.0.5"
        assert result.verdict.ok
        (here / "plain.toml").write_text(PLAN)
        assert content(result) == content(api.run(here / "plain.toml", output=here / "alone"))


def test_teachers_are_spread_over_the_machines(here, machines):
    asked = 'signals   = ["votes", "hidden"]\nqueries = 34\nteachers_per_party = 4'
    text = PLAN.replace('signals   = ["counts"]\nclip      = 10.0', asked).replace("window    = 5", "window    = 3")
    before = drivers(machines)
    spread = api.run(plan_at(here, text, machines.head, "tasks = 2\n"), output=here / "spread")
    assert drivers(machines) - before == 1 + 1 + 2, "this question, the run, and both parties' trainings"
    assert where_is(SECRET, machines) == set()
    assert not list((here / "spread/parties").rglob(".*.job")), "secrets of a part that is done"
    (here / "plain.toml").write_text(text)
    assert content(spread) == content(api.run(here / "plain.toml", output=here / "alone"))


def drivers(machines):
    """How many processes have joined the cluster so far, this question among them."""
    from ray._private.state import jobs

    with joined(machines.head):
        return len(jobs())


def test_a_party_that_finds_nothing_of_its_own_does_not_start(tmp_path):
    begin = Begin("party-1", {}, str(tmp_path / "gone"), str(tmp_path), b"", before="10.0.0.9")
    ((address, why),) = asyncio.run(PartyActor([begin.name]).start([begin], {}))
    assert address == ""
    assert why.startswith("it ran on 10.0.0.9 before")
    assert str(tmp_path / "gone") in why


def test_a_cluster_that_asks_nobody_is_spoken_of(tmp_path, monkeypatch):
    with machines_of(("127.0.0.2",), mode="disabled") as machines:
        settle(machines, tmp_path, monkeypatch)
        said = []
        with joined(machines.head, said.append) as found:
            assert found.cluster_resources()["CPU"] == 1.0
    assert said == [
        f"  the Ray at {machines.head} asks no token: whoever reaches its ports can run code at every party"
    ]


def looked(path, address=None):
    """What `coordinator check` says of the cluster."""
    (line,) = [each for each in check(path, address) if each.what == "cluster"]
    return line.state, line.said


def test_a_check_looks_at_the_cluster(here, machines):
    state, said = looked(plan_at(here, PLAN, machines.head, "resources = { desk = 2 }\n"))
    python, conclave = sys.version.split()[0], software_version()
    there = f"Ray {ray.__version__}, Python {python} and Conclave {conclave} at {machines.head}"
    assert (state, said) == ("ok", f"{there}, 3 machines; room for 2 nodes")
    (here / "plain.toml").write_text(PLAN)
    assert looked(here / "plain.toml", machines.head)[0] == "ok"
    assert "cluster" not in {each.what for each in check(here / "plain.toml")}
    state, said = looked(plan_at(here, PLAN, machines.head, "resources = { desk = 3 }\n"))
    assert state == "to do"
    assert "asks for a machine with 3 of desk, and the cluster has none" in said


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("resources = { three = 1 }", r"party party-1 asks for a machine with 1 of three, and the cluster has none: "),
        ("gpus = 2", r"party party-1 asks for a machine with 2 of GPU, and .*127\.0\.0\.4 has 1 of GPU"),
        ("gpus = 1", r"2 parties ask for 2 of GPU together, and the cluster has 1\. "),
        ('labels = { zone = "west" }', r"label zone = west, and the cluster has none: .*label zone = south"),
    ],
)
def test_what_machines_lack_is_named(here, machines, tables, said):
    began = time.monotonic()
    with pytest.raises(LaunchError) as error:
        api.run(plan_at(here, PLAN, machines.head, tables + "\n"), output=here / "out")
    assert re.search(said, said_by(error, began))


def test_what_other_work_holds_is_named(here, machines, monkeypatch):
    monkeypatch.setattr(clusters, "ROOM_SECONDS", 1.0)
    wanted = Cluster(machines.head, places={"party-1": Place({"desk": 2}), "party-2": Place({"desk": 1})})
    with joined(machines.head) as found:

        @found.remote(num_cpus=0, resources={"desk": 2})
        class Other:
            def ready(self):
                return True

        other = Other.remote()
        assert found.get(other.ready.remote(), timeout=120)
        with pytest.raises(LaunchError, match=r"ask for 3 of desk .* has 4, of which other work holds 2"):
            clusters.wait_for_room(found, wanted)
        found.kill(other)
        monkeypatch.setattr(clusters, "ROOM_SECONDS", 20.0)
        clusters.wait_for_room(found, wanted)


def test_a_party_gets_the_processor_for_graphics_that_it_asks_for(machines, here):
    with joined(machines.head) as found:

        @found.remote
        class Seen:
            def devices(self):
                return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.util.get_node_ip_address()

        asked = Seen.options(num_cpus=0, **clusters.options(Place(gpus=1))).remote()
        assert found.get(asked.devices.remote(), timeout=300) == ("0", "127.0.0.4")


FILMS = """
[run]
name = "films"
recipe = "dp_sgd"
seed = 3
[privacy]
epsilon = 8.0
delta = 1e-5
declared_size = 80
noise_multiplier = 1.5
[federation]
launch = "ray"
[federation.shards]
source = "films.jsonl"
label = "mood"
split = {{ by = "hash", parties = 2 }}
[federation.cluster]
address = "{address}"
[federation.cluster.party.party-2]
labels = {{ zone = "south" }}
gpus = {gpus}
[text]
labels = ["no", "yes"]
values = ["0", "1"]
longest = 16
[model]
name = "{model}"
[dp_sgd]
steps = 2
batch = 20
"""


@pytest.mark.timeout(600)
def test_a_gpu_that_ray_was_only_told_of_is_a_sentence_and_the_run_goes_on_without_it(here, machines, tiny_bert):
    """The machine in the south told Ray of one GPU, and has none: the party there does not fall back in silence."""
    rows = [{"text": f"a {('bad', 'good')[n % 2]} film we saw {n}", "mood": str(n % 2)} for n in range(80)]
    (here / "films.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = here / "films.toml"
    path.write_text(FILMS.format(address=machines.head, model=tiny_bert, gpus=1))
    with pytest.raises(LaunchError) as error:
        api.run(path, output=here / "films")
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith("party party-2 could not be started on 127.0.0.4: ")
    assert '[compute]: There is no device "cuda" on this machine. It has cpu' in said
    assert said.endswith("Ray was started there with GPUs that it has not: mend that, or gpus = 1 of the plan.")
    for ledger in (here / "films/parties").rglob("ledger.sqlite"):
        assert read_runs(ledger) == ()
    path.write_text(FILMS.format(address=machines.head, model=tiny_bert, gpus=0))
    result = api.resume(here / "films")
    assert result.verdict.ok
    assert "computed" not in result.statement.privacy


def test_a_head_without_the_sources_files_is_named(here, machines):
    path = plan_at(here, PLAN.replace("letters.jsonl", "elsewhere.jsonl"), machines.head)
    began = time.monotonic()
    with pytest.raises(LaunchError) as error:
        api.run(path, output=here / "out")
    said = said_by(error, began)
    assert re.match(r"party party-\d could not be started on 127\.0\.0\.\d: ", said)
    assert "elsewhere.jsonl" in said


def test_ports_are_those_of_the_plan(here, machines):
    first = free_port()
    found = []
    plan = plan_at(here, PLAN, machines.head, f'ports = "{first}-{first + 1}"\nresources = {{ desk = 1 }}\n')

    def look(name):
        found.extend(
            (each.laddr.ip, each.laddr.port)
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr.port in (first, first + 1)
        )

    api.run(plan, output=here / "out", progress=Told("ready", look))
    assert sorted(port for _, port in found) == [first, first + 1]
    assert {host.removeprefix("::ffff:") for host, _ in found} <= {"127.0.0.3", "127.0.0.4"}


def test_no_cluster_is_named(here):
    path = plan_at(here, PLAN, f"127.0.0.1:{free_port()}")
    began = time.monotonic()
    with pytest.raises(LaunchError) as error:
        api.run(path, output=here / "out")
    assert said_by(error, began).startswith("no Ray cluster answers at 127.0.0.1:")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RAY_AUTH_TOKEN": "ab" * 32}, "does not take this token"),
        ({"HOME": "."}, "asks for a token, and there is none here"),
    ],
)
def test_another_token_and_none_are_named(here, machines, monkeypatch, variables, said):
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    path = plan_at(here, PLAN, machines.head)
    began = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).parent / "coordinator", "run", path, "--output", "out"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=2 * SOON,
        check=False,
    )
    assert time.monotonic() - began < SOON
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr + done.stdout


def test_something_else_at_the_address_is_named(here):
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as stranger:
        port = stranger.stdout.readline().strip()
        began = time.monotonic()
        with pytest.raises(LaunchError) as error:
            api.run(plan_at(here, PLAN, f"127.0.0.1:{port}"), output=here / "out")
        stranger.send_signal(signal.SIGKILL)
    assert said_by(error, began).startswith(f"what listens at 127.0.0.1:{port} is no head of a Ray cluster")


STRANGER = """
import time
from concurrent.futures import ThreadPoolExecutor
import grpc
server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("other", ["ray", "python"])
def test_another_version_is_named(here, machines, monkeypatch, other):
    """The versions that this process says it has are changed: the comparison is Ray's own."""
    from ray._private import utils

    real = utils.compute_version_info()
    changed = ("1.2.3", real[1], *real[2:]) if other == "ray" else (real[0], "3.9.0", *real[2:])
    monkeypatch.setattr(utils, "compute_version_info", lambda: changed)
    began = time.monotonic()
    with pytest.raises(LaunchError) as error:
        api.run(plan_at(here, PLAN, machines.head), output=here / "out")
    said = said_by(error, began)
    assert f"it runs Ray {real[0]} and Python {real[1]}, this process Ray {changed[0]} and Python {changed[1]}" in said


def test_another_conclave_is_named_with_the_machine_before_a_party_starts(here, machines, monkeypatch):
    """The version that this process says it has is changed; machines on which no party may be put are not asked."""
    monkeypatch.setattr(clusters, "software_version", lambda: "9.9.9")
    path = plan_at(here, PLAN, machines.head)
    path.write_text(path.read_text().replace("[vocabulary]", APART.lstrip(), 1))
    version = re.escape(software_version())
    wanted = rf"127\.0\.0\.[34], a machine of the cluster, runs Conclave {version}, this process 9\.9\.9\. Install"
    state, said = looked(path)  # whichever machine answers first is named
    assert state == "to do"
    assert re.search(wanted, said)
    with pytest.raises(LaunchError, match=wanted):
        api.run(path, output=here / "out")


def test_an_address_on_the_command_line_is_kept_for_resuming(here, machines):
    plain = here / "plain.toml"
    plain.write_text(PLAN)

    def stop(name):
        raise KeyboardInterrupt

    with pytest.raises(RunStopped):
        api.run(plain, output=here / "out", ray_address=machines.head, progress=Told("ready", stop))
    told = Told()
    api.resume(RunIndex().entries()[0].id, progress=told)
    assert any("of the Ray cluster" in sentence for sentence in told.said)


def test_auto_finds_no_cluster_where_there_is_none(here, monkeypatch):
    """What runs on this machine is hidden: the test's own cluster does."""
    from ray._private import services

    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: None)
    began = time.monotonic()
    with environment({"RAY_ADDRESS": ""}), pytest.raises(LaunchError) as error:
        api.run(plan_at(here, PLAN, "auto"), output=here / "out")
    assert said_by(error, began).startswith("no Ray cluster runs on this machine")
