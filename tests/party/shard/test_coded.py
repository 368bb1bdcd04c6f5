"""Control codes of a party's rows: read from the columns that its file opens, each row by itself."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from learning.models.batching import encode_documents
from party.ledger.census import TEXT, chunks
from party.shard import coded as coded_module
from party.shard.coded import coded_units, counted
from party.shard.labelled import MOST_EXAMPLES
from party.shard.plain import plain_units
from party.shard.reading import Reading
from party.shard.units import units
from party.shard_table import ShardTable
from party.tasks.text.documents import codes_in

ROWS = (
    ("the film was good", "1", "film"), ("awful slow film", "0", "film"), ("we saw a dull story", "0", "book"),
    ("good actor", "1", "play"), ("the end", "2", "film"), ("fast", "", ""), ("slow", "1", "film"),
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(tiny_gpt2):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_gpt2)


@pytest.fixture
def reading(tmp_path):
    """`reading(rows)`: how a shard of these rows is read; `who` is one of three users, or each row's own."""

    def makes(rows=ROWS, *, by_user=False, users=3, raw=(), **more):
        lines = [
            json.dumps({"text": text, "stars": stars, "genre": genre, "who": f"u{number % users}"}).encode()
            for number, (text, stars, genre) in enumerate(rows)
        ]
        (tmp_path / "rows.jsonl").write_bytes(b"".join(line + b"\n" for line in (*lines, *raw)))
        codes = {"opinion": "stars", "kind": "genre"}
        shard = ShardTable(source=str(tmp_path / "rows.jsonl"), user="who", codes=codes)
        return Reading(shard, "document", by_user, tmp_path / "cache", False, **more)

    return makes


@pytest.fixture
def codes(coded):
    """The codes of two columns as a job has them."""
    from protos.conclave.v1 import plan_pb2

    columns = [
        plan_pb2.CodeColumn(name="opinion", labels=["bad", "good"], values=["0", "1"]),
        plan_pb2.CodeColumn(name="kind", labels=["film", "book"]),
    ]
    message = coded(template="{kind}: {opinion}", columns=columns).SerializeToString().hex()
    return lambda reading: codes_in(message, reading.shard)


CELLS = [[2], [0], [1], [], [], [], [2]]
"""Of `ROWS`, by hand: opinion times two, and kind."""


def dense(found, cells=4):
    return np.concatenate([np.zeros((0, cells), int), *(each.toarray() for each in found)])


@pytest.mark.parametrize("at_once", [2, 4096])
def test_each_row_is_in_the_cell_of_its_public_values_or_in_none(reading, codes, monkeypatch, at_once):
    monkeypatch.setattr(coded_module, "_CHUNK_UNITS", at_once)
    job = reading()
    found = dense(coded_units(job, codes(job)))
    assert [np.flatnonzero(row).tolist() for row in found] == CELLS


def test_a_users_rows_are_one_unit_and_no_more_of_them_count_than_of_any(reading, codes):
    job = reading(by_user=True)
    found = dense(coded_units(job, codes(job)))
    wanted = [np.bincount([c for own in CELLS[user::3] for c in own], minlength=4).tolist() for user in range(3)]
    assert sorted(found.tolist()) == sorted(wanted)
    job = reading([("good", "1", "film")] * 40 + [("good", "7", "film")] * 9, by_user=True, users=1)
    assert dense(coded_units(job, codes(job))).tolist() == [[0, 0, MOST_EXAMPLES, 0]]


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "a", "stars": "1", "genre": "film", "who": "u9"}',
        b'{"text": "a", "stars": 1, "genre": "film", "who": "u9"}',
        b'{"text": "a", "stars": "1", "who": "u9"}',
        b'{"text": "a", "stars": ["1"], "genre": {"film": 1}, "who": "u9"}',
        b'{"text": "a", "stars": "\\ud800", "genre": "film", "who": "u9"}',
        b'{"stars": "1", "genre": "film", "who": "u9"}',
        b"[" * 5000,
    ],
)
def test_one_row_more_moves_the_histogram_by_no_more_than_its_bound_and_the_others_not_at_all(
    reading, codes, by_user, line
):
    mechanism = CountsMechanism(clip=1.0, levels=100, noise_multiplier=1.0, shares=1)

    def total(raw):
        job = reading(by_user=by_user, raw=raw)
        found = dense(coded_units(job, codes(job)))
        return mechanism.contribute(sparse.csr_array(found)).toarray()[0], found

    (without, fewer), (with_it, more) = total([]), total([line])
    assert np.linalg.norm(with_it - without) <= 100
    assert Counter(map(tuple, fewer.tolist())) <= Counter(map(tuple, more.tolist()))
    assert len(more) <= len(fewer) + 1


def test_documents_have_the_code_of_their_own_row_and_rows_without_one_are_units_of_nothing(
    reading, codes, tokenizer, caplog
):
    job = reading()

    def encode(texts, said):
        return encode_documents(tokenizer, texts, longest=32, known=len(tokenizer), codes=said)

    found = plain_units(job, encode, longest=32, codes=codes(job))
    said = [[tokenizer.decode(found.rows[place].ids[1:-1]) for place in unit] for unit in found.members]
    assert said == [
        ["film: good\nthe film was good"], ["film: bad\nawful slow film"], ["book: bad\nwe saw a dull story"], [], [],
        [], ["film: good\nslow"],
    ]  # fmt: skip
    own = [tokenizer.decode(row.ids[row.second : -1]) for row in found.rows]
    assert own == [ROWS[place][0] for place in (0, 1, 2, 6)]
    assert "3 rows were left out: their columns of codes" in caplog.text


def test_a_text_that_the_tokenizer_fails_on_is_a_unit_of_nothing_and_others_keep_their_code(reading, codes, tokenizer):
    class Fails:
        def __getattr__(self, name):
            return getattr(tokenizer, name)

        def __call__(self, texts, **more):
            if "awful slow film" in texts:
                raise ValueError
            return tokenizer(texts, **more)

    job = reading()

    def encode(texts, said):
        return encode_documents(Fails(), texts, longest=32, known=len(tokenizer), codes=said)

    found = plain_units(job, encode, longest=32, codes=codes(job))
    assert [len(unit) for unit in found.members] == [1, 0, 1, 0, 0, 0, 1]
    assert tokenizer.decode(found.rows[1].ids[1:-1]) == "book: bad\nwe saw a dull story"


@pytest.mark.parametrize("by_user", [False, True])
def test_the_census_has_every_text_with_a_code_or_without(reading, codes, tmp_path, by_user):
    job = reading(by_user=by_user, census=tmp_path / "census", census_key=b"k" * 32)
    list(coded_units(job, codes(job)))
    texts = {row for chunk in chunks(tmp_path / "census") for row in chunk if row[-1] == TEXT}
    assert len(texts) == len(ROWS)


@pytest.mark.parametrize("also", [(), ("stars",), ("stars", "genre")])
def test_units_carry_the_columns_that_are_asked_for_and_no_row_is_left_out_for_them(reading, also):
    shard = reading().shard
    found = list(units(shard, "document", by_user=False, cache=None, frank=False, also=also))
    assert len(found) == len(ROWS)
    for unit, (text, stars, genre) in zip(found, ROWS, strict=True):
        assert unit.passages == (text,)
        assert [dict(row.fields) for row in unit.rows] == (
            [{"who": unit.rows[0].fields["who"]} | {k: v for k, v in (("stars", stars), ("genre", genre)) if k in also}]
            if also
            else []
        )


def test_counts_of_nothing_are_of_no_unit_or_of_an_empty_one():
    assert counted([], 5).shape == (0, 5)
    assert counted([np.empty(0, np.int64), np.array([3, 3])], 5).toarray().tolist() == [[0] * 5, [0, 0, 0, 2, 0]]


class Loud:
    """A tokenizer that makes a thousand tokens of each letter, or one of everything."""

    bos_token_id, eos_token_id, pad_token_id = 0, 1, 1

    def __init__(self, each):
        self.each = each

    def __call__(self, texts, **more):
        if isinstance(texts, str):
            return {"input_ids": [2]}
        return {"input_ids": [[7] * (self.each * len(text) or 1) for text in texts]}


@pytest.mark.parametrize(("name", "most"), [("UNITS_AT_ONCE", 2), ("TOKENS_AT_ONCE", 3)])
def test_tokens_are_the_same_counts_however_many_are_counted_at_once(reading, tokenizer, monkeypatch, name, most):
    from party.tasks.text.documents import documents
    from party.tasks.tokens import training

    found = documents(reading(), tokenizer, "", longest=24, known=len(tokenizer))
    whole = list(training._counts(found, len(tokenizer), len(tokenizer)))
    monkeypatch.setattr(training, name, most)
    parts = list(training._counts(found, len(tokenizer), len(tokenizer)))
    assert len(whole) == 1 < len(parts)
    assert np.array_equal(dense(parts, len(tokenizer)), whole[0].toarray())


@pytest.mark.parametrize("each", [1000, 0])
def test_however_many_tokens_a_tokenizer_makes_of_a_text_its_counts_are_clipped(reading, each):
    """On the grid exactly: one unit more moves the sum by the bound at most."""
    from party.tasks.text.documents import documents
    from party.tasks.tokens.training import _counts

    mechanism = CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=1)
    sums = []
    for rows in (ROWS, ROWS[1:]):
        found = documents(reading(rows), Loud(each), "", longest=5000, known=9)
        sums.append(sum(mechanism.contribute(part).toarray()[0] for part in _counts(found, 9, 9)))
    assert 0 < np.linalg.norm(sums[0] - sums[1]) <= 64
    assert sums[0][7] > 0
    assert sums[0][2] == 0
