"""The source of an audit has the plan's records under the ids that they have, and canaries as units of their own."""

import json

import numpy as np
import pytest

from coordinator.auditing import source
from coordinator.auditing.canaries import Canary, flipped
from coordinator.run.party_files import party_tables
from coordinator.systems.registry import plan_of
from deploy.simulation import _config
from party.shard.units import units


def read(config, tmp_path, by_user=False):
    return {each.id for each in units(config.shard, "document", by_user=by_user, cache=tmp_path, frank=True)}


def test_every_record_stays_with_its_party_and_one_more_moves_none(dped_tables, tmp_path):
    plan = plan_of(dped_tables("counts"))
    rows = source.rows_of(plan, tmp_path, tmp_path, None, np.random.default_rng(0))
    assert (len(rows.kept), rows.source) == (300, 300)
    tables = party_tables(plan)
    before = [read(_config(name, each, tmp_path), tmp_path) for name, each in tables.items()]
    (canary,) = source.made(plan, [rows.kept[3]])
    more = [canary.rows[0], *rows.kept]
    after = source.divided(tables, tmp_path / "source.jsonl", "text", more)
    found = [read(_config(name, each, tmp_path), tmp_path) for name, each in after.items()]
    assert [each - {"canary-0"} for each in found] == before
    assert sum("canary-0" in each for each in found) == 1
    assert json.loads((tmp_path / "source.jsonl").read_text().splitlines()[1])["sender"] == "s0"


def test_a_sample_of_the_records_is_random_and_of_the_size(dped_tables, tmp_path):
    plan = plan_of(dped_tables("counts"))
    one, other = (source.rows_of(plan, tmp_path, tmp_path, 50, np.random.default_rng(seed)) for seed in (0, 1))
    assert (len(one.kept), one.source) == (50, 300)
    assert {row.id for row in one.kept} != {row.id for row in other.kept}


def test_natural_canaries_leave_the_others(dped_tables, tmp_path):
    plan = plan_of(dped_tables("counts", privacy={"unit": "user"}, shards={"user": "sender"}))
    rows = source.rows_of(plan, tmp_path, tmp_path, None, np.random.default_rng(0))
    canaries, left = source.natural(plan, rows, 4, np.random.default_rng(0))
    assert [len(each.rows) for each in canaries] == [25] * 4
    assert len(left) == 200
    assert not {row.fields["sender"] for row in left} & {row.fields["sender"] for each in canaries for row in each.rows}


def test_made_canaries_are_users_of_their_own(dped_tables, tmp_path):
    plan = plan_of(dped_tables("counts", privacy={"unit": "user"}, shards={"user": "sender"}))
    rows = source.rows_of(plan, tmp_path, tmp_path, 10, np.random.default_rng(0))
    canaries = source.made(plan, rows.kept[:3])
    assert [each.rows[0].fields["sender"] for each in canaries] == ["canary-0", "canary-1", "canary-2"]


@pytest.mark.parametrize("seed", [None, 3])
def test_coins_are_fair_and_of_the_seed_where_there_is_one(seed):
    canaries = [Canary("worst", ())] * 4000
    one, other = (flipped(canaries, seed).included for _ in range(2))
    assert 1800 < one.sum() < 2200
    assert (one == other).all() == (seed is not None)
