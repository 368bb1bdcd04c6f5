"""Control codes: cells, their words, and templates that cannot be."""

import pytest

from learning.text.codes import MOST_CELLS, CodeError, Codes
from learning.text.labelled import LabelMap

CATEGORY = LabelMap(("world", "sports"), ("1", "2"))
RATING = LabelMap(("low", "middle", "high"))


def test_every_code_has_a_cell_and_words_in_the_same_order() -> None:
    codes = Codes("{category}: {rating}, of {category}", {"category": CATEGORY, "rating": RATING})
    assert codes.cells == 6
    assert codes.texts()[0] == "world: low, of world"
    rows = [(one, other) for one in ("1", "2") for other in RATING.names]
    found = [codes.cell({"category": one, "rating": other, "id": "7"}) for one, other in rows]
    assert found == list(range(6))
    assert codes.texts()[5] == "sports: high, of sports"


@pytest.mark.parametrize("fields", [{"category": "3"}, {"category": ""}, {}, {"category": "world"}])
def test_a_row_without_a_public_value_has_no_code(fields: dict[str, str]) -> None:
    assert Codes("Category: {category}", {"category": CATEGORY}).cell(fields) is None


@pytest.mark.parametrize(
    ("template", "columns", "said"),
    [
        ("Category", {}, "names no column"),
        ("{category}", {"category": CATEGORY, "rating": RATING}, "rating is in one of them only"),
        ("{category} {rating}", {"category": CATEGORY}, "rating is in one of them only"),
        ("{category!r}", {"category": CATEGORY}, "names no column"),
        ("{category.x}", {"category": CATEGORY}, "names no column"),
        ("{0}", {"0": CATEGORY}, "names no column"),
        ("{category", {"category": CATEGORY}, "cannot be read"),
        ("{category}\n", {"category": CATEGORY}, "cannot be shown"),
        ("{category}" * 101, {"category": CATEGORY}, "longer"),
        ("{a} {b}", {n: LabelMap(tuple(map(str, range(65)))) for n in "ab"}, f"{MOST_CELLS:,} are the most"),
    ],
)
def test_a_template_that_cannot_be_is_said(template: str, columns: dict[str, LabelMap], said: str) -> None:
    with pytest.raises(CodeError, match=said):
        Codes(template, columns)
