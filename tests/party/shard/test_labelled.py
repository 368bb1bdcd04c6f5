"""Labelled text at a party: every example once, with its unit's others, and counts that only the party's log has."""

import asyncio
import json
import logging
import os
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.text.labelled import LabelError, LabelMap, LabelMapError, ScoreRange, TextColumns
from learning.text.source import NOTHING
from party.config import PolicyTable
from party.errors import ShardError
from party.ledger.census import written
from party.node.training import Training
from party.shard.labelled import TokenRows, labelled_units, tell_if_few
from party.shard.units import BEYOND_EXAMPLES
from party.shard_table import PartTable, ShardTable
from party.tasks import process
from party.tasks.counts.request import CountsWork
from party.tasks.job import Failure, Job
from protos.refusal import Reason, Refusal

SENTIMENT = LabelMap(("negative", "positive"))
SINGLE = TextColumns("single", "text", None, "label")
PAIR = TextColumns("pair", "text", "reply", "label")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{n}" for n in range(100))]


@pytest.fixture(scope="module")
def tokenizer():
    """One token a word, w0 to w99, with a beginning and an end, as BERT has."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    whole = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    whole.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture
def read(tmp_path, tokenizer):
    """`read(rows, ...)`: the labelled units of a shard of these rows."""

    def reads(rows, columns=SINGLE, targets=SENTIMENT, *, longest=32, by_user=False, shard=(), frank=True, **more):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        table = ShardTable(**{"source": str(path), "label": "label", "second": columns.second} | dict(shard))
        settings = {"longest": longest, "known": len(WORDS), "frank": frank, "cache": tmp_path / "cache"} | more
        return labelled_units(table, columns, targets, tokenizer, by_user=by_user, **settings)

    return reads


def review(number, label="positive", **more):
    return {"text": f"w{number % 100} w{number // 100}", "label": label} | more


def said(row):
    return " ".join(WORDS[token] for token in row.ids if WORDS[token][0] != "[")


def test_every_example_has_its_tokens_and_its_label(read, monkeypatch):
    monkeypatch.setattr("party.shard.labelled._CHUNK_EXAMPLES", 7)
    rows = [review(n, SENTIMENT.names[n % 2]) for n in range(50)]
    found = read(rows)
    assert [said(row) for row in found.rows] == [row["text"] for row in rows]
    assert found.labels.tolist() == [n % 2 for n in range(50)]
    assert (found.labels.dtype, found.members, len(found), found.truncated) == (np.int64, None, 50, 0)


def test_all_examples_of_a_user_are_one_unit(read, monkeypatch):
    monkeypatch.setattr("party.shard.labelled._CHUNK_EXAMPLES", 7)
    rows = [review(n, SENTIMENT.names[n % 2], who=f"u{n % 9}") for n in range(90)]
    found = read(rows, by_user=True, shard={"user": "who"})
    assert len(found) == 9
    units = [sorted(said(found.rows[place]) for place in unit) for unit in found.members]
    whole = [sorted(row["text"] for row in rows if row["who"] == f"u{user}") for user in range(9)]
    assert sorted(units) == sorted(whole)
    label = {row["text"]: SENTIMENT.index(row["label"]) for row in rows}
    assert [label[said(row)] for row in found.rows] == found.labels.tolist()


@pytest.mark.parametrize("by_user", [False, True])
def test_every_unit_is_asked_for_its_slot(read, monkeypatch, by_user):
    monkeypatch.setattr("party.shard.labelled._CHUNK_EXAMPLES", 7)
    rows = [review(n, SENTIMENT.names[n % 2], who=f"u{n // 5}", id=f"{n}") for n in range(40)]
    found = read(rows, by_user=by_user, shard={"user": "who", "id": "id"}, slot_of=lambda unit: int(unit.lstrip("u")))
    assert (found.slots.dtype, len(found.slots)) == (np.int32, len(found))
    firsts = range(len(found)) if found.members is None else [unit[0] for unit in found.members]
    number = {row["text"]: int(row["id"]) for row in rows}
    texts = [number[said(found.rows[place])] for place in firsts]
    assert found.slots.tolist() == [each // 5 if by_user else each for each in texts]
    assert read(rows, by_user=by_user, shard={"user": "who"}).slots is None


def test_of_a_user_the_first_examples_are_used_and_the_others_counted(read):
    rows = [review(n, SENTIMENT.names[n % 2], who="u0" if n < 40 else "u1") for n in range(50)]
    found = read(rows, by_user=True, shard={"user": "who"}, most_examples=15)
    assert sorted(map(len, found.members)) == [10, 15]
    assert found.left_out.reasons[BEYOND_EXAMPLES] == 25
    assert {row["text"] for row in rows[:15]} <= {said(row) for row in found.rows}


def test_what_was_read_is_what_a_model_trains_on(read):
    import torch
    from transformers import BertConfig

    from learning.private_training.text_units import TextUnits

    rows = [review(n, SENTIMENT.names[n % 2], who=f"u{n % 3}") for n in range(12)]
    found = read(rows, by_user=True, shard={"user": "who"})
    units = TextUnits(
        BertConfig(vocab_size=len(WORDS)), found.rows, torch.from_numpy(found.labels), members=found.members
    )
    batches = list(units.micro_batches(np.arange(len(found))))
    assert sum(batch.units for batch in batches) == 3
    assert sorted(label for batch in batches for label in batch.labels.tolist()) == [0] * 6 + [1] * 6


def test_a_text_longer_than_the_model_is_cut_and_counted_in_the_partys_log_alone(read, caplog):
    rows = [review(1), review(2, "negative"), {"text": "w1 " * 50, "label": "positive"}]
    with caplog.at_level(logging.WARNING, "conclave.party"):
        found = read(rows, longest=8)
    assert [len(row) for row in found.rows] == [4, 4, 8]
    assert found.truncated == 1
    assert "1 of 3 examples are longer than 8 tokens" in caplog.text


def test_rows_without_a_label_or_a_second_text_are_left_out_and_counted(read, caplog):
    rows = [
        review(1, reply="w7 w8"),
        review(2, "negative", reply="w9"),
        review(3, reply=" "),
        review(4, "", reply="w1"),
        review(5, None, reply="w1"),
    ]
    with caplog.at_level(logging.WARNING, "conclave.party"):
        found = read(rows, PAIR)
    assert dict(found.left_out.reasons) == {"no label": 2, "no second text": 1}
    assert "2 no label, 1 no second text" in caplog.text
    assert [row.second for row in found.rows] == [4, 4]
    assert [len(unit) for unit in found.members] == [1, 1, 0, 0, 0]
    assert said(found.rows[0]) == "w1 w0 w7 w8"


def test_scores_come_as_models_see_them(read):
    rows = [review(n, score) for n, score in enumerate(["0", "2.5", "5"])]
    found = read(rows, TextColumns("regression", "text", None, "label"), ScoreRange(0, 5))
    assert (found.labels.tolist(), found.labels.dtype) == ([-1.0, 0.0, 1.0], np.float32)


def test_a_part_has_its_own_units_alone(read):
    rows = [review(n, SENTIMENT.names[n % 2]) for n in range(100)]
    parts = [read(rows, shard={"part": PartTable(parts=2, part=part)}) for part in range(2)]
    assert Counter(said(row) for part in parts for row in part.rows) == Counter(row["text"] for row in rows)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([review(1), review(2)], ShardError, "one class only.*'positive'"),
        ([review(1, reply=" "), review(2, reply="")], ShardError, "has no example.*2 no second text"),
    ],
)
def test_a_shard_from_which_nothing_can_be_learned_is_a_sentence_in_a_simulation_and_else_a_warning(
    read, rows, kind, message, caplog
):
    columns = PAIR if "reply" in rows[0] else SINGLE
    with pytest.raises(kind, match=message):
        read(rows, columns)
    with caplog.at_level(logging.WARNING, "conclave.party"):
        found = read(rows, columns, frank=False)
    assert re.search(message, caplog.text)
    assert len(found) == 2


def test_the_census_knows_both_texts_of_everything_that_was_read(read, tmp_path):
    rows = [review(1, reply="w7"), review(2, "negative", reply="w8"), review(3, reply="")]

    def census(rows, columns):
        table = ShardTable(source="x", second="reply")
        with written(tmp_path / "census", b"k" * 32, table) as taken:
            read(rows, columns, census=taken)
        content = (tmp_path / "census").read_bytes()
        return {content[start : start + 17] for start in range(0, len(content), 17)}

    both = census(rows, PAIR)
    assert len(both) == 5
    swapped = [{"text": row["reply"] or "w0", "reply": row["text"], "label": row["label"]} for row in rows]
    assert len(both & census(swapped, SINGLE)) == 2


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), min_size=1, max_size=8), st.data())
def test_token_rows_are_a_sequence_of_what_went_in(lists, data):
    ids = np.array([token for each in lists for token in each], np.int32)
    stops = np.cumsum([0, *map(len, lists)])
    rows = TokenRows(ids, stops, np.diff(stops).astype(np.int32))
    assert [row.ids.tolist() for row in rows] == lists
    place = data.draw(st.integers(-len(lists), len(lists) - 1))
    assert rows[place].ids.tolist() == lists[place]
    chosen = data.draw(st.slices(len(lists)))
    assert [row.ids.tolist() for row in rows[chosen]] == lists[chosen]
    with pytest.raises(IndexError):
        rows[len(lists)]


def test_too_few_units_are_the_partys_own_affair(caplog):
    with caplog.at_level(logging.WARNING, "conclave.party"):
        assert tell_if_few(1000, needed=1000, why="[policy] declared_size") is None
        assert not caplog.records
        assert tell_if_few(812, needed=1000, why="[policy] declared_size") is None
    assert "812 units, fewer than the 1,000 of [policy] declared_size" in caplog.text


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """`await trained(error, frank=...)`: what becomes of a training whose text ends it so, and the shards it had."""

    async def trains(error, *, frank):
        shards = []

        async def ends_so(training, job, charge):
            await charge()
            shards.append(job.shard["source"])
            if len(shards) > 1:
                return None
            failure = process.tried(job, lambda: raises(error))
            return Failure(**json.loads(json.dumps(failure._replace(private=True)._asdict())))

        async def charge():
            return ""

        monkeypatch.setattr(Training, "_work", ends_so)
        policy = PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"], simulation=frank)
        shard = ShardTable(source=str(tmp_path))
        job = Job(
            os.getpid(),
            shard.model_dump(),
            policy.model_dump(),
            "document",
            False,
            "",
            "",
            str(tmp_path / "result"),
            CountsWork("", 1),
        )
        with_text = await Training(b"", "counts").run(job, asyncio.Semaphore(), charge, party="north")
        return with_text, shards

    def raises(error):
        raise error

    return trains


ERRORS = (
    LabelError("The label 'patient 4711' is outside."),
    LabelMapError("The columns a, b must differ."),
    ShardError("the shard has one class only: 'positive'."),
)


@pytest.mark.parametrize("error", ERRORS)
async def test_a_training_that_its_text_ended_is_done_without_any_and_only_the_party_knows(
    trained, caplog, error, tmp_path
):
    with_text, shards = await trained(error, frank=False)
    assert (with_text, shards) == (False, [str(tmp_path), NOTHING])
    assert str(error) in caplog.text


@pytest.mark.parametrize("error", ERRORS)
async def test_in_a_simulation_the_caller_reads_what_is_wrong(trained, error):
    with pytest.raises(Refusal) as refusal:
        await trained(error, frank=True)
    assert (refusal.value.reason, refusal.value.sentence) == (Reason.SHARD, str(error))
