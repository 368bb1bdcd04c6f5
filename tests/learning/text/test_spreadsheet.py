"""Excel workbooks: cells as people see them, which sheet is read, and what is said where none can be."""

import re
import sys
import tracemalloc
import zipfile
from datetime import date, datetime, time

import pytest

from learning.errors import DataError
from learning.text.preview import preview
from learning.text.source import Skipped, Source, columns, keys_offered, read, records, sheets_of

openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")

TEXTS = ("first", "schöner Text", "third")
DAY = datetime(2024, 5, 1)  # noqa: DTZ001 - a sheet knows no zone


@pytest.fixture
def book(tmp_path):
    """`book(name, sheet=rows, ...)`: the path of a workbook with these sheets."""

    def makes(name="notes.xlsx", change=None, **sheets):
        made = openpyxl.Workbook()
        made.remove(made.active)
        for title, rows in sheets.items():
            sheet = made.create_sheet(title)
            for row in rows:
                sheet.append(row)
        if change is not None:
            change(made)
        made.save(tmp_path / name)
        return str(tmp_path / name)

    return makes


def told(path, tmp_path, column, **settings):
    """The values of a column beside the texts, as strict and as lenient reading have them; both are the same."""
    source = Source(path, columns=(column,), **settings)
    found = [each.fields[column] for each in read(source, tmp_path)]
    assert [each.fields[column] for each in records(source, tmp_path)] == found
    return found


@pytest.mark.parametrize(
    ("value", "form", "seen"),
    [
        (1, None, "1"), (1.0, None, "1"), (0.1 + 0.2, None, "0.3"), (2.5, None, "2.5"), (-3.0, None, "-3"),
        (12345678901, None, "12345678901"), (7, "00000", "00007"), (1e300, None, "1e+300"),
        (True, None, "TRUE"), (False, None, "FALSE"), (None, None, ""), ("", None, ""), ("007", None, "007"),
        (DAY, None, "2024-05-01"), (date(2024, 5, 1), None, "2024-05-01"),
        (DAY.replace(hour=13, minute=30), None, "2024-05-01T13:30:00"), (time(9, 5), None, "09:05:00"),
        ("#N/A", None, ""), ("=1+1", None, ""), (1e9, "yyyy-mm-dd", ""), ("line\nbreak", None, "line\nbreak"),
    ],
)  # fmt: skip
def test_a_cell_is_read_as_people_see_it(book, tmp_path, value, form, seen):
    def change(made):
        made["notes"]["B2"] = value
        if form is not None:
            made["notes"]["B2"].number_format = form

    path = book(notes=[["text", "value"], ["some text", None]], change=change)
    assert told(path, tmp_path, "value") == [seen]


def test_a_number_is_a_text_where_the_column_of_texts_holds_one(book, tmp_path):
    path = book(notes=[["text"], [42], ["more"]])
    assert [each.text for each in read(Source(path), tmp_path)] == ["42", "more"]


def test_a_formula_counts_by_the_value_that_was_stored_with_it(book, tmp_path):
    path = book(notes=[["text", "value"], ["some text", "=1+1"]])
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    place = "xl/worksheets/sheet1.xml"
    assert b"<f>1+1</f><v />" in parts[place] or b"<f>1+1</f><v></v>" in parts[place]
    for nothing in (b"<f>1+1</f><v />", b"<f>1+1</f><v></v>"):
        parts[place] = parts[place].replace(nothing, b"<f>1+1</f><v>2</v>")
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    assert told(path, tmp_path, "value") == ["2"]


def test_merged_cells_count_where_they_begin_and_hidden_rows_as_others_do(book, tmp_path):
    def change(made):
        sheet = made["notes"]
        sheet.merge_cells("B2:B3")
        sheet.row_dimensions[4].hidden = True

    path = book(notes=[["text", "ward"], ["one", "A"], ["two", "A"], ["three", "B"]], change=change)
    assert told(path, tmp_path, "ward") == ["A", "", "B"]


def test_empty_rows_and_columns_without_a_name_are_left_out(book, tmp_path):
    rows = [
        [None, None],
        ["", "text", None, "mood"],
        [None] * 4,
        ["x", "one", "a remark", "good", "far away"],
        [None, "two"],
    ]
    path = book(notes=rows)
    assert columns(Source(path), tmp_path) == ["text", "mood"]
    assert told(path, tmp_path, "mood") == ["good", ""]


def test_the_only_sheet_with_rows_is_read_wherever_it_stands(book, tmp_path):
    path = book(empty=[], notes=[["text"], *([text] for text in TEXTS)], also_empty=[])
    assert tuple(each.text for each in read(Source(path), tmp_path)) == TEXTS
    assert sheets_of(path) == ["notes"]


def test_of_several_sheets_with_rows_one_is_named(book, tmp_path):
    path = book(**{"2023": [["text"], ["old"]], "2024": [["text"], ["new"]]})
    for reader in (read, records):
        with pytest.raises(
            DataError, match=r'has 2 sheets with rows: "2023", "2024"\. Say which one, .*: sheet = "2023"'
        ):
            list(reader(Source(path), tmp_path))
    assert [each.text for each in read(Source(path, sheet="2024"), tmp_path)] == ["new"]
    with pytest.raises(DataError, match=r'has no sheet "2025" with rows\. Its sheets with rows: "2023", "2024"'):
        list(read(Source(path, sheet="2025"), tmp_path))


def test_no_record_decides_which_sheets_have_rows(book, tmp_path):
    """A sheet counts by its first row alone, so that a record more or less in another sheet changes nothing."""
    heads = {"one": [["text"], ["a"]], "two": [["text"]]}
    for second in ([], [["b"]]):
        path = book(**(heads | {"two": [["text"], *second]}))
        with pytest.raises(DataError, match="2 sheets with rows"):
            list(records(Source(path), tmp_path))


def test_a_cell_that_holds_no_text_costs_its_row_alone(book, tmp_path):
    path = book(notes=[["text", "label"], ["one", "a"], [None, "b"], ["three", "c"]])
    assert [each and each.text for each in records(Source(path, label="label"), tmp_path)] == ["one", None, "three"]


def test_two_columns_of_one_name_are_told(book, tmp_path):
    with pytest.raises(DataError, match=r"has two columns named 'text'\. Rename one\."):
        list(read(Source(book(notes=[["text", "text "], ["a", "b"]])), tmp_path))


def test_a_file_without_rows_is_empty(book, tmp_path):
    with pytest.raises(DataError, match="is empty: it has no document"):
        list(read(Source(book(notes=[])), tmp_path))
    assert list(records(Source(book(notes=[])), tmp_path)) == []


@pytest.mark.parametrize("reader", [read, records])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "has a password, or is of Excel's older kind"),
        (b"text,label\na,b\n", "is no whole Excel file"),
        (b"", "is no whole Excel file"),
    ],
)
def test_a_file_that_is_no_workbook_is_told_in_a_sentence(tmp_path, reader, content, said):
    (tmp_path / "notes.xlsx").write_bytes(content)
    with pytest.raises(DataError, match=said) as caught:
        list(reader(Source(str(tmp_path / "notes.xlsx")), tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part", ["xl/workbook.xml", "xl/worksheets/sheet1.xml", "[Content_Types].xml", "xl/styles.xml"]
)
@pytest.mark.parametrize("cut", [0, 40, -40])
def test_a_damaged_workbook_is_told_in_a_sentence(book, tmp_path, part, cut):
    path = book(notes=[["text"], *([text] for text in TEXTS)])
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    parts[part] = parts[part][:cut]
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    with pytest.raises(DataError, match=r"notes\.xlsx cannot be read( to its end)?: it is no whole Excel file"):
        list(records(Source(path), tmp_path))


SHEET, SHARED = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
OVERRIDE = (b'<Override PartName="/xl/sharedStrings.xml" ContentType="application/vnd.openxmlformats-officedocument.'
            b'spreadsheetml.sharedStrings+xml"/>')  # fmt: skip
ROWS = (b'<row r="2"><c r="A2" t="inlineStr"><is><t>first</t></is></c><c r="B2"><v>1</v></c></row>',
        b'<row r="4"><c r="A4" t="s"><v>1</v></c><c r="B4"><v>3</v></c></row>')  # fmt: skip
ODD = {
    "fine": b'<row r="3"><c r="A3" t="inlineStr"><is><t>one</t></is></c><c r="B3"><v>2</v></c></row>',
    "no number": b'<row r="3"><c r="A3" t="inlineStr"><is><t>one</t></is></c><c r="B3"><v>two</v></c></row>',
    "endless number": b'<row r="3"><c r="A3"><v>1</v></c><c r="B3"><v>' + b"9" * 5000 + b"</v></c></row>",
    "no such text": b'<row r="3"><c r="A3" t="s"><v>99</v></c><c r="B3"><v>2</v></c></row>',
    "the text before": b'<row r="3"><c r="A3" t="s"><v>-1</v></c><c r="B3"><v>2</v></c></row>',
    "no such style": b'<row r="3"><c r="A3" s="999"><v>1</v></c><c r="B3" s="x"><v>2</v></c></row>',
    "no such kind": b'<row r="3"><c r="A3" t="d"><v>yesterday</v></c><c r="B3" t="b"><v>maybe</v></c></row>',
    "no place": b'<row r="3"><c r="?"><v>1</v></c><c r="99999999999"><v>2</v></c></row>',
    "no row": b'<row r="none"><c r="A3"><v>1</v></c></row>',
    "far below": b'<row r="1048576"><c r="A1048576"><v>1</v></c></row>',
    "above": b'<row r="1"><c r="A1"><v>1</v></c></row>',
    "a letter of control": b'<row r="3"><c r="A3" t="inlineStr"><is><t>o\x0bne</t></is></c></row>',
    "an ampersand": b'<row r="3"><c r="A3" t="inlineStr"><is><t>R & D</t></is></c></row>',
    "no UTF-8": b'<row r="3"><c r="A3" t="inlineStr"><is><t>caf\xe9</t></is></c></row>',
    "not closed": b'<row r="3"><c r="A3" t="inlineStr"><is><t>one</t></is></c>',
    "tags astray": b'<row r="3"><c r="A3"><v>1</c></v></row>',
    "the end of all": b'<row r="3"><c r="A3" t="inlineStr"><is><t></sheetData></worksheet></t></is></c></row>',
    "prefix of nobody": b'<row r="3" x9:y="1"><c r="A3"><v>1</v></c></row>',
    "entity of nobody": b'<row r="3"><c r="A3" t="inlineStr"><is><t>&nbsp;</t></is></c></row>',
}
"""Rows that other programs than Excel, or a person, may write into a sheet."""


@pytest.fixture
def written(book, tmp_path):
    """`written(row, shared=...)`: the path of a workbook that has this row's XML between two others."""

    def makes(row, shared=b"<si><t>text</t></si><si><t>last</t></si>", name="notes.xlsx"):
        path = book(name, notes=[["text", "value"]])
        with zipfile.ZipFile(path) as packed:
            parts = {each: packed.read(each) for each in packed.namelist()}
        before, after = parts[SHEET].split(b"</sheetData>")
        parts[SHEET] = before + ROWS[0] + row + ROWS[1] + b"</sheetData>" + after
        parts[SHARED] = b'<sst xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main">' + shared + b"</sst>"
        types = "[Content_Types].xml"
        parts[types] = parts[types].replace(b"</Types>", OVERRIDE + b"</Types>")
        with zipfile.ZipFile(path, "w") as packed:
            for each, content in parts.items():
                packed.writestr(each, content)
        return path

    return makes


def others(found, own=1):
    """What is read of all records but one."""
    return [(each.text, dict(each.fields)) for number, each in enumerate(found) if number != own]


@pytest.mark.parametrize("odd", ODD)
def test_of_two_files_that_differ_in_one_record_all_others_are_read_alike(written, tmp_path, odd):
    fine, other = (
        list(records(Source(written(ODD[each], name=f"{number}.xlsx"), columns=("value",)), tmp_path))
        for number, each in enumerate(("fine", odd))
    )
    assert [each.text for each in fine] == ["first", "one", "last"]
    assert len(other) == 3, "the record keeps its place, as an empty unit at the least"
    assert others(other) == others(fine) == [("first", {"value": "1"}), ("last", {"value": "3"})]


@pytest.mark.parametrize(
    ("odd", "seen"), [("no number", ("one", "")), ("no such text", None), ("the text before", None),
                      ("an ampersand", None), ("far below", ("1", "")), ("above", ("1", ""))],
)  # fmt: skip
def test_what_cannot_be_read_of_a_record_is_empty_and_counted(written, tmp_path, odd, seen):
    skipped = Skipped()
    found = list(records(Source(written(ODD[odd]), columns=("value",)), tmp_path, skipped))[1]
    assert (found and (found.text, found.fields["value"])) == seen
    assert skipped.total == (seen is None)
    assert set(skipped.reasons) <= {"no text", "not XML"}


@pytest.mark.parametrize("text", [b"<si><t>R & D</t></si>", b"<si><t>\x0b</t></si>", b"<si><t>caf\xe9</t></si>",
                                  b"<si><t>not closed"])  # fmt: skip
def test_a_text_that_a_workbook_keeps_apart_spoils_its_own_record_alone(written, tmp_path, text):
    """The texts of all records are in one file of the workbook, and cells refer to them by number."""
    row = ODD["fine"].replace(b't="inlineStr"><is><t>one</t></is>', b't="s"><v>2</v>')
    kept = b"<si><t>text</t></si><si><t>last</t></si>%s<si><t>unused</t></si>"
    fine, other = (
        list(records(Source(written(row, kept % each, f"{number}.xlsx"), columns=("value",)), tmp_path))
        for number, each in enumerate((b"<si><t>one</t></si>", text))
    )
    assert [each.text for each in fine] == ["first", "one", "last"]
    assert others(other) == others(fine)
    assert other[1] is None


def test_a_row_beyond_what_one_record_may_take_is_left_out_by_itself(written, tmp_path, monkeypatch):
    monkeypatch.setattr("learning.text.pieces.LONGEST", 200_000)
    row = ODD["fine"].replace(b"one", b"long " * 100_000)
    skipped = Skipped()
    found = list(records(Source(written(row), columns=("value",)), tmp_path, skipped))
    assert [each and each.text for each in found] == ["first", None, "last"]
    assert skipped.total == 1


@pytest.mark.parametrize("odd", ["no number", "no such text", "an ampersand", "not closed"])
def test_public_text_that_is_damaged_is_told(written, tmp_path, odd):
    with pytest.raises(DataError, match="cannot be read to its end: it is no whole Excel file"):
        list(read(Source(written(ODD[odd]), columns=("value",)), tmp_path))


def test_a_first_row_that_is_damaged_is_told_whoever_reads(written, tmp_path):
    path = written(ODD["fine"])
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    parts[SHEET] = (
        parts[SHEET]
        .replace(b'r="B1" t="inlineStr"', b'r="B1" t="n"')
        .replace(b"<is><t>value</t></is>", b"<v>value</v>")
    )
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    with pytest.raises(DataError, match="its first row is of cells that cannot be read"):
        list(records(Source(path), tmp_path))


def test_a_sheet_may_have_a_prefix_and_rows_without_cells(written, tmp_path):
    path = written(b'<row r="3"/>' + ODD["fine"])
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    parts[SHEET] = re.sub(rb"<(/?)(?=[a-zA-Z])", rb"<\1x:", parts[SHEET]).replace(b"xmlns=", b"xmlns:x=")
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    assert [each.text for each in read(Source(path), tmp_path)] == ["first", "one", "last"]


def test_a_file_that_ends_early_is_told_in_a_sentence(book, tmp_path):
    path = tmp_path / "cut.xlsx"
    path.write_bytes((tmp_path / book(notes=[["text"], ["a"]])).read_bytes()[:-100])
    with pytest.raises(DataError, match="is no whole Excel file"):
        list(read(Source(str(path)), tmp_path))


def test_without_openpyxl_the_command_that_installs_it_is_told(book, tmp_path, monkeypatch):
    path = book(notes=[["text"], ["a"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"pip install 'conclave-distill\[excel\]'"):
        list(read(Source(path), tmp_path))


def test_a_folder_and_a_pattern_read_workbooks_and_leave_what_excel_locks_with(book, tmp_path):
    book("a.xlsx", notes=[["text"], ["one"]])
    book("b.xlsx", notes=[["text"], ["two"]])
    (tmp_path / "~$a.xlsx").write_bytes(b"somebody has it open")
    for source in (str(tmp_path), str(tmp_path / "*.xlsx")):
        assert [each.text for each in read(Source(source), tmp_path)] == ["one", "two"]
        assert sheets_of(source) == ["notes"]


def test_a_sheet_of_a_wrong_stated_size_is_read_whole(book, tmp_path):
    path = book(notes=[["text", "mood"], *([text, "good"] for text in TEXTS)])
    with zipfile.ZipFile(path) as packed:
        parts = {name: packed.read(name) for name in packed.namelist()}
    parts["xl/worksheets/sheet1.xml"] = parts["xl/worksheets/sheet1.xml"].replace(b'ref="A1:B4"', b'ref="A1"')
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in parts.items():
            packed.writestr(name, content)
    assert told(path, tmp_path, "mood") == ["good"] * 3


def test_the_keys_of_other_files_are_not_offered_and_a_preview_shows_its_columns(book, tmp_path):
    rows = [["nr", "body", "kind"], *([n, f"a sentence of some length {n}", "ab"[n % 2]] for n in range(30))]
    path = book(notes=rows)
    assert keys_offered(path) == {}
    found = preview(Source(path), tmp_path)
    assert (found.text, found.label, found.rows) == ("body", "kind", 30)


@pytest.mark.slow
def test_a_sheet_is_read_as_a_stream(tmp_path):
    """Rows of numbers, which are no shared texts: what stays of a row is less than its cells by far."""
    peaks = []
    for count in (500, 5000):
        made = openpyxl.Workbook(write_only=True)
        sheet = made.create_sheet("notes")
        sheet.append(["text", *(f"c{n}" for n in range(10))])
        for row in range(count):
            sheet.append([row, *range(10)])
        made.save(tmp_path / "numbers.xlsx")
        next(read(Source(str(tmp_path / "numbers.xlsx")), tmp_path))  # what is imported once
        tracemalloc.start()
        assert sum(1 for _ in read(Source(str(tmp_path / "numbers.xlsx")), tmp_path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 4500 < 500  # bytes; openpyxl keeps an empty element of each row, of 270
