"""What is expected of a run that goes on, and how what it shows corrects that."""

import pytest

from coordinator.progress.drawing import about, drawn, duration, money_of
from coordinator.progress.followed import Followed, warning_in


@pytest.fixture
def seen():
    return Followed(0.0)


def test_a_stage_takes_as_long_as_what_is_done_of_it_says(seen):
    seen.expect({"train": 100.0}, None)
    seen.stage("train", "began", 0.0)
    train = seen.running()
    assert seen.estimate(train, 10.0) == 100.0
    seen.parties |= {"north": "counting 50%", "south": "counting 25%", "east": "counting"}
    assert seen.part() == pytest.approx(0.25)
    assert seen.estimate(train, 10.0) == pytest.approx(40.0)
    seen.bar("moments", 1, 2, "")
    assert seen.estimate(train, 10.0) == pytest.approx(20.0)


def test_a_part_that_says_little_is_not_reckoned_with(seen):
    seen.stage("train", "began", 0.0)
    seen.bar("moments", 1, 100, "")
    assert seen.estimate(seen.running(), 10.0) is None


def test_a_bar_of_the_stage_before_says_nothing_of_this_one(seen):
    seen.bar("cells", 3, 4, "")
    seen.stage("train", "began", 0.0)
    assert seen.part() is None


def test_stages_to_come_follow_the_pace_of_those_that_are_over(seen):
    seen.expect({"prepare": 10.0, "train": 40.0, "distil": 20.0}, 100.0)
    seen.stage("prepare", "began", 0.0)
    seen.stage("prepare", "finished", 15.0)
    assert seen.foreseen("train", 15.0) == pytest.approx(60.0)
    assert seen.altogether(15.0) == pytest.approx(15 + 60 + 30)
    seen.stage("train", "began", 15.0)
    assert seen.altogether(35.0) == pytest.approx(35 + 40 + 30)


def test_a_forecast_of_the_whole_is_what_is_left_without_an_earlier_run(seen):
    seen.expect({}, 60.0)
    seen.stage("train", "began", 0.0)
    assert seen.altogether(10.0) == 60.0
    seen.bar("moments", 1, 10, "")
    assert seen.altogether(10.0) == pytest.approx(100.0)
    assert Followed(0.0).altogether(5.0) is None


def test_a_stage_inside_another_is_what_goes_on(seen):
    seen.stage("attest", "began", 0.0)
    seen.stage("train", "began", 1.0)
    assert seen.running().name == "train"
    seen.stage("train", "finished", 2.0)
    assert seen.running().name == "attest"


def test_rows_say_that_a_stage_takes_longer_than_it_should(seen):
    seen.expect({"train": 10.0}, None)
    seen.stage("train", "began", 0.0)
    seen.expected["later"] = 5.0
    (row,) = [row for row in drawn(seen, 20.0, 80, 20) if row.split()[0] == "train"]
    assert row.endswith("20 s, longer than the 10 s expected")


@pytest.mark.parametrize("width", [40, 41, 60, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 8, 40])
def test_no_row_is_too_wide_and_no_display_too_high(seen, width, height):
    seen.expect({"prepare": 5.0, "train": 1000.0, "distil": 7.0}, 60.0)
    for number in range(12):
        seen.parties[f"a-party-with-a-long-name-{number}"] = "retrying"
        seen.stage(f"a-stage-{number}", "began", 0.0)
        seen.stage(f"a-stage-{number}", "finished", 1.0)
        seen.bar(f"a-release-with-a-long-name-{number}", 123_456, 987_654, "texts")
    seen.stage("train", "began", 2.0)
    seen.warning, seen.spent, seen.budget = "x" * 500, 1.0, 8.0
    rows = drawn(seen, 3.0, width, height)
    assert len(rows) <= height
    assert max(map(len, rows)) <= width


def test_words_for_times_and_for_what_was_spent():
    assert [duration(each) for each in (0.44, 9.96, 42, 130, 700, 7200)] == [
        "0.4 s", "10.0 s", "42 s", "2 min 10 s", "12 min", "2.0 h",
    ]  # fmt: skip
    assert [about(each) for each in (0.4, 4.4, 61)] == ["about 1 s", "about 4 s", "about 61 s"]
    assert money_of(2.901, 4.0) == "epsilon 2.91 of 4 so far"
    assert money_of(2.9, None) == "epsilon 2.90 so far"


def test_a_doubt_and_a_party_in_trouble_are_warnings_and_nothing_else_is():
    assert warning_in("  warning: parties share text") == "parties share text"
    assert warning_in("  party north is slow") == "party north is slow"
    assert warning_in("run 7f3a") == ""
