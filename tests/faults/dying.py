"""Runs `party` or `coordinator` so that it dies, or stops, just before or after the n-th call of a function it has.

    python -P dying.py party.ledger:Ledger._claim after 2 -- party serve --config north.toml

The product has no hook for it: the function is wrapped from outside before the command begins. `--given TEXT` counts
only calls that have TEXT among their arguments; `--signal STOP` makes the process stop there instead, until somebody
continues it.
"""

import argparse
import functools
import importlib
import inspect
import itertools
import os
import signal
import sys
import threading

WHEN = ("before", "after")


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


def main():
    """Wrap what the arguments name and be that command."""
    parser = argparse.ArgumentParser(description="Run a command that dies at a chosen call.")
    parser.add_argument("where", metavar="MODULE:NAME")
    parser.add_argument("when", choices=WHEN)
    parser.add_argument("count", type=int)
    parser.add_argument("--given", metavar="TEXT")
    parser.add_argument("--signal", choices=("KILL", "STOP", "TERM", "INT"), default="KILL")
    split = sys.argv.index("--")
    asked = parser.parse_args(sys.argv[1:split])
    number = getattr(signal, f"SIG{asked.signal}")
    wrap(asked.where, asked.when, asked.count, lambda: os.kill(os.getpid(), number), asked.given)
    room, *arguments = sys.argv[split + 1 :]
    return importlib.import_module(f"{room}.command").main(arguments)


if __name__ == "__main__":
    sys.exit(main())
