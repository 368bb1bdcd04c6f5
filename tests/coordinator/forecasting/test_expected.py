"""What a run is expected to take: an earlier run of the same plan says it of each stage, a forecast of the whole."""

import time
from contextlib import closing

import pytest

from coordinator.forecasting.expected import Expected, expected, keep
from coordinator.store.index import RunIndex

DIGEST = b"h" * 32


@pytest.fixture
def index(tmp_path):
    return RunIndex(tmp_path / "home")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def finished(index, digest=DIGEST, **facts):
    now = time.time()
    with closing(index.add("demo", digest, None)) as store:
        store.lasted([("prepare", now - 50, now - 40), ("train", now - 40, now - 10)])
        store.note(status="finished", **facts)


def test_nobody_knows_of_a_plan_that_is_new(index, cache):
    assert expected(DIGEST, index, cache) == Expected({}, None)


def test_a_forecast_says_it_of_the_whole(index, cache):
    keep(DIGEST, 360.0, cache)
    assert expected(DIGEST, index, cache) == Expected({}, 360.0)
    assert expected(b"i" * 32, index, cache) == Expected()


def test_an_earlier_run_of_the_plan_says_it_of_each_stage_in_order(index, cache):
    keep(DIGEST, 360.0, cache)
    finished(index)
    found = expected(DIGEST, index, cache)
    assert list(found.stages) == ["prepare", "train"]
    assert found.stages == {"prepare": pytest.approx(10), "train": pytest.approx(30)}
    assert found.whole == 360.0


def test_runs_of_other_plans_and_runs_in_parts_say_nothing(index, cache):
    finished(index, b"i" * 32)
    finished(index, resumed=1)
    assert expected(DIGEST, index, cache).stages == {}


@pytest.mark.parametrize("content", ["", "{}", '{"seconds": "long"}', '{"seconds": NaN}', '{"seconds": -1}', "[1]"])
def test_a_forecast_that_cannot_be_read_is_none(index, cache, content):
    keep(DIGEST, 1.0, cache)
    (file,) = (cache / "forecasts").iterdir()
    file.write_text(content)
    assert expected(DIGEST, index, cache).whole is None


def test_a_cache_that_takes_nothing_is_no_obstacle(index, cache):
    cache.write_text("")
    keep(DIGEST, 1.0, cache)
    assert expected(DIGEST, index, cache).whole is None
