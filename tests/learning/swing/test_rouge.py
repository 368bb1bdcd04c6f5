"""ROUGE: worked by hand."""

import socket

import pytest

from aggregation.errors import ConclaveError
from learning.swing.rouge import rouge


@pytest.mark.slow
def test_rouge_by_hand_and_without_a_network(monkeypatch):
    """Real "the meeting is on monday", generated "monday the meeting": 3 of 3 and 3 of 5 words in common, F1 3/4; pairs
    1 of 2 and 1 of 4, F1 1/3; longest common subsequence "the meeting", 2 of 3 and 2 of 5, F1 1/2.
    """

    def refused(*args, **more):
        raise AssertionError("it asked the network")

    monkeypatch.setattr(socket, "socket", refused)
    found = rouge(["Monday: the meeting"], ["the meeting is on Monday"])
    assert (found.rouge_1, found.rouge_2, found.rouge_l) == pytest.approx((75, 100 / 3, 50))


@pytest.mark.slow
def test_scores_are_means_over_texts_and_an_empty_text_scores_nothing():
    found = rouge(["the plan", ""], ["the plan", "the plan"])
    assert (found.rouge_1, found.rouge_2, found.rouge_l, found.texts) == (50, 50, 50, 2)


@pytest.mark.slow
def test_stems_are_compared_where_asked():
    assert rouge(["meetings"], ["meeting"]).rouge_1 == 100
    assert rouge(["meetings"], ["meeting"], stemmed=False).rouge_1 == 0


@pytest.mark.parametrize(("generated", "real"), [([], []), (["a"], []), (["a", "b"], ["a"])])
def test_texts_that_do_not_match_are_refused(generated, real):
    with pytest.raises(ConclaveError, match="as many of each"):
        rouge(generated, real)
