"""Dynamic temperature: examples worked by hand, and the laws of equation 5."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import ConclaveError
from learning.swing.temperature import Temperature, temperatures


def _of(flags, settings, stops=None):
    clues = np.array(flags, bool)
    return temperatures(settings, clues, np.array([0, len(flags)] if stops is None else stops, np.int64))


def test_equation_5_by_hand():
    """n = 5, T = 2, alpha 0.1: at a distance of 1, 2, 3 the temperature is 2 + 0.5, 2 + 0.25, 2 + 1/6."""
    found = _of([0, 1, 0, 0, 0], Temperature(2.0, 0.1, 10.0))
    np.testing.assert_allclose(found.each, [2.5, 10.0, 2.5, 2.25, 2 + 0.5 / 3])


def test_the_nearest_clue_on_either_side_counts():
    """n = 7, alpha 1, T 1: between clues at 0 and 5 the distances are 1, 2, 2, 1; after the last one 1."""
    found = _of([1, 0, 0, 0, 0, 1, 0], Temperature(1.0, 1.0, 100.0))
    np.testing.assert_allclose(found.each, [100, 1 + 7, 1 + 3.5, 1 + 3.5, 1 + 7, 100, 1 + 7])


def test_a_clue_of_another_text_does_not_count():
    found = _of([0, 0, 1, 0, 0], Temperature(1.0, 1.0, 50.0), stops=[0, 2, 2, 5])
    np.testing.assert_allclose(found.each, [1, 1, 50, 1 + 3, 1 + 1.5])
    assert (found.texts, found.without, found.only, found.clues) == (3, 1, 0, 1)


def test_no_temperature_exceeds_the_cap():
    found = _of([0, 1, 0, 0, 0], Temperature(2.0, 1.0, 4.6))
    np.testing.assert_allclose(found.each, [4.6, 4.6, 4.6, 4.5, 2 + 5 / 3])
    assert found.capped == 3
    assert found.warnings == ()


def test_a_text_of_clues_alone_is_counted_and_no_error():
    found = _of([1, 1, 0, 1], Temperature(1.0, 0.1, 9.0), stops=[0, 2, 4])
    assert (found.each[:2] == 9).all()
    assert found.only == 1
    assert "1 of 2 texts" in found.warnings[0]


def test_an_alpha_that_puts_all_at_the_cap_is_worth_a_warning():
    assert "Every token is at the highest" in _of([0, 1, 0], Temperature(1.0, 1e6, 9.0)).warnings[0]
    assert _of([0, 1, 0], Temperature(1.0, 0.1, 9.0)).warnings == ()


def test_texts_without_a_clue_are_plain_distillation_and_said_to_be():
    found = _of([0, 0, 0], Temperature(2.0, 5.0, 9.0))
    assert (found.each == 2).all()
    assert "plain distillation" in found.warnings[0]


def test_no_text_is_no_error():
    assert _of([], Temperature(2.0, 5.0, 9.0), stops=[0]).each.shape == (0,)


@pytest.mark.slow
@given(
    st.lists(st.lists(st.booleans(), max_size=12), min_size=1, max_size=6),
    st.floats(0.1, 5),
    st.floats(0, 5),
    st.floats(0, 20),
)
def test_a_ragged_batch_is_its_texts_one_by_one(rows, base, alpha, above):
    settings = Temperature(base, alpha, base + above)
    stops = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    found = temperatures(settings, np.concatenate([np.array(row, bool) for row in rows]), stops)
    wanted = []
    for row in rows:
        clues = [i for i, is_clue in enumerate(row) if is_clue]
        for m in range(len(row)):
            near = min((abs(i - m) for i in clues), default=None)
            if near is None:
                wanted.append(base)
            else:
                wanted.append(min(settings.cap, base + alpha * len(row) / near) if near else settings.cap)
    np.testing.assert_allclose(found.each, wanted)
    assert ((found.each >= base) & (found.each <= settings.cap)).all()


@pytest.mark.parametrize("numbers", [(0.0, 1.0, 2.0), (1.0, -1.0, 2.0), (2.0, 1.0, 1.0), (1.0, float("nan"), 2.0)])
def test_numbers_out_of_range_are_refused(numbers):
    with pytest.raises(ConclaveError):
        Temperature(*numbers)


def test_clues_of_other_texts_are_refused():
    with pytest.raises(ConclaveError, match="not those of these texts"):
        _of([0, 1], Temperature(1.0, 1.0, 2.0), stops=[0, 3])
