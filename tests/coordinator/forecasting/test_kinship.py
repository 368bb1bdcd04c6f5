"""Before a budget is spent: whether public text is of the parties' kind, as far as public and declared facts tell."""

from types import SimpleNamespace

import pytest

from coordinator import api
from coordinator.forecasting.forecast import Forecast
from coordinator.forecasting.kinship import doubts
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public, doubts_of_text
from coordinator.systems.registry import plan_of
from learning.text.source import Document
from learning.text.words import Vocabulary, tokenize

CONNECT = {
    "launch": "connect",
    "parties": [{"name": name, "address": f"127.0.0.1:{port}"} for name, port in (("north", 7001), ("south", 7002))],
}
NOTES = "the patient was admitted with pain in the chest and given oxygen and the pain was gone in the morning"
CODE = "return a list of the names in the module if the type is a function or a class and raise an error"


def shards(source):
    return {"launch": "ray", "shards": {"source": source, "split": {"parties": 2}}}


def plan(federation, vocabulary="documentation-topics", evaluation=None, like=False, language="en"):
    tables = {
        "run": {"name": "demo", "recipe": "dped"},
        "privacy": {"epsilon": 8.0, "delta": 1e-6},
        "federation": federation,
        "vocabulary": {"source": vocabulary, "size": 10, "like_parties": like},
        "student": {"language": language},
    }
    if evaluation is not None:
        tables["evaluation"] = {"source": evaluation, "like_parties": like}
    found = plan_of(tables)
    assert isinstance(found, DpedPlan)
    return found


def public(vocabulary, heldout, size=10):
    return Public(
        vocabulary=Vocabulary.from_public([vocabulary], size),
        counts=None,
        heldout=[Document("1", heldout, {})] if heldout else [],
        queries=None,
        weights=None,
        classes=None,
        reference=None,
        moments=None,
        frequencies=None,
    )


@pytest.mark.parametrize("federation", [CONNECT, shards("notes.jsonl"), shards("owner/news")])
def test_the_built_in_documentation_for_parties_with_other_text_is_doubted_in_every_table(federation):
    first, second = doubts(plan(federation, evaluation="documentation-heldout"))
    assert first.startswith("[vocabulary] documentation-topics is Python's documentation.")
    assert "little is learned from theirs" in first
    assert second.startswith("[evaluation] documentation-heldout is Python's documentation.")
    assert "like_parties = true" in first


def test_the_demo_and_text_that_somebody_vouches_for_are_not_doubted():
    assert doubts(plan(shards("documentation"), evaluation="documentation-heldout")) == []
    assert doubts(plan(CONNECT, "public.jsonl", "heldout.jsonl", like=True)) == []
    assert doubts(plan(shards("notes.jsonl"), "public.jsonl")) == []


def test_where_parties_are_elsewhere_somebody_has_to_say_that_public_text_is_of_their_kind():
    (doubt,) = doubts(plan(CONNECT, "public.jsonl"))
    assert "nobody has said that public.jsonl is text of the kind" in doubt


def test_documentation_at_the_parties_and_a_file_in_public_are_two_kinds():
    (doubt,) = doubts(plan(shards("documentation"), "notes.jsonl"))
    assert "[vocabulary] notes.jsonl is a file" in doubt


def test_a_vocabulary_that_does_not_know_the_heldout_text_is_doubted_and_one_of_its_kind_is_not():
    known = plan(CONNECT, "public.jsonl", "heldout.jsonl", like=True)
    (doubt,) = doubts_of_text(known, public(CODE, NOTES))
    assert "the vocabulary knows" in doubt
    assert "text of two kinds" in doubt
    assert doubts_of_text(known, public(NOTES, NOTES)) == []
    assert doubts_of_text(known, public(NOTES, "")) == []


@pytest.mark.parametrize(
    ("language", "text", "doubted"),
    [
        ("ru", CODE, True),
        ("ru", "боль в груди прошла утром", False),
        ("zh", "病人 胸痛 入院", False),
        ("ja", "かんじゃ は 入院 しました", False),
        ("en-GB", NOTES, False),
        ("en", "боль в груди прошла утром", True),
        ("tlh", CODE, False),
    ],
)
def test_letters_of_another_script_than_the_students_language_are_doubted(language, text, doubted):
    found = doubts_of_text(plan(CONNECT, language=language), public(text, "", len(set(tokenize(text)))))
    assert bool(found) is doubted
    assert not doubted or f'[student] language = "{language}"' in found[0]


def test_nothing_of_the_parties_is_looked_at():
    """The plan of parties on this machine names their text; a plan is all that is given, and nothing is opened."""
    federation = SimpleNamespace(shards=SimpleNamespace(source="/nowhere/at/all.jsonl"))
    wanted = SimpleNamespace(federation=federation, public_tables=lambda: plan(CONNECT).public_tables())
    assert len(doubts(wanted)) == 1


def test_a_forecast_warns_of_it_first(monkeypatch):
    wanted = plan(CONNECT)
    rest = {"rows": (), "epsilon": 8.0, "trained": 0, "bytes": 0, "seconds": 0.0, "memory": {}, "assumptions": ()}
    found = Forecast(plan=wanted, warnings=("counts drown",), **rest)
    monkeypatch.setattr(api, "prepared", lambda *_: None)
    monkeypatch.setattr(api, "price_plan", lambda recipe: SimpleNamespace(binding=None))
    monkeypatch.setattr(api, "plan_hash", lambda binding: "")
    monkeypatch.setattr(api, "keep", lambda *_: None)
    monkeypatch.setattr(api, "system", lambda name: SimpleNamespace(forecast=lambda *_: found))
    first, last = api.forecast(wanted).warnings
    assert first.startswith("[vocabulary] documentation-topics is Python's documentation")
    assert last == "counts drown"
