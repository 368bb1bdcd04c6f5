"""A forecast says on what it was timed, and what that device's memory has to hold."""

import dataclasses

import pytest

from coordinator import api
from coordinator.forecasting.devices import on_device
from learning.models.compute import Available
from protos.computed import Computed


@pytest.fixture(scope="module")
def forecast(classifier_plan, tmp_path_factory):
    """A forecast on the processor in half the precision, and one without a word on devices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONCLAVE_HOME", str(tmp_path_factory.mktemp("home")))
        yield [api.forecast(classifier_plan(run={"precision": each})) for each in ("bfloat16", "float32")]


def test_it_is_timed_on_what_will_be_used(forecast):
    half, usual = forecast
    assert half.assumptions[-1] == "Timed on cpu in bfloat16; parties are supposed to compute on the same."
    assert not any("Timed on" in each for each in usual.assumptions)


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
