"""The bounds that every damaged input is held to find what they are for, and nothing that other threads do."""

import threading
import time

import pytest


@pytest.mark.slow
def test_an_input_that_hangs_is_found(fuzz, hostile):
    def run():
        @fuzz(hostile.made(lambda rng: rng), seconds=0.5)
        def _(_rng):
            while True:
                pass

    with pytest.raises(Exception, match="kept the processor busy"):
        run()


def test_an_input_that_takes_memory_is_found(fuzz, hostile):
    def run():
        @fuzz(hostile.made(lambda rng: rng))
        def _(_rng):
            bytes(128 << 20)

    with pytest.raises(MemoryError):
        run()


@pytest.mark.slow
def test_what_other_threads_take_is_not_the_inputs(fuzz, hostile):
    ended = threading.Event()

    def busy():
        while not ended.is_set():
            pass

    others = [threading.Thread(target=busy) for _ in range(3)]

    @fuzz(hostile.made(lambda rng: rng), seconds=2, share=0.0)
    def _(_rng):
        for each in others:
            each.start()
        time.sleep(4)
        ended.set()

    for each in others:
        each.join()
    assert ended.is_set(), "the input was tried to its end"
