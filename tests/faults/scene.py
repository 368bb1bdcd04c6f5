"""A scene of real processes: parties that serve on loopback, a coordinator that runs a plan, and what they leave.

Everything of a scene is below one folder, its temporary files too, and every process carries the scene's mark in its
environment: so what was left behind can be told.
"""

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from party.accounts import read_account
from protos.certificates import Role
from protos.identity import self_made

MARK = "CONCLAVE_FAULTS"
DYING = Path(__file__).with_name("dying.py")
PARTIES = ("north", "south")
TELLING = re.compile(r"(privacy|plan|manifest)\.json$|README\.md$|manifest\.sig$|coordinator\.pem$|attestations/")
"""Files of a published folder that name the run or were signed at a time."""
SECONDS = 120
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

[federation]
launch = "connect"
deadline_seconds = {deadline}
retry_seconds = {retry}
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

VOTES_AND_COUNTS = 'signals = ["votes", "counts"]'
"""Forty queries and forty words, in ten blocks each."""

PRIVATE_TRAINING = """signals = ["votes"]

[dped.private_training]
units_per_teacher = 40
batch = 20
steps = 3"""
BLOCKS = 10

PARTY = """
name = "{name}"
listen = "127.0.0.1:{port}"
plaintext = true

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
    """What a run comes to when nothing happens to it, and how long it takes."""

    student: dict[str, bytes]
    charged: dict[str, list[tuple[str, int, str]]]
    claimed: dict[str, list[tuple[str, int, int, int]]]
    seconds: float


class Scene:
    """Parties and coordinators below one folder. A context manager: whatever still runs at its end is killed."""

    def __init__(self, folder, parties=PARTIES):
        self.folder = folder
        self.parties = parties
        self.ports = {name: free_port() for name in parties}
        self.nodes = {}
        self.mark = uuid.uuid4().hex
        self.temporary = folder / "tmp"
        self.temporary.mkdir(parents=True)
        self._started = []
        write_texts(folder)
        for number, name in enumerate(parties):
            self._file(name).write_text(
                PARTY.format(name=name, port=self.ports[name], parties=len(parties), number=number) + self._pins(name)
            )

    def _pins(self, name):
        """The `[peers]` of a party: who the others say they are, made before they first serve."""
        keys = {
            other: self_made(other, Role.PARTY, self.folder / f"{other}.party/identity").fingerprint
            for other in self.parties
            if other != name
        }
        return "\n[peers]\n" + "".join(f'{other} = "{key}"\n' for other, key in keys.items())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        for process in marked(self.mark):
            process.kill()

    def plan(self, addresses=None, *, name="plan.toml", deadline=5, retry=60, signals=VOTES_AND_COUNTS):
        """Write the plan of a run, its parties at these addresses or at their own, and return its file."""
        where = {party: f"127.0.0.1:{port}" for party, port in self.ports.items()} | (addresses or {})
        entries = ", ".join(f'{{ name = "{party}", address = "{address}" }}' for party, address in where.items())
        path = self.folder / name
        path.write_text(PLAN.format(parties=entries, deadline=deadline, retry=retry, signals=signals))
        return path

    def serve(self, name, *dying):
        """Start a party's node and wait until it listens. dying: what `dying.py` is told, for one that shall."""
        self.await_gone(name)
        process = self._start("party", name, ["serve", "--config", self._file(name), "--json"], dying)
        line = process.stdout.readline()
        assert line, f"party {name} did not start: {self.said(name)}"
        assert json.loads(line)["address"] == f"127.0.0.1:{self.ports[name]}"
        self.nodes[name] = process
        return process

    def serve_all(self):
        """Start every party."""
        for name in self.parties:
            self.serve(name)

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
        """Run a plan to its end."""
        began = time.monotonic()
        code, said = self.outcome(self.run(plan, output=output))
        seconds = time.monotonic() - began
        assert code == 0, said
        run = last_json(said)["run"]
        return Undisturbed(self.student(output), self.charged(run), self.claimed(run), seconds)

    def run(self, plan, *dying, output="run"):
        """Start a coordinator on a plan."""
        return self.coordinator("run", plan, "--output", output, "--json", dying=dying)

    def resume(self, run, *dying):
        """Start a coordinator that goes on with a run."""
        return self.coordinator("resume", run, "--json", dying=dying)

    def coordinator(self, *arguments, dying=()):
        """Start the `coordinator` command; its output is in a file, see `outcome`."""
        return self._start("coordinator", f"coordinator-{len(self._started)}", arguments, dying)

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
        folder = self.folder / output / "student"
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
        assert "skipgram.safetensors" in found
        return {name: content for name, content in found.items() if not TELLING.match(name)}

    def charged(self, run):
        """What each party's ledger has of a run: its reservations as `(release, attempt, event)`, in order."""
        found = {}
        for name in self.parties:
            account = read_account(self._ledger(name), name)
            assert account is not None
            found[name] = [
                (each.release, each.attempt, repr(each.event)) for each in account.reservations if each.run == run
            ]
        return found

    def claimed(self, run):
        """What each party's ledger has of a run's blocks: `(release, batch, start, stop)`, sorted."""
        found = {}
        for name in self.parties:
            with closing(sqlite3.connect(f"{self._ledger(name).as_uri()}?mode=ro", uri=True)) as ledger:
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
        path = self.folder / output / "run.sqlite"
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as run:
                row = run.execute(question).fetchone()
        except sqlite3.Error:
            return otherwise
        return otherwise if row is None else row[0]

    def training(self, name):
        """The processes that train for a party just now."""
        try:
            children = psutil.Process(self.nodes[name].pid).children()
            return [child for child in children if "party.work" in child.cmdline()]
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
        found = [f"process {' '.join(each.cmdline())}" for each in left_of(self.mark, running)]
        for name, port in self.ports.items():
            if (name not in self.nodes or self.nodes[name].poll() is not None) and listens(port):
                found.append(f"port of {name}")
        for path in sorted(self.folder.rglob("*")):
            inside = path.relative_to(self.folder)
            partial = path.name.startswith(".") or path.suffix == ".part"
            if partial or (inside.parts[0] == "tmp" and len(inside.parts) > 1):
                found.append(f"file {inside}")
        return found

    def await_gone(self, name):
        """Wait until nothing listens on a party's port."""
        until(lambda: not listens(self.ports[name]), f"the port of {name} is free")

    def _start(self, room, called, arguments, dying):
        command = [Path(sys.executable).with_name(room)]
        if dying:
            command = [sys.executable, "-P", DYING, *dying, "--", room]
        environment = os.environ | {
            MARK: self.mark,
            "CONCLAVE_HOME": str(self.folder / "home"),
            "TMPDIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch"),
            "PYTHONUNBUFFERED": "1",
        }
        with (self.folder / f"{called}.log").open("a") as log:
            process = subprocess.Popen(
                [str(each) for each in (*command, *arguments)],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        process.called = called
        self._started.append(process)
        return process

    def _file(self, name):
        return self.folder / f"{name}.toml"

    def _ledger(self, name):
        return self.folder / f"{name}.party/ledger.sqlite"


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
    """A port of loopback that nobody has just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


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


def marked(mark):
    """All processes that were started, at any depth, in a scene."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess):
            continue
    return found


def left_of(mark, running=(), seconds=10):
    """Those that are still there after some time to end, but for the ids that are to run."""
    deadline = time.monotonic() + seconds
    while (left := [each for each in marked(mark) if each.pid not in running]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def last_json(said):
    """The JSON object that a command ended its standard output with."""
    return json.loads([line for line in said.splitlines() if line.startswith("{")][-1])


def next_command(said):
    """The run id of the last `coordinator resume RUN` that a message gives."""
    found = re.findall(r"coordinator resume ([0-9a-f]{8}-[a-z0-9-]+)", said)
    assert found, f"no command to go on with: {said}"
    return found[-1]


def stopped(process):
    """Whether a process was stopped, as by SIGSTOP."""
    try:
        return psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
