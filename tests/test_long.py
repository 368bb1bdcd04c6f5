"""The list of tests that CI leaves out."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONG = runpy.run_path(str(Path(__file__).with_name("long.py")))["LONG"]


def test_every_test_that_ci_leaves_out_and_the_nearest_that_it_runs_are_there():
    for name in (*LONG, *LONG.values()):
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}" in (ROOT / file).read_text("utf-8"), name


def test_what_ci_runs_instead_is_not_left_out_itself():
    assert [name for name in LONG.values() if name.startswith(tuple(LONG))] == []
