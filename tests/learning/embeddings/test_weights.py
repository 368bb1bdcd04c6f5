"""Weights: a skip-gram comes back from its bytes exactly, and nothing else passes for one."""

import numpy as np
import pytest
from safetensors.numpy import save

from aggregation.errors import IntegrityError
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import from_bytes, to_bytes


def _tensors(size=7, width=3):
    rng = np.random.default_rng(0)
    return {
        "inputs": rng.normal(size=(size, width)).astype(np.float32),
        "outputs": rng.normal(size=(size, width)).astype(np.float32),
        "bias": rng.normal(size=size).astype(np.float32),
    }


def test_a_model_comes_back_bit_for_bit():
    model = SkipGram(**_tensors())
    back = from_bytes(to_bytes(model))
    for name in ("inputs", "outputs", "bias"):
        assert getattr(back, name).tobytes() == getattr(model, name).tobytes()
        assert getattr(back, name).dtype == np.float32


def test_the_same_model_gives_the_same_bytes_however_it_lies_in_memory():
    tensors = _tensors()
    turned = {name: np.asfortranarray(value) for name, value in reversed(tensors.items())}
    assert to_bytes(SkipGram(**tensors)) == to_bytes(SkipGram(**turned))


def _without_bias(tensors):
    del tensors["bias"]


def _with_more(tensors):
    tensors["labels"] = np.zeros(3, np.float32)


def _double(tensors):
    tensors["outputs"] = tensors["outputs"].astype(np.float64)


def _other_width(tensors):
    tensors["outputs"] = tensors["outputs"][:, :2].copy()


def _other_size(tensors):
    tensors["bias"] = tensors["bias"][:-1].copy()


def _one_axis(tensors):
    tensors["inputs"] = tensors["inputs"].ravel()


def _nan(tensors):
    tensors["bias"][2] = np.nan


def _infinite(tensors):
    tensors["inputs"][0, 1] = np.inf


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_without_bias, "lacks the tensor 'bias'"),
        (_with_more, "tensor 'labels'"),
        (_double, "outputs are float64"),
        (_other_width, "do not fit"),
        (_other_size, "do not fit"),
        (_one_axis, r"shape \(21,\)"),
        (_nan, "bias hold NaN"),
        (_infinite, "inputs hold NaN or infinity"),
    ],
)
def test_what_is_no_skip_gram_is_refused(spoil, sentence):
    tensors = _tensors()
    spoil(tensors)
    with pytest.raises(IntegrityError, match=sentence):
        from_bytes(save(tensors))


@pytest.mark.parametrize("content", [b"", b"not safetensors", to_bytes(SkipGram(**_tensors()))[:-1]])
def test_bytes_that_are_no_safetensors_are_refused(content):
    with pytest.raises(IntegrityError, match="safetensors"):
        from_bytes(content)


def test_a_type_that_numpy_lacks_is_refused():
    content = to_bytes(SkipGram(**_tensors()))
    with pytest.raises(IntegrityError):
        from_bytes(content.replace(b'"F32"', b'"F8X"'))


def test_a_model_with_nan_is_not_written():
    tensors = _tensors()
    _nan(tensors)
    with pytest.raises(IntegrityError, match="bias hold NaN"):
        to_bytes(SkipGram(**tensors))
