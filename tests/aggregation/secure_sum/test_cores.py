"""Pieces are each done once, helpers only ever help, and nothing is lost: no error, and no process by a fork."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, current_thread

import pytest

from aggregation.secure_sum import cores
from aggregation.secure_sum.cores import each, spread

LONG = 20  # seconds: only a test that fails waits


@pytest.fixture
def two(monkeypatch):
    """Two threads at work, however many cores there are."""
    monkeypatch.setattr(cores, "hands", lambda: 2)


@pytest.mark.parametrize("hands", [1, 2, 5])
@pytest.mark.parametrize("pieces", [0, 1, 2, 7, 100])
def test_each_piece_is_done_once(monkeypatch, hands, pieces):
    monkeypatch.setattr(cores, "hands", lambda: hands)
    done = []
    spread(done.append, pieces)
    assert sorted(done) == list(range(pieces))
    assert each(str, range(pieces)) == [str(n) for n in range(pieces)]


def test_work_that_is_not_worth_it_is_not_shared_out(two, monkeypatch):
    monkeypatch.setattr(cores, "_helpers", lambda _: pytest.fail("asked for help"))
    done = []
    spread(done.append, 5, alone=True)
    assert done == [0, 1, 2, 3, 4]


def test_two_threads_are_at_work_at_once(two):
    together = Barrier(2)
    spread(lambda _: together.wait(LONG), 2)  # breaks where one thread would have to do both


def test_an_error_on_a_helper_is_raised_and_nothing_more_is_begun(two):
    together, ended, begun = Barrier(2), Event(), []

    def work(piece):
        begun.append(piece)
        together.wait(LONG)
        if current_thread() is threading.main_thread():
            assert ended.wait(LONG)
        else:
            ended.set()
            raise OSError(f"piece {piece}")

    with pytest.raises(OSError, match="piece"):
        spread(work, 2)
    assert len(begun) == 2
    begun.clear()

    def first_fails(piece):
        begun.append(piece)
        raise OSError("at once")

    with pytest.raises(OSError, match="at once"):
        spread(first_fails, 100)
    assert len(begun) <= 2


def test_an_error_on_the_callers_thread_waits_for_what_helpers_began(two):
    together, ended = Barrier(2), []

    def work(piece):
        together.wait(LONG)
        if current_thread() is threading.main_thread():
            raise OSError("the caller's")
        threading.Event().wait(0.05)
        ended.append(piece)

    with pytest.raises(OSError, match="the caller's"):
        spread(work, 2)
    assert len(ended) == 1


def test_a_caller_whose_helpers_are_all_busy_does_everything_itself(two, monkeypatch):
    busy = Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(busy.wait, LONG)
        monkeypatch.setattr(cores, "_helpers", lambda _: pool)
        threads = each(lambda _: current_thread(), range(5))
        assert not busy.is_set()
        busy.set()
    assert set(threads) == {current_thread()}


def test_a_caller_that_is_refused_helpers_does_everything_itself(two, monkeypatch):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    monkeypatch.setattr(cores, "_helpers", lambda _: pool)
    assert each(lambda n: n + 1, range(5)) == [1, 2, 3, 4, 5]


def test_pieces_may_be_shared_out_in_pieces(two):
    assert each(lambda n: sum(each(lambda m: n * m, range(4))), range(6)) == [6 * n for n in range(6)]


FORK = """
import os, signal, sys, threading
from aggregation.secure_sum import cores

cores.hands = lambda: 2
def both():
    together = threading.Barrier(2)
    cores.spread(lambda _: together.wait(10), 2)

both()
with cores._helpers(os.getpid())._shutdown_lock:  # as where another thread is asking for help just then
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        both()
        sys.exit(7)
both()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_helpers_of_its_own_and_ends():
    found = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout.split()) == (0, ["7"]), found.stderr
