import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.errors import DataError
from learning.text.labelled import (
    Example,
    LabelError,
    LabelMap,
    LabelMapError,
    ScoreRange,
    TextColumns,
    examples,
    source_of,
)
from learning.text.source import Skipped, Source, read

SENTIMENT = LabelMap(("negative", "positive"))


def _read(path: Path, columns: TextColumns, targets: LabelMap | ScoreRange) -> tuple[list[Example], Skipped]:
    left_out = Skipped()
    documents = read(source_of(Source(str(path)), columns), path.parent, left_out)
    return list(examples(documents, columns, targets, left_out)), left_out


def test_a_class_is_known_by_its_place_in_the_plans_order() -> None:
    assert [SENTIMENT.index(value) for value in ("positive", " negative ")] == [1, 0]
    assert LabelMap(("negative", "positive"), values=("0", "1")).index("1") == 1


def test_a_label_outside_the_map_is_named_to_the_texts_owner() -> None:
    with pytest.raises(LabelError) as caught:
        SENTIMENT.index("patient 4711")
    assert "'patient 4711'" in str(caught.value)
    assert "negative, positive" in str(caught.value)


def test_with_values_of_its_own_a_map_does_not_take_a_name_for_a_value() -> None:
    with pytest.raises(LabelError):
        LabelMap(("negative", "positive"), values=("0", "1")).index("positive")


@pytest.mark.parametrize(
    ("names", "values", "said"),
    [
        (("only",), (), "two classes or more, not 1"),
        ((), (), "two classes or more, not 0"),
        (("a", "b", "a"), (), "'a' twice"),
        (("a", " "), (), "without space"),
        (("a", "b"), ("0",), "2 classes and 1 values"),
        (("a", "b"), ("0", "0"), "value '0' twice"),
    ],
)
def test_a_map_that_cannot_be_one_is_refused(names: tuple[str, ...], values: tuple[str, ...], said: str) -> None:
    with pytest.raises(LabelMapError, match=said):
        LabelMap(names, values)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.floats(0, 1))
def test_scores_become_standard_and_come_back(low: float, width: float, share: float) -> None:
    scores = ScoreRange(low, low + width)
    score = min(low + share * width, scores.high)
    standard = scores.standard(score)
    assert -1 - 1e-6 <= standard <= 1 + 1e-6
    assert scores.score(standard) == pytest.approx(score, rel=1e-9, abs=1e-6 * width)


@pytest.mark.parametrize("text", ["5.01", "-0.1", "nan", "inf", "seven", ""])
def test_a_score_outside_the_range_is_named_to_the_texts_owner(text: str) -> None:
    with pytest.raises(LabelError, match="no number from 0 to 5") as caught:
        ScoreRange(0, 5).value(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (float("nan"), 1), (0, float("inf"))])
def test_a_range_needs_two_finite_ends(low: float, high: float) -> None:
    with pytest.raises(LabelMapError, match="cannot range"):
        ScoreRange(low, high)


def test_what_a_model_says_is_held_within_the_range() -> None:
    assert [ScoreRange(0, 5).score(said) for said in (-9.0, 0.0, 9.0)] == [0.0, 2.5, 5.0]


def test_rows_become_pairs_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("one,two,same\nA b,c d,yes\nE f,,no\nG h,i j,\n,k l,no\nM n,o p,no\n")
    found, left_out = _read(path, TextColumns("pair", "one", "two", "same"), LabelMap(("no", "yes")))
    assert found == [Example("A b", "c d", 1), Example("M n", "o p", 0)]
    assert left_out.reasons == {"no second text": 1, "no label": 1, "no text": 1}


def test_scores_are_read_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text('{"a": "x", "b": "y", "s": 3.8}\n{"a": "z", "b": "w", "s": 5}\n')
    found, _ = _read(path, TextColumns("regression", "a", "b", "s"), ScoreRange(0, 5))
    assert [example.target for example in found] == [3.8, 5.0]


def test_integer_labels_are_read_by_their_values(tmp_path: Path) -> None:
    path = tmp_path / "sst.jsonl"
    path.write_text('{"text": "dull", "label": 0}\n{"text": "bright", "label": 1}\n')
    found, _ = _read(path, TextColumns("single", "text", None, "label"), LabelMap(("negative", "positive"), ("0", "1")))
    assert [(example.first, example.target) for example in found] == [("dull", 0), ("bright", 1)]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\na,negative\n")
    with pytest.raises(DataError, match="no column 'second'"):
        _read(path, TextColumns("pair", "text", "second", "label"), SENTIMENT)


@pytest.mark.parametrize(
    ("kind", "second", "label", "said"),
    [
        ("pair", None, "label", "second"),
        ("single", "other", "label", 'kind = "pair"'),
        ("pair", "text", "label", "must differ"),
        ("single", None, "text", "must differ"),
    ],
)
def test_columns_that_do_not_fit_their_kind_are_refused(kind, second, label, said) -> None:
    with pytest.raises(LabelMapError, match=said):
        TextColumns(kind, "text", second, label)


def test_reading_labels_needs_no_torch() -> None:
    code = "import sys, learning.text.labelled, learning.models.optimisers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
