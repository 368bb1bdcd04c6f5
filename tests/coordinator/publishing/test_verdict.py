"""The verdict on a student: better by how much, perhaps by chance, not at all, or not measured."""

import pytest

from coordinator.publishing.verdict import headline, learned_nothing, standing, verdict

PRIVATE = {"epsilon": 8.0}


@pytest.mark.parametrize(
    ("metrics", "kind", "says"),
    [
        (
            {"accuracy": 0.787, "public_start": 0.52, "majority": 0.509, "examples": 872},
            "better",
            "it is right in 78.7% of 872 public test texts, 26.7 points above its public start (52.0%) and 27.8 points "
            "above always saying the most frequent class (50.9%).",
        ),
        (
            {"accuracy": 0.52, "public_start": 0.4, "majority": 0.5, "examples": 60},
            "unclear",
            "above always saying the most frequent class (50.0%), which so few texts cannot tell from chance.",
        ),
        (
            {"accuracy": 0.52, "public_start": 0.4, "majority": 0.5, "examples": 60_000},
            "better",
            "2.0 points above always saying",
        ),
        ({"token_perplexity": 273.0, "floor_perplexity": 367.0}, "better", "26% below the floor without any training"),
        ({"token_perplexity": 99.99, "public_perplexity": 100.0}, "better", "less than 0.1% below the public model"),
        ({"token_perplexity": 2.0, "public_perplexity": 1e300}, "better", "more than 99.9% below the public model"),
        ({"pearson": 0.4, "public_start": 0.1}, "better", "is 0.400, 0.300 above its public start (0.100)."),
        ({"accuracy": 0.5, "public_start": 0.4, "majority": 0.5}, "nothing", "Learned nothing: its accuracy is 0.500"),
        (
            {"accuracy": 0.77, "public_start": 0.5, "public_rule": 0.78, "majority": 0.5},
            "nothing",
            "that of the public text's own rule is 0.780",
        ),
        ({"accuracy": 0.3}, "alone", "Measured alone: it is right in 30.0% of the public test texts"),
        ({}, "unmeasured", "Not measured: the plan names no public test text"),
        ({"parameters": 3}, "unmeasured", "Not measured"),
        (None, "unmeasured", "Not measured"),
    ],
)
def test_a_verdict_says_by_how_much(metrics, kind, says):
    found = verdict(metrics)
    assert found.kind == kind
    assert says in found.sentence
    assert (kind == "nothing") == (learned_nothing(metrics or {}) is not None)


def test_a_run_without_a_guarantee_says_that_before_its_verdict():
    metrics = {"accuracy": 0.8, "public_start": 0.4, "majority": 0.5}
    assert headline(PRIVATE, metrics) == headline(None, metrics) == verdict(metrics).sentence
    for privacy in ({"epsilon": None}, {"epsilon": None, "guarantee": False}):
        assert headline(privacy, metrics) == f"No privacy guarantee. {verdict(metrics).sentence}"


def test_a_difference_that_two_standard_errors_hide_is_not_a_success():
    at = {"public_start": 0.5, "majority": 0.5, "examples": 100}  # the errors of both: 2 sqrt(0.5 / 100) = 14.1 points
    assert standing({"accuracy": 0.63} | at).unclear
    assert not standing({"accuracy": 0.65} | at).unclear
