"""Text without labels at a party: every text an example, and all texts of a record or a user clipped as one unit."""

import json
import os
from functools import partial

import numpy as np
import pytest

from aggregation.mechanisms.gradients import GradientMechanism
from learning.models.batching import encode
from learning.private_training.clipped_sum import clipped_sum
from party.config import PolicyTable
from party.errors import ShardError
from party.ledger.census import TEXT, chunks
from party.shard import plain
from party.shard.plain import plain_units, take_census
from party.shard.units import MOST_EXAMPLES
from party.shard_table import ShardTable
from party.tasks.job import Job
from party.tasks.text.model import loaded, units_of
from party.tasks.text.request import Descent, Lesson, TextModel
from party.tasks.text_model.request import TextModelWork

PAIRS = (
    ("the film was good", "a great film"), ("awful slow film", "bad plot and bad actor"), ("we saw a dull story", ""),
    ("good actor", "the actor was not bad"), ("the end was not good", "a dull end"), ("fast", "slow"),
)  # fmt: skip
PUBLIC = ("the plot was very dull", "not a story", "and the end")


@pytest.fixture(scope="module")
def tokenizer(pooled):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pooled)


@pytest.fixture
def make(tmp_path, pooled):
    """`make(pairs, ...)`: the job of a domain classifier over these records."""

    def makes(pairs=PAIRS, *, by_user=False, second="reply", adapt="head", users=3, shard=(), **changes):
        rows = [
            {"text": one, "reply": other, "who": f"u{number % users}", "id": f"r{number}"}
            for number, (one, other) in enumerate(pairs)
        ]
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "texts").write_text(json.dumps(PUBLIC))
        table = {"source": str(tmp_path / "rows.jsonl"), "user": "who", "id": "id", "second": second or None}
        descent = Descent(0.1, "sgd", "constant", 0.0, 0.9, 0.0, expected_batch=4.0, epochs=0, batch=0)
        model = TextModel(files={}, folder=str(pooled), adapt=adapt, rank=2, alpha=4, longest=16, seed=7)
        lesson = Lesson("domain", texts=str(tmp_path / "texts"), second=second)
        work = TextModelWork(model, lesson, parameters="", descent=descent, training="")
        return Job(
            parent=os.getpid(),
            shard=ShardTable(**table | dict(shard)).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["privdistil"]).model_dump(),
            record=changes.pop("record", "document"),
            by_user=by_user,
            release="",
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=work,
            **changes,
        )

    return makes


@pytest.fixture
def read(tokenizer):
    """`read(job)`: the units of it, each as the texts in it."""

    def reads(job):
        found = plain_units(
            job.reading, partial(encode, tokenizer, longest=16, known=len(tokenizer)), longest=16,
            second=job.work.lesson.second or None,
        )  # fmt: skip
        said = [tokenizer.decode(row.ids, skip_special_tokens=True) for row in found.rows]
        return said if found.members is None else [[said[place] for place in unit] for unit in found.members]

    return reads


def test_a_record_of_two_texts_is_one_unit_of_two_examples(make, read, monkeypatch):
    expected = [[text for text in pair if text] for pair in PAIRS]
    assert read(make()) == expected
    monkeypatch.setattr(plain, "_CHUNK_EXAMPLES", 3)
    assert read(make()) == expected
    assert read(make(second="")) == [first for first, _ in PAIRS]


def test_all_texts_of_a_user_are_one_unit(make, read):
    expected = [[text for pair in PAIRS[user::3] for text in pair if text] for user in range(3)]
    assert sorted(read(make(by_user=True))) == sorted(expected)
    alone = [[first for first, _ in PAIRS[user::3]] for user in range(3)]
    assert sorted(read(make(by_user=True, second=""))) == sorted(alone)


def test_of_a_user_no_more_texts_are_used_than_of_any(make, read):
    many = [("good", "bad")] * 40 + [("fast", "slow")] * 3
    sizes = sorted(map(len, read(make(many, by_user=True, users=1))))
    assert sizes == [MOST_EXAMPLES]
    assert MOST_EXAMPLES < 80


def test_a_row_of_an_empty_first_text_is_a_unit_of_nothing(make, read):
    assert read(make([("", "alone"), ("good", "bad")])) == [[], ["good", "bad"]]


@pytest.mark.parametrize("by_user", [False, True])
def test_each_unit_has_the_slot_of_its_own_id_and_one_more_moves_no_other(make, tokenizer, by_user, monkeypatch):
    def slots(pairs):
        asked = []
        found = plain_units(
            make(pairs, by_user=by_user).reading, partial(encode, tokenizer, longest=16, known=len(tokenizer)),
            longest=16, slot_of=lambda unit: asked.append(unit) or len(asked) % 7,
        )  # fmt: skip
        assert found.slots.dtype == np.int32
        assert found.slots.tolist() == [place % 7 for place in range(1, len(asked) + 1)]
        assert len(found) == len(asked)
        return asked

    monkeypatch.setattr(plain, "_CHUNK_EXAMPLES", 3)
    ids = slots([*PAIRS, (" ", "")])
    assert sorted(ids) == (["u0", "u1", "u2"] if by_user else sorted([*(f"r{place}" for place in range(6)), ""]))


def test_no_slot_is_given_where_none_is_asked(make, tokenizer):
    encoded = partial(encode, tokenizer, longest=16, known=len(tokenizer))
    assert plain_units(make().reading, encoded, longest=16).slots is None


def test_a_second_text_belongs_to_a_document(make, read):
    with pytest.raises(ShardError, match="a second text belongs to a document"):
        read(make(record="sentence"))


@pytest.mark.slow
@pytest.mark.parametrize(("adapt", "by_user"), [("head", False), ("head", True), ("lora", False)])
def test_one_unit_more_moves_the_clipped_sum_by_no_more_than_the_clip(make, adapt, by_user):
    """Both texts of a record are clipped together; apart they would move the sum by more."""
    clip = 1e-3
    job = make(adapt=adapt, by_user=by_user)
    found = loaded(job.reading.shard, job.work.model, job.work.lesson)  # the same for all shards, and no record in it

    def total(pairs):
        job = make(pairs, adapt=adapt, by_user=by_user, users=len(PAIRS))  # every record has a user of its own
        units = units_of(job.reading, job.work.model, job.work.lesson, found)
        mechanism = GradientMechanism(clip, 400, 1.0, 1.0, 1, found.gradients.count)
        return clipped_sum(found.gradients, units.micro_batches(np.arange(len(units))), found.losses, mechanism)

    whole = total(PAIRS)
    for place in (0, 2):  # the second has one text
        moved = np.linalg.norm(whole - total([*PAIRS[:place], *PAIRS[place + 1 :]]))
        assert 0.9 * clip < moved <= clip
    apart = [(text, "") for text in PAIRS[0]]
    assert np.linalg.norm(total([*PAIRS[1:], *apart][-6:]) - total(PAIRS[2:])) > 1.5 * clip


@pytest.mark.parametrize("by_user", [False, True])
def test_a_census_has_both_texts_whether_it_is_taken_alone_or_while_training(make, read, tmp_path, by_user):
    def texts(work, pairs=PAIRS, **more):
        path = tmp_path / "census"
        work(make(pairs, by_user=by_user, census=str(path), census_key=(b"k" * 32).hex(), **more))
        return {row for chunk in chunks(path) for row in chunk if row[-1] == TEXT}

    def alone(job):
        take_census(job.reading, second=job.work.lesson.second or None)

    both = texts(read)
    assert len(both) == len({text for pair in PAIRS for text in pair if text})
    assert texts(alone) == both
    first = texts(read, second="")
    assert len(first) == len(PAIRS)
    assert first < both
    assert texts(read, [(other, one) for one, other in PAIRS if other], second="") < both  # known in the other column


@pytest.mark.slow
@pytest.mark.parametrize(("adapt", "by_user"), [("head", False), ("head", True), ("lora", False)])
def test_without_a_text_of_its_own_a_party_learns_of_public_text_alone(make, adapt, by_user):
    job = make([("", "alone"), (5, "x")], adapt=adapt, by_user=by_user)
    found = loaded(job.reading.shard, job.work.model, job.work.lesson)
    units = units_of(job.reading, job.work.model, job.work.lesson, found)
    mechanism = GradientMechanism(1.0, 400, 1.0, 1.0, 1, found.gradients.count)
    batches = list(units.micro_batches(np.arange(len(units))))
    assert sum(batch.units for batch in batches) == len(PUBLIC)
    assert clipped_sum(found.gradients, batches, found.losses, mechanism).any()
