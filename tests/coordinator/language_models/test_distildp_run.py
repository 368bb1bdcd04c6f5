"""Whole runs of DistilDP among parties that are nodes of this process: what is published, what it cost, and that a run
that was stopped at any stage ends with the very same student.
"""

import json
from contextlib import closing

import pytest

from coordinator import api
from coordinator.errors import RunError, RunStopped
from coordinator.progress.progress import Silent
from coordinator.store import output
from coordinator.store.store import RunStore
from coordinator.systems.distildp import pooling
from coordinator.systems.registry import plan_of

SAME = {"insecure_reproducible_noise": True}


@pytest.fixture(scope="module")
def finished(here_for_all, distildp_tables, tmp_path_factory):
    """One run with a secure sum: its result, and its folder."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return api.run(plan_of(distildp_tables(privacy={"trust": "secure-sum"})), output=folder), folder


@pytest.mark.slow
def test_the_student_is_a_language_model_of_the_standard_library(finished):
    from transformers import pipeline

    result, _ = finished
    said = pipeline("text-generation", str(result.student))("the", max_new_tokens=3)
    assert said[0]["generated_text"].startswith("the")
    assert (result.student / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((result.student / "config.json").read_text())
    assert config["n_layer"] == 1


@pytest.mark.slow
def test_its_page_shows_what_it_writes(finished):
    page = api.page(finished[1])
    for said in ("What it writes", "What it learned from", "way: east"):
        assert said in page
    assert str(finished[1]) not in page


@pytest.mark.slow
def test_its_texts_are_published_as_a_dataset_with_their_codes_each_once(finished, tmp_path):
    from datasets import load_dataset

    result, _ = finished
    rows = load_dataset(str(result.student / "texts"), split="train", cache_dir=str(tmp_path))
    assert set(rows.column_names) == {"text", "way"}
    assert set(rows["way"]) == {"east", "west"}
    assert 4 <= len(rows) <= 40
    assert len(set(rows["text"])) == len(rows)
    assert result.metrics["texts"] == len(rows)
    manifest = json.loads((result.student / "manifest.json").read_text())
    assert "texts/train.jsonl" in manifest["files"]


@pytest.mark.slow
def test_all_that_was_released_is_priced_and_anyone_can_check_it(finished):
    result, _ = finished
    assert result.verdict.ok
    assert 7.9 < result.epsilon <= 8.0
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert [release["name"] for release in privacy["releases"]] == ["tokens", "codes", "steps"]
    for path in (result.student / "attestations").glob("*.json"):
        charged = sorted(each["name"] for each in json.loads(path.read_text())["releases"])
        assert charged == ["codes", "steps.0", "steps.1", "tokens"]


@pytest.mark.slow
def test_the_student_is_set_beside_its_teacher_the_floor_and_the_public_model(finished):
    result, _ = finished
    card = (result.student / "README.md").read_text()
    for words in ("perplexity of a token", "of the private teacher", "the floor", "of the public model"):
        assert words in card
    metrics = result.metrics
    assert metrics["floor_perplexity"] < metrics["public_perplexity"]
    assert metrics["teacher_perplexity"] < metrics["public_perplexity"]
    assert metrics["token_perplexity"] < metrics["public_perplexity"]


@pytest.mark.slow
def test_all_of_it_is_a_runs_own_so_that_a_new_run_may_take_its_place(finished):
    _, folder = finished
    assert output.strangers(folder) == []
    output.check_folder(folder)
    assert [path for path in (folder / "artefacts").rglob("*") if path.stat().st_mode & 0o077] == []


@pytest.mark.slow
def test_the_measurements_are_shown_as_one_bar(finished):
    with closing(RunStore(finished[1])) as store:
        assert store.fact("bars")["measuring"] == [4000, 4000, "percent"], "student, teacher, floor, public model"


class _Stops(Silent):
    """Interrupts a run at the first report of one piece of work, once."""

    def __init__(self, work):
        self._work = work

    def bar(self, label, done, total, note=""):
        if label == self._work:
            self._work = None
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def same(distildp_tables):
    return plan_of(distildp_tables(privacy=SAME, generation={"batch": 8}))


@pytest.fixture(scope="module")
def undisturbed(here_for_all, same, tmp_path_factory):
    result = api.run(same, output=tmp_path_factory.mktemp("undisturbed") / "run")
    return _published(result.student)


def _published(student):
    return {name: (student / name).read_bytes() for name in ("model.safetensors", "texts/train.jsonl")}


@pytest.mark.slow
@pytest.mark.parametrize("work", ["writing", "grading", "learning"])
def test_a_run_that_was_stopped_after_its_releases_ends_with_the_same_student(
    here_for_all, same, undisturbed, tmp_path, work
):
    with pytest.raises(RunStopped):
        api.run(same, output=tmp_path / "run", progress=_Stops(work))
    here_for_all.asked.clear()
    result = api.resume(tmp_path / "run")
    assert _published(result.student) == undisturbed
    assert not here_for_all.asked  # no party is asked for anything again


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["codes-0", "steps-1-0"])
def test_a_run_whose_party_was_lost_amid_its_releases_goes_on_to_the_same_student(
    here_for_all, same, undisturbed, tmp_path, operation
):
    def lose(name, asked):
        if asked == operation and name == "party-2":
            here_for_all.before = None
            raise KeyboardInterrupt

    here_for_all.before = lose
    try:
        with pytest.raises((RunStopped, KeyboardInterrupt)):
            api.run(same, output=tmp_path / "run")
    finally:
        here_for_all.before = None
    assert _published(api.resume(tmp_path / "run").student) == undisturbed


@pytest.mark.slow
def test_without_codes_and_counts_only_the_training_is_released(here, distildp_tables, tmp_path):
    tables = distildp_tables(codes=None, floor={"use": False}, evaluation=None)
    result = api.run(plan_of(tables), output=tmp_path / "run")
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert [release["name"] for release in privacy["releases"]] == ["steps"]
    rows = [json.loads(line) for line in (result.student / "texts/train.jsonl").read_text().splitlines()]
    assert all(set(row) == {"text"} for row in rows)
    assert "token_perplexity" not in result.metrics
    assert not (result.student / "evaluation.png").exists()
    assert "of them empty or repeated" in (result.student / "README.md").read_text()


@pytest.mark.slow
def test_a_teacher_that_writes_nothing_is_said_and_nothing_is_spent_again(here, distildp_tables, tmp_path, monkeypatch):
    monkeypatch.setattr(pooling, "LEAST", 1000)
    with pytest.raises(RunError, match="nothing to learn from it") as error:
        api.run(plan_of(distildp_tables()), output=tmp_path / "run")
    assert "nothing more was spent" in str(error.value)


@pytest.mark.slow
def test_a_teacher_that_repeats_itself_is_warned_of(here, distildp_tables, tmp_path):
    few = {"top_k": 1, "texts": 20}
    with pytest.raises(RunError, match="nothing to learn from it"):
        api.run(plan_of(distildp_tables(generation=few)), output=tmp_path / "one")
    short = {"longest": 8, "top_k": 2, "texts": 300}  # two codes have 256 texts at most
    result = api.run(plan_of(distildp_tables(generation=short)), output=tmp_path / "two")
    assert "were empty or repeated others" in result.metrics["warnings"][0]
    assert "were empty or repeated others" in (result.student / "README.md").read_text()


@pytest.mark.slow
def test_a_user_whose_texts_go_together_is_protected(here, distildp_tables, news, tmp_path):
    shards = {
        "launch": "ray",
        "shards": {
            "source": str(news / "parties.jsonl"),
            "user": "person",
            "split": {"by": "hash", "parties": 2},
        },
    }
    tables = distildp_tables(privacy={"unit": "user", "declared_size": 40}, federation=shards, dp_sgd={"batch": 10})
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok
    assert json.loads((result.student / "privacy.json").read_text())["unit"] == "user"


@pytest.mark.slow
def test_parties_with_teachers_of_their_own_have_them_write_and_grade_in_turn(here, distildp_tables, tmp_path):
    tables = distildp_tables(dp_sgd={"form": "local"})
    result = api.run(plan_of(tables), output=tmp_path / "run")
    assert result.verdict.ok
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert [release["name"] for release in privacy["releases"]] == ["tokens", "codes", "round-0"]
    assert "one of each party" in (result.student / "README.md").read_text()
    written = tmp_path / "run/artefacts/written"
    assert sorted(path.name for path in written.iterdir()) == ["teacher-0", "teacher-1"]
