"""Runs `party` or `coordinator` so that it dies, or stops, just before or after the n-th call of a function it has.

    python -P dying.py party.ledger.charging:claim after 2 -- party serve --config north.toml

The product has no hook for it: the function is wrapped from outside before the command begins. `--given TEXT` counts
only calls that have TEXT among their arguments; `--signal STOP` makes the process stop there instead, until somebody
continues it; `--shift SECONDS` puts its clock forward, or back. Several such are put together with `and`.
"""

import argparse
import datetime
import functools
import importlib
import inspect
import itertools
import os
import signal
import sys
import threading
import time

WHEN = ("before", "after")
ROOMS = ("protos", "party", "coordinator")


def wrap(where, when, count, strike, given=None):
    """Have `strike()` called just before or after the count-th call, from 1, of the function `module:Owner.name`.

    After a coroutine function means when its coroutine has returned. One that raises has not returned. given: count
    only calls with this string among their arguments.
    """
    module, _, path = where.partition(":")
    owner = importlib.import_module(module)
    *owners, name = path.split(".")
    for each in owners:
        owner = getattr(owner, each)
    wrapped = inspect.getattr_static(owner, name)
    if not callable(wrapped) or isinstance(wrapped, type) or inspect.isasyncgenfunction(wrapped):
        raise TypeError(f"{where} is not a function or a coroutine function.")
    numbers, lock = itertools.count(1), threading.Lock()

    def is_it(arguments, named):
        if given is not None and given not in [each for each in (*arguments, *named.values()) if isinstance(each, str)]:
            return False
        with lock:
            return next(numbers) == count

    @functools.wraps(wrapped)
    async def coroutine(*arguments, **named):
        now = is_it(arguments, named)
        if now and when == "before":
            strike()
        returned = await wrapped(*arguments, **named)
        if now and when == "after":
            strike()
        return returned

    @functools.wraps(wrapped)
    def function(*arguments, **named):
        now = is_it(arguments, named)
        if now and when == "before":
            strike()
        returned = wrapped(*arguments, **named)
        if now and when == "after":
            strike()
        return returned

    setattr(owner, name, coroutine if inspect.iscoroutinefunction(wrapped) else function)


def shift(seconds):
    """Put this process' clock forward: what tells the time of day to the product. Not what TLS goes by."""
    now = time.time

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.now(tz) + datetime.timedelta(seconds=seconds)

    time.time = lambda: now() + seconds
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ROOMS and getattr(module, "datetime", None) is datetime.datetime:
            module.datetime = Shifted


def prepare(arguments):
    """Have this process die as the arguments name, those before the `--`."""
    while "and" in arguments:
        place = arguments.index("and")
        _prepare(arguments[:place])
        arguments = arguments[place + 1 :]
    _prepare(arguments)


def _prepare(arguments):
    parser = argparse.ArgumentParser(description="Run a command that dies at a chosen call.")
    parser.add_argument("where", metavar="MODULE:NAME")
    parser.add_argument("when", choices=WHEN)
    parser.add_argument("count", type=int)
    parser.add_argument("--given", metavar="TEXT")
    parser.add_argument("--signal", choices=("KILL", "STOP", "TERM", "INT"), default="KILL")
    parser.add_argument("--shift", type=float, metavar="SECONDS")
    asked = parser.parse_args(arguments)
    number = getattr(signal, f"SIG{asked.signal}")

    def strike():
        if asked.shift is not None:
            shift(asked.shift)
        else:
            os.kill(os.getpid(), number)

    wrap(asked.where, asked.when, asked.count, strike, asked.given)


def main():
    """Wrap what the arguments name and be that command."""
    split = sys.argv.index("--")
    prepare(sys.argv[1:split])
    room, *arguments = sys.argv[split + 1 :]
    return importlib.import_module(f"{room}.console.command").main(arguments)


if __name__ == "__main__":
    sys.exit(main())
