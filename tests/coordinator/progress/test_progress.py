"""What a person sees while a run goes on: short lines in a log, a live display on a terminal."""

import io

from coordinator.progress.progress import Terminal


class Tty(io.StringIO):
    def isatty(self):
        return True


def told(stream):
    shown = Terminal(stream)
    shown.say("run 1-demo")
    for state in ("starting", "ready", "counting", "counting 40%", "counting 90%", "trained"):
        shown.party("north", state)
    for done in (1, 2, 2):
        shown.bar("counts", done, 2, "epsilon 1.00 / 2.00")
    shown.close()
    return stream.getvalue()


def test_a_log_gets_one_line_when_something_changes_in_kind():
    assert told(io.StringIO()).splitlines() == [
        "run 1-demo",
        "  north starting",
        "  north ready",
        "  north counting",
        "  north trained",
        "  counts    ████████████████████████  2 / 2  epsilon 1.00 / 2.00",
    ]


def test_a_terminal_keeps_the_lines_that_stay_and_takes_the_display_away(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    said = told(Tty())
    assert said.count("run 1-demo") == 1
    assert said.count("2 / 2") == 1
    assert "\x1b[?25h" in said, "the cursor is shown again"
