"""What a party's trainings run on: its own file decides, this machine is looked up once, and torch stays out."""

import contextlib
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from learning.errors import ComputeError
from learning.models import machine as here
from learning.models.compute import PROCESSOR, Compute
from party.config import ComputeTable
from party.tasks import machine
from party.tasks.machine import Machine
from party.tasks.worker import training_environment


@pytest.fixture
def accelerated(monkeypatch, tmp_path):
    """A machine with a sign of an accelerator, of which torch knows nothing."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(here, "_DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def bare(monkeypatch, tmp_path):
    monkeypatch.setattr(here, "_DEVICES", tmp_path)


def test_where_nothing_tells_of_an_accelerator_auto_is_the_processor_and_nobody_is_asked(bare, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    found = Machine.looked_up(ComputeTable())
    assert found.usual == PROCESSOR
    assert found.compute(models=True, reproducible=False) == PROCESSOR


@pytest.mark.slow
def test_torch_is_asked_in_another_process_what_auto_is(accelerated):
    """Here torch finds the processor alone, whatever the sign says."""
    found = Machine.looked_up(ComputeTable())
    assert (found.wanted.device, found.usual.device) == ("auto", "cpu")
    assert found.there == ("cpu",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"device": "cuda:7"}, r'\[compute\]: There is no device "cuda:7" on this machine\. It has .*cpu'),
        ({"threads": 4096}, r"\[compute\]: threads = 4096 are more than the \d+ processors .* or 0 to leave"),
    ],
)
def test_what_is_not_there_is_a_sentence(table, said):
    with pytest.raises(ComputeError, match=said) as error:
        Machine.looked_up(ComputeTable(**table))
    assert "\n" not in str(error.value)


def test_a_hidden_accelerator_is_none(accelerated, monkeypatch):
    assert here.may_accelerate()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not here.may_accelerate()


@pytest.fixture
def two(accelerated, monkeypatch):
    """Two accelerators, "GPU 0" and "GPU 1", of which torch sees what the environment of its process leaves visible."""

    def visible():
        return os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")

    def asked(command, env, **settings):
        said = io.StringIO()
        with monkeypatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(os, "environ", env)
            machine.main(command[command.index("party.tasks.machine") + 1 :])
        return subprocess.CompletedProcess(command, 0, said.getvalue().encode(), b"")

    monkeypatch.setattr(subprocess, "run", asked)
    monkeypatch.setattr("torch.cuda.is_available", lambda: bool(visible()))
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(visible()))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"GPU {visible()[device.index]}")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=0))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_of_several_devices_the_first_is_taken_that_a_launcher_left_visible(device, two, monkeypatch):
    found = Machine.looked_up(ComputeTable(device=device))
    assert (found.usual.device, found.there) == ("cuda:0", ("cuda:0 (GPU 0)", "cuda:1 (GPU 1)", "cpu"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # as Ray sets it for an actor with a GPU
    found = Machine.looked_up(ComputeTable(device=device))
    assert (found.usual.device, found.there) == ("cuda:0", ("cuda:0 (GPU 1)", "cpu"))


def test_another_than_the_first_is_for_whoever_names_it_and_sees_it(two, monkeypatch):
    assert Machine.looked_up(ComputeTable(device="cuda:1")).usual.device == "cuda:1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(ComputeError, match=r'no device "cuda:1" on this machine\. It has cuda:0 \(GPU 1\) and cpu'):
        Machine.looked_up(ComputeTable(device="cuda:1"))


def test_noise_that_is_reproduced_takes_the_processor_unless_the_file_names_a_device():
    on_device = Compute("cuda:0", "bfloat16")
    auto, named = Machine(Compute("auto", "bfloat16"), on_device), Machine(on_device, on_device)
    assert auto.compute(models=True, reproducible=False) == on_device
    assert auto.compute(models=True, reproducible=True) == Compute("cpu", "bfloat16")
    assert named.compute(models=True, reproducible=True) == on_device


def test_only_text_models_run_on_the_device():
    found = Machine(Compute("auto", threads=2), Compute("cuda:0", threads=2))
    assert found.compute(models=False, reproducible=False) == Compute("cpu", threads=2)
    assert found.compute(models=True, reproducible=False, spread=True) == Compute("cpu", threads=2)


def test_what_a_launcher_assigned_reaches_the_training_process():
    found = training_environment({"CUDA_VISIBLE_DEVICES": "3"}, threads=2)
    assert (found["CUDA_VISIBLE_DEVICES"], found["OMP_NUM_THREADS"]) == ("3", "2")
    assert "OMP_NUM_THREADS" not in training_environment({})


@pytest.mark.slow
def test_looking_up_a_processor_imports_no_torch():
    code = (
        "import sys; from party.tasks.machine import Machine; from party.config import ComputeTable; "
        "Machine.looked_up(ComputeTable(device='cpu', threads=1)); print('torch' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "False"
