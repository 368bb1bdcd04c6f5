"""`ray up` over ssh on three machines of the test's own, as docs/ray.md tells it, from nothing to nothing.

A machine here is a process table, a network, a home and a /tmp of its own on this one: `ray stop` ends every Ray that
it can see, so it must see this test's alone. They reach each other and nothing else, so they install nothing: as
docs/ray.md offers, `~/conclave/venv` is a link, to what CONCLAVE_RAY_ENV names, else to the environment of the tests.
"""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

PROJECT = Path(__file__).parents[2]
DOCUMENT = PROJECT / "docs" / "ray.md"
BINARIES = Path(sys.prefix) / "bin"
ADDRESSES = {"launcher": "10.99.0.1", "head": "10.99.0.10", "worker": "10.99.0.11"}
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = ("home/conclave", "home/.conclave", "tmp/torchinductor_")
"""What docs/ray.md says remains, and an empty folder that torch makes for every account."""
CHOSEN = os.environ.get("CONCLAVE_RAY_ENV", sys.prefix)


def lacking() -> str:
    """Why this cannot be tried here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root, to make machines of its own on this one"
    missing = [
        name for name in ("ssh", "sshd", "rsync", "unshare", "nsenter", "ip") if not shutil.which(name, path=PATHS)
    ]
    if missing:
        return f"not installed here: {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--uts", "true"], capture_output=True
    )
    return f"cannot make machines here: {tried.stderr.decode().strip()}" if tried.returncode else ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY := lacking()), reason=WHY or "-"), pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Machine:
    """A process table, a network, a home and a /tmp of its own; what lies below `folder` is what is in the last two."""

    name: str
    folder: Path
    process: int

    @property
    def address(self) -> str:
        return ADDRESSES[self.name]

    def run(self, command: str, check: bool = True, seconds: float = 300, **variables: str) -> str:
        """What a shell on this machine prints, errors too."""
        environment = {"HOME": str(Path.home()), "PATH": f"{BINARIES}:{PATHS}", "LANG": "C.UTF-8", **variables}
        inside = ["nsenter", f"--target={self.process}", "--net", "--pid", "--mount", "--uts", "--"]
        done = subprocess.run(
            [*inside, "bash", "-c", command],
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert not check or done.returncode == 0, f"{self.name}: {command}\n{done.stdout}"
        return done.stdout

    def processes(self) -> list[str]:
        """Command lines of all that runs on this machine, but for what the test keeps there."""
        lines = [line.split(maxsplit=1) for line in self.run("ps -eo stat=,args= | cat").splitlines()]
        kept = ("sleep infinity", "sshd: /", "ps -eo", "cat", "bash -c ps")
        return [command for state, command in lines if state[0] != "Z" and not command.startswith(kept)]

    def files(self) -> set[str]:
        """Everything in its home and /tmp, but where other folders are mounted."""
        found = set()
        for place in ("home", "tmp"):
            for folder, folders, names in os.walk(self.folder / place):
                relative = Path(folder).relative_to(self.folder)
                folders[:] = [each for each in folders if str(relative / each) not in _mounted(self.folder)]
                found |= {str(relative / each) for each in (*names, *folders)}
        return found


def _mounted(folder: Path) -> set[str]:
    return set(json.loads((folder / "mounted.json").read_text()))


def _machine(name: str, folder: Path, stack: list[subprocess.Popen[str]]) -> Machine:
    """Start one: a `sleep` that holds its namespaces, with own folders over the home and /tmp."""
    script, mounted = (
        ["set -e", "mount -t tmpfs none /run", "mkdir /run/sshd", "ip link set lo up", f"hostname {name}"],
        set(),
    )
    needed = {
        Path(each).resolve()
        for each in (sys.prefix, sys.base_prefix, PROJECT, folder.parent, CHOSEN)
        if Path(each).is_dir()
    }
    for kind, over in (("home", Path.home()), ("tmp", Path("/tmp"))):
        own = folder / kind
        own.mkdir(parents=True, mode=0o700)
        for path in sorted(each for each in needed if each.is_relative_to(over)):
            place = own / path.relative_to(over)
            if not place.exists():
                place.mkdir(parents=True)
                script.append(f"mount --bind {path} {place}")
            mounted |= {
                str(each.relative_to(folder))
                for each in (place, *place.parents)
                if each.is_relative_to(own) and each != own
            }
        script.append(f"mount --rbind {own} {over}")
    (folder / "mounted.json").write_text(json.dumps(sorted(mounted)))
    script += ["chmod 1777 /tmp", "echo ready", "exec sleep infinity"]
    holder = subprocess.Popen(
        [
            "unshare",
            "--net",
            "--pid",
            "--uts",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "bash",
            "-c",
            "\n".join(script),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.append(holder)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return Machine(name, folder, psutil.Process(holder.pid).children()[0].pid)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """Three machines on one wire; on the head and the worker an sshd with a host key of its own, and no password."""
    holders: list[subprocess.Popen[str]] = []
    try:
        made = {name: _machine(name, tmp_path / name, holders) for name in ADDRESSES}
        launcher = made["launcher"]
        launcher.run(
            f"ip link add wire type bridge && ip link set wire up && ip address add {launcher.address}/24 dev wire"
        )
        launcher.run("mkdir -m 700 -p ~/.ssh && ssh-keygen -q -t ed25519 -N '' -C test -f ~/.ssh/conclave")
        key = (launcher.folder / "home" / ".ssh" / "conclave.pub").read_text()
        for machine in (made["head"], made["worker"]):
            wire = f"wire-{machine.name}"
            launcher.run(
                f"ip link add name {wire} type veth peer name eth-{machine.name} && ip link set {wire} master wire up"
            )
            across = ["ip", "link", "set", f"eth-{machine.name}", "netns", str(machine.process)]
            subprocess.run(["nsenter", f"--target={launcher.process}", "--net", "--", *across], check=True)
            machine.run(
                f"ip address add {machine.address}/24 dev eth-{machine.name} && ip link set eth-{machine.name} up"
                f" && ip route add default via {launcher.address}"
            )
            host_key = _serve_ssh(machine, key)
            launcher.run(f"echo '{machine.address} {host_key}' >> ~/.ssh/known_hosts")
        yield made
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _serve_ssh(machine: Machine, key: str) -> str:
    """Start an sshd that knows one key and no password; returns its host key."""
    secret = machine.folder / "ssh"
    secret.mkdir(mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(secret / "host")], check=True)
    (secret / "authorized").write_text(key)
    (secret / "config").write_text(
        textwrap.dedent(f"""\
            ListenAddress {machine.address}:22
            HostKey {secret}/host
            AuthorizedKeysFile {secret}/authorized
            AuthenticationMethods publickey
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            PermitRootLogin prohibit-password
            UsePAM no
            StrictModes no
            PidFile none
            Subsystem sftp internal-sftp
        """)
    )
    machine.run(f"$(command -v sshd) -f {secret}/config -E {secret}/log")
    return " ".join((secret / "host.pub").read_text().split()[:2])


def documented() -> list[str]:
    """What docs/ray.md tells the launcher to type, with the changes that it asks for."""
    blocks = re.findall(r"```sh at=launcher\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    changes = {
        "HEAD WORKERS": f"{ADDRESSES['head']} {ADDRESSES['worker']}",
        "conclave@$machine": "root@$machine",
    }
    for old, new in changes.items():
        assert any(old in block for block in blocks)
        blocks = [block.replace(old, new) for block in blocks]
    return blocks


def changed(text: str) -> str:
    """The cluster file with the lines changed that say so."""
    changes = {
        "head_ip: 192.0.2.10 ": f"head_ip: {ADDRESSES['head']} ",
        "    - 192.0.2.11\n    - 192.0.2.12\n": f"    - {ADDRESSES['worker']}\n",
        "ssh_user: conclave ": "ssh_user: root ",
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


ASK = """
import os, ray
ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
placed = ray.remote(num_cpus=0, resources={{"party": 1}}, label_selector={{"machine": {machine!r}}})
where = placed(lambda: os.uname().nodename)
print("ran on", ray.get(where.remote(), timeout=90))
"""


def asked(machine: Machine, address: str, of: str = "worker", **variables: str) -> str:
    """What a small task prints that a program on `machine` sends to the cluster, to be run by the machine `of`."""
    program = shlex.quote(ASK.format(address=address, machine=of))
    python = "~/conclave/venv/bin/python" if machine.name != "launcher" else shlex.quote(sys.executable)
    return machine.run(f"{python} -c {program}", check=False, **variables)


def run_on(head: Machine) -> None:
    """What a user runs on the head of the cluster."""
    for machine in ("head", "worker"):
        assert f"ran on {machine}" in asked(head, "auto", machine, RAY_AUTH_MODE="token")


def listening(machine: Machine) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket that waits for connections there."""
    lines = machine.run("ss -ltnH").splitlines()
    pairs = [line.split()[3].rpartition(":") for line in lines]
    return {(host.strip("[]").removeprefix("::ffff:"), int(port)) for host, _, port in pairs}


def listed() -> dict[range, str]:
    """Ports of the list in docs/ray.md, and whom they are open to."""
    rows = re.findall(r"^\| (\d+)(?:-(\d+))? \| [^|]+ \| ([^|]+) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    return {range(int(low), int(high or low) + 1): open_to for low, high, open_to in rows}


def test_up_run_and_down_leave_nothing(machines: dict[str, Machine], tmp_path: Path) -> None:
    launcher, head, worker = machines.values()
    work = launcher.folder / "checkout"
    shutil.copytree(
        PROJECT, work, ignore=shutil.ignore_patterns(".*", "*.egg-info", "demo", "build", "__pycache__", "tests")
    )
    begin, alone, wheel, prepare, up, run, down = (f"cd {work} && set -e\n{block}" for block in documented())

    launcher.run(begin)
    said = launcher.run(alone, seconds=600)
    assert "4 parties on 1 machine of the Ray cluster" in said
    assert "verify: ok" in said
    assert "One Ray cluster: " in said
    assert _left(launcher) == []
    launcher.run("rm -rf /tmp/ray ~/.conclave")

    for machine in (head, worker):
        machine.run(f"mkdir -p ~/conclave && ln -s {shlex.quote(CHOSEN)} ~/conclave/venv")
    before = {machine.name: machine.files() for machine in machines.values()}
    subprocess.run(["bash", "-c", wheel], check=True, env={**os.environ, "PATH": f"{BINARIES}:{PATHS}"})
    launcher.run(prepare)
    cluster = work / "cluster.yaml"
    cluster.write_text(changed(cluster.read_text()))
    print(_up(launcher, head, up))
    token = launcher.folder / "home" / ".ray" / "auth_token"
    for machine in (launcher, head, worker):
        assert machine.run("stat -c %a ~/.ray/auth_token").strip() == "600"

    status = "ray exec cluster.yaml 'RAY_AUTH_MODE=token ~/conclave/venv/bin/ray status'"
    assert "2 local.cluster.node" in launcher.run(f"cd {work} && {status}")
    run_on(head)
    said = launcher.run(run, seconds=600)
    assert "4 parties on 2 machines of the Ray cluster" in said
    assert "verify: ok" in said
    assert (work / "first" / "model.safetensors").exists(), "and the last line verified it, or had failed"
    for stranger in (
        {"RAY_AUTH_MODE": "disabled"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)},
    ):
        assert "ran on" not in asked(head, f"{head.address}:6379", **stranger)
    assert "ran on" in asked(head, f"{head.address}:6379", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token.read_text())
    joined = launcher.run(
        f"ray start --address={head.address}:6379",
        check=False,
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
    )
    assert "Ray runtime started" not in joined
    _check_ports(launcher, head, worker)
    (submit,) = re.findall(r"^RAY_AUTH_MODE=token (ray job submit .*)$", DOCUMENT.read_text(), flags=re.MULTILINE)
    refused = head.run(f"RAY_AUTH_MODE=disabled ~/conclave/venv/bin/{submit}", check=False)
    assert "authentication is enabled" in refused
    assert "submitted" not in refused
    said = head.run(f"RAY_AUTH_MODE=token ~/conclave/venv/bin/{submit}", seconds=600)
    assert "verify: ok" in said
    assert "succeeded" in said

    launcher.run(down)
    for machine in machines.values():
        assert _left(machine) == [], machine.name
    for machine in (head, worker):
        new = {each for each in machine.files() - before[machine.name] if not each.startswith(KEPT)}
        assert new <= {"home/.ray"}, machine.name
        machine.run("rm -rf ~/conclave ~/.conclave ~/.ray")
    assert launcher.files() - before["launcher"] <= {"tmp/ray"}, "Ray's own folder, empty"


def _up(launcher: Machine, head: Machine, command: str) -> str:
    """What `ray up` says, once the worker is there too, which the head starts by itself afterwards.

    Ray gives a machine 15 seconds to start; for one that was too busy docs/ray.md says to do it again.
    """
    for _ in range(3):
        said = launcher.run(command, check=False)
        if "timed out during startup" in said:
            continue
        assert "Useful commands" in said, said
        (log,) = sorted((head.folder / "tmp" / "conclave-ray" / "ray").glob("session_2*/logs/monitor.out"))[-1:]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and "update-failed" not in log.read_text():
            if "up-to-date" in log.read_text():
                return said
            time.sleep(1)
    raise AssertionError(f"the head or the worker did not come up:\n{said}")


def _check_ports(launcher: Machine, head: Machine, worker: Machine) -> None:
    """What listens is on the list, and the dashboard on loopback alone."""
    for machine in (head, worker):
        for host, port in listening(machine):
            assert any(port in ports for ports in listed()), f"{machine.name} listens on {host}:{port}"
            assert port != 8265 or host == "127.0.0.1"
        assert 7601 in {port for _, port in listening(machine)}
    assert "refused" in launcher.run(f"true < /dev/tcp/{head.address}/8265", check=False).lower()


def _left(machine: Machine) -> list[str]:
    """Processes that are still there after ssh has given up the connection that it keeps for ten seconds."""
    for _ in range(30):
        if not (left := machine.processes()):
            break
        machine.run("sleep 1")
    return left
