"""The launcher that kills what it runs: at the call that was named, and at no other."""

import asyncio
import signal
import subprocess
import sys
import time
import types

import psutil
import pytest


@pytest.fixture
def victim(monkeypatch):
    """A module of its own with something to wrap, which notes what was called."""
    module = types.ModuleType("victim")
    module.calls = []

    class Owner:
        def plain(self, value):
            module.calls.append(value)
            return value

        async def slow(self, value):
            await asyncio.sleep(0)
            module.calls.append(value)
            return value

        async def stream(self):
            yield 1

    module.Owner = Owner
    monkeypatch.setitem(sys.modules, "victim", module)
    return module


def test_it_strikes_before_or_after_the_call_that_was_named(victim, dying):
    for when, seen in (("before", [1]), ("after", [1, 2])):
        victim.calls.clear()
        struck = []
        original = victim.Owner.plain
        dying.wrap("victim:Owner.plain", when, 2, lambda struck=struck: struck.append(list(victim.calls)))
        assert [victim.Owner().plain(value) for value in (1, 2, 3)] == [1, 2, 3]
        assert struck == [seen]
        victim.Owner.plain = original


def test_it_counts_only_calls_with_the_argument_that_was_given(victim, dying):
    struck = []
    dying.wrap("victim:Owner.plain", "after", 2, lambda: struck.append(list(victim.calls)), given="train")
    for stage in ("train", "join", "join", "train", "train"):
        victim.Owner().plain(value=stage)
    assert struck == [["train", "join", "join", "train"]]


async def test_after_a_coroutine_is_after_it_returned(victim, dying):
    struck = []
    dying.wrap("victim:Owner.slow", "after", 1, lambda: struck.append(list(victim.calls)))
    assert await victim.Owner().slow(7) == 7
    assert struck == [[7]]


def test_what_cannot_be_wrapped_is_said(victim, dying):
    for where in ("victim:Owner.stream", "victim:Owner"):
        with pytest.raises(TypeError, match="not a function"):
            dying.wrap(where, "before", 1, lambda: None)


def launched(dying, *options):
    return subprocess.Popen(
        [sys.executable, "-P", dying.__file__, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_command_that_does_not_come_to_that_call_ends_as_ever(dying):
    process = launched(dying, "party.console.command:_version", "before", "2", "--", "party", "--version")
    said, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert said.startswith("party ")


@pytest.mark.slow
def test_a_command_dies_where_it_was_told_to(dying):
    process = launched(dying, "party.config:read_config", "before", "1", "--", "party", "serve", "--config", "none")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_stopped_command_goes_on_when_it_is_continued(dying):
    options = ("party.config:read_config", "before", "1", "--signal", "STOP")
    process = launched(dying, *options, "--", "party", "serve", "--config", "none.toml")
    deadline = time.monotonic() + 60
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGCONT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "none.toml" in error
