"""Starts `party` and `coordinator` processes without their imports: one process imports all, then forks each of them.

    python -P warm.py FD PLAN MODULE...

What is forked is a process like any other, with an id, a session, an environment and files of its own; it dies, stops
and exits by itself. What differs is that importing takes no time, and that sets of strings have one order in all of
them. So what other runs are compared with is started without it.
"""

import ctypes
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

PARTY = ("party.console.command", "party.node.lifecycle", "party.console.checking", "grpc_health.v1.health")
LATE = (
    "learning.embeddings.evaluation",
    "learning.embeddings.denoising",
    "sentence_transformers.base.model",
    "gensim.test.utils",
)
COORDINATOR = ("coordinator.console.command", "coordinator.run.driver", "coordinator.api", "dp_accounting.pld", *LATE)
MODULES = {"party": PARTY, "coordinator": COORDINATOR}
"""What each command imports sooner or later. Nothing of a party's process but its training imports torch."""
FILES = 3
"""Standard output, standard error, and where the id and the exit status go."""


class Forked:
    """A process that a `Warm` forked, to be used as one of `subprocess.Popen`'s."""

    def __init__(self, arguments, stdout, status):
        self.args = arguments
        self.stdout = stdout
        self.returncode = None
        self._status = status
        self.pid = int(self._status.readline())

    def poll(self):
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout=None):
        """Wait for the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._ended()
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless it ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _ended(self):
        self.returncode = int(self._status.readline())
        self._status.close()


class Warm:
    """The process that forks those of one command. A context manager: it ends, what it forked may stay.

    plan: what coordinators will run; its price, which `aggregation.accounting.price` remembers, is found once.
    """

    def __init__(self, room, plan=None):
        self.room = room
        self._plan = "" if plan is None else str(plan)

    def __enter__(self):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), self._plan, *MODULES[self.room]]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        return self

    def __exit__(self, *exception):
        self._socket.close()
        self._process.wait(30)

    def start(self, arguments, *, cwd, environment, stderr, dying=(), namespaces=()):
        """Fork a process that is this command; its standard output is a pipe. dying: what `dying.py` is told.

        namespaces: files of those that it enters first.
        """
        heard, out = os.pipe()
        status, told = os.pipe()
        asked = {"room": self.room, "arguments": arguments, "cwd": str(cwd), "env": environment}
        asked |= {"dying": list(dying), "namespaces": list(namespaces)}
        socket.send_fds(self._socket, [json.dumps(asked).encode()], [out, stderr.fileno(), told])
        os.close(out)
        os.close(told)
        return Forked([self.room, *arguments], os.fdopen(heard), os.fdopen(status))


def serve(asking):
    """Fork a process for everything asked. Returns in the forked ones only, with what was asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that keep the forked ones end unseen
    while True:
        said, files, *_ = socket.recv_fds(asking, 1 << 20, FILES)
        if not said:
            sys.exit(0)
        if os.fork() == 0:
            asking.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keep(files)
            return json.loads(said)
        for each in files:
            os.close(each)


def keep(files):
    """Fork once more. This one tells the other's id and, in the end, its exit status; the other returns."""
    out, errors, status = files
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(errors, 2)
        for each in files:
            os.close(each)
        return
    os.close(out)
    os.close(errors)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.write(status, f"{child}\n".encode())
    os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
    os._exit(0)


def main():
    """Import, then fork whatever is asked for; be one of those that were."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks ends it
    plan, *modules = sys.argv[2:]
    for module in modules:
        importlib.import_module(module)
    if plan:
        plans = importlib.import_module("coordinator.systems.registry")
        plans.price_of(plans.read_plan(Path(plan)))
    path = Path(__file__).with_name("dying.py")
    spec = importlib.util.spec_from_file_location("dying", path)
    dying = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dying)
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for each in asked["namespaces"]:
        with open(each) as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter {each}")
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    tempfile.tempdir = None
    sys.argv = [asked["room"], *asked["arguments"]]
    if asked["dying"]:
        dying.prepare(asked["dying"])
    return importlib.import_module(f"{asked['room']}.console.command").main(asked["arguments"])


if __name__ == "__main__":
    sys.exit(main())
