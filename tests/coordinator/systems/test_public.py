"""The public side of a plan: words to ask about, and the skip-gram that teachers start from; mistakes cost nothing."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from aggregation.errors import ConclaveError
from coordinator.errors import PlanError
from coordinator.systems.dped.public import prepare
from coordinator.systems.registry import plan_of
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import to_bytes

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
SIZE, DIMENSION = 6, 4


@pytest.fixture
def make(tmp_path):
    """Makes the public side of a plan over a small public text in which earlier words are more frequent."""
    texts = [" ".join(WORDS[: 1 + number % 6]) for number in range(24)]
    (tmp_path / "public.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def makes(*, size=SIZE, signals=("votes", "hidden"), **dped):
        plan = plan_of(
            {
                "run": {"name": "demo", "recipe": "dped"},
                "privacy": {"epsilon": 6.0, "delta": 1e-6},
                "federation": {"launch": "connect", "parties": [{"name": "north", "address": "127.0.0.1:7443"}]},
                "vocabulary": {"source": "public.jsonl", "size": size},
                "dped": {"signals": list(signals), "dimension": DIMENSION, "window": 2} | dped,
            }
        )
        return prepare(plan, tmp_path, tmp_path / "cache")

    return makes


def words(public, positions):
    return [public.vocabulary.words[position] for position in positions]


def test_by_default_every_word_is_asked_about_once_and_may_be_named(make):
    public = make()
    assert words(public, public.queries) == words(public, public.classes) == list(WORDS)
    assert public.weights.tolist() == [1] * 6


def test_a_number_takes_the_vocabularys_first_words(make):
    public = make(queries=2, classes=3)
    assert words(public, public.queries) == ["apple", "bread"]
    assert words(public, public.classes) == ["apple", "bread", "cheese"]


def test_a_word_that_is_listed_again_is_asked_once_and_weighs_more(make):
    public = make(queries=["fish", "apple", "fish", "door", "fish", "apple"], classes=["egg", "bread"])
    assert words(public, public.queries) == ["fish", "apple", "door"]
    assert public.weights.tolist() == [3, 2, 1]
    assert words(public, public.classes) == ["egg", "bread"]


@pytest.mark.parametrize("key", ["queries", "classes"])
def test_a_word_that_no_teacher_knows_is_named(make, key):
    with pytest.raises(PlanError) as error:
        make(**{key: ["apple", "zebra", "yak"]})
    said = str(error.value)
    assert said.startswith(f'[dped] {key} names "zebra", a word that the vocabulary of 6 words lacks')
    assert said.endswith("Take it out, or raise [vocabulary] size. Nothing was spent.")
    assert "\n" not in said


def test_a_reference_is_fitted_to_the_vocabularys_own_text(make):
    public = make()
    assert public.reference.inputs.shape == (SIZE, DIMENSION)
    assert to_bytes(make().reference) == to_bytes(public.reference), "the same for every coordinator that has the text"


def test_without_teachers_there_is_no_reference(make):
    assert make(signals=("counts",)).reference is None


def skipgram(size=SIZE, width=DIMENSION, outputs_width=None):
    rng = np.random.default_rng(0)
    return {
        "inputs": rng.normal(size=(size, width)).astype(np.float32),
        "outputs": rng.normal(size=(size, outputs_width or width)).astype(np.float32),
        "bias": np.zeros(size, np.float32),
    }


def test_a_reference_of_ones_own_is_taken_as_it_is(make, tmp_path):
    own = skipgram()
    (tmp_path / "own.safetensors").write_bytes(to_bytes(SkipGram(**own)))
    found = make(reference="own.safetensors").reference
    for name, tensor in own.items():
        np.testing.assert_array_equal(getattr(found, name), tensor)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        (b"\x80pickle", "cannot be used: The skip-gram is not in the safetensors format"),
        (save(skipgram(width=5)), "has 6 words in 5 dimensions; this plan has 6 words in 4"),
        (save(skipgram(size=7)), "has 7 words in 4 dimensions; this plan has 6 words in 4"),
        (save(skipgram(outputs_width=3)), r"cannot be used: A skip-gram's parts do not fit"),
        (save({"inputs": np.zeros((6, 4), np.float32)}), "cannot be used: The skip-gram lacks the tensor"),
        (save(skipgram() | {"bias": np.full(6, np.nan, np.float32)}), "NaN or infinity"),
    ],
    ids=["missing", "no safetensors", "other width", "other words", "layers of different width", "a part", "NaN"],
)
def test_a_reference_that_does_not_fit_is_refused_before_anybody_is_asked(make, tmp_path, content, says):
    if content is not None:
        (tmp_path / "own.safetensors").write_bytes(content)
    with pytest.raises(PlanError, match=says) as error:
        make(reference="own.safetensors")
    assert str(error.value).startswith("[dped] reference = ")
    assert "\n" not in str(error.value)


def test_a_vocabulary_larger_than_the_public_text_is_refused_with_what_would_do(make):
    with pytest.raises(ConclaveError, match=r"has 6 different words; the plan asks for 9\. Set size = 6"):
        make(size=9)
