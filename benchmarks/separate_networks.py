"""Sites with networks of their own on this machine: each an address, and a firewall between them that drops.

Every site is a network namespace that a process holds; they reach each other through one more, which routes and lets
through what its rules name. All of it ends with the process that made it. Linux, root, `ip` and `nft`.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOOLS = ("ip", "nft", "nsenter", "unshare")


def lacking() -> str:
    """Why no such networks can be made here; empty where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "networks of their own need Linux and root"
    missing = [name for name in TOOLS if not shutil.which(name, path=PATHS)]
    if missing:
        return f"not installed here: {', '.join(missing)} (Debian has them in iproute2, nftables and util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "nft", "list", "ruleset"], capture_output=True, text=True, check=False, env=environment()
    )
    return f"no networks can be made here: {tried.stderr.strip()}" if tried.returncode else ""


def environment() -> dict[str, str]:
    """The environment, with the folders where such tools are."""
    return {**os.environ, "PATH": f"{os.environ['PATH']}:{PATHS}"}


@dataclass(frozen=True)
class Rule:
    """What the firewall lets through: TCP from one site to a port of another."""

    source: str
    to: str
    port: int


class Networks:
    """The sites by name, each at 10.98.N.2, and the firewall between them."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.addresses = {name: f"10.98.{number}.2" for number, name in enumerate(sites, 1)}
        self._held: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            for name in ("firewall", *self.addresses):
                self._held[name] = self._hold()
                self._do(name, "ip", "link", "set", "lo", "up")
            self._do("firewall", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            for name, address in self.addresses.items():
                gateway = address.removesuffix("2") + "1"
                link = self._link(name)
                self._do(
                    "firewall", "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0",
                    "netns", str(self._held[name]),
                )  # fmt: skip
                self._do("firewall", "ip", "address", "add", f"{gateway}/24", "dev", link)
                self._do("firewall", "ip", "link", "set", link, "up")
                self._do(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
                self._do(name, "ip", "link", "set", "eth0", "up")
                self._do(name, "ip", "route", "add", "default", "via", gateway)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def admit(self, rules: Iterable[Rule]) -> None:
        """Let through what these rules name, and answers to it; drop everything else between sites, and count it."""
        lines = [
            f'iifname "{self._link(rule.source)}" oifname "{self._link(rule.to)}" tcp dport {rule.port} accept'
            for rule in rules
        ]
        text = "\n    ".join(["ct state established,related accept", *lines, "counter name dropped drop"])
        self._do(
            "firewall", "nft", "-f", "-",
            given=(
                "flush ruleset\ntable inet between {\n  counter dropped {}\n  chain forward {\n"
                f"    type filter hook forward priority 0; policy drop;\n    {text}\n  }}\n}}\n"
            ),
        )  # fmt: skip

    def dropped(self) -> int:
        """How many packets the firewall has dropped since `admit`."""
        said = self._do("firewall", "nft", "list", "counter", "inet", "between", "dropped").split()
        return int(said[said.index("packets") + 1])

    def command(self, site: str, *words: object) -> list[str]:
        """A command line that runs at a site."""
        return ["nsenter", f"--net=/proc/{self._held[site]}/ns/net", "--", *map(str, words)]

    def reaches(self, source: str, to: str, port: int, seconds: float = 1.5) -> bool:
        """Whether something listening at `to`, which is put there for the trial, is reached from `source`."""
        listens = (
            "import socket, sys; s = socket.create_server(('0.0.0.0', int(sys.argv[1]))); print(flush=True); s.accept()"
        )
        calls = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))"
        there = self.command(to, sys.executable, "-c", listens, port)
        with subprocess.Popen(there, stdout=subprocess.PIPE) as listening:
            assert listening.stdout is not None
            listening.stdout.readline()
            asked = self.command(source, sys.executable, "-c", calls, self.addresses[to], port, seconds)
            reached = subprocess.run(asked, capture_output=True, check=False).returncode == 0
            listening.kill()
        return reached

    def _hold(self) -> int:
        """A process in a network of its own, which ends with its standard input: with this process at the latest."""
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._stack.callback(_end, holder)
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.read(1)  # `cat` runs, so the network is there
        return holder.pid

    def _do(self, site: str, *words: str, given: str | None = None) -> str:
        done = subprocess.run(
            self.command(site, *words),
            input=given,
            capture_output=True,
            text=True,
            check=False,
            env=environment(),
        )
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    @staticmethod
    def _link(site: str) -> str:
        return f"to-{site}"[:15]


def _end(process: "subprocess.Popen[Any]") -> None:
    process.kill()
    process.communicate()
