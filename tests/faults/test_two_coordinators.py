"""Two coordinators that ask the same parties at once: of two runs, or of one that was taken over."""

import signal

import pytest

pytestmark = pytest.mark.slow

PUT_BLOCK = "coordinator.store.store:RunStore.put_block"
HOUR = 3600


def test_two_runs_at_once_come_to_what_each_comes_to_alone(scenes, calm, undisturbed):
    both = {output: calm.run(calm.plan(), output=output) for output in ("one-of-two", "other-of-two")}
    for output, coordinator in both.items():
        code, said = calm.outcome(coordinator)
        assert code == 0, said
        assert calm.differs(undisturbed, scenes.last_json(said)["run"], output) == []
    assert calm.left() == []


def test_a_run_whose_lease_seems_over_to_a_clock_that_is_ahead_is_written_by_one_alone(scenes, calm, undisturbed):
    stopping = (PUT_BLOCK, "before", "4", "--signal", "STOP")
    first = calm.run(calm.plan(), *stopping, output="taken-over")
    scenes.until(lambda: scenes.stopped(first), "the first coordinator stands still")
    run = calm.started("taken-over")
    ahead = ("coordinator.store.store:RunStore.take", "before", "1", "--shift", str(HOUR), "and")
    second = calm.resume(run, *ahead, *stopping)
    scenes.until(lambda: scenes.stopped(second), "the second has asked the same parties")
    first.send_signal(signal.SIGCONT)
    code, said = calm.outcome(first)
    assert code == 1, said
    assert "another coordinator took this run over" in said, said
    assert "Traceback" not in said
    second.send_signal(signal.SIGCONT)
    code, said = calm.outcome(second)
    assert code == 0, said
    assert calm.differs(undisturbed, run, "taken-over") == []
    assert calm.left() == []
