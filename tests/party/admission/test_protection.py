"""What a cap is about: a plan for another unit than the account's is refused, and figures say whose they are."""

import json

import pytest

from party.admission.protection import admit_unit
from party.config import check_config
from party.errors import PartyError
from party.ledger.accounts import open_account, read_account
from party.ledger.protection import FINENESS, Protection
from party.node.lifecycle import start
from party.tasks.result import load_counts
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

PLANS = {
    "pair": {"record": plan_pb2.RECORD_PAIR},
    "sentence": {"record": plan_pb2.RECORD_SENTENCE},
    "document": {},
    "user": {"unit": plan_pb2.UNIT_USER, "record": plan_pb2.RECORD_SENTENCE},
}


def policy(unit):
    return {"unit": "user"} if unit == "user" else {"record": unit}


def said(terms, tables, own, asked):
    """The refusal of a plan for `asked` by a party whose account is for `own`, else None."""
    config = check_config(tables(policy=policy(own), shard={"user": "who"}), "party.toml")
    try:
        admit_unit(terms(**PLANS[asked]), config)
    except Refusal as refusal:
        return refusal
    return None


@pytest.mark.parametrize("own", FINENESS)
@pytest.mark.parametrize("asked", FINENESS)
def test_a_plan_is_for_the_account_s_own_unit_or_is_refused(terms, tables, own, asked):
    refusal = said(terms, tables, own, asked)
    assert (refusal is None) == (own == asked)
    if refusal is not None:
        assert (refusal.reason, refusal.rule) == (Reason.POLICY, "unit")
        assert f"cap is for a {own}, added or removed, and this plan protects a {asked}, added or" in refusal.sentence
        assert f"Plan with {Protection(own).settings}" in refusal.sentence


def test_a_finer_and_a_coarser_plan_are_told_why(terms, tables):
    assert (
        "says nothing of a document, which holds any number of them" in said(terms, tables, "document", "pair").sentence
    )
    assert "by twice the bound" in said(terms, tables, "document", "user").sentence


@pytest.mark.parametrize("asked", ["pair", "sentence", "user"])
@pytest.mark.usefixtures("trains_here")
async def test_a_node_refuses_a_plan_for_another_unit_before_anything_is_on_record(opened, terms, tmp_path, asked):
    """Of these plans the charges were added up in one account."""
    caller = await opened(plan=terms(**PLANS[asked]), shard={"user": "who"})
    for check_only in (True, False):
        with pytest.raises(Refusal) as refusal:
            await caller.join(check_only=check_only)
        assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "unit")
    assert read_account(tmp_path / "north.party/ledger.sqlite", "north").reservations == ()


@pytest.mark.parametrize("unit", FINENESS)
@pytest.mark.usefixtures("trains_here")
async def test_a_node_answers_plans_for_the_unit_of_its_account(opened, terms, unit):
    caller = await opened(plan=terms(**PLANS[unit]), shard={"user": "who"}, policy=policy(unit))
    await caller.ready()
    assert len(await caller.answer(caller.batch(0, 0, 6))) == 1


async def test_an_account_is_for_one_unit_for_ever(tables, tmp_path):
    home = tmp_path / "north.party"
    home.mkdir(mode=0o700)
    open_account(home, "north", epsilon=20.0, delta=1e-6, simulation=False, protection=Protection("sentence"))
    with pytest.raises(PartyError, match="opened for a sentence, added or removed; the policy now says a document"):
        await start(check_config(tables(), "party.toml"), token="t", base=tmp_path)
    config = check_config(tables(policy={"record": "sentence"}), "party.toml")
    await (await start(config, token="t", base=tmp_path)).stop()


@pytest.mark.usefixtures("trains_here")
async def test_what_cannot_be_paid_is_refused_with_the_cap_and_its_unit(opened):
    caller = await opened(policy={"epsilon": 2.0})
    with pytest.raises(Refusal) as refusal:
        await caller.join()
    assert "cap of epsilon 2 (delta 1e-06) for a document, added or removed" in refusal.value.sentence


@pytest.mark.usefixtures("trains_here")
async def test_a_coordinator_of_a_party_whose_records_are_known_again_reads_nothing_of_it(opened, terms, tmp_path):
    """The first run of a fresh account over old records: whatever it says to a call, it names and counts no account."""
    first = await opened(plan=terms(), folder="shared", account="north", policy={"epsilon": 5.5})
    await first.ready()
    await first.answer(first.batch(0, 0, 6))
    await first.node.stop()
    again = await opened(plan=terms(), folder="shared", account="fresh", policy={"epsilon": 5.5})
    again.run.run_id = "run-2"
    await again.join()
    await again.provide()
    assert (await again.train())[-1].finished
    (noise,) = await again.answer(again.batch(0, 0, 6))
    assert noise.any()
    assert load_counts(tmp_path / "shared" / "runs" / "run-2" / "counts.counts.npz").nnz == 0
    again.run.run_id = "run-3"
    with pytest.raises(Refusal) as refusal:
        await again.join()
    assert refusal.value.reason == Reason.BUDGET
    for word in ("shares", "north", "before", "account"):
        assert word not in refusal.value.sentence


def test_json_of_a_budget_says_the_unit(tmp_path, capsys):
    from party.console.command import main

    path = tmp_path / "party.toml"
    path.write_text(
        'name = "north"\nshard = { source = "notes.jsonl", user = "who" }\n'
        'policy = { epsilon = 20.0, delta = 1e-6, recipes = ["dped"], unit = "user" }\n'
    )
    assert main(["account", "open", "--config", str(path)]) == 0
    assert "for good: epsilon 20 (delta 1e-06) for a user, added or removed." in capsys.readouterr().out
    assert main(["budget", "--config", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unit"], found["relation"]) == ("user", "add-or-remove")
