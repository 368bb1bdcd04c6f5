"""Namespaces of their own for some processes of a scene: for a small disk, or a network whose links can be cut.

A process that does nothing holds them open. What is mounted or linked in there is gone when it ends, whatever became
of the test.
"""

import functools
import subprocess
from pathlib import Path

FLAGS = {"mnt": "--mount", "net": "--net"}


@functools.cache
def refused(kind):
    """Why there can be no such namespaces here; an empty string where there can."""
    tried = {
        "mnt": ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"],
        "net": ["unshare", "--net", "sh", "-c", "ip link add name a0 type veth peer name b0"],
    }
    try:
        done = subprocess.run(tried[kind], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"unshare ended with {done.returncode}"


class Apart:
    """Namespaces of one kind each, `mnt` or `net`. A context manager."""

    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        command = ["unshare", FLAGS[self.kind], "sh", "-c", "echo ready; exec sleep 3600"]
        self._holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exception):
        self._holder.kill()
        self._holder.wait()
        self._holder.stdout.close()

    @property
    def pid(self):
        """The process that holds it."""
        return self._holder.pid

    @property
    def file(self):
        """What `setns` takes."""
        return f"/proc/{self.pid}/ns/{self.kind}"

    def do(self, *command):
        """Run a command in there."""
        entered = ["nsenter", f"--target={self.pid}", FLAGS[self.kind], *map(str, command)]
        done = subprocess.run(entered, capture_output=True, text=True, timeout=10, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def seen(self, path):
        """A path of in there, as it is reached from outside."""
        return path if self.kind == "net" else Path(f"/proc/{self.pid}/root") / path.relative_to("/")


class SmallDisk(Apart):
    """A folder that is a file system of its own, of so many bytes."""

    def __init__(self, folder, size):
        super().__init__("mnt")
        self.folder = folder
        self._size = size

    def __enter__(self):
        super().__enter__()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.do("mount", "-t", "tmpfs", "-o", f"size={self._size},mode=700", "none", self.folder)
        return self

    @property
    def _ballast(self):
        return self.seen(self.folder) / "ballast"

    def fill(self):
        """Leave no room."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def make_room(self):
        """Take what filled it away."""
        self._ballast.unlink()


class Network:
    """Three machines, a coordinator's and two parties', with a link from the first to each other one."""

    def __init__(self, parties):
        self.parties = parties
        self.coordinator = Apart("net")
        self.apart = {name: Apart("net") for name in parties}
        self.hosts = {name: f"10.77.{number}.2" for number, name in enumerate(parties)}

    def __enter__(self):
        for each in (self.coordinator, *self.apart.values()):
            each.__enter__()
            each.do("ip", "link", "set", "lo", "up")
        for number, (name, party) in enumerate(self.apart.items()):
            ends = (self._link(name), "type", "veth", "peer", "name", "wire", "netns", party.pid)
            self.coordinator.do("ip", "link", "add", "name", *ends)
            for apart, link, last in ((self.coordinator, self._link(name), 1), (party, "wire", 2)):
                apart.do("ip", "address", "add", f"10.77.{number}.{last}/24", "dev", link)
                apart.do("ip", "link", "set", link, "up")
        return self

    def __exit__(self, *exception):
        for each in (self.coordinator, *self.apart.values()):
            each.__exit__(*exception)

    def cut(self, name):
        """Take a party's link down: nothing passes, and nobody is told."""
        self.coordinator.do("ip", "link", "set", self._link(name), "down")

    def restore(self, name):
        """Put it up again."""
        self.coordinator.do("ip", "link", "set", self._link(name), "up")

    def _link(self, name):
        return f"to-{name}"
