"""What is kept of runs, shown and removed by the party's administrator: files and keys go, charges stay."""

import contextlib
import json
import sqlite3
import stat

import pytest

from party.console.command import main
from party.ledger.accounts import read_account
from party.ledger.purging import kept
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")


@pytest.fixture
def party_file(tmp_path):
    """The party file of the party whose folder is `north.party`."""
    path = tmp_path / "party.toml"
    path.write_text(
        'name = "north"\nlisten = "127.0.0.1:0"\nshard = { source = "notes.jsonl" }\n'
        'policy = { epsilon = 20.0, delta = 1e-6, recipes = ["dped"] }\n'
    )
    return str(path)


@pytest.fixture
async def answered(opened):
    """A caller whose run was answered, and whose node has ended."""
    caller = await (await opened()).ready()
    await caller.answer(caller.batch(0, 0, 3))
    await caller.node.stop()
    return caller


def keys(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "north.party" / "ledger.sqlite")) as sql:
        return [key for (key,) in sql.execute("SELECT noise_key FROM reservations")]


async def test_a_run_is_removed_with_its_keys_and_its_charges_stay(answered, opened, party_file, tmp_path, capsys):
    home = tmp_path / "north.party"
    (key,) = keys(tmp_path)
    assert len(key) == 32
    assert list((home / "runs/run-1").glob("*.artefact"))
    assert main(["purge", "run-1", "--config", party_file]) == 0
    assert "Nothing of run run-1 is kept now" in capsys.readouterr().out
    assert list((home / "runs").iterdir()) == []
    assert not list(home.rglob("*.artefact"))
    assert keys(tmp_path) == [None]
    assert not any(key in path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert [each.release for each in read_account(home / "ledger.sqlite", "north").reservations] == ["counts"]
    again = await opened()
    for waiting in (again.join(), again.train(), again.answer(again.batch(0, 0, 3))):
        with pytest.raises(Refusal) as refusal:
            await waiting
        assert refusal.value.reason == Reason.NOT_JOINED


async def test_without_a_run_it_lists_what_is_kept(answered, party_file, capsys):
    assert main(["purge", "--config", party_file, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["run"] == "run-1"
    assert listed["bytes"] > 72
    assert listed["joined_at"] > 0
    assert main(["purge", "--config", party_file]) == 0
    assert "run-1" in capsys.readouterr().out
    assert main(["purge", "run-1", "--config", party_file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"purged": "run-1"}
    assert main(["purge", "--config", party_file]) == 0
    assert "party north keeps nothing of any run" in capsys.readouterr().out


async def test_beside_a_node_it_lists_and_does_not_remove(opened, party_file, tmp_path, capsys):
    await (await opened()).ready()
    assert [each.run for each in kept(tmp_path / "north.party")] == ["run-1"]
    assert main(["purge", "run-1", "--config", party_file]) == 1
    error = capsys.readouterr().err
    assert "in use by another node. Stop that node first, then try again." in error
    assert error.count("\n") == 1
    assert [each.run for each in kept(tmp_path / "north.party")] == ["run-1"]


async def test_a_run_that_is_not_kept_is_one_sentence_and_nothing_is_made(answered, party_file, tmp_path, capsys):
    assert main(["purge", "run-2", "--config", party_file]) == 1
    assert capsys.readouterr().err == ("Nothing is kept here of run run-2. Runs of which something is: run-1. [C702]\n")
    (tmp_path / "other.toml").write_text(
        (tmp_path / "party.toml").read_text().replace('name = "north"', 'name = "other"')
    )
    for run in ("run-2", "../north.party"):
        assert main(["purge", run, "--config", str(tmp_path / "other.toml")]) == 1
    assert not (tmp_path / "other.party").exists()


async def test_a_folder_that_the_ledger_does_not_know_is_listed_and_removed(answered, tmp_path, party_file, capsys):
    stray = tmp_path / "north.party" / "runs" / "stray"
    stray.mkdir()
    (stray / "plan.pb").write_bytes(b"x" * 7)
    assert [(each.run, each.size) for each in kept(tmp_path / "north.party")][1:] == [("stray", 7)]
    assert main(["purge", "stray", "--config", party_file]) == 0
    assert not stray.exists()


async def test_everything_is_private_whatever_the_mask_says(opened, terms, releases, tmp_path):
    """Folders 0700 and files 0600, ledger, keys, artefacts and training log included."""
    caller = await opened(plan=terms(releases=releases("joint")), policy={"epsilon": 40.0})
    await caller.ready_to_teach()
    await caller.teach()
    await caller.answer(caller.batch(0, 0, 3, "answers"), columns=11)
    home = tmp_path / "north.party"
    seen = [home, *home.rglob("*")]
    assert {"ledger.sqlite", "slots.key", "lock", "plan.pb"} <= {path.name for path in seen}
    for path in seen:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
