"""What the fuzz tests share: how many inputs, the bounds that every one of them is held to, and how inputs are damaged.

A test that takes `fuzz` is run twice: with a hundred inputs, and, where slow tests are wanted, with 500. They are
the same inputs every time. `CONCLAVE_FUZZ=100000` (`make fuzz`) sets their number and draws new ones.
"""

import importlib.util
import os
import resource
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, note, settings

FEW, MANY = 100, 500
WANTED = os.environ.get("CONCLAVE_FUZZ")
SECONDS = 10
"""Of processor time that one input may take: hundreds of times what any does, so that a busy machine fails nothing."""
STATM = Path("/proc/self/statm")
"""Where Linux says how much memory a process has; elsewhere what an input takes is not bounded."""
MEBIBYTES = 64
"""That the process may grow by for one input: no input here is a tenth of it.

Data counts, not addresses: each new thread of a library reserves 64 MiB of addresses and writes to few of them.
"""
OTHERS = 6
"""Times its own bound that an input may take of all threads' time: threads of other tests' libraries run meanwhile."""


class TookTooLong(Exception):
    """An input that kept the processor busy beyond all bounds."""

    def __init__(self):
        super().__init__(self.__doc__)


class _Watch:
    """Processor time of the thread that tries the input and of the whole process, since the input was begun."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.thread, self.process = time.thread_time(), time.process_time()

    def over(self):
        own, all_of_it = time.thread_time() - self.thread, time.process_time() - self.process
        return own > self.seconds or all_of_it > OTHERS * self.seconds


_watches = []


@contextmanager
def bounded(seconds, mebibytes):
    """Raises `TookTooLong` for work that hangs; an allocation beyond the bound raises MemoryError where it is made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    watch = _Watch(seconds)
    _watches.append(watch)
    if STATM.exists():
        held = int(STATM.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + (mebibytes << 20), hard))
    signal.setitimer(signal.ITIMER_PROF, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        _watches.remove(watch)
    if watch.over():
        raise TookTooLong


def _hung(number, frame):
    """Asked each second once the bound may be reached. Python drops what is raised in a callback of its collector."""
    collecting = frame is not None and frame.f_code.co_name == "gc_callback"
    if _watches and _watches[-1].over() and not collecting:
        raise TookTooLong


class Fuzz:
    """`@fuzz(strategy)` runs the function below it at once, on every input; `examples` are inputs that come first.

    share: the part of the inputs that is made, where several properties try one parser, or one input needs long.
    """

    def __init__(self, inputs):
        self._inputs = inputs

    def __call__(self, strategy, *, examples=(), seconds=SECONDS, mebibytes=MEBIBYTES, share=1.0):
        def run(holds):
            def held(given_input):
                try:
                    with bounded(seconds, mebibytes):
                        holds(given_input)
                except Exception:
                    note(repr(given_input)[:3000])
                    raise

            fuzzed = given(strategy)(held)
            for each in examples:
                fuzzed = example(each)(fuzzed)
            settings(
                max_examples=max(1, int(self._inputs * share)),
                deadline=None,
                derandomize=WANTED is None,
                database=None,
                phases=(Phase.explicit, Phase.generate),  # a smaller number is no simpler input
                suppress_health_check=list(HealthCheck),
            )(fuzzed)()

        return run


def _numbers():
    if WANTED is not None:
        return [pytest.param(int(WANTED), id="wanted", marks=pytest.mark.slow)]
    return [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=[pytest.mark.slow, pytest.mark.long])]


@pytest.fixture(params=_numbers())
def fuzz(request):
    """`Fuzz`, with a bound on what one input may take."""
    before = signal.signal(signal.SIGPROF, _hung)
    yield Fuzz(request.param)
    signal.signal(signal.SIGPROF, before)


def beside(path, name):
    """A module of these tests, which are no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def hostile():
    """`hostile.py`."""
    return beside(Path(__file__).with_name("hostile.py"), "fuzz_hostile")


@pytest.fixture(scope="session")
def tests():
    """`tests("party/conftest.py")`: another room's tests, for the things that they make."""
    here = Path(__file__).resolve().parents[1]
    return lambda path: beside(here / path, f"fuzz_{path.removesuffix('.py').replace('/', '_')}")
