"""What every test may count on."""

import importlib.util
import signal
from pathlib import Path

import pytest

# A shell that starts the suite in the background makes it ignore Ctrl-C, and so every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def beside(name):
    """A module of `tests/faults`, which is no package."""
    spec = importlib.util.spec_from_file_location(f"faults_{name}", Path(__file__).parent / f"faults/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def warm_parties():
    """What forks `party` processes, which saves two seconds of imports each."""
    with beside("warm").Warm("party") as warm:
        yield warm
