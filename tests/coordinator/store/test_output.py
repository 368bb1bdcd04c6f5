"""A run's folder among a person's files: what a run did not make is never removed, and no run before its time."""

import json
import os
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator import api
from coordinator.console.command import main
from coordinator.errors import PartyRefused, PlanError, RunError, RunStopped
from coordinator.run import resuming
from coordinator.store import output
from coordinator.store.index import RunIndex
from coordinator.store.private_files import close_to_others, write_whole
from coordinator.store.store import FAILED, RunStore
from coordinator.systems.registry import read_plan, template

RAY = template("ray").replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def index(home):
    return RunIndex(home / "home")


@pytest.fixture
def out(home):
    return home / "work/out"


def kept(index, out):
    """A run in a folder, with a block and an artefact; its id."""
    store = index.add("demo", b"h", out)
    store.write("artefacts/student.safetensors", b"s")
    store.write("blocks/steps.12/000003.npy", b"b")
    store.write("parties/party-1/ledger.sqlite", b"l")
    store.write("parties/training-1.log", b"")
    run = store.id
    store.close()
    return run


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("options", [[], ["--replace"]])
@pytest.mark.parametrize("where", [".", "", "../work"])
def test_a_folder_of_somebodys_files_is_no_output_and_stays_as_it_is(home, capsys, options, where):
    Path("plan.toml").write_text(RAY)
    Path("notes.txt").write_text("dear")
    Path("drafts").mkdir()
    Path("drafts/one.txt").write_text("first")
    before = everything(home / "work")
    assert main(["run", "plan.toml", "--output", where, *options]) == 1
    said = capsys.readouterr().err
    assert "drafts, notes.txt, plan.toml" in said
    assert "--replace" not in said
    assert everything(home / "work") == before
    assert api.runs() == []


@pytest.mark.parametrize("replace", [False, True])
def test_an_output_without_a_name_is_refused_in_python(home, replace):
    Path("plan.toml").write_text(RAY)
    with pytest.raises(PlanError, match="output is empty"):
        api.run("plan.toml", output="", replace=replace)
    with pytest.raises(RunError, match=r"holds what is no run's: plan.toml"):
        api.run("plan.toml", output=".", replace=replace)
    assert [path.name for path in Path().iterdir()] == ["plan.toml"]


@pytest.mark.parametrize(
    "stranger",
    [
        "notes.txt",
        "student/notes.txt",
        "artefacts/notes.txt",
        "blocks/notes.txt",
        "blocks/steps.12/notes.npy",
        "drafts/run.sqlite",
        ".git/config",
        "parties.txt",
    ],
)
def test_a_run_with_a_file_of_somebodys_beside_it_does_not_make_way(index, out, stranger):
    run = kept(index, out)
    (out / stranger).parent.mkdir(exist_ok=True)
    (out / stranger).write_text("dear")
    before = everything(out)
    with pytest.raises(RunError, match=rf"holds what is no run's: (.*, )?{re.escape(stranger)}"):
        index.add("demo", b"h", out, replace=True)
    with pytest.raises(RunError, match=f"holds a run already \\({run}\\)") as refused:
        index.add("demo", b"h", out)
    assert "--replace" not in str(refused.value)
    assert everything(out) == before
    assert [entry.id for entry in index.entries()] == [run]


def test_a_folder_without_the_marker_or_with_one_that_is_none_is_no_runs(index, out):
    kept(index, out)
    for content in (b"", b"{}", b'{"format": 1, "kind": "conclave run", "run": "../.."}', b"[" * 100_000):
        (out / output.MARKER).write_bytes(content)
        with pytest.raises(RunError, match="It was left alone"):
            index.add("demo", b"h", out, replace=True)
    (out / output.MARKER).write_bytes(output.marker_of("another-run"))
    with pytest.raises(RunError, match=r"names another-run. It was left alone"):
        index.add("demo", b"h", out, replace=True)
    (out / output.MARKER).unlink()
    with pytest.raises(RunError, match=r"run.sqlite and no conclave-run.json.*left alone"):
        index.add("demo", b"h", out, replace=True)
    assert (out / "artefacts/student.safetensors").read_bytes() == b"s"


def test_links_are_never_followed(index, out, home):
    kept(index, out)
    (home / "precious").mkdir()
    (home / "precious/000000.npy").write_text("mine")
    (out / "blocks/linked").symlink_to(home / "precious")
    with pytest.raises(RunError, match=r"no run's: blocks/linked"):
        index.add("demo", b"h", out, replace=True)
    (out / "blocks/linked").unlink()
    # A party's own library may leave a link in the party's folder: the link goes, and not what it leads to.
    (out / "parties/party-1/linked").symlink_to(home / "precious")
    assert output.remove(out) == []
    assert not out.exists()
    assert (home / "precious/000000.npy").read_text() == "mine"


def test_a_link_to_a_run_does_not_make_way(index, out, home):
    kept(index, home / "elsewhere")
    out.symlink_to(home / "elsewhere")
    with pytest.raises(RunError, match="a link, never followed to remove a run"):
        index.add("demo", b"h", out, replace=True)
    assert out.is_symlink()
    assert (home / "elsewhere/run.sqlite").exists()


def test_the_folder_that_the_command_was_started_in_is_not_renamed_below_it(index, out, monkeypatch):
    kept(index, out)
    monkeypatch.chdir(out)
    with pytest.raises(RunError, match="is the folder that this was started in"):
        index.add("demo", b"h", Path.cwd(), replace=True)
    assert (out / "run.sqlite").exists()


def test_a_run_that_is_replaced_is_whole_beside_the_new_one_and_listed_until_that_begins(index, out):
    before = kept(index, out)
    files = everything(out)
    store = index.add("demo", b"h", out, replace=True)
    (aside,) = store.fact("replaced")
    assert {path for path in everything(Path(aside)) if "run.sqlite" not in path} == {
        path for path in files if "run.sqlite" not in path
    }
    assert {(entry.id, str(entry.folder)) for entry in index.entries()} == {(before, aside), (store.id, str(out))}
    assert output.left_aside(out) == [Path(aside)]
    store.close()
    # Killed before it began, the new run makes way as well: nothing that it was to replace is forgotten.
    third = index.add("demo", b"h", out, replace=True)
    assert len(third.fact("replaced")) == 2
    assert aside in third.fact("replaced")


def test_a_new_run_that_cannot_be_made_leaves_the_old_one_in_its_place(index, out, monkeypatch):
    before = kept(index, out)
    files = everything(out)

    def full(*_, **__):
        raise RunError("the disk is full.")

    monkeypatch.setattr(RunStore, "create", full)
    with pytest.raises(RunError, match="full"):
        index.add("demo", b"h", out, replace=True)
    monkeypatch.undo()
    assert everything(out).keys() == files.keys()
    assert [(entry.id, entry.folder) for entry in index.entries()] == [(before, out)]


def test_what_is_put_beside_a_run_while_it_is_aside_stays(index, out):
    kept(index, out)
    store = index.add("demo", b"h", out, replace=True)
    aside = Path(store.fact("replaced")[0])
    (aside / "artefacts/notes.txt").write_text("dear")
    assert output.remove(aside) == ["artefacts/notes.txt"]
    assert everything(aside).keys() == {"artefacts", "artefacts/notes.txt", output.MARKER}


def test_a_new_folder_an_empty_one_and_what_a_kill_left_of_one_are_taken(index, out):
    out.mkdir()
    index.add("demo", b"h", out).close()
    (out / "run.sqlite").unlink()
    run = index.add("demo", b"h", out)
    assert json.loads((out / output.MARKER).read_bytes()) == {"format": 1, "kind": "conclave run", "run": run.id}


def test_a_kill_while_the_marker_is_written_spoils_no_folder(index, out):
    out.mkdir()
    (out / f".{output.MARKER}.{'0' * 16}.part").write_bytes(b"{")
    index.add("demo", b"h", out)
    assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


def test_what_others_may_not_read_is_made_so_whatever_the_umask(index, home):
    before = os.umask(0o022)
    try:
        store = index.add("demo", b"h", None)
        store.write("artefacts/words/deep.json", b"w")
        store.note(more="written")
        (store.folder / "loose").mkdir(mode=0o755)
        (store.folder / "loose/file").write_text("by a library")
        close_to_others(store.folder / "loose")
        write_whole(home / "new/above/file", b"x")
    finally:
        os.umask(before)
    for top in (home / "home", home / "new"):
        for path in (top, *top.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_an_index_and_a_folder_of_runs_that_everybody_could_read_are_closed(index, home):
    (home / "home/runs").mkdir(parents=True, mode=0o755)
    (home / "home/runs.sqlite").touch(0o644)
    index.add("demo", b"h", None)
    assert (home / "home/runs").stat().st_mode & 0o777 == 0o700
    assert (home / "home/runs.sqlite").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def driven(monkeypatch, home):
    """`driven(what)`: runs do `what` with their drive in place of asking parties; no public text is read."""
    Path("plan.toml").write_text(RAY)
    recipe = SimpleNamespace(doubts=list)
    priced = SimpleNamespace(binding=SimpleNamespace(document="{}"))
    monkeypatch.setattr(api, "prepared", lambda *_: recipe)
    monkeypatch.setattr(api, "price_plan", lambda recipe: priced)
    monkeypatch.setattr(api, "plan_hash", lambda binding: b"h" * 32)
    monkeypatch.setattr(api, "own_identity", lambda plan, base: None)
    monkeypatch.setattr(api, "launcher_of", lambda plan: SimpleNamespace(begun=lambda *given: nullcontext()))

    def drives(what):
        monkeypatch.setattr(api, "driven", what)

    return drives


def refused(drive):
    drive.store.note(status=FAILED, error="no")
    raise PartyRefused("party north said no.")


def stopped(drive):
    raise RunStopped("stopped")


def begun(drive):
    drive._begun()
    return "begun"


def test_a_run_that_never_begins_gives_the_folder_back_to_the_one_before(driven, index, out, capsys):
    before = kept(index, out)
    files = everything(out)
    driven(refused)
    assert main(["run", "plan.toml", "--output", "out", "--replace"]) == 1
    said = capsys.readouterr().err
    assert "until this one has begun" in said
    assert "holds again the run that it held before" in said
    assert everything(out).keys() == files.keys()
    assert (out / "artefacts/student.safetensors").read_bytes() == b"s"
    assert [(entry.id, entry.folder) for entry in index.entries()] == [(before, out)]
    assert output.left_aside(out) == []


def test_a_run_that_is_stopped_before_it_begins_can_go_on_and_loses_nothing(driven, index, out, capsys):
    before = kept(index, out)
    driven(stopped)
    assert main(["run", "plan.toml", "--output", "out", "--replace"]) == 130
    (aside,) = output.left_aside(out)
    assert str(aside) in capsys.readouterr().err
    assert (aside / "artefacts/student.safetensors").read_bytes() == b"s"
    assert {entry.id: entry.folder for entry in index.entries()}[before] == aside


def test_the_run_before_is_removed_once_the_new_one_has_begun(driven, index, out):
    before = kept(index, out)
    driven(begun)
    assert api.run("plan.toml", output="out", replace=True) == "begun"
    assert output.left_aside(out) == []
    (entry,) = index.entries()
    assert (entry.folder, entry.id == before) == (out, False)
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
def test_a_run_that_was_killed_with_another_aside_is_told_of_the_next_time(driven, index, out, capsys):
    kept(index, out)
    child = os.fork()
    if not child:
        try:
            driven(lambda drive: os.kill(os.getpid(), signal.SIGKILL))
            main(["run", "plan.toml", "--output", "out", "--replace"])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    driven(stopped)
    assert main(["run", "plan.toml", "--output", "out", "--replace"]) == 130
    first, second = output.left_aside(out)
    said = capsys.readouterr().err
    assert f"{first} holds a run that made way for another" in said or f"{second} holds a run" in said
    assert (out / "run.sqlite").exists()


def test_a_planted_list_of_runs_to_remove_removes_none_but_those_that_stand_aside(driven, index, out, home):
    elsewhere = home / "elsewhere"
    kept(index, elsewhere)

    def planted(drive):
        drive.store.note(replaced=[str(elsewhere)])
        drive._begun()

    driven(planted)
    api.run("plan.toml", output="out")
    assert (elsewhere / "run.sqlite").exists()


def test_a_run_that_goes_on_publishes_where_the_plan_says_by_now_and_tries_it_before_it_asks_anybody(index, home):
    store = index.add("demo", b"h", None)
    store.note(student=str(home / "taken"))
    Path("plan.toml").write_text(RAY.replace("published/my-embeddings", "free"))
    plan = read_plan(Path("plan.toml"))
    (home / "free").write_text("somebody's")
    with pytest.raises(RunError, match="free exists already"):
        resuming.place_again(store, plan, home)
    (home / "free").unlink()
    resuming.place_again(store, plan, home)
    assert store.fact("student") == str(home / "free")
    # All of a run that is in one folder stays there.
    store.note(student=str(store.folder / "student"))
    resuming.place_again(store, plan, home)
    assert store.fact("student") == str(store.folder / "student")


def test_that_the_plans_place_to_publish_is_not_used_is_said(driven, capsys):
    driven(stopped)
    assert main(["run", "plan.toml", "--output", "out"]) == 130
    assert "out/student, not to published/my-embeddings" in capsys.readouterr().err
    Path("plan.toml").write_text(RAY.replace('publish  = "published/my-embeddings"\n', ""))
    assert main(["run", "plan.toml", "--output", "other"]) == 130
    assert "--output" not in capsys.readouterr().err


def test_public_text_of_another_kind_is_warned_of_before_any_party_is_asked(driven, capsys):
    Path("plan.toml").write_text(RAY.replace('"documentation"', '"notes.jsonl"'))
    driven(stopped)
    assert main(["run", "plan.toml", "--output", "out"]) == 130
    said = capsys.readouterr().err
    assert "warning: [vocabulary] documentation-topics is Python's documentation" in said
    assert "warning: [evaluation] documentation-heldout is Python's documentation" in said
