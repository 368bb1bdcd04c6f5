"""What a simulation is told before it joins, and that a real party joins whatever its rows hold."""

import json

import pytest

from learning.errors import DataError
from learning.text.labelled import LabelMap, ScoreRange, TextColumns
from party.admission import simulated
from party.admission.simulated import admit_text
from party.config import check_config
from party.errors import ShardError
from party.shard.fitting import Fitting, check_fits
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

COLUMNS = TextColumns("single", "text", None, "mood")
FITS, NOT = LabelMap(("low", "high"), ("0", "1")), LabelMap(("low", "high"), ("a", "b"))


@pytest.fixture
def config(tmp_path):
    """`config(rows, **policy)`: a party whose shard, one of two parts, has these rows of text and mood."""

    def makes(rows, *, part=True, **policy):
        content = "".join(json.dumps({"text": text, "mood": mood}) + "\n" for text, mood in rows)
        (tmp_path / "notes.jsonl").write_text(content)
        divided = {"part": {"parts": 2, "part": 0}} if part else {}
        tables = {
            "name": "north",
            "shard": {"source": str(tmp_path / "notes.jsonl"), "label": "mood", "codes": {"mood": "mood"}} | divided,
            "policy": {"epsilon": 4.0, "delta": 1e-6, "recipes": ["dp_sgd"]} | policy,
        }
        return check_config(tables, "north")

    return makes


def terms(values=(), code=()):
    """Terms that read labelled text with these values, or a control code with these."""
    found = plan_pb2.Terms()
    if values:
        found.labelled.kind = plan_pb2.TEXT_KIND_SINGLE
        found.labelled.labels.extend(["low", "high"])
        found.labelled.values.extend(values)
    if code:
        found.coded.template = "{mood}"
        found.coded.columns.add(name="mood", labels=["low", "high"], values=code)
    return found


ROWS = [(f"note {number}", str(number % 2)) for number in range(40)]


@pytest.mark.parametrize("wrong", [{"values": ("a", "b")}, {"code": ("a", "b")}])
def test_a_simulation_whose_text_has_none_of_the_plans_labels_or_codes_refuses(config, tmp_path, wrong):
    with pytest.raises(Refusal, match=r"the shard has no (example|control code): in source ") as refused:
        admit_text(terms(**wrong), config(ROWS, simulation=True), tmp_path)
    assert refused.value.reason is Reason.SHARD
    admit_text(terms(**dict.fromkeys(wrong, ("1", "0"))), config(ROWS, simulation=True), tmp_path)


@pytest.mark.parametrize("rows", [ROWS, [], [("note", "?")]])
@pytest.mark.parametrize("wrong", [{"values": ("a", "b")}, {"code": ("a", "b")}])
def test_a_real_party_opens_nothing_and_joins_whatever_its_rows_hold(config, tmp_path, monkeypatch, rows, wrong):
    """The outcome of `Join` must not depend on a record: the text is not even opened."""

    def opened(*given):
        raise AssertionError("private text was opened before anything was charged")

    monkeypatch.setattr(simulated, "check_fits", opened)
    assert admit_text(terms(**wrong), config(rows), tmp_path) is None


def test_one_row_of_any_part_is_enough_and_no_more_is_read(config, tmp_path):
    """Which part a row is in does not matter: what is wrong with a map is wrong for the whole source."""
    for place in (0, 39):
        rows = [(text, "0" if number == place else "?") for number, (text, _) in enumerate(ROWS)]
        check_fits(config(rows).shard, Fitting(COLUMNS, FITS), tmp_path)
    shard = config([ROWS[0]]).shard
    with open(shard.source, "ab") as file:
        file.write(b'{"text": "later"' * 3)  # no row, and it would be left out
    check_fits(shard, Fitting(COLUMNS, FITS), tmp_path)


def test_scores_outside_the_range_fit_no_row(config, tmp_path):
    columns = TextColumns("regression", "text", None, "mood")
    check_fits(config(ROWS).shard, Fitting(columns, ScoreRange(1.0, 5.0)), tmp_path)
    with pytest.raises(ShardError, match="40 no score of the declared range"):
        check_fits(config(ROWS).shard, Fitting(columns, ScoreRange(2.0, 5.0)), tmp_path)


def test_a_source_without_text_is_told_and_a_hubs_is_not_fetched(config, tmp_path):
    for rows in ([], [(" ", "a")]):
        with pytest.raises(DataError, match=r"has no document|has no row that can be used"):
            check_fits(config(rows).shard, Fitting(COLUMNS, NOT), tmp_path)
    elsewhere = config(ROWS).shard.model_copy(update={"source": "somebody/notes"})
    check_fits(elsewhere, Fitting(COLUMNS, NOT), tmp_path)
