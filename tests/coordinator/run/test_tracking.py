"""A run at an experiment tracker: by the real clients, into a folder here, and nothing but what is published."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import RunError
from coordinator.publishing.tracking import tracked, tracker
from coordinator.store.store import RunStore

SECRET = "of-this-machine"


@pytest.fixture(scope="module")
def run(here_for_all, tmp_path_factory):
    """A finished run of word counts."""
    from coordinator.systems.registry import template

    folder = tmp_path_factory.mktemp(SECRET)
    text = (
        template("ray")
        .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
        .replace("size   = 1000", "size   = 60")
        .replace("dimension = 100", "dimension = 8")
        .replace("parties = 4 }", "parties = 4, of = 40 }")
    )
    (folder / "plan.toml").write_text(text)
    return api.run(folder / "plan.toml", output=folder / "out")


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    """MLflow's client, and where it keeps runs here."""
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    uri = (tmp_path / "tracked").as_uri()
    return MlflowClient(tracking_uri=uri), f"mlflow:{uri}"


def only_run(client):
    (found,) = client.search_runs([client.get_experiment_by_name("conclave").experiment_id])
    return found


@pytest.mark.slow
def test_what_is_told_is_what_is_published(run):
    told = tracked(run.run, "notes", run.metrics, run.student, student=False)
    assert told.figures["epsilon"] == run.epsilon
    assert told.figures["delta"] == run.delta
    assert told.figures["perplexity"] == run.metrics["perplexity"]
    assert told.figures["unigram_floor"] == run.metrics["unigram_floor"]
    assert told.settings["dped.dimension"] == "8"
    assert told.settings["privacy.unit"] == "record"
    published = " ".join(path.read_text() for path in run.student.glob("*.json"))
    for key, value in told.settings.items():
        assert value.strip('"[]').split(",")[0].strip('"') in published, key
    assert SECRET not in str(told.settings) + str(told.about) + str(told.figures) + told.promise
    assert [path.name for path in told.files] == ["README.md", "privacy.json"]


@pytest.mark.slow
def test_mlflow_keeps_figures_settings_card_and_no_word_of_this_machine(run, mlflow, tmp_path, capsys):
    client, to = mlflow
    assert main(["track", run.run, "--to", to, "--json"]) == 0
    place = json.loads(capsys.readouterr().out.splitlines()[-1])["place"]
    kept = only_run(client)
    assert kept.info.run_id in place
    assert kept.info.status == "FINISHED"
    assert kept.data.metrics["epsilon"] == run.epsilon
    assert kept.data.params["run.recipe"] == "dped"
    assert kept.data.tags["conclave.run"] == run.run
    assert "e^epsilon" in kept.data.tags["mlflow.note.content"]
    assert {each.path for each in client.list_artifacts(kept.info.run_id)} == {"README.md", "privacy.json"}
    said = str(kept.data.params) + str(kept.data.tags) + str(kept.data.metrics)
    assert SECRET not in said
    assert not {"mlflow.user", "mlflow.source.name", "mlflow.source.git.commit"} & kept.data.tags.keys()


@pytest.mark.slow
def test_the_student_goes_along_only_where_it_is_asked_for_and_still_verifies(run, mlflow, tmp_path):
    client, to = mlflow
    run.track(to, student=True)
    kept = only_run(client).info.run_id
    assert [each.path for each in client.list_artifacts(kept)] == ["student"]
    assert api.verify(client.download_artifacts(kept, "student", str(tmp_path))).ok


@pytest.mark.slow
def test_a_run_that_cannot_be_told_whole_is_not_told(run, mlflow, monkeypatch):
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client, to = mlflow

    def full(*_):
        raise MlflowException("the disk is full\nand more")

    monkeypatch.setattr(MlflowClient, "log_artifact", full)
    with pytest.raises(RunError, match=r"^Nothing was tracked: MLflow says: the disk is full$"):
        api.track(run.folder, to)
    assert client.search_runs([client.get_experiment_by_name("conclave").experiment_id]) == []


@pytest.mark.slow
def test_a_server_of_mlflow_that_is_not_there_is_told_in_words(run, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RunError, match="Nothing was tracked: MLflow says: "):
        api.track(run.folder, "mlflow:http://127.0.0.1:9")


@pytest.mark.slow
@pytest.mark.parametrize("student", [False, True])
def test_weights_and_biases_keeps_the_same_offline(run, tmp_path, student):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    places = {"DIR": tmp_path, "DATA_DIR": tmp_path / "data", "CACHE_DIR": tmp_path / "cache"}
    told = {"WANDB_MODE": "offline"} | {f"WANDB_{name}": str(place) for name, place in places.items()}
    command = [sys.executable, "-c", "import sys; from coordinator.console.command import main; sys.exit(main())"]
    words = ["track", run.run, "--to", "wandb:clinics", *(["--student"] if student else [])]
    done = subprocess.run(  # its client keeps the first place that it is given in a process
        [*command, *words], env=os.environ | told, capture_output=True, text=True, check=True, timeout=800
    )
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    assert done.stdout.split() == ["tracked:", str(folder), "(offline:", "`wandb", "sync`", "sends", "it)"]
    assert done.stderr == ""
    assert [path.name for path in (folder / "files").rglob("*") if path.is_file()] == []
    content = next(folder.glob("*.wandb")).read_bytes()
    for said in (b"epsilon", b"unigram_floor", b"dped.dimension", b"privacy.json", b"e^epsilon"):
        assert said in content
    assert (b"vectors.txt" in content) == student
    for secret in (b"requirements.txt", b"git@", b"wandb-metadata.json"):
        assert secret not in content


@pytest.mark.parametrize("to", ["wandb", "wandb:", "wandb:a/b/c", "wandb:../x", "tensorboard:x", ""])
def test_a_name_of_no_tracker_is_refused_before_anything_is_read(to):
    with pytest.raises(RunError, match=r"names no tracker\. Write mlflow:URI, .* wandb:PROJECT"):
        api.track("0000-nothing", to)
    assert tracker("mlflow") == ("mlflow", "")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_without_the_client_the_command_that_installs_it_is_told(run, monkeypatch, capsys, kind):
    monkeypatch.setitem(sys.modules, kind, None)
    assert main(["track", run.run, "--to", f"{kind}:notes"]) == 1
    assert f"pip install 'conclave-distill[{kind}]'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_student_that_does_not_verify_and_a_run_that_is_not_finished_are_not_told_of(run, monkeypatch, tmp_path):
    with pytest.raises(RunError, match="There is no run"):
        api.track("0000-nothing", "mlflow")
    kept = tmp_path / "kept"
    shutil.copytree(run.student, kept)
    try:
        with (run.student / "README.md").open("a") as card:
            card.write("One more line.\n")
        with pytest.raises(RunError, match="does not verify, so nothing was handed out"):
            run.track("mlflow")
    finally:
        shutil.copy(kept / "README.md", run.student / "README.md")
    monkeypatch.setattr(RunStore, "status", lambda store: "stopped")
    with pytest.raises(RunError, match="only a finished run has a student"):
        api.track(run.run, "mlflow")
