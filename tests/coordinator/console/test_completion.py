"""Both commands complete what a shell is about to run, by the protocol that the shell's script speaks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent


def run(*command, **environment):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(command, env=os.environ | {"PATH": path} | environment, capture_output=True, text=True)


def completed(command, words):
    said = run(
        BIN / command,
        **{f"_{command.upper()}_COMPLETE": "complete_bash"},
        COMP_WORDS=f"{command} {words}",
        COMP_CWORD=str(len(words.split(" "))),
    )
    assert (said.returncode, said.stderr) == (0, "")
    return said.stdout.split()


@pytest.mark.parametrize(
    ("command", "words", "found"),
    [
        ("coordinator", "re", ["resume", "report"]),
        ("coordinator", "doc", ["doctor"]),
        ("coordinator", "init --re", ["--recipe"]),
        ("coordinator", "provision si", ["sign"]),
        ("party", "se", ["serve"]),
        ("party", "account ba", ["backup"]),
    ],
)
def test_a_word_that_was_begun_is_completed(command, words, found):
    assert completed(command, words) == found


@pytest.mark.parametrize("command", ["coordinator", "party"])
def test_bash_completes_with_the_script_that_is_shown(command):
    lines = (
        f'eval "$({command} --show-completion)"',
        f"COMP_WORDS=({command} che); COMP_CWORD=1; _{command}_completion {command}",
        'echo "${COMPREPLY[*]}"',
        f"complete -p {command}",
    )
    said = run("bash", "--norc", "-c", "\n".join(lines))
    assert said.stdout.splitlines() == ["check", f"complete -o default -F _{command}_completion {command}"], said.stderr


@pytest.mark.parametrize("command", ["coordinator", "party"])
def test_completion_is_installed_for_the_shell_that_asks(command, tmp_path):
    said = run("bash", "--norc", "-c", f"{command} --install-completion; exit $?", HOME=str(tmp_path))
    assert said.returncode == 0, said.stderr
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert f"_{command}_completion" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()


@pytest.mark.parametrize("command", ["coordinator", "party"])
def test_completing_needs_no_numbers(command):
    """A shell waits for it at every Tab."""
    heavy = "{'numpy', 'scipy', 'torch', 'ray', 'datasets', 'transformers', 'sklearn', 'matplotlib', 'huggingface_hub'}"
    code = f"""
import os, sys
os.environ |= {{"_{command.upper()}_COMPLETE": "complete_bash", "COMP_WORDS": "{command} ru", "COMP_CWORD": "1"}}
sys.argv = ["{command}"]
from {command}.console.command import main
try:
    main()
except SystemExit as ended:
    print(ended.code, sorted({heavy} & sys.modules.keys()), file=sys.stderr)
"""
    said = run(sys.executable, "-c", code)
    assert said.stderr == "0 []\n"
