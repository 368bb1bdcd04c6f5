"""`party health`: up while the node's event loop turns, and never because of what an earlier node left."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from party.console.command import main
from party.node import heartbeat
from party.node.heartbeat import STALE, beat, look, shown


@dataclass
class Node:
    """What a heartbeat tells of."""

    draining: bool = False
    trouble: str = ""


async def beaten(node, home):
    """A node that has beaten, and goes on."""
    beating = asyncio.create_task(beat(node, home, period=0.01))
    while not (home / heartbeat.FILE).exists():
        await asyncio.sleep(0.001)
    return beating


async def ended(beating):
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)


async def test_a_node_that_beats_is_up_and_one_that_ended_is_not(tmp_path):
    assert not look(tmp_path).up
    beating = await beaten(Node(), tmp_path)
    found = look(tmp_path)
    assert (found.up, found.state) == (True, "serving")
    assert (tmp_path / heartbeat.FILE).stat().st_mode & 0o777 == 0o600
    await ended(beating)
    assert look(tmp_path).state == "not running"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("node", "state", "says"),
    [
        (Node(draining=True), "draining", "party north is draining."),
        (
            Node(trouble="nothing listens at HOST now."),
            "serving",
            "party north is serving. nothing listens at HOST now.",
        ),
    ],
)
async def test_a_node_that_drains_or_waits_for_its_coordinator_is_up(tmp_path, node, state, says):
    beating = await beaten(node, tmp_path)
    found = look(tmp_path)
    await ended(beating)
    assert (found.up, found.state) == (True, state)
    assert shown("north", found) == says


def left(home, **changes):
    said = {"process": os.getpid(), "at": time.monotonic(), "draining": False, "trouble": ""} | changes
    (home / heartbeat.FILE).write_text(json.dumps(said))


def test_a_node_whose_loop_stands_still_hangs(tmp_path):
    left(tmp_path, at=time.monotonic() - STALE - 1)
    found = look(tmp_path)
    assert (found.up, found.state) == (False, "hanging")
    assert "hangs" in shown("north", found)


def test_what_a_killed_node_left_says_nothing(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    left(tmp_path, process=child.pid)
    assert look(tmp_path).state == "not running", "its parent has not asked how it ended"
    child.wait()
    assert look(tmp_path).state == "not running"


def test_what_a_node_left_before_the_machine_was_started_again_says_nothing(tmp_path):
    left(tmp_path, at=time.monotonic() + 1000)
    assert not look(tmp_path).up


@pytest.mark.parametrize("content", ["", "no JSON", "[]", "{}", '{"process": "one"}'])
def test_what_is_no_sign_of_life_is_none(tmp_path, content):
    (tmp_path / heartbeat.FILE).write_text(content)
    assert look(tmp_path).state == "not running"


def test_a_disk_that_is_full_does_not_end_the_heartbeat(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    async def beats():
        beating = asyncio.create_task(beat(Node(), tmp_path, period=0.001))
        await asyncio.sleep(0.02)
        assert not beating.done()
        await ended(beating)

    monkeypatch.setattr(heartbeat, "_write", full)
    asyncio.run(beats())


def test_the_command_ends_with_1_where_nothing_serves_and_asks_nobody(tmp_path, capsys):
    file = tmp_path / "party.toml"
    file.write_text(
        'name = "north"\nshard = { source = "notes.jsonl" }\n'
        'policy = { epsilon = 20.0, delta = 1e-6, recipes = ["dped"] }\n'
    )
    assert main(["health", "--config", str(file)]) == 1
    assert "not running" in capsys.readouterr().out
    (tmp_path / "north.party").mkdir()
    left(tmp_path / "north.party")
    assert main(["health", "--config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "serving"


@pytest.mark.slow
def test_the_command_loads_nothing_heavy(tmp_path):
    """It is asked every half minute."""
    code = (
        "import sys, party.console.command, party.node.heartbeat\n"
        "print(sorted({'torch', 'numpy', 'datasets', 'ray', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
