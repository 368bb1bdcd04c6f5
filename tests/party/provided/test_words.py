"""What is provided about words: finite, bounded, of the sizes that go together, whatever a shard holds."""

import dataclasses
import json
import math

import numpy as np
import pytest
from safetensors.numpy import save

from learning.embeddings.moments import Directions
from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.errors import TrainingError
from party.provided import words as provided_words
from party.provided.words import directions_in, reference_in, vocabulary_in


@pytest.fixture
def stored(tmp_path):
    """Puts bytes in a file."""

    def puts(content):
        (tmp_path / "artefact").write_bytes(content)
        return tmp_path / "artefact"

    return puts


def directions(**changes):
    parts = {"vectors": np.ones((3, 2)), "strengths": np.ones(2), "weights": np.ones(3)} | changes
    return save({name: np.asarray(part, np.float32) for name, part in parts.items()})


def spoiled(reference, name, value):
    part = getattr(reference, name).copy()
    part.flat[1] = value
    return save({each: getattr(reference, each) for each in ("inputs", "outputs", "bias")} | {name: part})


@pytest.mark.parametrize(
    "words", [["apple", "Smith"], ["two words"], ["a\x1b[2J"], [""], ["a", "a"], [1], [], ["5551234"]]
)
def test_a_vocabulary_is_of_words_that_texts_come_to(stored, words):
    assert vocabulary_in(stored(Vocabulary(("apple", "bread")).to_bytes())).words == ("apple", "bread")
    content = json.dumps({"format": "conclave.vocabulary/1", "words": words}, separators=(",", ":"))
    with pytest.raises(TrainingError, match="the vocabulary that was provided cannot be used"):
        vocabulary_in(stored(content.encode()))


def test_a_vocabulary_is_not_read_whatever_its_size(stored, monkeypatch):
    monkeypatch.setattr(provided_words, "MOST_BYTES", 10)
    with pytest.raises(TrainingError, match="more than 10 bytes"):
        vocabulary_in(stored(Vocabulary(("apple", "bread")).to_bytes()))


@pytest.mark.parametrize("name", ["inputs", "outputs", "bias"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38, -(2.0**24)])
def test_one_number_of_a_reference_that_is_none_or_overflows_is_found(stored, reference, name, value):
    made = reference(3, 2)
    found = reference_in(stored(to_bytes(made)), 3)
    assert all(
        np.array_equal(getattr(found, field.name), getattr(made, field.name)) for field in dataclasses.fields(made)
    )
    with pytest.raises(TrainingError, match=r"hold NaN or infinity|are 16,777,216 and more"):
        reference_in(stored(spoiled(made, name, value)), 3)
    with pytest.raises(TrainingError, match="knows 3 words, the vocabulary has 4"):
        reference_in(stored(to_bytes(made)), 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vectors": np.full((3, 2), 3e38)}, "are 16,777,216 and more"),
        ({"strengths": np.full(2, -1e30)}, "are 16,777,216 and more"),
        ({"weights": np.full(3, 1e30)}, "are 16,777,216 and more"),
        ({"vectors": np.full((3, 2), math.nan)}, "finite"),
        ({"weights": np.zeros(3)}, "a weight above 0"),
        ({"strengths": np.ones(7)}, "do not fit"),
    ],
)
def test_directions_that_overflow_at_some_word_are_refused(stored, changes, says):
    assert isinstance(directions_in(stored(directions()), 3), Directions)
    with pytest.raises(TrainingError, match=says):
        directions_in(stored(directions(**changes)), 3)
