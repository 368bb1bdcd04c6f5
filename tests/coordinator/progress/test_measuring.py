"""Measurements of a student, one after another, as one bar."""

from coordinator.progress.drawing import figures
from coordinator.progress.measuring import LABEL, Measuring
from coordinator.progress.progress import Silent


class Heard(Silent):
    def __init__(self):
        self.said = []

    def bar(self, label, done, total, note=""):
        assert label == LABEL
        assert done <= total
        self.said.append(figures(done, total, note))


def test_measurements_of_different_sizes_are_equal_parts_of_one_bar():
    heard = Heard()
    measuring = Measuring(heard, times=2)
    for done, total in ((1, 2), (2, 2), (10, 40), (40, 40)):
        measuring.told(done, total)
    assert heard.said == ["25%", "50%", "62%", "100%"]


def test_one_more_than_was_said_leaves_the_bar_full():
    heard = Heard()
    measuring = Measuring(heard)
    for done, total in ((3, 3), (1, 2), (2, 2), (0, 0)):
        measuring.told(done, total)
    assert heard.said == ["100%"] * 4


def test_nothing_needs_to_be_shown():
    Measuring().told(1, 1)
