"""What is installed from a wheel is all of it: no folder of the product is missing from the list of packages."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("aggregation", "coordinator", "deploy", "learning", "party", "protos")


def test_every_folder_with_code_is_a_package_that_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        ".".join(path.parent.relative_to(ROOT).parts) for room in ROOMS for path in (ROOT / room).rglob("__init__.py")
    }
    assert sorted(listed) == sorted(there)
    assert len(set(listed)) == len(listed)
