"""Parties of one process that divide a source read it once, and each finds what it would find alone."""

import json

import pytest

from learning.text import source as reading
from party.shard import routing, units
from party.shard_table import PartTable, ShardTable

ROWS = [{"text": f"First thing {n}. Second thing {n % 5}.", "owner": f"o{n % 40}", "id": f"r{n}"} for n in range(120)]
TABLES = {
    "hash": {"by": "hash"},
    "owner": {"by": "owner"},
    "dirichlet": {"by": "dirichlet", "alpha": 0.5, "label": "owner"},
}
PARTS = 5


@pytest.fixture
def shard(tmp_path):
    """`shard(table, number, ...)`: a part of a small source."""
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) for row in ROWS] + ["no json", json.dumps({"other": 1})]
    path.write_text("\n".join(lines) + "\n")

    def makes(table, number, **changes):
        part = PartTable(**TABLES[table], parts=PARTS, part=number)
        return ShardTable(source=str(path), id="id", part=part, **changes)

    return makes


def found(shard, folder, record="document", by_user=False, frank=True):
    return list(units.units(shard, record, by_user=by_user, cache=folder / "cache", frank=frank))


@pytest.mark.parametrize(
    ("table", "record", "user", "by_user"),
    [
        ("hash", "document", None, False),
        ("hash", "sentence", None, False),
        ("hash", "document", "owner", True),
        ("hash", "sentence", "owner", False),
        ("owner", "document", None, False),
        ("owner", "document", "owner", True),
        ("dirichlet", "document", None, False),
        ("dirichlet", "sentence", None, False),
    ],
)
def test_each_part_is_what_its_party_would_read_alone(shard, tmp_path, table, record, user, by_user):
    shards = [shard(table, number, user=user) for number in range(PARTS)]
    alone = [found(each, tmp_path, record, by_user) for each in shards]
    with routing.shared(routing.Routes()):
        together = [found(each, tmp_path, record, by_user) for each in shards]
    assert together == alone
    assert sum(map(len, alone)) >= 40


def test_the_source_is_read_once_and_again_where_another_is_asked_for(shard, tmp_path, monkeypatch):
    reads, own = [], reading.records

    def counted(source, *given):
        reads.append(source.source)
        return own(source, *given)

    monkeypatch.setattr(routing, "records", counted)
    with routing.shared(routing.Routes()):
        for number in range(PARTS):
            found(shard("hash", number), tmp_path)
        assert len(reads) == 1
        for number in range(PARTS):
            found(shard("owner", number), tmp_path)
        assert len(reads) == 2
        found(shard("owner", 0), tmp_path, "sentence")
        assert len(reads) == 3


def test_what_is_no_simulation_reads_for_itself(shard, tmp_path, monkeypatch):
    """Another party's text is in that file; only a simulation, whose text is nobody's secret, may share it."""
    monkeypatch.setattr(routing, "records", lambda *given: pytest.fail("read for several parties"))
    with routing.shared(routing.Routes()):
        assert found(shard("hash", 0), tmp_path, frank=False)


def test_nothing_of_the_file_is_left(shard, tmp_path):
    with routing.shared(routing.Routes()):
        found(shard("hash", 0), tmp_path)
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]
