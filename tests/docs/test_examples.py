"""Every folder of examples has a plan for a fresh clone, and says of each plan what it is and what it needs."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from coordinator.systems.registry import read_plan
from learning.text import documentation

HOUSE = Path(__file__).parents[2]
EXAMPLES = HOUSE / "examples"
PLANS = sorted(path for path in EXAMPLES.glob("*/*.toml") if path.name != "pyproject.toml")
FOLDERS = sorted({path.parent for path in PLANS})
MADE = "../public-model"
"""What `examples/public_model.py` makes; other plans name models that a package brings, or files."""

_spec = importlib.util.spec_from_file_location("public_model", EXAMPLES / "public_model.py")
public_model = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public_model)


def sources(tables):
    """Every `source` of a plan, wherever it stands."""
    if isinstance(tables, dict):
        for key, value in tables.items():
            if key == "source" and isinstance(value, str):
                yield value
            else:
                yield from sources(value)
    elif isinstance(tables, list):
        for each in tables:
            yield from sources(each)


def needs_nothing(path):
    """Whether a plan reads embedded text alone, at parties that it starts itself."""
    tables = tomllib.loads(path.read_text())
    return "shards" in tables["federation"] and set(sources(tables)) <= set(documentation.NAMES)


ALONE = [path for path in PLANS if needs_nothing(path)]
IDS = [f"{path.parent.name}-{path.stem}" for path in ALONE]


@pytest.mark.parametrize("folder", FOLDERS, ids=[path.name for path in FOLDERS])
def test_every_folder_has_a_plan_that_needs_no_file_and_says_what_there_is(folder):
    told = (folder / "README.md").read_text()
    alone = [path for path in ALONE if path.parent == folder]
    assert alone, "no plan of it reads embedded text alone"
    for path in folder.glob("*.toml"):
        assert path.name in told, f"README.md does not name {path.name}"
    assert f"coordinator run examples/{folder.name}/{alone[0].name}" in told
    assert len(told.splitlines()) <= 40
    made = [path.name for path in alone if MADE in path.read_text()]
    assert bool(made) == ("examples/public_model.py" in told)


@pytest.mark.parametrize("path", PLANS, ids=[f"{path.parent.name}-{path.stem}" for path in PLANS])
def test_every_plan_is_one(path):
    assert read_plan(path).run.name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A public model that has hardly learned anything: for what a plan costs that is no matter."""
    folder = tmp_path_factory.mktemp("examples") / "public-model"
    assert public_model.made(folder, 2) > 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("path", ALONE, ids=IDS)
def test_a_fresh_clone_has_all_that_such_a_plan_needs(path, model, tmp_path):
    """`coordinator check` reads the public text, loads the model and prices the plan, on a machine without our data."""
    clone = tmp_path / "examples" / path.parent.name
    clone.mkdir(parents=True)
    (clone / path.name).write_text(path.read_text())
    (tmp_path / "examples/public-model").symlink_to(model)
    environment = os.environ | {
        "CONCLAVE_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(HOUSE),
        "HF_HUB_OFFLINE": "1",
    }
    code = "import sys; from coordinator.console.start import main; sys.exit(main())"
    found = subprocess.run(
        [sys.executable, "-c", code, "check", str(clone / path.name)],
        capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=800,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.slow
def test_the_public_model_is_a_language_model_that_learns(tmp_path):
    first, later = public_model.made(tmp_path / "first", 1), public_model.made(tmp_path / "later", 25)
    assert later < first - 0.5
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "later")
    assert tokenizer.decode(tokenizer("A list of names").input_ids) == "A list of names"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "later").config.vocab_size == len(tokenizer)
