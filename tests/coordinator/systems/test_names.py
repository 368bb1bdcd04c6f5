"""A system is found by its name, which stands in its own folder and among the entry points, and nowhere else."""

import ast
import functools
import re
from pathlib import Path

import pytest

from coordinator.systems.registry import names

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SHARED = "coordinator/text_models/methods.py"
"""Rows that comparisons of text models share, and the noise of each, go by the method's name."""
ROOMS = ("aggregation", "coordinator", "deploy", "learning", "party", "protos")


@functools.cache
def strings(path):
    """Every text in a program but its docstrings, with its line; not the names of a comparison's rows, which are named
    by the methods of papers.
    """
    tree = ast.parse(path.read_text())
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            left_out.add(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Method":
            left_out.add(node.args[0])
    return tuple(
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out
    )


def own(path, name):
    """Whether a file is a system's own, at the coordinator or at a party."""
    at = path.relative_to(ROOT).as_posix()
    return at.startswith(f"coordinator/systems/{name}/") or at in (f"party/recipes/{name}.py", SHARED)


@pytest.mark.parametrize("name", names())
def test_no_program_but_its_own_names_a_system(name):
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if not own(path, name)]
    assert len(files) > 200
    said = [(path.relative_to(ROOT).as_posix(), line, text) for path in files for line, text in strings(path)]
    assert [(path, line) for path, line, text in said if text == name] == []
    # A system's own sentences may recommend another.
    advised = [(path, line) for path, line, text in said if re.search(rf"""recipe = ["']{name}["']""", text)]
    assert [each for each in advised if not each[0].startswith("coordinator/systems/")] == []
