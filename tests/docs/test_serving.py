"""docs/serving.md: its file is one that `coordinator serve` takes, its commands are there, its sentences are said."""

import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from coordinator.console.command import app
from coordinator.serving.config import ServeConfig, SubmitTable

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/serving.md").read_text("utf-8")


def test_its_file_is_taken():
    (block,) = re.findall(r"```toml at=coordinator file=coordinator.toml\n(.*?)```", DOCUMENT, re.DOTALL)
    config = ServeConfig.model_validate(tomllib.loads(block))
    assert config.dialling == ("north",)
    assert not set(SubmitTable.model_fields) - set(re.findall(r"\w+", DOCUMENT)), "every key is explained"


def test_its_commands_and_options_are_there():
    commands = get_command(app).commands
    blocks = "".join(re.findall(r"```sh [^\n]*\n(.*?)```", DOCUMENT, re.DOTALL))
    lines = [
        *re.findall(r"^coordinator .*$", blocks, re.MULTILINE),
        *re.findall(r"\| `(coordinator .*?)` \|", DOCUMENT),
    ]
    assert len(lines) > 8
    for line in lines:
        words = line.split()[1:]
        command = commands[words.pop(0)]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def code():
    files = [path.read_text("utf-8") for room in ("coordinator", "protos") for path in (ROOT / room).rglob("*.py")]
    whole = "\n".join(files)
    return re.sub(r'"\s*\n\s*f?"', "", whole)


@pytest.fixture(scope="module")
def said():
    return code()


ROWS = re.findall(r"^\| (`.*?) \|", DOCUMENT.partition("## What a sentence means")[2], re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_every_sentence_that_it_explains_is_said(said, row):
    parts = [part for words in re.findall(r"`([^`]+)`", row) for part in words.split("...") if len(part.strip()) > 8]
    for part in parts:
        if part.strip() not in ("identity: the coordinator has its own",):
            assert part.strip().replace("`", "") in said.replace("`", ""), part
