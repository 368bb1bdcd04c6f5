"""A forecast says on what it was timed, and what that device's memory has to hold."""

import dataclasses
from types import SimpleNamespace

import pytest

from coordinator import api
from coordinator.forecasting.devices import on_device
from coordinator.systems.registry import plan_of
from coordinator.text_models import forecast as forecast_of_text
from learning.models.compute import Available, Placement
from protos.computed import Computed


@pytest.fixture(scope="module")
def forecast(classifier_plan, tmp_path_factory):
    """A forecast on the processor in half the precision, and one without a word on devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCLAVE_HOME", str(tmp_path_factory.mktemp("home")))
        yield [api.forecast(classifier_plan(run={"precision": each})) for each in ("bfloat16", "float32")]


@pytest.fixture
def busy(monkeypatch):
    """Seconds that a training adds to a run which takes a party a thousand of them, on four cores or on a device."""
    monkeypatch.setattr(forecast_of_text, "cores", lambda: 4)

    def found(plan, device):
        placed = Placement(SimpleNamespace(type=device))
        monkeypatch.setattr("learning.models.compute.current", lambda: placed)
        took = [forecast_of_text.seconds(plan, 0.0, seconds, 1) for seconds in (0.0, 1000.0)]
        assert took[0] < 60, "starting"
        return took[1] - took[0]

    return found


def test_parties_of_one_machine_share_its_cores_or_its_one_device(classifier_plan, busy):
    plan = classifier_plan()
    assert (busy(plan, "cpu"), busy(plan, "cuda")) == (pytest.approx(1000), pytest.approx(4000))


@pytest.mark.parametrize(("gpus", "seconds"), [(1.0, 1000), (2.0, 1000), (0.5, 2000), (0.1, 4000), (0.0, 4000)])
def test_on_a_cluster_a_party_has_the_gpus_that_it_asks_for(classifier_tables, busy, gpus, seconds):
    tables = classifier_tables()
    tables["federation"]["cluster"] = {"gpus": gpus}
    assert busy(plan_of(tables), "cuda") == pytest.approx(seconds)


def test_parties_elsewhere_have_their_own(classifier_tables, busy):
    tables = classifier_tables()
    del tables["federation"]["shards"]
    parties = [{"name": name, "address": f"localhost:{port}"} for port, name in enumerate(("north", "south"), 7000)]
    tables["federation"] |= {"launch": "connect", "parties": parties}
    plan = plan_of(tables)
    assert (busy(plan, "cpu"), busy(plan, "cuda")) == (pytest.approx(250), pytest.approx(1000))


@pytest.mark.slow
def test_it_is_timed_on_what_will_be_used(forecast):
    half, usual = forecast
    assert half.assumptions[-1] == "Timed on cpu in bfloat16; parties are supposed to compute on the same."
    assert not any("Timed on" in each for each in usual.assumptions)


@pytest.mark.slow
def test_the_devices_memory_is_named_and_a_small_one_warned_of(forecast):
    _, usual = forecast
    usual = dataclasses.replace(usual, memory=usual.memory | {"party training": 3 * 10**9})
    large = Available("cuda:0", "H200", 140 * 10**9, ("float32",))
    found = on_device(usual, Computed("cuda"), large)
    assert found.assumptions[-1] == (
        "Timed on cuda:0 (H200, 130 GiB) in float32, where a party's training takes up to 3.0 GB of the device's "
        "memory; parties are supposed to compute on the same."
    )
    assert found.warnings == usual.warnings
    small = on_device(usual, Computed("cuda"), dataclasses.replace(large, memory=8 * 10**9))
    assert small.warnings[-1].startswith("Trainings may take 12 GB together on cuda:0, which has 8.0 GB: batches are")
    assert on_device(usual, Computed(), None) == usual
