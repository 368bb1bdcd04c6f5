"""The list of tests that CI leaves out."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def long(request):
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("tests_long", Path(__file__).with_name("long.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LONG


def test_every_test_that_ci_leaves_out_and_the_one_that_it_runs_of_the_same_are_there(long):
    for name in (*long, *long.values()):
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}" in (ROOT / file).read_text("utf-8"), name


def test_what_ci_runs_of_the_same_is_not_left_out_itself(long):
    assert [name for name in long.values() if name.startswith(tuple(long))] == []
