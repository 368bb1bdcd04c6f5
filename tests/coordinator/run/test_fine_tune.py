"""A model trained in clear is there to be compared with, and promises nothing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PlanError
from coordinator.systems.registry import read_plan

PLAN = """
[run]
name = "films"
recipe = "fine_tune"
seed = 3
[privacy]
epsilon = 4.0
delta = 1e-5
unit = "record"
record = "document"
[federation]
launch = "ray"
[federation.shards]
source = "films.jsonl"
label = "stars"
id = "id"
split = { by = "hash", parties = 2 }
[text]
labels = ["no", "yes"]
values = ["0", "1"]
longest = 32
[model]
name = "encoder"
adapt = "full"
[fine_tune]
epochs = 5
batch = 16
learning_rate = 0.005
[evaluation]
source = "heldout.jsonl"
label = "stars"
"""
WORDS = ("bad", "awful", "dull"), ("good", "great", "bright")


def write(path, count, seed):
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        for number in range(count):
            words = [rng.choice(["film", "plot", "actor"]), *rng.choice(WORDS[number % 2], 3)]
            row = {"text": " ".join(rng.permutation(words)), "stars": number % 2, "id": f"{number}"}
            file.write(json.dumps(row) + "\n")


@pytest.fixture(autouse=True)
def folder(tiny_bert, tmp_path, monkeypatch):
    import torch

    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "films.jsonl", 160, 0)
    write(tmp_path / "heldout.jsonl", 60, 1)
    shutil.copytree(tiny_bert, tmp_path / "encoder")
    (tmp_path / "plan.toml").write_text(PLAN)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_its_student_loads_anywhere_says_more_than_chance_and_promises_nothing(folder, capsys):
    assert main(["run", "plan.toml", "--json"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("NO PRIVACY GUARANTEE")
    assert said.err.startswith("NO PRIVACY GUARANTEE")
    found = json.loads(said.out.splitlines()[-1])
    assert (found["epsilon"], found["delta"]) == (None, None)
    assert found["metrics"]["accuracy"] > 0.8

    student = folder / "published"
    assert Path(found["student"]) == student
    names = {path.name for path in student.iterdir()}
    assert {"README.md", "config.json", "evaluation.png"} <= names
    assert not names & {"privacy.json", "manifest.json", "manifest.sig", "plan.json", "attestations"}
    card = (student / "README.md").read_text()
    title = card.index("# films")
    assert "**NO PRIVACY GUARANTEE" in card[title : title + 40]
    assert "differential-privacy" not in card
    assert "epsilon" not in card

    from transformers import pipeline

    classify = pipeline("text-classification", str(student), device="cpu")
    assert [each["label"] for each in classify(["good film great bright", "awful dull plot bad"])] == ["yes", "no"]


@pytest.mark.slow
def test_the_head_alone_is_trained_too_and_what_stands_there_is_left_alone(folder):
    from coordinator.errors import RunError

    Path("head.toml").write_text(PLAN.replace('adapt = "full"', 'adapt = "head"').replace("= 0.005", "= 0.05"))
    (folder / "encoder/1_Pooling").mkdir()
    (folder / "encoder/1_Pooling/config.json").write_text('{"pooling_mode_mean_tokens": true}')
    result = api.run("head.toml", output="out")
    assert result.student == folder / "out/student"
    assert result.metrics["accuracy"] > 0.7
    with pytest.raises(RunError, match="exists already"):
        api.run("head.toml", output="out")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("learning_rate = 0.005", "learning_rate = 1e30", "C208"),
        ('name = "encoder"', 'name = "./nowhere"', "C206"),
        ('name = "encoder"\nadapt', 'name = "decoder"\nadapt', "C207"),
        ('labels = ["no", "yes"]', 'labels = ["no", "no"]', "C205"),
        ("[fine_tune]", "[run_]\n[fine_tune]", "C104"),
        ("seed = 3", 'seed = 3\ndevice = "cuda:99"', "C303"),
    ],
)
def test_what_a_model_cannot_do_has_a_code(folder, tiny_gpt2, capsys, old, new, code):
    shutil.copytree(tiny_gpt2, folder / "decoder")
    config = json.loads((folder / "decoder/tokenizer_config.json").read_text())
    tokens = {key: value for key, value in config.items() if not key.endswith("_token")}
    (folder / "decoder/tokenizer_config.json").write_text(json.dumps(tokens))
    (folder / "decoder/special_tokens_map.json").write_text("{}")
    assert old in PLAN
    Path("plan.toml").write_text(PLAN.replace(old, new))
    assert main(["run", "plan.toml"]) in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.endswith(f"[{code}]\n")


def test_verify_says_that_there_is_no_promise(folder, capsys):
    folder.joinpath("model").mkdir()
    folder.joinpath("model/README.md").write_text("# films\n")
    assert main(["verify", "model"]) == 1
    said = capsys.readouterr().out
    assert "holds no promise" in said
    assert "in clear" in said


def test_with_parties_of_their_own_it_is_refused_when_the_plan_is_read():
    shards = PLAN[PLAN.index("[federation.shards]") : PLAN.index("[text]")]
    entry = 'parties = [{ name = "a", address = "127.0.0.1:9" }, { name = "b", address = "127.0.0.1:10" }]\n'
    Path("connect.toml").write_text(PLAN.replace(shards, entry).replace('launch = "ray"', 'launch = "connect"'))
    with pytest.raises(PlanError, match=r"without privacy.*the text is the parties' own"):
        read_plan(Path("connect.toml"))


def test_there_is_nothing_to_forecast(capsys):
    assert main(["forecast", "plan.toml"]) == 2
    assert "nothing to forecast" in capsys.readouterr().err
