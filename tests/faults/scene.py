"""A scene of real processes: parties that serve on loopback, a coordinator that runs a plan, and what they leave.

Everything of a scene is below one folder, its temporary files too, and every process carries the scene's mark in its
environment: so what was left behind can be told.
"""

import json
import os
import re
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from coordinator.identity import provisioning
from party.ledger.accounts import read_account
from protos.identity.certificates import Role, fingerprint, read_bundle
from protos.identity.identity import self_made, write_private
from protos.identity.requests import key_pem, make_request, new_keys

MARK = "CONCLAVE_FAULTS"
DYING = Path(__file__).with_name("dying.py")
PARTIES = ("north", "south")
FOUR = ("east", "north", "south", "west")
TELLING = re.compile(r"(privacy|plan|manifest)\.json$|README\.md$|manifest\.sig$|coordinator\.pem$|attestations/")
"""Files of a published folder that name the run or were signed at a time."""
SECONDS = 600
"""After so long a process of a scene is taken to hang."""

PLAN = """
[run]
name = "faults"
recipe = "dped"
seed = 3

[privacy]
epsilon = 8.0
delta = 1e-6
insecure_reproducible_noise = true
{privacy}

[federation]
launch = "connect"
deadline_seconds = {deadline}
retry_seconds = {retry}
{identity}
parties = [{parties}]

[vocabulary]
source = "public.jsonl"
size = 40

[dped]
dimension = 8
window = 3
teachers_per_party = 2
block_rows = 4
{signals}

[student]
publish = "published"
"""

COUNTS = 'signals = ["counts"]'
"""Forty words, in ten blocks. Parties count without torch, which takes seconds to import."""

VOTES_AND_COUNTS = 'signals = ["votes", "counts"]'
"""Forty queries as well, in ten blocks too."""

PRIVATE_TRAINING = {
    "signals": """signals = ["votes"]

[dped.private_training]
units_per_teacher = 40
batch = 20
steps = 3""",
    "privacy": ["noise_multiplier = 4.0"],
}
"""Settings of `Scene.plan` for teachers under DP-SGD. Finding its noise would take long, so it is given."""
BLOCKS = 10

PARTY = """
name = "{name}"
listen = "{host}:{port}"
{who}

[shard]
source = "letters.jsonl"
part = {{ by = "sender", parts = {parties}, part = {number} }}

[policy]
epsilon = 1000.0
delta = 1e-6
recipes = ["dped"]
simulation = true
"""


@dataclass(frozen=True)
class Undisturbed:
    """What a run comes to when nothing happens to it."""

    student: dict[str, bytes]
    charged: dict[str, list[tuple[str, int, str]]]
    claimed: dict[str, list[tuple[str, int, int, int]]]


class Scene:
    """Parties and coordinators below one folder. A context manager: whatever still runs at its end is killed."""

    def __init__(self, folder, parties=PARTIES, warm=None, *, apart=None, hosts=None, dials=()):
        """warm: what forks the processes of a command, by its name; each is started anew without it.

        apart: the namespaces of a party, or of "coordinator", by name. hosts: where parties are reached if not on
        loopback; then all is under mutual TLS, as it is where some dial. dials: the parties that do. `way` has what a
        party that dials is told of its way, by its name.
        """
        self.apart = apart or {}
        self.hosts = dict.fromkeys(parties, "127.0.0.1") | (hosts or {})
        self.tls = hosts is not None or bool(dials)
        self.dials = dials
        self.gate = free_port()
        self.way = {}
        self.warm = warm or {}
        self.folder = folder
        self.parties = parties
        self.ports = {name: free_port() for name in parties}
        self.nodes = {}
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._started = []
        write_texts(folder)
        keys = self._identities()
        for name in parties:
            self.write_party(name, keys)

    def write_party(self, name, keys=None):
        """Write a party's file. keys: the fingerprints of all, as kept where they are not given."""
        self._keys = keys or self._keys
        who = "plaintext = true"
        if self.tls:
            who = f'identity = {{ certificate = "{name}.pem", key = "{name}.key", authority = "{self._authority}" }}'
        pins = "".join(f'{other} = "{key}"\n' for other, key in self._keys.items() if other != name)
        place = {"host": self.hosts[name], "port": self.ports[name]}
        shares = {"parties": len(self.parties), "number": self.parties.index(name)}
        self._file(name).write_text(PARTY.format(name=name, who=who, **place, **shares) + f"\n[peers]\n{pins}")

    def _identities(self):
        """Make who the parties are before they first serve; their fingerprints."""
        if not self.tls:
            made = {name: self_made(name, Role.PARTY, self.folder / f"{name}.party/identity") for name in self.parties}
            return {name: identity.fingerprint for name, identity in made.items()}
        provisioning.make(self.folder / "federation", "coordinator.example")
        self._authority = provisioning.authority_fingerprint(self.folder / "federation")
        fingerprints = {}
        for name in self.parties:
            keys = new_keys()
            bundle = provisioning.vouched(self.folder / "federation", name, make_request(name, *keys))
            (self.folder / f"{name}.pem").write_bytes(bundle)
            write_private(self.folder / f"{name}.key", key_pem(*keys))
            fingerprints[name] = fingerprint(read_bundle(bundle, name).signing)
        return fingerprints

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for process in self._marked():
            process.kill()

    def plan(self, addresses=None, *, name="plan.toml", deadline=5, retry=60, signals=COUNTS, privacy=()):
        """Write the plan of a run, its parties at these addresses or at their own, and return its file.

        privacy: lines of `[privacy]`.
        """
        where = {party: self.address(party) for party in self.parties} | (addresses or {})
        entries = ", ".join(
            f'{{ name = "{party}", ' + ("dials = true }" if party in self.dials else f'address = "{address}" }}')
            for party, address in where.items()
        )
        path = self.folder / name
        settings = {"deadline": deadline, "retry": retry, "signals": signals, "privacy": "\n".join(privacy)}
        settings["identity"] = 'identity = "federation"' if self.tls else ""
        if self.dials:
            settings["identity"] += f'\nlisten = "127.0.0.1:{self.gate}"'
        path.write_text(PLAN.format(parties=entries, **settings))
        return path

    def address(self, name):
        """Where a party listens."""
        return f"{self.hosts[name]}:{self.ports[name]}"

    def serve(self, name, *dying):
        """Start a party's node and wait until it listens. dying: what `dying.py` is told, for one that shall."""
        (process,) = self.serve_all({name: dying}, [name])
        return process

    def serve_all(self, dying=None, names=None):
        """Start every party, or some, and wait until all listen; what `dying.py` is told, by name. The processes."""
        started = {}
        for name in names or self.parties:
            self.await_gone(name)
            arguments = ["serve", "--config", self._file(name), "--json"]
            if name in self.dials:
                arguments += ["--connect", f"127.0.0.1:{self.gate}", *self.way.get(name, ("--proxy", "none"))]
            started[name] = self._start("party", name, arguments, tuple((dying or {}).get(name, ())))
        for name, process in started.items():
            line = process.stdout.readline()
            assert line, f"party {name} did not start: {self.said(name)}"
            said = json.loads(line)
            assert "dials" in said if name in self.dials else said["address"] == self.address(name)
        self.nodes |= started
        return list(started.values())

    def fails_to_serve(self, name, *dying):
        """Start a party's node that ends by itself, with 1; what it said."""
        process = self._start("party", name, ["serve", "--config", self._file(name), "--json"], dying)
        code = process.wait(SECONDS)
        said = process.stdout.read() + self.said(name)
        assert code == 1, said
        return said

    def kill(self, name):
        """End a party's node as a power cut would."""
        self.nodes[name].kill()
        self.nodes[name].wait(SECONDS)

    def stop(self):
        """End every node as an administrator would, whether it died already or not."""
        for node in self.nodes.values():
            if node.poll() is None:
                node.terminate()
        for node in self.nodes.values():
            node.wait(SECONDS)

    def undisturbed(self, plan, output):
        """Run a plan to its end, by a coordinator that is started anew."""
        arguments = ["run", plan, "--output", output, "--json"]
        code, said = self.outcome(self.coordinator(*arguments, cold=True))
        assert code == 0, said
        run = last_json(said)["run"]
        return Undisturbed(self.student(output), self.charged(run), self.claimed(run))

    def run(self, plan, *dying, output="run"):
        """Start a coordinator on a plan."""
        return self.coordinator("run", plan, "--output", output, "--json", dying=dying)

    def resume(self, run, *dying):
        """Start a coordinator that goes on with a run."""
        return self.coordinator("resume", run, "--json", dying=dying)

    def coordinator(self, *arguments, dying=(), cold=False):
        """Start the `coordinator` command; see `outcome`. cold: not forked."""
        return self._start("coordinator", f"coordinator-{len(self._started)}", arguments, dying, cold)

    def outcome(self, process):
        """Wait for a coordinator: its exit code and everything it said."""
        code = process.wait(SECONDS)
        said = process.stdout.read()
        return code, said + self.said(process.called)

    def said(self, called):
        """What a process wrote to its standard error so far."""
        return (self.folder / f"{called}.log").read_text()

    def student(self, output="run"):
        """The published model: every file but those that tell of the run, by name."""
        folder = self._seen("coordinator", self.folder / output / "student")
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        assert "skipgram.safetensors" in found
        return {name: content for name, content in found.items() if not TELLING.match(name)}

    def in_the_sum(self, output="run"):
        """The parties whose contributions are in each release of a finished run."""
        path = self._seen("coordinator", self.folder / output / "student/privacy.json")
        privacy = json.loads(path.read_text())
        return [release["parties"] for release in privacy["releases"]]

    def charged(self, run, *, standing=False):
        """What each party's ledger has of a run: its reservations as `(release, attempt, event)`, in order.

        standing: only those that were not taken back.
        """
        found = {}
        for name in self.parties:
            with self._ledger(name) as path:
                account = read_account(path, name)
            assert account is not None
            found[name] = [
                (each.release, each.attempt, repr(each.event))
                for each in account.reservations
                if each.run == run and (each.stands or not standing)
            ]
        return found

    def claimed(self, run):
        """What each party's ledger has of a run's blocks: `(release, batch, start, stop)`, sorted."""
        found = {}
        for name in self.parties:
            with self._ledger(name) as path, closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as ledger:
                found[name] = ledger.execute(
                    "SELECT release, batch, start, stop FROM blocks JOIN reservations ON reservation = id "
                    "WHERE run = ? ORDER BY release, batch",
                    (run,),
                ).fetchall()
        return found

    def stored(self, output="run"):
        """How many blocks the run in a folder has stored; -1 before there is a run."""
        return self._asked(output, "SELECT COUNT(*) FROM blocks", -1)

    def started(self, output="run"):
        """The id of the run in a folder; None where it was killed before it kept its plan."""
        kept = "SELECT value FROM facts WHERE key = 'id' AND EXISTS (SELECT 1 FROM facts WHERE key = 'plan')"
        return json.loads(self._asked(output, kept, "null"))

    def stages(self, output="run"):
        """The names of the stages that a run began, in order."""
        return json.loads(
            self._asked(output, "SELECT json_group_array(name) FROM (SELECT name FROM stages ORDER BY started)", "[]")
        )

    def _asked(self, output, question, otherwise):
        try:
            with (
                self._database("coordinator", self.folder / output / "run.sqlite") as path,
                closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as run,
            ):
                row = run.execute(question).fetchone()
        except sqlite3.Error:
            return otherwise
        return otherwise if row is None else row[0]

    def training(self, name):
        """The processes that train for a party just now."""
        try:
            children = psutil.Process(self.nodes[name].pid).children()
            return [child for child in children if "party.tasks.process" in child.cmdline()]
        except psutil.NoSuchProcess:
            return []

    def differs(self, undisturbed, run, output="run"):
        """What of a finished run is not as it was undisturbed: model files, and charges, of at most one block more."""
        was, student = undisturbed.student, self.student(output)
        found = [f"student {name}" for name in was | student if student.get(name) != was.get(name)]
        charged, claimed = self.charged(run), self.claimed(run)
        for name in self.parties:
            if charged[name] != undisturbed.charged[name]:
                found.append(f"charges of {name}: {charged[name]}")
            missing = set(undisturbed.claimed[name]) - set(claimed[name])
            more = set(claimed[name]) - set(undisturbed.claimed[name])
            if missing or len(more) > 1:
                found.append(f"blocks of {name}: without {sorted(missing)}, and {sorted(more)}")
        return found

    def left(self):
        """Everything that should not be there: processes and ports of what has ended, temporary and hidden files."""
        running = {node.pid for node in self.nodes.values() if node.poll() is None}
        found = [f"process {' '.join(each.cmdline())}" for each in self._left_of(running)]
        for name, port in self.ports.items():
            if (name not in self.nodes or self.nodes[name].poll() is not None) and listens(port):
                found.append(f"port of {name}")
        for path in sorted(self.folder.rglob("*")):
            inside = path.relative_to(self.folder)
            partial = path.name.startswith(".") or path.suffix == ".part"
            if partial or (inside.parts[0] == "tmp" and len(inside.parts) > 1):
                found.append(f"file {inside}")
        return found

    def _marked(self):
        """All processes that were started, at any depth: by the mark, or as forked, with the environment of another."""
        forked = {process.pid for process in self._started if process.poll() is None}
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.pid in forked or process.environ().get(MARK) == self.mark
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.AccessDenied, psutil.NoSuchProcess):
                continue
        return found

    def _left_of(self, running, seconds=10):
        """Those that are still there after some time to end, but for the ids that are to run."""
        deadline = time.monotonic() + seconds
        while (left := [each for each in self._marked() if each.pid not in running]) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def await_gone(self, name):
        """Wait until nothing listens on a party's port."""
        until(lambda: not listens(self.ports[name]), f"the port of {name} is free")

    def _start(self, room, called, arguments, dying, cold=False):
        environment = os.environ | {
            MARK: self.mark,
            "CONCLAVE_HOME": str(self.folder / "home"),
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch"),
            "PYTHONUNBUFFERED": "1",
        }
        arguments = [str(each) for each in arguments]
        apart = self.apart.get("coordinator" if room == "coordinator" else called)
        with (self.folder / f"{called}.log").open("a") as log:
            if room in self.warm and not cold:
                where = {"cwd": self.folder, "namespaces": () if apart is None else (apart.file,)}
                process = self.warm[room].start(arguments, environment=environment, stderr=log, dying=dying, **where)
            else:
                command = [Path(sys.executable).with_name(room)]
                if dying:
                    command = [sys.executable, "-P", DYING, *dying, "--", room]
                process = subprocess.Popen(
                    [*map(str, command), *arguments],
                    cwd=self.folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        process.called, process.told = called, partial(self.said, called)
        self._started.append(process)
        return process

    def _file(self, name):
        return self.folder / f"{name}.toml"

    def _ledger(self, name):
        return self._database(name, self.folder / f"{name}.party/ledger.sqlite")

    @contextmanager
    def _database(self, who, path):
        """A database to read from. SQLite takes no path into another mount namespace, so it is copied out of one."""
        if (seen := self._seen(who, path)) == path:
            yield path
            return
        with tempfile.TemporaryDirectory() as folder:
            for each in seen.parent.glob(f"{path.name}*"):
                shutil.copy(each, folder)
            yield Path(folder) / path.name

    def _seen(self, who, path):
        """A path as a party or the coordinator has it, to be reached from here."""
        return self.apart[who].seen(path) if who in self.apart else path


def write_texts(folder):
    """Letters of twelve senders, and public text in the same made-up words."""
    rng = np.random.default_rng(0)
    ends = ("lam", "ner", "pos", "qui", "rit", "sol", "tun")
    words = [start + end for start in ("ba", "di", "fo", "gu", "ke", "lo") for end in ends]
    chances = 1 / np.arange(1, len(words) + 1)
    chances /= chances.sum()

    def rows(count):
        for number in range(count):
            yield json.dumps({"text": " ".join(rng.choice(words, 30, p=chances)), "sender": f"s{number % 12}"})

    (folder / "letters.jsonl").write_text("\n".join(rows(200)))
    (folder / "public.jsonl").write_text("\n".join(rows(60)))


def free_port():
    """A port of loopback that nobody has just now, and that the kernel gives to nobody who connects (Linux)."""
    while True:
        port = secrets.choice(range(20_000, 32_000))
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def listens(port):
    """Whether anybody listens on a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(true, what, seconds=SECONDS):
    """Wait for something, and fail saying what did not come."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not in {seconds} s"
        time.sleep(0.01)


def last_json(said):
    """The JSON object that a command ended its standard output with."""
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def next_command(said):
    """The run id of the last `coordinator resume RUN` that a message gives."""
    found = re.findall(r"coordinator resume ([0-9a-f]{8}-[a-z0-9-]+)", said)
    assert found, f"no command to go on with: {said}"
    return found[-1]


def stopped(process):
    """Whether a process was stopped, as by SIGSTOP; one that ended instead is a failure."""
    assert process.poll() is None, f"it ended with {process.returncode} instead of standing still: {process.told()}"
    try:
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
