"""A process that has imported what trainings need, and forks a training process whenever a node asks for one.

A launcher of several parties on one machine starts it before any of them has a key: `python -m party.tasks.nursery
DESCRIPTOR [TASK ...]`. It has one thread, and nothing of a party passes through it: a node sends the kind of its task,
the settings that libraries read when they are loaded, and three descriptors. The environment, the jobs and their keys
go through these descriptors to the forked process, which draws all its random numbers itself. What was forked ends with
the node that asked for it, and with this process.
"""

import contextlib
import ctypes
import gc
import json
import os
import random
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from party.store.memory import keep_private
from party.tasks import process
from party.tasks.forked import WITHIN, read_when_loaded
from party.tasks.task import TRAINS, half, request_of

MESSAGE_BYTES: Final = 1 << 16
_MODELS: Final = (
    "learning.models.library",
    "learning.models.encoders",
    "torch.fx.experimental.symbolic_shapes",
    "transformers.models.auto.modeling_auto",
)
"""What a task that runs a text model imports when it loads one, whatever its kind."""


@dataclass(frozen=True, slots=True)
class _Forked:
    """A forked process: pid, a descriptor that shows its end, and the connection of the node that asked for it."""

    pid: int
    ended: int
    node: socket.socket


class Nursery:
    """Serves nodes one after the other, in one thread, until its own input ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ, self._asked)
        self._events.register(0, selectors.EVENT_READ, self._over)

    def serve(self, tasks: list[str]) -> None:
        """Serve; import what these kinds of task need whenever nobody asks. Ends this process."""
        while True:
            for key, _ in self._events.select(0 if tasks else None):
                if self._events.get_map().get(key.fd) is key:  # nothing before it closed it
                    key.data(key.fileobj)
            if tasks:
                _import(tasks.pop(0))

    def _over(self, _: Any) -> None:
        os._exit(0)  # the kernel ends what was forked

    def _asked(self, listener: socket.socket) -> None:
        node, _ = listener.accept()
        node.settimeout(WITHIN)
        descriptors: list[int] = []
        try:
            content, descriptors, _, _ = socket.recv_fds(node, MESSAGE_BYTES, 3)
            why = self._fork(node, json.loads(content), descriptors)
        except (OSError, ValueError, KeyError) as error:
            why = f"{type(error).__name__}"
        for each in descriptors:
            os.close(each)
        if why:
            _say(node, refused=why)
            node.close()

    def _fork(self, node: socket.socket, wanted: Mapping[str, Any], descriptors: list[int]) -> str:
        """Fork the process that a node wants; or why it cannot be forked."""
        if wanted["task"] not in TRAINS or len(descriptors) != 3:
            return "no such task"
        if wanted["read"] != read_when_loaded(os.environ):
            return "other settings"
        if not _import(wanted["task"]):
            return "not installed"
        if len(os.listdir("/proc/self/task")) != 1:
            return "threads"
        gc.collect()
        gc.freeze()  # so that a collection in the forked process copies no page of what they share
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            _train(descriptors, own)
        found = _Forked(pid, os.pidfd_open(pid), node)
        self._events.register(found.ended, selectors.EVENT_READ, lambda _: self._ended(found))
        self._events.register(node, selectors.EVENT_READ, lambda _: self._left(found))
        _say(node, pid=pid)
        return ""

    def _left(self, found: _Forked) -> None:
        """The node closed its end, or is gone: what it asked for ends."""
        self._events.unregister(found.node)
        os.kill(found.pid, signal.SIGKILL)  # its number is not free before `_ended`

    def _ended(self, found: _Forked) -> None:
        self._events.unregister(found.ended)
        with contextlib.suppress(KeyError):
            self._events.unregister(found.node)
        os.close(found.ended)
        _, status = os.waitpid(found.pid, 0)
        _say(found.node, ended=os.waitstatus_to_exitcode(status))
        found.node.close()


def _import(task: str) -> bool:
    """Import what a kind of task needs; False where that is not installed."""
    try:
        half(task, "training")
        for name in _MODELS if request_of(task).WORK.models else ():
            import_module(name)
    except ImportError:
        return False
    return True


def _train(descriptors: list[int], parent: int) -> None:
    """Become a training process of the node whose descriptors these are. Never returns."""
    code = 1
    try:
        for number, each in enumerate(descriptors):
            os.dup2(each, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        environment = json.loads(process.first_line())
        os.environ.clear()
        os.environ.update(environment)
        _forget_random_state()
        code = process.main(parent)
        sys.stderr.flush()
    finally:
        os._exit(code)


def _forget_random_state() -> None:
    """Draw the state of every generator anew, which else were the same in all that is forked."""
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _say(node: socket.socket, **what: object) -> None:
    with contextlib.suppress(OSError):
        node.sendall(json.dumps(what).encode() + b"\n")


def main(listener: int, tasks: list[str]) -> None:
    """Serve on a listening socket, in a folder that only its user may enter."""
    keep_private()
    ctypes.CDLL(None).prctl(process.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Nursery(socket.socket(fileno=listener)).serve(tasks)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
