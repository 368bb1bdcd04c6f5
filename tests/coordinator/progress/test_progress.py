"""What a person sees while a run goes on: short lines in a log, a live display on a terminal."""

import io

from coordinator.progress.terminal import Terminal


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


def test_of_many_parties_a_log_has_a_line_when_all_have_come_to_a_state():
    stream = io.StringIO()
    shown = Terminal(stream)
    names = [f"party-{number:02}" for number in range(40)]
    for state in ("starting", "ready", "counting 3%", "trained"):
        for name in names:
            shown.party(name, state)
    shown.party("party-07", "lost")
    shown.say("it goes on without it")
    shown.close()
    assert stream.getvalue().splitlines() == [
        "  40 parties starting", "  40 parties ready", "  40 parties counting", "  40 parties trained",
        "it goes on without it",
    ]  # fmt: skip


def test_few_parties_are_told_of_when_something_follows_and_none_twice():
    stream = io.StringIO()
    shown = Terminal(stream)
    for name in ("north", "south"):
        shown.party(name, "starting")
    shown.say("  2 actors")
    shown.party("south", "ready")
    shown.close()
    assert stream.getvalue().splitlines() == ["  north starting", "  south starting", "  2 actors", "  south ready"]


def test_a_terminal_counts_many_parties(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal(Tty())
    for number in range(40):
        shown.party(f"party-{number:02}", "ready" if number else "counting 5%")
    first, *_ = shown._drawing().renderables
    assert str(first) == "  parties   39 ready · 1 counting"
    shown.close()
