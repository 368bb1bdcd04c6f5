"""The pages of errors' codes: what each has, how `explain` of both commands shows them, and that their commands are
there.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from coordinator.console.command import app as coordinator
from coordinator.console.command import main as coordinator_main
from party.console.command import app as party
from party.console.command import main as party_main
from protos.console.explaining import FOLDER, GROUPS, divided, page, titles

ROOT = Path(__file__).parents[3]
MAINS = pytest.mark.parametrize("main", [coordinator_main, party_main], ids=["coordinator", "party"])


@pytest.mark.parametrize("code", titles())
def test_a_page_says_what_happened_and_what_to_do_in_a_few_lines(code):
    text = page(code)
    lines = text.splitlines()
    assert re.fullmatch(rf"# {code}: [A-Z][^.]+", lines[0])
    assert len(lines[0]) <= 60
    assert 8 <= len(lines) <= 20
    assert "**What to do.** " in text
    assert max(len(line) for line in lines if not line.startswith("More: ")) <= 100
    assert lines[-1].startswith("More: ")
    for place in re.findall(r"\]\(([^)]+)\)", text):
        assert (ROOT / place).is_file()
        assert place.startswith("docs/")


@pytest.mark.parametrize("code", titles())
def test_the_commands_of_a_page_are_there_with_their_options(code):
    (block,) = re.findall(r"^```\n(.*?)\n```$", page(code), re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        name, *words = shlex.split(line)
        if name not in ("coordinator", "party"):
            continue
        command = typer.main.get_command({"coordinator": coordinator, "party": party}[name])
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        assert not hasattr(command, "commands") or words in (["--help"], ["--version"]), line
        known = {"--help", *(option for each in command.params for option in each.opts)}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_every_page_is_in_a_group_and_every_group_has_one():
    assert {code[:2] for code in titles()} == set(GROUPS)
    assert {path.name for path in FOLDER.iterdir()} == {f"{code}.md" for code in titles()}
    assert len(set(titles().values())) == len(titles())


@MAINS
@pytest.mark.parametrize("typed", ["C102", "c102", "[C102]"])
def test_a_page_is_printed_as_plain_text_with_the_names_of_other_pages(main, typed, capsys):
    assert main(["explain", typed]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# C102: A file is not there\n")
    assert "the plan (docs/reference/plan.md)" in said
    assert "](" not in said


@MAINS
def test_without_a_code_all_are_listed_with_their_titles(main, capsys):
    assert main(["explain"]) == 0
    said = capsys.readouterr().out
    for code, title in titles().items():
        assert f"- {code}: {title}\n" in said


@MAINS
@pytest.mark.parametrize(
    ("typed", "says"), [("C192", "Did you mean C1"), ("zebra", "Without a code, `explain` lists them all.")]
)
def test_a_code_that_is_not_there_is_one_sentence_naming_near_ones(main, typed, says, capsys):
    assert main(["explain", typed]) == 2
    error = capsys.readouterr().err
    assert f"there is no code {typed}. {says}" in error
    assert error.count("\n") == 1


def on_a_terminal(*arguments, columns=40):
    """What a command writes on a terminal of so many columns, both streams as one."""
    script = (
        "import os, pty, sys\n"
        f"os.environ |= dict(COLUMNS='{columns}', TERM='xterm')\n"
        f"pty.spawn([sys.executable, '-m', *{arguments!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).replace("\r\n", "\n")


@pytest.mark.slow
def test_a_page_fits_a_narrow_terminal():
    said = on_a_terminal("party.console.command", "explain", "C102")
    assert "What to do." in said
    assert "**" not in said
    assert all(len(line.rstrip()) <= 40 for line in said.splitlines())


@pytest.mark.slow
def test_an_error_on_a_terminal_ends_with_the_command_that_says_more():
    lines = on_a_terminal("party.console.command", "serve", "--config", "none.toml").rstrip().splitlines()
    assert lines[-2:] == ["none.toml: there is no such file. [C102]", "more: party explain C102"]
    assert len(lines[-1]) <= 40


@pytest.mark.parametrize(
    ("said", "parts"),
    [
        ("a. [C102]", ("a.", "C102")),
        ("go on: resume 7f3a\n  [C501]", ("go on: resume 7f3a", "C501")),
        ("no code [here]", ("no code [here]", "")),
    ],
)
def test_a_sentence_and_its_code_are_taken_apart(said, parts):
    assert divided(said) == parts
