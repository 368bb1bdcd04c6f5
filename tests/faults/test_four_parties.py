"""Four parties, of which some die or stand still: with dropouts to spare the run goes on without asking anybody."""

import signal

import pytest

pytestmark = pytest.mark.slow

DROPOUTS = ("dropouts = 1",)
"""A plan that can do without one of the four."""


def test_two_of_four_that_die_and_come_back_are_in_the_undisturbed_sum(scenes, four):
    four.serve_all()
    undisturbed = four.undisturbed(four.plan(privacy=DROPOUTS), "undisturbed")
    four.stop()
    where = dict.fromkeys(("north", "west"), ("party.store.runs:Run.keep_block", "before", "4"))
    _, north, _, west = four.serve_all(where)
    coordinator = four.run(four.plan(privacy=DROPOUTS))
    for node in (north, west):
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    four.serve("north")
    four.serve("west")
    code, said = four.outcome(coordinator)
    assert code == 0, said
    assert four.differs(undisturbed, scenes.last_json(said)["run"]) == []
    assert four.in_the_sum() == [list(scenes.FOUR)]
    four.stop()
    assert four.left() == []


def test_one_that_stands_still_is_dropped_as_a_straggler_and_the_run_goes_on(scenes, four):
    _, standing, *_ = four.serve_all({"north": ("party.store.runs:Run.keep_block", "before", "4", "--signal", "STOP")})
    path = four.plan(privacy=DROPOUTS, deadline=1, retry=2)
    path.write_text(path.read_text().replace("retry_seconds", "stragglers = { drop_after = 10 }\nretry_seconds"))
    code, said = four.outcome(four.run(path))
    assert code == 0, said
    assert "party north was lost" in said
    assert four.in_the_sum() == [["east", "south", "west"]]
    assert "verify: ok" in said
    standing.send_signal(signal.SIGCONT)
    four.stop()
    assert four.left() == []
