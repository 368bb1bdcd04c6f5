import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from learning.embeddings.cooccurrence import counts_of, pair_counts, unit_counts

SIZE = 5
Units = list[list[NDArray[np.int32]]]


def _by_hand(units: Units, window: int) -> NDArray[np.float64]:
    counts = np.zeros((len(units), SIZE, SIZE))
    for unit, passages in enumerate(units):
        for passage in passages:
            for i, centre in enumerate(passage):
                for j, context in enumerate(passage):
                    if i != j and abs(i - j) <= window and centre >= 0 and context >= 0:
                        counts[unit, centre, context] += 1
    return counts


passages = st.lists(st.integers(-1, SIZE - 1), max_size=12).map(lambda words: np.array(words, dtype=np.int32))
units_of_text = st.lists(st.lists(passages, max_size=3), min_size=1, max_size=4)


@pytest.mark.slow
@given(units_of_text, st.integers(1, 14))
def test_counts_are_those_of_the_definition(units: Units, window: int) -> None:
    expected = _by_hand(units, window)
    counts = unit_counts(units, SIZE, window)
    assert counts.shape == (len(units), SIZE * SIZE)
    np.testing.assert_array_equal(counts.toarray().reshape(expected.shape), expected)
    together = [passage for unit in units for passage in unit]
    np.testing.assert_array_equal(counts_of(together, SIZE, window).toarray(), expected.sum(axis=0))


@pytest.mark.slow
@given(st.lists(passages, max_size=3), st.integers(1, 6))
def test_every_pair_is_a_row_of_its_own_with_a_single_one(texts: list[NDArray[np.int32]], window: int) -> None:
    pairs = pair_counts(texts, SIZE, window)
    dense = pairs.toarray()
    assert (dense.sum(axis=1) == 1).all()
    assert (dense.max(axis=1, initial=0) <= 1).all()
    expected = _by_hand([texts], window)[0]
    np.testing.assert_array_equal(dense.sum(axis=0).reshape(SIZE, SIZE), expected)


def test_an_unknown_word_keeps_its_place_and_counts_for_nothing() -> None:
    text = np.array([0, -1, 1], dtype=np.int32)
    assert counts_of([text], SIZE, 1).nnz == 0
    assert counts_of([text], SIZE, 2).toarray()[0, 1] == 1


def test_rows_are_sparse_sorted_and_without_duplicates() -> None:
    counts = unit_counts([[np.array([0, 1, 0, 1], dtype=np.int32)]], SIZE, 3)
    assert counts.has_canonical_format
    assert counts.nnz == 4


@pytest.mark.parametrize("word", [-2, SIZE])
def test_positions_outside_the_vocabulary_are_refused(word: int) -> None:
    with pytest.raises(IntegrityError, match=r"-1\.\.4"):
        unit_counts([[np.array([0, word], dtype=np.int32)]], SIZE, 2)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(IntegrityError, match="1 word or more"):
        counts_of([np.array([0, 1], dtype=np.int32)], SIZE, 0)
