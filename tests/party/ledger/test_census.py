"""The census of a training: every document that was read, as keyed hashes and nothing else, known again anywhere."""

import hmac
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.text.words import Vocabulary
from party.config import PolicyTable
from party.errors import PartyError
from party.ledger import census
from party.shard_table import ShardTable
from party.tasks.counts.request import CountsWork
from party.tasks.job import Job
from party.tasks.process import attempt
from protos.conclave.v1 import plan_pb2

KEY = b"k" * 32
TEXTS = ("Apple bread. Cheese apple.", "cheese cheese bread", "bread apple bread", "apple")
SENTENCES = ("Apple bread.", "Cheese apple.", *TEXTS[1:])
COUNTS = plan_pb2.Release(
    name="counts",
    charges=1,
    form=plan_pb2.FORM_SUMMED,
    counts=plan_pb2.CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=1, distribution="gaussian"),
)


def hashed(role, value, key=KEY):
    return hmac.digest(key, f"{role}\0{value}".encode(), "sha256")[:16]


@pytest.fixture
def taken(tmp_path):
    """`taken(...)`: the hashes, by kind, that a training of four texts of two people leaves, and its census' path."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"text": t, "who": f"u{n % 2}", "number": f"n{n}"}) + "\n" for n, t in enumerate(TEXTS))
    )
    vocabulary = tmp_path / "vocabulary"
    vocabulary.write_bytes(Vocabulary(("apple", "bread", "cheese")).to_bytes())

    def takes(*, key=KEY, record="document", by_user=False, **shard):
        path = tmp_path / ".counts.census.part"
        job = Job(
            parent=os.getpid(),
            shard=ShardTable(source=str(rows), **shard).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"]).model_dump(),
            record=record,
            by_user=by_user,
            release=COUNTS.SerializeToString().hex(),
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=CountsWork(str(vocabulary), 2),
            census=str(path),
            census_key=key.hex(),
        )
        assert attempt(job, lambda _: None) is None
        rows_ = [row for chunk in census.chunks(path) for row in chunk]
        return {kind: {row[:-1] for row in rows_ if row[-1] == kind} for kind in range(4)}, path

    return takes


@pytest.mark.parametrize(
    ("record", "by_user"),
    [("document", False), ("sentence", False), ("pair", False), ("document", True), ("sentence", True)],
)
def test_the_unit_is_in_it_and_all_that_contains_it(taken, record, by_user):
    """Every document by its text, user and id, and every sentence where what is protected is part of a document."""
    found, path = taken(record=record, by_user=by_user, user="who", id="number")
    parts = record != "document" and not by_user
    assert found == {
        census.TEXT: {hashed("text", text) for text in TEXTS},
        census.USER: {hashed("user", user) for user in ("u0", "u1")},
        census.ID: {hashed("id", f"n{number}") for number in range(4)},
        census.SENTENCE: {hashed("sentence", sentence) for sentence in SENTENCES} if parts else set(),
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_size == 17 * (12 + (5 if parts else 0))


def test_without_such_columns_a_document_is_known_by_its_text_alone(taken):
    found, path = taken()
    assert (len(found[census.TEXT]), found[census.USER], found[census.ID]) == (4, set(), set())
    assert path.stat().st_size == 17 * 4


def test_what_is_not_in_this_part_is_not_in_its_census(taken):
    """Two parts of one source divide its documents; users that are divided are in both."""
    parts = [taken(part={"by": "number", "parts": 2, "part": part})[0][census.TEXT] for part in range(2)]
    assert parts[0] | parts[1] == {hashed("text", text) for text in TEXTS}
    assert parts[0] & parts[1] == set()
    assert all(parts)


def test_under_another_key_nothing_is_known_again(taken):
    one, other = taken()[0][census.TEXT], taken(key=b"l" * 32)[0][census.TEXT]
    assert len(one | other) == 8


def test_a_census_replaces_what_a_killed_training_left(taken, tmp_path):
    (tmp_path / ".counts.census.part").write_bytes(b"x" * 1000)
    assert taken()[1].stat().st_size == 17 * 4


@pytest.mark.slow
@given(rows=st.lists(st.binary(min_size=17, max_size=17), max_size=60), chunk=st.integers(1, 20))
def test_chunks_have_every_row_and_are_bounded(tmp_path_factory, rows, chunk):
    path: Path = tmp_path_factory.mktemp("census") / "rows"
    path.write_bytes(b"".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census, "_CHUNK", chunk)
        found = list(census.chunks(path))
    assert {row for each in found for row in each} == set(rows)
    assert all(each == sorted(set(each)) and len(each) <= chunk for each in found)


def test_a_census_that_is_not_whole_is_refused(tmp_path):
    (tmp_path / "rows").write_bytes(b"x" * 18)
    with pytest.raises(PartyError, match="not whole"):
        list(census.chunks(tmp_path / "rows"))
