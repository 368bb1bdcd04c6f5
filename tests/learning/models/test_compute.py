import subprocess
import sys

import pytest
import torch
from torch import nn

from learning.errors import ComputeError
from learning.models.compute import (
    PROCESSOR,
    SCALE,
    Compute,
    available,
    current,
    exact,
    loss_scale,
    on_device,
    passing,
    placement,
    running,
)


def test_code_that_is_not_told_runs_on_the_processor_in_single_precision():
    assert (current().device.type, current().precision, loss_scale()) == ("cpu", "float32", 1.0)
    with running(PROCESSOR):
        assert (current().device.type, current().precision) == ("cpu", "float32")
        with passing(torch.device("cpu")):
            assert not torch.is_autocast_enabled("cpu")


def test_auto_takes_the_first_device_that_is_there():
    assert str(placement(Compute()).device) == available()[0].device
    assert available()[-1].device == "cpu"


@pytest.mark.parametrize("device", ["cuda:999", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_is(device):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has mps")
    with pytest.raises(ComputeError, match=rf'no device "{device}" on this machine. It has .*cpu. Use one of these'):
        placement(Compute(device))


def test_a_precision_that_a_device_lacks_is_refused_with_what_it_has(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(ComputeError, match=r"cuda:0 \(Tesla V100\) cannot .* bfloat16. It has float32 and float16"):
        placement(Compute("cuda", "bfloat16"))
    assert placement(Compute("auto", "float16")).described == "cuda:0 (Tesla V100), float16"


@pytest.mark.parametrize(
    "words", [{"device": "gpu"}, {"device": "cuda:01"}, {"precision": "float64"}, {"threads": -1}, {"device": "CPU"}]
)
def test_words_that_are_none_are_refused(words):
    with pytest.raises(ComputeError):
        Compute(**words)


def test_threads_and_precision_hold_within_and_not_after():
    before = torch.get_num_threads()
    with running(Compute("cpu", "bfloat16", threads=before + 1)):
        assert torch.get_num_threads() == before + 1
        layer = nn.Linear(2, 2)
        with passing(torch.device("cpu")):
            assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
            with exact(torch.device("cpu")):
                assert layer(torch.ones(1, 2)).dtype == torch.float32
        assert layer(torch.ones(1, 2)).dtype == torch.float32  # only passes are in it
        with running(PROCESSOR):
            assert current().precision == "float32"
        assert current().precision == "bfloat16"
    assert torch.get_num_threads() == before
    assert current().precision == "float32"
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_scale_of_losses_is_fixed_and_rounds_nothing():
    with running(Compute("cpu", "float16")):
        assert loss_scale() == SCALE
    assert SCALE.hex().startswith("0x1.0000000000000p")


def test_a_model_is_loaded_onto_what_is_asked_for():
    layer = nn.Linear(2, 2)
    assert on_device(layer) is layer
    with running(Compute("cpu", "bfloat16")):
        assert on_device(layer) is layer
        assert layer.weight.dtype == torch.float32


def test_neither_words_nor_the_processor_need_torch():
    code = (
        "import sys; from learning.models.compute import *\n"
        "with running(PROCESSOR): Compute('cuda', 'bfloat16', 2)\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
