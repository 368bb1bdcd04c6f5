"""Errors and their pages belong together: every class and every raise site has a code with a page, and every page is of
an error that is raised.
"""

import ast
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest

from aggregation.errors import ConclaveError
from protos.console.explaining import titles
from protos.refusal import Reason, Refusal

ROOT = Path(__file__).parents[2]
ROOMS = ("aggregation", "coordinator", "deploy", "learning", "party", "protos")
SOURCES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
CODE = re.compile(r"C\d{3}")


def literals(path):
    """The codes that stand in a file as constants, whatever for."""
    tree = ast.parse(path.read_text("utf-8"))
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in values if isinstance(value, str) and CODE.fullmatch(value)}


@pytest.fixture(scope="module")
def classes():
    """Every class of the product's errors, once all modules are imported."""
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            importlib.import_module(found.name)
    found, left = set(), [ConclaveError]
    while left:
        each = left.pop()
        left += each.__subclasses__()
        if each.__module__.partition(".")[0] in ROOMS:
            found.add(each)
    return found


def test_every_class_of_errors_has_a_code_with_a_page(classes):
    assert len(classes) > 20
    assert {each.CODE for each in classes} <= set(titles())


@pytest.mark.slow
def test_every_page_is_of_an_error_that_is_raised():
    used = set().union(*map(literals, SOURCES))
    assert used == set(titles())


def test_the_trouble_of_every_page_is_made_in_a_test():
    """`tests/protos/console` reads pages alone."""
    found = [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "docs"]
    told = "".join(path.read_text("utf-8") for path in found if path.name != "test_explaining.py")
    assert set(titles()) <= set(CODE.findall(told))


@pytest.mark.slow
def test_a_class_whose_code_is_its_own_is_raised_somewhere(classes):
    """Nothing in the product is a code for its own sake."""
    raised = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                raised.add(getattr(node.func, "id", getattr(node.func, "attr", "")))
    own = {each.__name__ for each in classes if "CODE" in vars(each)}
    assert own <= raised


def test_every_refusal_has_a_code_with_a_page_that_its_reason_alone_decides():
    for reason in Reason:
        codes = {Refusal(reason, sentence, rule).code for sentence in ("a.", "b.") for rule in ("", "x")}
        assert len(codes) == 1
        assert codes <= set(titles())


def test_the_wheel_has_the_pages():
    """As package data; `test_wheel` builds one and compares all files."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    assert data["protos.console"] == ["errors/*.md"]
