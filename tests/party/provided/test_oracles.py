"""Attackers who provide a model to learn of a party's text or files: what the party says has nothing of either."""

import json
import shutil
import sys

import numpy as np
import pytest

from party.ledger.accounts import read_account
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
SECRET = "Smith 5551234"
PLAIN = (("the film was good", "yes"), ("we saw a dull story", "no"), ("good actor", "yes"), ("bad end", "no"))


@pytest.fixture(scope="session")
def opens():
    """`opens()`: a list that takes the name of every file this process opens from now on."""
    lists = []

    def hook(event, given):
        if event == "open" and lists:
            lists[-1].append(str(given[0]))

    sys.addaudithook(hook)
    return lambda: lists.append([]) or lists[-1]


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


def charged(tmp_path):
    return read_account(tmp_path / "north.party/ledger.sqlite", "north").reservations


@pytest.fixture
def hostile(pooled, tmp_path):
    """Makes the folder of a model some of whose files say something else; None leaves a file out."""

    def makes(name, **files):
        folder = tmp_path / name
        shutil.copytree(pooled, folder)
        for each, content in files.items():
            path = folder / f"{each}.json"
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_text(json.dumps(content))
        return folder

    return makes


def oracle(pattern):
    """A tokenizer that fails at a text if and only if the text matches: its one word is what all others become."""
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "more"]
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Replace", "pattern": {"Regex": f"(?s)^(?!.*{pattern}).*$"}, "content": "film"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "unk_token": "gone", "vocab": {word: n for n, word in enumerate(known)}},
    }


async def test_a_tokenizer_that_fails_at_a_record_is_refused_whatever_the_records_are(
    learner, films, hostile, opens, tmp_path
):
    films(PLAIN)
    caller = await learner(folder=hostile("oracle", tokenizer=oracle(SECRET)))
    opened, said = opens(), []
    for rows in (PLAIN, (*PLAIN[:-1], (f"call {SECRET}", "no")), None):
        if rows is None:
            (tmp_path / "notes.jsonl").unlink()
        else:
            films(rows)
        said.append(await refused(caller.step(0, caller.model, np.zeros(HEAD))))
    assert {(each.reason, each.sentence) for each in said} == {(Reason.TRAINING, said[0].sentence)}
    assert "no unknown token" in said[0].sentence or "no known public model does" in said[0].sentence
    assert not charged(tmp_path)
    assert not [path for path in opened if path.endswith((".arrow", ".incomplete"))]  # what a shard is read through


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False], ids=["with tokenizer.json", "without it"])
async def test_a_file_of_the_partys_that_a_model_names_is_never_opened(learner, films, hostile, opens, tmp_path, kept):
    films(PLAIN)
    guess = tmp_path / "key.pem"
    guess.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"line{n}" for n in range(100))]))
    caller = await learner()
    opened, said = opens(), []
    for number, place in enumerate((guess, tmp_path / "missing.pem")):
        named = {"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", "pad_token": "[PAD]"}
        named |= dict.fromkeys(("vocab", "vocab_file", "tokenizer_file", "merges_file", "name_or_path"), str(place))
        folder = hostile(place.stem, tokenizer_config=named, **({} if kept else {"tokenizer": None}))
        caller.model.ClearField("files")
        caller.model.files.extend(await caller.provide_model(folder))
        try:
            await caller.step(number, caller.model, np.zeros(HEAD))
            said.append(None)
        except Refusal as refusal:
            said.append(refusal.sentence)
    assert said[0] == said[1]
    assert (said[0] is None) == kept
    assert not [path for path in opened if path.endswith(".pem")]


async def test_one_weight_that_overflows_is_refused_whatever_the_records_are(learner, films, hostile, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = hostile("overflowing")
    tensors = load_file(folder / "model.safetensors")
    word = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]["dull"]
    tensors["embeddings.word_embeddings.weight"][word] = 3e38
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    films(PLAIN)
    caller = await learner(folder=folder)
    said = []
    for rows in (PLAIN, [row for row in PLAIN if "dull" not in row[0]]):
        films(rows)
        said.append((await refused(caller.step(0, caller.model, np.zeros(HEAD)))).sentence)
    assert said[0] == said[1]
    assert "not finite, or of 2**24" in said[0]
    assert not charged(tmp_path)
