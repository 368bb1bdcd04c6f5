"""A party's text and public artefacts: what is damaged is read row by row, or refused without quoting it."""

import json
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aggregation.errors import ConclaveError
from learning.embeddings.moments import Directions
from learning.embeddings.skipgram import SkipGram
from learning.embeddings.weights import from_bytes, to_bytes
from learning.errors import DataError
from learning.text.words import Vocabulary
from party.errors import ShardError
from party.shard.units import units
from party.shard_table import ShardTable

ROWS = [{"text": "apple bread cheese.", "who": f"p{n % 2}", "stars": n} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b'text,who,stars\n"apple, bread",p0,1\n"cheese ""door""\nmore",p1,2\negg,p0,3\n'
TABLE = ShardTable(source="x", text="text", user="who", label="stars")


def parquet():
    content = BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), content)
    return content.getvalue()


def all_of(shard, cache):
    return list(units(shard, "document", by_user=False, cache=cache, frank=True))


def all_units(hostile, path, cache, **changes):
    """Every unit in every way of dividing; the sentence of an error never quotes the text."""
    kinds = [("document", False), ("sentence", False), ("document", True)]
    for record, by_user in kinds[: 3 if path.stat().st_size % 8 == 0 else 2]:
        shard = TABLE.model_copy(update={"source": str(path), **changes})
        try:
            for unit in units(shard, record, by_user=by_user, cache=cache, frank=True):
                assert unit.id.encode() or not unit.passages
                assert all(passage.encode() for passage in unit.passages)
        except (DataError, ShardError) as error:
            hostile.check_sentence(error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "valid"),
    [
        (".jsonl", [LINES, b'{"text": "\\ud800", "who": 1}\n{"text": null}\n', b"\xef\xbb\xbf" + LINES]),
        (".json", [json.dumps(ROWS).encode(), LINES]),
        (".csv", [CSV, CSV.replace(b"\n", b"\r\n")]),
        (".tsv", [CSV.replace(b",", b"\t")]),
        (".txt", [b"apple bread cheese.\n"]),
    ],
)
def test_a_damaged_shard_gives_units_or_a_sentence(fuzz, hostile, tmp_path, ending, valid):
    path = tmp_path / f"notes{ending}"

    def make(rng):
        if ending.startswith(".json") and rng.random() < 0.4:
            odd = [hostile.as_text(hostile.damage_json(rng, *ROWS)) for _ in range(2)]
            return b"\n".join(odd) if ending == ".jsonl" else b"[" + b",".join(odd) + b"]"
        return hostile.damage(rng, *valid)

    @fuzz(hostile.made(make), examples=[b"[" * 100_000, b"1" * 5000, b'{"text":' + b"[" * 50_000], share=0.2)
    def _(content):
        path.write_bytes(content)
        all_units(hostile, path, tmp_path / "cache", **({"user": "file", "label": None} if ending == ".txt" else {}))


def test_a_damaged_parquet_file_gives_units_or_a_sentence(fuzz, hostile, tmp_path):
    path = tmp_path / "notes.parquet"
    path.write_bytes(parquet())
    all_units(hostile, path, tmp_path / "cache")  # so that its libraries are loaded

    @fuzz(hostile.damaged(parquet()), share=0.2, mebibytes=512)
    def _(content):
        path.write_bytes(content)
        all_units(hostile, path, tmp_path / "cache")


def test_a_parquet_file_whose_columns_have_no_readable_name_is_none(hostile, tmp_path):
    path = tmp_path / "notes.parquet"
    damaged = parquet().replace(b"who", b"w\xffo")
    assert damaged != parquet()
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="is not a Parquet file") as error:
        all_of(TABLE.model_copy(update={"source": str(path)}), tmp_path / "cache")
    hostile.check_sentence(error.value)


def test_a_damaged_vocabulary_is_one_in_its_only_spelling_or_refused(fuzz, hostile):
    valid = Vocabulary(("apple", "bread", "cheese")).to_bytes()

    @fuzz(hostile.json_text(json.loads(valid)))
    def _(content):
        try:
            vocabulary = Vocabulary.from_bytes(content)
        except DataError as error:
            hostile.check_sentence(error)
        else:
            assert vocabulary.to_bytes() == content


@pytest.mark.slow
def test_damaged_weights_are_a_model_or_refused(fuzz, hostile):
    rng = np.random.default_rng(0)
    inputs, outputs = (rng.normal(0, 0.3, (6, 4)).astype(np.float32) for _ in range(2))
    skipgram = to_bytes(SkipGram(inputs, outputs, np.zeros(6, np.float32)))
    directions = Directions(inputs, np.ones(4, np.float32), np.ones(6, np.float32)).to_bytes()

    @fuzz(hostile.damaged(skipgram, directions))
    def _(content):
        for read in (from_bytes, Directions.from_bytes):
            try:
                read(content)
            except ConclaveError as error:
                hostile.check_sentence(error)


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 5000, "\\udc80"])
def test_the_columns_of_a_file_are_shown_as_a_terminal_may_see_them(hostile, tmp_path, name):
    (tmp_path / "notes.jsonl").write_text(json.dumps({name: 1}).replace("\\\\u", "\\u") + "\n")
    with pytest.raises(DataError, match="has no column 'text'") as caught:
        all_of(TABLE.model_copy(update={"source": str(tmp_path / "notes.jsonl")}), tmp_path)
    hostile.check_sentence(caught.value)


def test_a_source_in_the_home_of_nobody_is_not_there(hostile, tmp_path):
    with pytest.raises(DataError, match="nobody here has that home") as caught:
        all_of(ShardTable(source="~nobody-here/notes.jsonl"), tmp_path)
    hostile.check_sentence(caught.value)
