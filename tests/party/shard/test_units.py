"""Units and parts: where one is depends on itself and on public values, so no other moves when it comes or goes."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.errors import DataError
from learning.text.labelled import TextColumns
from learning.text.source import Skipped
from party.errors import ShardError
from party.shard.units import part_of, slot, units
from party.shard_table import PartTable, ShardTable


def written(folder, rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def found(shard, folder, record="document", by_user=False, frank=True):
    return list(units(shard, record, by_user=by_user, cache=folder / "cache", frank=frank))


@given(st.binary(min_size=1), st.text(), st.integers(1, 50))
def test_a_slot_is_in_range_and_depends_on_the_key(key, unit, slots):
    assert 0 <= slot(key, unit, slots) < slots
    assert slot(key, unit, slots) == slot(key, unit, slots)


def test_slots_are_even_and_differ_between_keys():
    first = [slot(b"a", str(n), 10) for n in range(5000)]
    second = [slot(b"b", str(n), 10) for n in range(5000)]
    assert max(Counter(first).values()) < 600
    assert 300 < sum(a == b for a, b in zip(first, second, strict=True)) < 700


@pytest.mark.parametrize(
    "table",
    [
        {"by": "hash"},
        {"by": "owner"},
        {"by": "dirichlet", "alpha": 0.5, "label": "owner"},
    ],
)
def test_parts_cover_the_source_and_one_more_row_moves_no_other(tmp_path, table):
    rows = [{"text": f"text number {n}", "owner": f"o{n % 7}"} for n in range(200)]
    more = [*rows[:50], {"text": "one more", "owner": "o3"}, *rows[50:]]

    def parts(these):
        return [
            {
                unit.passages[0]
                for unit in found(
                    ShardTable(source=written(tmp_path, these), part=PartTable(**table, parts=2, part=number)), tmp_path
                )
            }
            for number in range(2)
        ]

    before, after = parts(rows), parts(more)
    assert before[0] | before[1] == {row["text"] for row in rows}
    assert not before[0] & before[1]
    assert sum(len(b ^ a) for b, a in zip(before, after, strict=True)) == 1


def test_an_owner_is_in_one_part(tmp_path):
    rows = [{"text": f"text {n}", "owner": f"o{n % 20}"} for n in range(200)]
    source = written(tmp_path, rows)
    owner_of = {row["text"]: row["owner"] for row in rows}
    parts = [
        {
            owner_of[unit.passages[0]]
            for unit in found(ShardTable(source=source, part=PartTable(by="owner", parts=3, part=n)), tmp_path)
        }
        for n in range(3)
    ]
    assert sum(map(len, parts)) == 20


@pytest.mark.slow
def test_dirichlet_skews_by_label_and_evens_out_as_alpha_grows():
    def spread(alpha):
        table = PartTable(by="dirichlet", parts=4, part=0, alpha=alpha, label="label", seed=3)
        counts = Counter(part_of(table, str(n), {"label": "x"}) for n in range(4000))
        return max(counts.values()) / 4000

    assert spread(0.05) > 0.6
    assert spread(1000.0) < 0.3


def test_all_records_of_a_user_are_one_unit(tmp_path):
    rows = [{"text": f"text {n}", "who": f"u{n % 5}"} for n in range(50)] + [{"text": "nobody's", "who": ""}]
    skipped = Skipped()
    shard = ShardTable(source=written(tmp_path, rows), user="who")
    gathered = list(units(shard, "document", by_user=True, cache=tmp_path / "cache", frank=True, skipped=skipped))
    assert sorted(unit.id for unit in gathered) == [f"u{n}" for n in range(5)]
    assert all(len(unit.passages) == 10 for unit in gathered)
    assert skipped.total == 1
    assert not any((tmp_path / "cache").iterdir())


def test_users_divided_by_hash_are_at_one_party(tmp_path):
    rows = [{"text": f"text {n}", "who": f"u{n % 30}"} for n in range(300)]
    source = written(tmp_path, rows)
    parts = []
    for number in range(3):
        shard = ShardTable(source=source, user="who", part=PartTable(parts=3, part=number))
        parts.append({unit.id for unit in found(shard, tmp_path, by_user=True)})
    assert sum(map(len, parts)) == len(set.union(*parts)) == 30


RATED = TextColumns("pair", "text", "reply", "stars")


def rated(folder, rows, *, by_user=False, record="document", **shard):
    table = ShardTable(source=written(folder, rows), user="who", label="stars", second="reply", **shard)
    skipped = Skipped()
    found = units(table, record, by_user=by_user, cache=folder / "cache", frank=True, skipped=skipped, columns=RATED)
    return list(found), skipped


@pytest.mark.parametrize("by_user", [False, True])
def test_rows_come_with_their_passages_where_columns_are_asked_for(tmp_path, by_user):
    rows = [{"text": f"t{n}", "reply": f"r{n}", "stars": str(n % 5), "who": f"u{n % 7}"} for n in range(70)]
    gathered, _ = rated(tmp_path, rows, by_user=by_user)
    assert len(gathered) == (7 if by_user else 70)
    for unit in gathered:
        assert unit.passages == tuple(row.text for row in unit.rows)
        assert not by_user or {row.fields["who"] for row in unit.rows} == {unit.id}
    carried = [{"text": row.text, **row.fields} for unit in gathered for row in unit.rows]
    assert sorted(carried, key=str) == sorted(
        ({name: row[name] for name in ("text", "who", "stars", "reply")} for row in rows), key=str
    )


@pytest.mark.parametrize("by_user", [False, True])
def test_units_carry_no_rows_where_no_columns_are_asked_for(tmp_path, by_user):
    rows = [{"text": f"t{n}", "reply": "r", "stars": "", "who": f"u{n % 7}"} for n in range(20)]
    shard = ShardTable(source=written(tmp_path, rows), user="who", second="reply")
    assert not any(unit.rows for unit in found(shard, tmp_path, by_user=by_user))


def test_a_row_without_a_label_is_left_out_only_where_labels_are_asked_for(tmp_path):
    rows = [{"text": "t", "reply": "r", "stars": stars, "who": "u"} for stars in ("1", "", None)]
    gathered, skipped = rated(tmp_path, rows)
    assert [unit.passages for unit in gathered] == [("t",), (), ()]
    assert dict(skipped.reasons) == {"no label": 2}
    assert len(found(ShardTable(source=written(tmp_path, rows)), tmp_path)) == 3


@pytest.mark.parametrize("record", ["sentence", "pair"])
def test_a_label_belongs_to_a_document(tmp_path, record):
    with pytest.raises(ShardError, match='Plan with record = "document"'):
        rated(tmp_path, [{"text": "t", "reply": "r", "stars": "1", "who": "u"}], record=record)


def test_a_division_that_may_split_a_user_is_refused(tmp_path):
    rows = [{"text": "a text", "who": "u", "ward": "w"}]
    shard = ShardTable(source=written(tmp_path, rows), user="who", part=PartTable(by="ward", parts=2, part=0))
    with pytest.raises(ShardError, match='Use by = "hash" or by = "who"'):
        found(shard, tmp_path, by_user=True)


def test_users_without_a_user_column_are_refused(tmp_path):
    with pytest.raises(ShardError, match="user is missing"):
        found(ShardTable(source=written(tmp_path, [{"text": "a"}])), tmp_path, by_user=True)


def test_each_sentence_is_a_unit(tmp_path):
    shard = ShardTable(source=written(tmp_path, [{"text": "One thing. Another thing! A third?"}]))
    assert [unit.passages for unit in found(shard, tmp_path, "sentence")] == [
        ("One thing.",),
        ("Another thing!",),
        ("A third?",),
    ]


def test_an_empty_part_names_the_source(tmp_path):
    source = written(tmp_path, [{"text": "the only one"}])
    parts = [ShardTable(source=source, part=PartTable(parts=2, part=n)) for n in range(2)]
    empty = parts[1 - part_of(parts[0].part, found_part(source, tmp_path), {})]
    with pytest.raises(ShardError, match=r"the shard is empty.*rows\.jsonl"):
        found(empty, tmp_path)


def found_part(source, folder):
    return found(ShardTable(source=source), folder)[0].id


def test_unusable_sources_are_named(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for name, column, said in [("empty.jsonl", "text", "empty.jsonl"), ("latin.txt", "text", "UTF-8")]:
        with pytest.raises(DataError, match=said):
            found(ShardTable(source=str(tmp_path / name), text=column), tmp_path)
    with pytest.raises(DataError, match=r"note.*text"):
        found(ShardTable(source=written(tmp_path, [{"text": "a"}]), text="note"), tmp_path)
