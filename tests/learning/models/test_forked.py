"""Work in forked processes gives what it gives here, each with one thread, and what goes wrong is told."""

import os
import signal
import sys

import pytest
import torch

from learning.errors import ComputeError, Diverged
from learning.models.forked import in_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")


@pytest.fixture(autouse=True)
def _no_accelerator(monkeypatch):
    """The second device that other tests register is none of what these fork: they take no gradients."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.slow
def test_every_place_is_made_once_and_what_is_made_is_the_same_as_here():
    layer = torch.nn.Linear(4, 2)

    def made(place):
        with torch.inference_mode():
            return layer(torch.full((4,), float(place))).numpy().tolist()

    here = dict(in_processes(made, range(9), 1))
    assert dict(in_processes(made, range(9), 2)) == here
    assert sorted(here) == list(range(9))


def test_processes_are_others_and_have_one_thread_each():
    found = dict(in_processes(lambda place: (os.getpid(), torch.get_num_threads()), range(8), 2))
    assert os.getpid() not in {each for each, _ in found.values()}
    assert {threads for _, threads in found.values()} == {1}


def test_a_single_place_is_made_here():
    assert dict(in_processes(lambda place: os.getpid(), [5], 4)) == {5: os.getpid()}


def test_what_a_place_raises_is_raised():
    def made(place):
        if place == 3:
            raise Diverged("Training went to infinity.")
        return place

    with pytest.raises(Diverged, match="went to infinity"):
        list(in_processes(made, range(6), 2))


def test_a_process_that_the_system_ends_is_told_in_a_sentence():
    def made(place):
        if place == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return place

    with pytest.raises(ComputeError, match="was ended by the system, most often because memory was exhausted"):
        list(in_processes(made, range(6), 2))


def test_beside_an_accelerator_nothing_is_forked(monkeypatch):
    """Gradients fail in a process that was forked after torch had started an accelerator's threads."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert set(dict(in_processes(lambda place: os.getpid(), range(4), 2)).values()) == {os.getpid()}


@pytest.mark.slow
@pytest.mark.alone
def test_gradients_are_taken_in_forked_processes_after_some_were_taken_here():
    def gradient(place):
        x = torch.full((3,), float(place), requires_grad=True)
        (x**2).sum().backward()
        return x.grad.tolist()

    assert gradient(1) == [2.0, 2.0, 2.0]
    assert dict(in_processes(gradient, range(4), 2)) == {place: [2.0 * place] * 3 for place in range(4)}
