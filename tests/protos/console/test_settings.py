"""A mistake in a settings file is told in one sentence that names the file, the key and what would be right."""

from typing import Literal

import pytest
from pydantic import Field

from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, line_of, read_settings


class Entry(Settings):
    name: str
    address: str


class Inner(Settings):
    epsilon: float
    unit: Literal["record", "user"] = "record"


class Outer(Settings):
    title: str = ""
    privacy: Inner
    parties: list[Entry] = Field(default_factory=list)


def complaint(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError) as caught:
        read_settings(path, Outer)
    return str(caught.value)


def test_a_good_file_is_read(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('title = "x"\n[privacy]\nepsilon = 1\n')
    assert read_settings(path, Outer).privacy.epsilon == 1.0


def test_an_unknown_key_is_answered_with_the_nearest_right_one_and_its_line(tmp_path):
    said = complaint(tmp_path, "[privacy]\nepsilon = 1.0\nepsilom = 2.0\n")
    assert said == 'plan.toml, line 3: there is no key [privacy] epsilom. Did you mean "epsilon"?'


def test_an_unknown_key_like_no_other_is_answered_with_those_there_are(tmp_path):
    assert "Known here: epsilon, unit." in complaint(tmp_path, "[privacy]\nepsilon = 1.0\nzzz = 1\n")


def test_an_unknown_table_is_located_by_its_header(tmp_path):
    assert complaint(tmp_path, "[privacy]\nepsilon = 1.0\n[privasy]\n").startswith(
        "plan.toml, line 3: there is no key privasy"
    )


def test_a_key_in_a_list_of_inline_tables_is_named_by_its_place(tmp_path):
    said = complaint(tmp_path, '[privacy]\nepsilon = 1.0\n[[parties]]\nname = "a"\naddres = "b"\n')
    assert "[parties] 1 addres" in said or "[parties] 1 address is missing" in said


def test_a_missing_key_is_named(tmp_path):
    assert complaint(tmp_path, '[privacy]\nunit = "user"\n') == "plan.toml: [privacy] epsilon is missing."


def test_a_value_that_is_not_among_the_choices_is_answered_with_them(tmp_path):
    said = complaint(tmp_path, '[privacy]\nepsilon = 1.0\nunit = "usr"\n')
    assert said == "plan.toml, line 3: [privacy] unit = \"usr\" is not one of 'record' or 'user'."


def test_a_value_of_the_wrong_kind_is_not_converted(tmp_path):
    assert '[privacy] epsilon = "1"' in complaint(tmp_path, '[privacy]\nepsilon = "1"\n')


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_a_number_that_is_not_finite_is_refused(tmp_path, number):
    assert "[privacy] epsilon" in complaint(tmp_path, f"[privacy]\nepsilon = {number}\n")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xef\xbb\xbf[privacy]\nepsilon = 1\n")
    assert read_settings(path, Outer).privacy.epsilon == 1.0
    assert complaint(tmp_path, b"\xef\xbb\xbf[privacy]\nepsilom = 1\n").startswith("plan.toml, line 2: ")


def test_a_file_that_is_not_there_not_utf8_not_toml_or_a_folder(tmp_path):
    with pytest.raises(SettingsError, match="no such file"):
        read_settings(tmp_path / "none.toml", Outer)
    with pytest.raises(SettingsError, match="is a folder"):
        read_settings(tmp_path, Outer)
    assert "not UTF-8" in complaint(tmp_path, b'title = "\xff"\n')
    assert "is not TOML" in complaint(tmp_path, "title = \n")


TEXT = """\
title = "epsilon = 3"   # epsilon = 4
[privacy]
  "epsilon" = 1.0
[federation]
parties = [ { name = "a", address = "x" }, ]
split = { by = "hash", parties = 4 }
"""


def test_a_line_is_named_only_when_exactly_one_can_be_meant():
    assert line_of(("privacy", "epsilon"), TEXT) == 3
    assert line_of(("epsilon",), TEXT) is None
    assert line_of(("federation", "split", "by"), TEXT) == 6
    assert line_of(("privacy", "delta"), TEXT) is None
    twice = TEXT + "[other]\n[privacy.more]\n[privacy]\nepsilon = 2\n"
    assert line_of(("privacy", "epsilon"), twice) is None
