"""Processes that hold private text let no other process of their user read their memory, and leave no core file."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="Linux alone is asked for it")]

ASKS = """
import ctypes, json, sys
from party import actor
from party import config
from party.console import command
from party.tasks import process as work

kernel, GET, SET = ctypes.CDLL(None), 3, 4
found = {"before": kernel.prctl(GET)}

class Enough(Exception):
    pass

def seen(name):
    def instead(*given):
        found[name] = kernel.prctl(GET)
        assert kernel.prctl(SET, 1) == 0
        raise Enough
    return instead

work.first_line = seen("training")
config.read_config = seen("serving")
actor.new_keys = seen("actor")
for begin in (work.main, command.serve, lambda: actor.PartyActor(["north"])):
    try:
        begin()
    except Enough:
        pass
print(json.dumps(found), file=sys.stderr)
"""


def test_serving_the_actor_and_a_training_are_undumpable_before_they_read_anything():
    """Each is stopped where it reads its first line, file or key: by then the kernel has to have been told."""
    ended = subprocess.run([sys.executable, "-c", ASKS], stderr=subprocess.PIPE, text=True, check=True, timeout=120)
    found = json.loads(ended.stderr.splitlines()[-1])
    assert found == {"before": 1, "training": 0, "serving": 0, "actor": 0}
