"""How much of a release is signal, measured on the noisy numbers themselves."""

from contextlib import closing

import numpy as np
import pytest

from aggregation.mechanisms.mechanism import Released
from coordinator.publishing import heard
from coordinator.publishing.heard import Heard, Steps
from coordinator.store.store import RunStore


@pytest.fixture
def store(tmp_path):
    with closing(RunStore.create(tmp_path / "run", "1-demo", "demo", b"\0" * 32)) as found:
        yield found


def released(signal, sigma, values=20_000, seed=0):
    rng = np.random.default_rng(seed)
    return Released(rng.normal(0.0, signal, values) + rng.normal(0.0, sigma, values), sigma)


def test_what_is_beyond_the_noise_is_the_signal(store):
    steps = Steps("steps", store)
    for number in range(1, 5):
        steps.add(released(3.0, 2.0, seed=number), number)
    steps.keep()
    ((found,),) = heard.kept(store).values()
    assert found.ratio == pytest.approx(1.5, rel=0.03)
    assert found.share == pytest.approx(9 / 13, rel=0.03)
    assert found.values == 80_000


def test_of_noise_alone_nothing_is_called_signal(store):
    quiet = [Heard("a", "", float(np.mean(released(0.0, 2.0, 500, seed).values ** 2)), 4.0, 500) for seed in range(200)]
    assert sum(each.signal > 0 for each in quiet) <= 2
    assert all(each.ratio == each.share == 0 for each in quiet if not each.signal)


def test_steps_that_were_made_before_a_stop_are_not_forgotten(store):
    for number in (1, 2):
        steps = Steps("steps", store)
        steps.add(released(1.0, 1.0, 100), number)
        steps.keep()
    assert heard.kept(store)["steps"][0].values == 200


def test_parts_and_releases_are_kept_apart(store):
    heard.keep([Heard("answers", "votes", 2.0, 1.0, 10), Heard("answers", "hidden", 3.0, 1.0, 10)], store)
    heard.keep([Heard("counts", "", 4.0, 1.0, 10)], store)
    assert {name: [each.part for each in parts] for name, parts in heard.kept(store).items()} == {
        "answers": ["votes", "hidden"],
        "counts": [""],
    }
