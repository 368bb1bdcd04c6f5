"""Tables of samplers are made once in a process, whoever asks."""

import threading
from functools import lru_cache

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from aggregation.accounting import price
from aggregation.noise import rounded_gaussian, tables
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream


def at_once(work, threads=8):
    gate, errors = threading.Barrier(threads), []

    def waiting():
        gate.wait()
        try:
            work()
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    running = [threading.Thread(target=waiting) for _ in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    assert errors == []


def test_threads_that_want_one_table_have_it_made_once():
    made = []

    @tables.made_once
    def make(parameter):
        made.append(parameter)
        threading.Event().wait(0.05)
        return parameter

    at_once(lambda: make(3.0))
    at_once(lambda: make(4.0))
    assert made == [3.0, 4.0]


def test_a_table_that_could_not_be_made_is_asked_for_again():
    tries = []

    @tables.made_once
    def make(parameter):
        tries.append(parameter)
        if len(tries) == 1:
            raise MemoryError
        return parameter

    with pytest.raises(MemoryError):
        make(3.0)
    assert make(3.0) == 3.0


def test_threads_draw_from_one_table_what_one_thread_would():
    noise, drawn = RoundedGaussian(37.25), []

    def draw():
        drawn.append(tuple(noise.sample((1000,), NoiseStream.from_key(bytes(32))).tolist()))

    at_once(draw)
    assert len(drawn) == 8
    assert set(drawn) == {tuple(noise.sample((1000,), NoiseStream.from_key(bytes(32))).tolist())}


@pytest.mark.slow
def test_threads_that_price_one_plan_compose_it_once(monkeypatch):
    composed = []
    once = price._pld_epsilon.__wrapped__

    def counted(parts, delta):
        composed.append(parts)
        return once(parts, delta)

    monkeypatch.setattr(price, "_pld_epsilon", lru_cache(counted))
    at_once(lambda: price.price([PoissonSampledDpEvent(0.1, GaussianDpEvent(1.234))], 1e-6), threads=4)
    assert len(composed) == 1


@pytest.mark.parametrize("sigma", [4.0, 5.3, 100.0, 1000.7])
def test_how_far_a_table_is_off_is_known_without_the_table(sigma, monkeypatch):
    made = rounded_gaussian._table(sigma).total_variation
    monkeypatch.setattr(rounded_gaussian, "_table", None)
    assert RoundedGaussian(sigma).total_variation == made
