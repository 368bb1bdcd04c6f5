"""What a run is computed with: checked before anything is spent, told by parties, and stated where it is unusual."""

import json
from contextlib import closing

import pytest
import torch

from coordinator import api
from coordinator.errors import PlanError, RunError
from coordinator.progress.progress import Silent
from coordinator.publishing.computing import differing, stated
from coordinator.publishing.report import render
from coordinator.run.before.computing import memory_told
from coordinator.run.party_files import party_tables
from coordinator.store.store import RunStore
from coordinator.systems.dp_sgd import recipe as dp_sgd
from coordinator.systems.registry import check_plan, plan_of
from learning.errors import EXHAUSTED, ComputeError
from protos.computed import Computed
from protos.conclave.v1 import party_pb2
from protos.console.mistakes import SettingsError

HALF = Computed("cpu", "bfloat16")
DEVICE = Computed("cuda", "bfloat16")
NOWHERE = "cuda:99"
PARTIES = ("party-1", "party-2", "party-3", "party-4")


class Told(Silent):
    def __init__(self):
        self.said = []

    def say(self, sentence):
        self.said.append(sentence)


def test_parties_that_differ_are_named_and_most_of_them_are_the_others():
    usual = Computed()
    assert differing({"east": usual, "north": usual}) is None
    assert differing({"east": usual, "north": DEVICE, "south": usual}) == (
        "north computes on cuda in bfloat16, the others on cpu in float32: a second run is not bit for bit the same"
    )
    assert differing({"east": usual, "north": DEVICE, "south": usual, "west": HALF, "x": DEVICE, "y": usual}) == (
        "west computes on cpu in bfloat16, north and x on cuda in bfloat16, the others on cpu in float32: a second run "
        "is not bit for bit the same"
    )


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), ComputeError(EXHAUSTED, code="C304")])
def test_memory_that_is_exhausted_says_how_the_run_goes_on_and_has_the_code_of_its_page(error):
    said = r"nothing of it is paid again.*coordinator resume run-1"
    with pytest.raises(RunError, match=said) as caught, memory_told("run-1"):
        raise error
    assert caught.value.code == "C304"


def test_nothing_is_stated_of_processors_alone_and_all_of_anything_else():
    assert stated({"north": [Computed()]}, [Computed()], ["north"]) == {}
    assert stated({"north": [Computed()], "gone": [DEVICE]}, [Computed()], ["north"]) == {}
    found = stated({"north": [Computed(), DEVICE]}, [Computed()], ["north", "south"])
    assert found["parties"] == {"north": "cpu in float32 and cuda in bfloat16", "south": "cpu in float32"}
    assert found["says"][0] == (
        "Computed by south and the coordinator on cpu in float32; north on cpu in float32 and cuda in bfloat16."
    )


def test_what_a_party_tells_is_empty_for_what_is_usual_and_cannot_write_into_a_report():
    assert party_pb2.JoinResponse(**Computed().fields).SerializeToString() == b""
    assert Computed.told(party_pb2.JoinResponse()) == Computed()
    assert Computed.told(party_pb2.JoinResponse(**DEVICE.fields)) == DEVICE
    odd = Computed.told(party_pb2.JoinResponse(device="\x1b[2J**cuda**" * 99, precision="a\nb"))
    assert len(odd.device) <= 32
    assert "\x1b" not in str(odd)
    assert "\n" not in str(odd)


def test_the_keys_are_no_part_of_the_plan_hash_and_go_to_the_parties_that_are_started_here(classifier_plan):
    plain = classifier_plan()
    other = classifier_plan(run={"device": "cpu", "precision": "bfloat16", "threads": 1})
    assert other.document() == plain.document()
    assert other.document(places=True) == plain.document(places=True)
    assert {str(table["compute"]) for table in party_tables(other).values()} == {
        str({"device": "cpu", "precision": "bfloat16", "threads": 1})
    }


def test_on_a_cluster_a_party_with_a_gpu_computes_there_and_any_other_on_its_processor(classifier_tables):
    cluster = {"party": {"party-2": {"gpus": 0.5}}}
    tables = classifier_tables(run={"device": "cpu", "precision": "bfloat16"})
    tables["federation"]["cluster"] = cluster
    made = {name: table["compute"] for name, table in party_tables(plan_of(tables)).items()}
    assert made.pop("party-2") == {"device": "cuda", "precision": "bfloat16"}
    assert list(made.values()) == [{"device": "cpu"}] * 3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": NOWHERE}, r'\[run\]: There is no device "cuda:99" on this machine\. It has .*cpu'),
        ({"threads": 4000}, r"\[run\]: threads = 4000 are more than the \d+ processors"),
    ],
)
def test_what_is_not_there_ends_a_run_before_any_party_is_asked(here, classifier_plan, tmp_path, keys, said):
    for command in (api.run, api.forecast):
        with pytest.raises(PlanError, match=said) as error:
            command(classifier_plan(run=keys))
        assert "\n" not in str(error.value)
    assert here.asked == []
    assert api.runs() == []


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "gpu"}, r'\[run\] device = "gpu": this is no device\. Use "auto", "cpu", "cuda" or "mps"'),
        ({"precision": "int8"}, r"\[run\] precision = \"int8\" is not one of 'float32', 'bfloat16' or 'float16'"),
        ({"threads": -1}, r"\[run\] threads = -1 should be greater than or equal to 0"),
    ],
)
def test_a_key_that_is_wrong_is_a_sentence_with_its_name(classifier_tables, keys, said):
    with pytest.raises(SettingsError, match=said):
        check_plan(classifier_tables(run=keys), "plan.toml")


CHOSEN = {"device": "cuda", "precision": "bfloat16", "threads": 7}


@pytest.mark.parametrize(
    ("table", "inside"),
    [
        (table, inside)
        for table in ("parties", "cluster.party.party-2", "shards", "")
        for inside in ({"compute": CHOSEN}, {"run": CHOSEN}, CHOSEN)
    ],
)
def test_a_plan_cannot_say_what_a_party_computes_with(classifier_tables, table, inside):
    """It has no such key for a party that runs elsewhere, for one that Ray starts, for their shards, or for all."""
    tables = classifier_tables()
    federation = tables["federation"]
    if table == "parties":
        del federation["shards"]
        federation |= {"launch": "connect", "parties": [{"name": "north", "address": "localhost:1"} | inside]}
    elif table == "shards":
        federation["shards"] |= inside
    elif table:
        federation["cluster"] = {"party": {"party-2": inside}}
    else:
        federation |= inside
    with pytest.raises(SettingsError, match=rf"{next(iter(inside))}.* is not a (key|table)|no key|unknown") as error:
        check_plan(tables, "plan.toml")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_party_in_another_precision_is_told_on_the_terminal_in_the_report_and_in_what_is_published(
    here, classifier_plan, tmp_path
):
    here.changes = {"party-2": {"compute": {"precision": "bfloat16"}}}
    told = Told()
    result = api.run(classifier_plan(), output=tmp_path / "run", progress=told)
    assert result.verdict.ok, result.verdict.checks
    mixed = (
        "party-2 computes on cpu in bfloat16, the others on cpu in float32: a second run is not bit for bit the same"
    )
    assert f"  {mixed}" in told.said
    privacy = json.loads((result.student / "privacy.json").read_text())
    assert privacy["computed"]["coordinator"] == "cpu in float32"
    assert privacy["computed"]["parties"]["party-2"] == "cpu in bfloat16"
    line = "party-1, party-3, party-4 and the coordinator on cpu in float32"
    assert line in (result.student / "README.md").read_text()
    assert line in render(api.report(result.run))
    assert any("kind of device" in each for each in privacy["not_protected"])


@pytest.mark.slow
def test_a_device_too_small_for_the_student_leaves_a_run_that_goes_on_elsewhere(
    here, classifier_plan, tmp_path, monkeypatch
):
    """The device's failure is made up; everything before and after it is not."""
    here.stays = True

    def full(*given):
        raise ComputeError("The memory of cuda:0 is too small, even for one text at a time.")

    with monkeypatch.context() as patch:
        patch.setattr(dp_sgd.DpSgd, "student", full)
        with pytest.raises(RunError, match=r'set \[run\] device = "cpu" .*  coordinator resume \S+-demo$') as error:
            api.run(classifier_plan(), output=tmp_path / "run")
    assert str(error.value).startswith("The memory of cuda:0 is too small")
    asked = list(here.asked)
    with closing(RunStore(tmp_path / "run")) as store:
        assert store.status() == "resumable"
    assert api.resume(tmp_path / "run").verdict.ok
    assert here.asked == asked


@pytest.mark.slow
def test_a_coordinator_on_a_device_gives_the_processors_student_and_says_where_it_can_be_had_again(
    here, classifier_plan, tmp_path, elsewhere
):
    """The device is the tests' second one, whose arithmetic is the processor's; parties' files take the processor."""
    here.changes = {name: {"compute": {"device": "cpu"}} for name in PARTIES}
    same = {"insecure_reproducible_noise": True}
    done = elsewhere.done
    found = api.run(classifier_plan(privacy=same, run={"device": "cuda"}), output=tmp_path / "there")
    assert elsewhere.done > done, "nothing ran there"
    with elsewhere.paused():
        usual = api.run(classifier_plan(privacy=same), output=tmp_path / "here")
    assert "computed" not in usual.statement.privacy
    assert found.statement.privacy["computed"]["coordinator"] == "elsewhere in float32"
    assert "With the same noise the same student comes out bit for bit only on these devices" in render(
        api.report(found.run)
    )
    one, other = ((each.student / "model.safetensors").read_bytes() for each in (found, usual))
    assert one == other
    assert found.metrics == usual.metrics
