"""What a result, a report and a card say first: by how much a student is better than what costs nothing."""

from types import SimpleNamespace

import numpy as np
import pytest

from coordinator.console import shown
from coordinator.publishing.measured import measurements
from coordinator.publishing.report import render
from coordinator.publishing.verdict import learned_nothing
from coordinator.systems.dped.student import EmbeddingStudent, card
from learning.text.words import Vocabulary

NOTHING = {"perplexity": 639.8, "unigram_floor": 637.2, "public_unigram": 701.0}
SOMETHING = {"perplexity": 226.4, "unigram_floor": 246.8, "public_unigram": 279.5, "public_start": 265.0}
BETTER = (
    "Better than what costs nothing: its perplexity on public held-out text is 226.4, 8.3% below the floor without any "
    "training (246.8) and 15% below its public start (265.0)."
)


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (NOTHING, "Learned nothing: its perplexity is 639.8, and that of the floor without any training is 637.2."),
        ({"perplexity": 265.0, **{k: v for k, v in SOMETHING.items() if k != "perplexity"}}, "the floor without any"),
        ({"perplexity": 250.0, "public_start": 240.0}, "that of its public start is 240.0"),
        ({"perplexity": 250.0, "public_unigram": 250.0}, "the public text's own word frequencies is 250.0"),
        ({"accuracy": 0.5, "public_start": 0.4, "majority": 0.5}, "always saying the most frequent class is 0.500"),
        (
            {"accuracy": 0.6, "public_start": 0.7, "majority": 0.5},
            "its accuracy is 0.600, and that of its public start",
        ),
        ({"pearson": None, "public_start": None}, "its correlation is 0.000"),
        ({"pearson": -0.1, "public_start": -0.3}, "that of no model is 0.000"),
        ({"pearson": 0.2, "public_start": 0.3}, "that of its public start is 0.300"),
    ],
)
def test_a_student_no_better_than_what_costs_nothing_is_said_to_have_learned_nothing(metrics, says):
    assert says in learned_nothing(metrics)


@pytest.mark.parametrize(
    "metrics",
    [
        SOMETHING,
        {},
        {"perplexity": 9.0},
        {"accuracy": 0.8, "public_start": 0.4, "majority": 0.5},
        {"pearson": 0.4, "public_start": 0.1},
        {"accuracy": 0.3},  # of a run before this was measured
    ],
)
def test_a_student_that_learned_or_was_not_measured_is_not(metrics):
    assert learned_nothing(metrics) is None


def stored(metrics):
    return {
        "run": "1-demo", "status": "finished", "error": None, "student": None, "epsilon": 8.0, "privacy": None,
        "metrics": metrics, "stages": {},
    }  # fmt: skip


def test_it_is_the_first_line_of_the_report():
    assert render(stored(NOTHING)).splitlines()[0].startswith("Learned nothing: its perplexity is 639.8")
    assert render(stored(SOMETHING)).splitlines()[0] == BETTER
    assert render(stored(None)).splitlines()[0] == "run 1-demo  finished"


def test_it_is_the_first_line_of_the_card(monkeypatch):
    monkeypatch.setattr("coordinator.systems.dped.student.markdown", lambda statement: "")
    student = SimpleNamespace(language="en", licence="apache-2.0")
    plan = SimpleNamespace(
        student=student, run=SimpleNamespace(name="demo", recipe="dped"), federation=SimpleNamespace(shards=None),
        privacy=SimpleNamespace(guarantee=True), evaluation=None,
    )  # fmt: skip
    statement = SimpleNamespace(plan=plan, parties=("north", "south"), privacy={"epsilon": 8.0})
    for metrics, first in ((NOTHING, "**Learned nothing: its perplexity is 639.8"), (SOMETHING, f"**{BETTER}**")):
        made = EmbeddingStudent(Vocabulary(("a", "b")), np.zeros((2, 3), np.float32), {}, metrics, {})
        _, after = card(made, statement).split("# demo\n\n")
        assert after.startswith(first)


def test_it_is_the_first_line_of_what_a_run_prints(monkeypatch, capsys):
    privacy = {"epsilon": None, "trust_means": [], "unit": "record", "record": "document"}
    result = SimpleNamespace(
        metrics=NOTHING, student="student", statement=SimpleNamespace(privacy=privacy), neighbours={},
        verdict=SimpleNamespace(ok=True), authority=None, run="1-demo",
    )  # fmt: skip
    shown._summary(result)
    assert capsys.readouterr().out.startswith("No privacy guarantee. Learned nothing: its perplexity is 639.8")


def test_what_it_goes_by_is_shown_among_the_measures():
    shown = dict(measurements(SOMETHING))
    assert shown["of the public start"] == "265.0"
    shown = dict(measurements({"accuracy": 0.8, "majority": 0.5, "public_start": 0.4}))
    assert (shown["of always saying the most frequent class"], shown["of the public start, untrained"]) == (
        "0.500",
        "0.400",
    )
