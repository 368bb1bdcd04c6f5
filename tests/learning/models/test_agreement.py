"""Sizes of batches in which an example's numbers are the same bits: found by trial, and none where there are none."""

import weakref

import numpy as np
import pytest
import torch
from torch import nn

from learning.models.agreement import MADE_UP, agreeing, divided, drawn, made_up_rows, rounded

EXAMPLES = torch.randn(MADE_UP, 7, generator=torch.Generator().manual_seed(0))


def test_what_is_worked_out_example_by_example_agrees_in_every_size():
    assert agreeing(lambda numbers: [EXAMPLES[list(numbers)] * 3], 40) == (32, 16, 4, 1)


def test_sizes_that_round_in_another_way_are_left_out():
    def answer(numbers):
        return [EXAMPLES[list(numbers)] * (1 + 1e-7 * (len(numbers) < 4))]

    assert agreeing(answer, 16) == (16, 4)


@pytest.mark.parametrize("mixing", ["companions", "places", "no padding"])
def test_where_an_answer_depends_on_the_others_or_its_place_examples_go_alone(mixing):
    def answer(numbers):
        found = EXAMPLES[list(numbers)]
        if mixing == "companions":
            return [found + 1e-6 * found.mean(dim=0)] if len(found) > 1 else [found]
        if mixing == "places":
            return [found * (1 + 1e-6 * torch.arange(len(found))[:, None])]
        return [found * (1 + 1e-6 * (max(numbers) < 2)) if len(found) > 1 else found]

    assert agreeing(answer, 16) == (1,)


def test_examples_are_divided_among_sizes_and_the_last_may_have_places_over():
    assert divided(37, (16, 4)) == [16, 16, 4, 4]
    assert divided(30, (16, 4)) == [16, 16]
    assert divided(6, (16, 4)) == [4, 4]
    assert divided(3, (1,)) == [1, 1, 1]
    assert divided(0, (16, 4)) == []


def test_on_a_device_a_batch_is_filled_to_a_quarter_rather_than_divided():
    """A batch takes it about as long, whatever its size: 90 examples go in one, not in six."""
    assert divided(90, (1024, 256, 64, 16, 4, 1), "cuda") == [256]
    assert divided(90, (1024, 256, 64, 16, 4, 1)) == [64, 16, 4, 4, 1, 1]
    assert divided(63, (256, 4), "cuda") == [4] * 16
    assert divided(64, (256, 4), "cuda") == [256]


def test_lengths_come_in_steps_and_no_further_than_a_model_takes():
    assert [rounded(length, 30) for length in (1, 8, 9, 25, 30)] == [8, 8, 16, 30, 30]
    assert rounded(25, None) == 32
    assert [rounded(length, 60, "cuda") for length in (1, 32, 33, 49)] == [32, 32, 60, 60]
    assert [len(made_up_rows(9, 8, number)[0]) for number in range(MADE_UP)] == [8, 8, 7, 6]


def test_a_models_own_parameters_are_back_after_a_trial_that_failed():
    layer = nn.Linear(3, 2)
    own = layer.weight.detach().clone()

    def fails():
        with drawn(layer):
            assert not torch.equal(layer.weight, own)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert torch.equal(layer.weight, own)


def test_a_models_own_parameters_stay_where_they_are_and_others_lie_like_them():
    """A file's weights that are mapped, and shared, are not written to; where numbers lie can decide an order."""
    layer = nn.Linear(64, 64)
    room = torch.randn(64 * 64 + 16)
    for within in range(4):
        mapped = room[within : within + 64 * 64].view(64, 64)
        before = mapped.clone()
        layer.weight.data = mapped
        with drawn(layer):
            assert layer.weight.data_ptr() != mapped.data_ptr()
            assert layer.weight.data_ptr() % 64 == mapped.data_ptr() % 64
            assert layer.weight.shape == mapped.shape
            assert torch.equal(mapped, before)
        assert layer.weight.data_ptr() == mapped.data_ptr()


def test_a_trial_keeps_what_it_compares_and_no_whole_batch():
    alive: list[weakref.ref[np.ndarray]] = []

    def answer(numbers):
        assert sum(each() is not None for each in alive) <= 1, "the last answer, until this one takes its name"
        made = (EXAMPLES[list(numbers)] * 3).numpy().copy()
        alive.append(weakref.ref(made))
        return [torch.from_numpy(made)]

    assert agreeing(answer, 64) == (64, 16, 4, 1)
    assert len(alive) > 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_products_of_private_sums_are_in_single_precision():
    from learning.private_training.per_example import single_precision

    torch.set_float32_matmul_precision("high")
    one, other = (torch.randn(512, 512, generator=torch.Generator().manual_seed(n)).cuda() for n in (1, 2))
    with single_precision():
        exact = (one.double() @ other.double()).float()
        assert (one @ other - exact).abs().max() < 1e-4 * exact.abs().max()
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
