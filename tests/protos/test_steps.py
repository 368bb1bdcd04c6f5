"""The names of steps, which both ends parse in one way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.steps import is_step_name, number_of, parsed, step_name, whole_of


@pytest.mark.slow
@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True), st.integers(0, 10**9 - 1))
def test_a_name_is_parsed_into_what_it_was_made_of(release, step):
    name = step_name(release, step)
    assert parsed(name) == (release, step)
    assert (is_step_name(name), whole_of(name), number_of(name)) == (True, release, step)
    assert parsed(release) == (release, None)


@pytest.mark.parametrize(
    "name", ["steps", "steps.", "steps.01", "steps.-1", "steps.1x", "steps.٣", "steps.1" + "0" * 9]
)
def test_what_is_never_a_steps_name_is_whole(name):
    assert parsed(name) == (name, None)
    assert not is_step_name(name)


@given(st.text(max_size=30))
def test_any_text_is_one_or_the_other(name):
    release, step = parsed(name)
    assert name == (release if step is None else step_name(release, step))
