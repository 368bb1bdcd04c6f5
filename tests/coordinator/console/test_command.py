"""The `coordinator` command as a person meets it: what it prints, what it returns, and that no trace reaches anyone."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.publishing.publish import try_place
from coordinator.systems.registry import names, read_plan, template
from protos.console.explaining import divided, titles
from protos.waiting import PATIENT

RAY = template("ray").replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def failing(capsys, *arguments):
    """The exit code and the sentence of a command that fails; it must be one line, the last, and no trace. After it
    comes the code of a page.
    """
    code = main(list(arguments))
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    *before, sentence = re.sub(r"\n  (\[C...\])$", r" \1", said.err.rstrip()).splitlines()
    sentence, page = divided(sentence)
    assert page in titles()
    assert all(line.startswith(("run ", "  ")) for line in before), "what else was said is what goes on"
    return code, sentence


def plan(text, name="plan.toml"):
    Path(name).write_text(text)
    return name


@pytest.mark.slow
def test_the_version_is_told():
    command = Path(sys.executable).with_name("coordinator")
    said = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert said.returncode == 0
    assert said.stdout.startswith("coordinator, Conclave 0.")


@pytest.mark.slow
def test_what_help_says_needs_no_numbers():
    """`coordinator --help` answers in a third of a second; any of these would double that."""
    code = """
import sys, coordinator.console.command
heavy = {"numpy", "scipy", "torch", "ray", "datasets", "transformers", "gensim", "sklearn", "matplotlib", "mpmath"}
heavy |= {"pydantic", "cryptography", "grpc", "asyncio"}
print(sorted(heavy & sys.modules.keys()))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_init_writes_a_plan_and_leaves_one_that_is_there_alone(capsys):
    assert main(["init", "mine.toml"]) == 0
    assert Path("mine.toml").read_text() == template("ray")
    assert "next: coordinator run mine.toml" in capsys.readouterr().out
    Path("mine.toml").write_text("mine")
    assert failing(capsys, "init", "mine.toml") == (
        2,
        "mine.toml exists already and was left alone. Name another file.",
    )
    assert Path("mine.toml").read_text() == "mine"


@pytest.mark.parametrize("launch", ["ray", "connect"])
@pytest.mark.parametrize("recipe", [name for name in names() if name != "fine_tune"])
def test_every_plan_that_init_writes_is_one(launch, recipe):
    assert main(["init", "mine.toml", "--launch", launch, "--recipe", recipe]) == 0
    assert read_plan(Path("mine.toml")).run.recipe == recipe


def test_the_plan_without_privacy_is_of_simulated_parties_alone(capsys):
    assert main(["init", "clear.toml", "--recipe", "fine_tune"]) == 0
    assert read_plan(Path("clear.toml")).run.recipe == "fine_tune"
    capsys.readouterr()
    code, said = failing(capsys, "init", "mine.toml", "--launch", "connect", "--recipe", "fine_tune")
    assert code == 2
    assert "the text would be their own" in said
    assert not Path("mine.toml").exists()


def test_init_knows_no_other_recipe(capsys):
    code, said = failing(capsys, "init", "mine.toml", "--recipe", "waltz")
    known = '"distildp", "dped", "dp_sgd", "fine_tune", "nvdp", "pate", "privdistil" and "swing"'
    assert (code, said) == (2, f"--recipe waltz: there is a plan to start from for {known}.")
    assert not Path("mine.toml").exists()


def test_init_tells_programs_where_the_plan_is(capsys, home):
    assert main(["init", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"plan": str(home / "plan.toml")}


def test_init_knows_two_ways_to_start_parties(capsys):
    assert main(["init", "there.toml", "--launch", "connect"]) == 0
    assert 'launch = "connect"' in Path("there.toml").read_text()
    assert failing(capsys, "init", "x.toml", "--launch", "carrier-pigeon")[0] == 2
    assert not Path("x.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["run"], 2, "Missing argument 'PLAN'."),
        (["rnu"], 2, "No such command 'rnu'."),
        (["run", "none.toml"], 2, "none.toml: there is no such file."),
        (["report", "nothing"], 1, 'There is no run "nothing".'),
    ],
)
def test_a_wrong_command_line_is_told_in_a_sentence(capsys, arguments, code, says):
    got, said = failing(capsys, *arguments)
    assert got == code
    assert says in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("epsilon = 8.0", "epsilon = 0", 2, "[privacy] epsilon = 0 should be greater than 0"),
        ('"public.txt"', '"words/*.txt"', 1, "words/*.txt"),
        ('"documentation-heldout"', '"nowhere.jsonl"', 1, "nowhere.jsonl"),
        ("size   = 1000", "size   = 99999", 1, "the plan asks for 99,999"),
        ('launch = "ray"', 'launch = "rya"', 2, 'launch = "rya" is not installed here. There is "connect", "ray".'),
        ("dropouts = 0", "noise_multiplier = 0.1", 2, "Nothing ran."),
    ],
)
def test_a_plan_that_cannot_run_is_refused_before_anything_is_made(capsys, old, new, code, says):
    text = RAY.replace('"documentation-topics"', '"public.txt"')
    letters = "abcdefghijk"
    Path("public.txt").write_text(" ".join(f"{a}{b}{c}" for a in letters for b in letters for c in letters) * 3)
    assert old in text
    got, said = failing(capsys, "run", plan(text.replace(old, new)), "--output", "out")
    assert says in said
    assert got == code
    assert not Path("out").exists()
    assert api.runs() == []


def test_a_folder_that_holds_something_else_is_left_alone(capsys):
    Path("out").mkdir()
    Path("out/letter.txt").write_text("dear")
    code, said = failing(capsys, "run", plan(RAY), "--output", "out", "--replace")
    assert code == 1
    assert "holds what is no run's: letter.txt. It was left alone" in said
    assert Path("out/letter.txt").read_text() == "dear"


def test_a_place_to_publish_that_is_taken_is_noticed_before_anything_is_spent(capsys):
    Path("published/my-embeddings").mkdir(parents=True)
    Path("published/my-embeddings/model").write_text("older")
    code, said = failing(capsys, "run", plan(RAY))
    assert code == 1
    assert "published/my-embeddings exists already. Choose another place" in said
    assert api.runs() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("plan.toml", "plan.toml exists already"),
        ("plan.toml/student", "plan.toml/student cannot be"),
        ("/proc/student", "/proc/student cannot be published: /proc takes no new folder"),
        ("gone", "gone exists already"),
    ],
)
def test_a_place_that_takes_no_student_is_found_before_anything_is_spent(capsys, monkeypatch, place, says):
    Path("gone").symlink_to("nowhere")
    monkeypatch.setattr(api, "prepared", lambda *_: 1 / 0)  # nothing public is read, let alone a party asked
    code, said = failing(capsys, "run", plan(RAY.replace("published/my-embeddings", place)))
    assert code == 1
    assert says in said
    assert api.runs() == []
    assert main(["check", "plan.toml"]) == 1
    assert says in " ".join(capsys.readouterr().out.split())


def test_trying_a_place_leaves_nothing_behind(home):
    try_place(home / "new/above/student")
    (home / "empty").mkdir()
    try_place(home / "empty")
    assert sorted(path.name for path in home.rglob("*")) == ["empty"]


def test_no_runs_yet_is_said_and_is_an_empty_list_in_json(capsys):
    assert main(["runs", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no runs yet")
    assert json.loads(lines[-1]) == {"runs": []}


def test_a_bug_leaves_its_trace_in_a_private_file_and_says_where(capsys, monkeypatch, home):
    monkeypatch.setattr(api, "runs", lambda: 1 / 0)
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    code, said = failing(capsys, "runs")
    assert code == 1
    assert "a bug in Conclave (ZeroDivisionError)" in said
    (trace,) = home.glob("conclave-trace-*.txt")
    assert str(trace) in said
    assert "ZeroDivisionError" in trace.read_text()
    assert trace.stat().st_mode & 0o777 == 0o600


def test_threads_that_wait_sleep_unless_the_environment_says_otherwise(capsys, monkeypatch):
    for name in PATIENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    main(["runs", "--json"])
    assert {name: os.environ[name] for name in PATIENT} == {**PATIENT, "OMP_WAIT_POLICY": "ACTIVE"}


@pytest.mark.slow
def test_a_warning_of_simulated_parties_is_a_sentence_whatever_a_library_sets_up():
    script = (
        "import logging; from coordinator.console.command import main; main(['--version'])\n"
        "logging.basicConfig(); logging.getLogger('conclave.party').warning('3 of 9 texts were cut.')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "3 of 9 texts were cut.\n"
