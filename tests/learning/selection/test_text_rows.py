"""What is worked out of texts: the same numbers however they are cut into batches, and those that training sees."""

import pickle
import shutil

import numpy as np
import pytest
import torch

from learning.classification.training import predict, probabilities
from learning.errors import DataError
from learning.models.adapting import adapt
from learning.models.batching import encode
from learning.models.checkpoints import ModelError, save
from learning.models.encoders import classifier
from learning.models.features import features
from learning.selection.text_rows import TextRows
from learning.text.labelled import LabelMap, ScoreRange

LABELS = LabelMap(("public", "private"))
TEXTS = [
    (text,)
    for text in ("a good film", "the plot was dull and slow", "", "bright " * 100, "we saw it", "bad", "the end")
]


@pytest.fixture
def trained(tiny_bert, tmp_path):
    """The folder of a classifier as a run would publish it."""
    model, tokenizer = classifier(str(tiny_bert), LABELS, seed=3, pool="mean")
    adapt(model, "head", seed=3)
    with torch.no_grad():
        model.classifier.weight.mul_(50)
    save(model, tokenizer, tmp_path / "trained")
    return tmp_path / "trained"


def test_embeddings_are_what_a_head_is_trained_on(tiny_bert):
    model, tokenizer = classifier(str(tiny_bert), LABELS, seed=1, pool="mean")
    expected = features(model, encode(tokenizer, [text for (text,) in TEXTS], longest=16).rows)
    found = TextRows("embedding", str(tiny_bert), longest=16).load()(TEXTS)
    assert found.dtype == np.float32
    assert found.shape == (len(TEXTS), 32)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(found, axis=0).max() > 0.1


def test_a_trained_classifier_embeds_as_the_model_it_was_made_from(tiny_bert, trained):
    found = [TextRows("embedding", str(each), longest=16).load()(TEXTS) for each in (tiny_bert, trained)]
    np.testing.assert_allclose(*found, atol=1e-5)


def test_probabilities_are_those_of_the_class(trained):
    model, tokenizer = classifier(str(trained), LABELS, seed=0)
    logits = predict(model, encode(tokenizer, [text for (text,) in TEXTS], longest=16).rows)
    expected = probabilities(logits)
    assert np.ptp(expected[:, 1]) > 0.05
    for column in (0, 1):
        found = TextRows("probability", str(trained), longest=16, column=column).load()(TEXTS)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected[:, [column]], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embedding", "probability"])
def test_numbers_do_not_depend_on_the_cut(trained, monkeypatch, kind):
    work = pickle.loads(pickle.dumps(TextRows(kind, str(trained), longest=24)))  # noqa: S301
    do = work.load()
    at_once = do(TEXTS)
    for size in (1, 3):
        cut = np.concatenate([do(TEXTS[first : first + size]) for first in range(0, len(TEXTS), size)])
        np.testing.assert_allclose(cut, at_once, atol=1e-5)
    monkeypatch.setattr("learning.selection.text_rows.AT_ONCE", 8)
    np.testing.assert_allclose(work.load()(TEXTS), at_once, atol=1e-5)


def test_a_text_is_cut_at_the_longest(tiny_bert):
    words = ["good", "bad", "film", "plot", "slow", "great"]
    do = TextRows("embedding", str(tiny_bert), longest=5).load()
    short, long, other = do([(" ".join(words[:3]),), (" ".join(words),), (" ".join(words[:2]),)])
    np.testing.assert_allclose(short, long, atol=1e-5)
    assert np.abs(short - other).max() > 1e-3
    beyond = TextRows("embedding", str(tiny_bert), longest=500).load()([("bright " * 100,)])
    assert np.isfinite(beyond).all()


@pytest.mark.slow
def test_a_pair_is_read_by_side_or_whole(tiny_bert):
    pairs = [("a good film", "bad plot"), ("the end", "we saw it")]
    by = {
        reads: TextRows("embedding", str(tiny_bert), reads=reads).load()(pairs) for reads in ("first", "second", "both")
    }
    alone = TextRows("embedding", str(tiny_bert)).load()
    np.testing.assert_allclose(by["first"], alone([(a,) for a, _ in pairs]), atol=1e-5)
    np.testing.assert_allclose(by["second"], alone([(b,) for _, b in pairs]), atol=1e-5)
    assert np.abs(by["both"] - by["first"]).max() > 1e-3
    with pytest.raises(DataError, match='reads = "both" needs a corpus of pairs'):
        TextRows("embedding", str(tiny_bert), reads="both").load()(TEXTS)


def test_the_digest_is_of_settings_and_content(tiny_bert, trained, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "elsewhere")
    work = TextRows("embedding", str(tiny_bert))
    assert TextRows("embedding", str(tmp_path / "elsewhere")).digest() == work.digest()
    others = [TextRows("embedding", str(trained)), TextRows("embedding", str(tiny_bert), longest=8)]
    others += [TextRows("probability", str(trained)), TextRows("probability", str(trained), column=0)]
    assert len({work.digest(), *(each.digest() for each in others)}) == 5


@pytest.mark.slow
def test_a_model_that_cannot_do_it_is_named(tiny_bert, tiny_gpt2, trained, tmp_path):
    regression, tokenizer = classifier(str(tiny_bert), ScoreRange(0, 5), seed=0)
    save(regression, tokenizer, tmp_path / "regression")
    for work, said in [
        (TextRows("probability", str(tiny_bert)), "is not trained"),
        (TextRows("probability", str(trained), column=2), "2 classes, 0 to 1, and no 2"),
        (TextRows("probability", str(tmp_path / "regression")), "is a regression"),
        (TextRows("embedding", str(tiny_gpt2), pool="auto"), "no one vector"),
        (TextRows("embedding", "some/model"), "is no folder here"),
        (TextRows("embedding", str(tmp_path / "gone")), "does not exist"),
    ]:
        with pytest.raises(ModelError, match=said):
            work.load()
    with pytest.raises(DataError, match="0 tokens"):
        TextRows("embedding", "x", longest=0)
