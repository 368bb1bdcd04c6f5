"""The display of a run: drawn again on a terminal of any width, lines elsewhere, never silent, never in the way."""

import importlib.util
import io
import textwrap
import time
from pathlib import Path

import pytest

from coordinator.progress.terminal import QUIET_SECONDS, Terminal

_spec = importlib.util.spec_from_file_location("screens", Path(__file__).with_name("screens.py"))
screens = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(screens)

RUN = textwrap.dedent(
    """
    import sys, time
    from coordinator.progress.terminal import Terminal
    shown = Terminal()
    shown.say("run 7f3a-demo")
    shown.expect({"prepare": 1.0, "train": 40.0, "distil": 9.0}, None)
    shown.opened("7f3a-demo", 3.98, 4.0)
    shown.stage("prepare", "began"); time.sleep(0.3); shown.stage("prepare", "finished")
    shown.say("  warning: the declared size is far from what the source is said to hold, so that rates are off")
    shown.stage("train", "began")
    for name in ("north", "south-of-the-river-and-the-hills"):
        shown.party(name, "counting 40%")
    shown.spent(2.901)
    shown.bar("moments", 3, 12)
    time.sleep(0.7)
    print("drawn", flush=True); time.sleep(0.5)
    shown.bar("moments", 12, 12)
    shown.stage("train", "finished")
    shown.close()
    print("the end")
    """
)


def followed(columns, rows=40, **env):
    """What the screen showed when all was drawn, what it shows at the end, and what was written."""
    drawn = []

    def each(screen):
        shown = screen.shown()
        bars = [line for line in shown if " / 12" in line]
        if "drawn" in shown and shown[-1].startswith("  time") and len(bars) == 1 and " 3 / 12" in bars[0]:
            drawn.append(shown)

    code, screen, said = screens.on_terminal(["-c", RUN], columns, rows, each=each, env=env)
    assert code == 0, said
    assert "Traceback" not in said
    return drawn[-1] if drawn else [], screen, said


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 40])
def test_a_terminal_has_one_part_that_is_drawn_again_within_its_columns(columns):
    drawn, screen, said = followed(columns)
    assert screen.unknown == []
    rows = {line.split()[0]: line for line in drawn if line.startswith("  ")}
    for name in ("north", "prepare", "train", "distil", "moments", "spent", "warning", "time"):
        assert sum(line.split()[:1] == [name] for line in drawn) == 1, (name, drawn)
    assert all(len(line) <= columns for line in drawn)
    assert rows["north"].endswith("counting 40%")
    assert "of about 4" in rows["train"]
    assert "epsilon 2.91 of 4" in rows["spent"]
    assert "3 / 12" in rows["moments"]
    assert rows["warning"].split()[1:4] == ["the", "declared", "size"]
    assert said.count("run 7f3a-demo") == 1
    assert screen.shown()[-1] == "the end"
    assert "time" not in {line.split()[0] for line in screen.shown()}, "the display is taken away"
    assert screen.cursor, "the cursor is shown again"


@pytest.mark.slow
def test_a_low_terminal_shows_less_and_what_goes_on_most():
    drawn, _, _ = followed(80, rows=9)
    rows = {line.split()[0]: line for line in drawn if line.startswith("  ")}
    assert {"train", "moments", "time"} <= rows.keys()
    assert "prepare" not in rows


@pytest.mark.parametrize(
    ("columns", "env"), [(39, {}), (80, {"NO_COLOR": "1"}), (80, {"TERM": "dumb"})], ids=["narrow", "no-colour", "dumb"]
)
def test_a_terminal_that_should_not_be_drawn_on_gets_lines(columns, env):
    _, screen, said = followed(columns, **env)
    assert "\x1b" not in said
    assert all(len(line) <= columns for line in screen.shown())
    text = " ".join(" ".join(screen.shown()).split())
    assert "run 7f3a-demo warning: the declared size is far from what the source is said to hold" in text
    assert "north counting 40%" in text
    assert "12 / 12" in text
    assert "train took 1." in text
    assert "epsilon 2.91 of 4 so far" in text


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def plain(clock):
    stream = io.StringIO()
    return Terminal(stream, clock), stream


def test_a_log_is_never_silent_for_ten_seconds():
    clock = Clock()
    shown, stream = plain(clock)
    shown.stage("train", "began")
    shown.party("north", "counting 5%")
    before = stream.getvalue()
    for wanted in ("9.0 s", "18 s", "27 s"):
        clock.now += QUIET_SECONDS + 1
        until = time.monotonic() + 20
        while wanted not in stream.getvalue() and time.monotonic() < until:
            time.sleep(0.05)
    shown.close()
    beats = [line for line in stream.getvalue().removeprefix(before).splitlines() if line.startswith("  train")]
    assert beats == [f"  train {after} so far; north counting 5%" for after in ("9.0 s", "18 s", "27 s")]


def test_a_log_says_that_something_goes_on_before_anything_has_a_name():
    clock = Clock()
    shown, stream = plain(clock)
    clock.now += 12
    until = time.monotonic() + 20
    while not stream.getvalue() and time.monotonic() < until:
        time.sleep(0.05)
    shown.close()
    assert stream.getvalue() == "  12 s so far\n"


def test_stages_of_a_log_are_told_when_they_were_long():
    clock = Clock()
    shown, stream = plain(clock)
    shown.expect({"train": 60.0}, None)
    for name, seconds in (("price", 0.2), ("train", 62.0)):
        shown.stage(name, "began")
        clock.now += seconds
        shown.stage(name, "finished")
    shown.close()
    assert [line for line in stream.getvalue().splitlines() if "so far" not in line] == [
        "  train, about 60 s",
        "  train took 62 s",
    ]


def test_what_goes_on_is_named_before_it_begins():
    shown, stream = plain(Clock())
    shown.doing("counts, epsilon 2, seed 7")
    shown.close()
    assert stream.getvalue() == "  counts, epsilon 2, seed 7\n"


class Gone(io.StringIO):
    """A stream whose other end was closed, or that takes no such characters."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "gone"), ValueError("closed"), UnicodeEncodeError("ascii", "█", 0, 1, "no")]
)
@pytest.mark.parametrize("terminal", [False, True])
def test_a_display_that_fails_goes_dark_and_the_run_goes_on(error, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Gone(error)
    stream.isatty = lambda: terminal
    shown = Terminal(stream)
    shown.say("run 7f3a-demo")
    shown.party("north", "ready")
    shown.party("north", "counting")
    shown.bar("moments", 1, 1)
    shown.stage("train", "began")
    shown.close()
    assert shown.dark


def test_nothing_is_shown_after_the_end():
    shown, stream = plain(Clock())
    shown.close()
    shown.say("late")
    assert stream.getvalue() == ""


def test_blocks_are_drawn_where_the_terminal_has_them():
    class Ascii(io.StringIO):
        encoding = "ascii"

    stream = Ascii()
    shown = Terminal(stream)
    shown.bar("moments", 1, 2)
    shown.bar("moments", 2, 2)
    shown.close()
    assert stream.getvalue() == f"  moments   {'#' * 24}  2 / 2\n"
