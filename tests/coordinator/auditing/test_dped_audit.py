"""An audit of embeddings does not refute an honest run, and refutes one whose mechanism is broken."""

from types import SimpleNamespace

import numpy as np
import pytest

from aggregation.mechanisms.counts import CountsMechanism
from coordinator.errors import PlanError
from coordinator.publishing.audited import verdict
from learning.audits.gate import GATE
from learning.text.source import Document

SKELLAM = {"noise": "skellam", "trust": "secure-sum"}


def of(audit, attacked, kind):
    (found,) = [each for each in audit.attacks if (each.attacked, each.canaries) == (attacked, kind)]
    return found


@pytest.mark.slow
def test_an_honest_run_is_not_refuted(audit, dped_tables):
    found = audit(dped_tables("counts"), canaries=120)
    assert [(each.attacked, each.canaries) for each in found.attacks] == [
        ("counts", "worst"), ("counts", "natural"), ("student", "worst"), ("student", "natural"),
    ]  # fmt: skip
    assert not found.broken
    assert found.claimed == pytest.approx(1.0, abs=0.01)
    assert {each.count for each in found.attacks} == {120}
    assert (found.records, found.source, found.coins, found.run) == (180, 300, "seed", None)
    assert (found.format, found.against, found.gate) == (2, "gaussian", GATE)
    assert all(len(each.counted) == each.tried for each in found.attacks)
    assert not any(each.startswith("120 canaries could not have") for each in found.says)


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "canaries"), [("counts", 120), ("moments", 60)])
def test_without_noise_coins_are_guessed_and_the_claim_is_refuted(audit, dped_tables, no_noise, signal, canaries):
    """Moments have few columns here, so that many canaries would hide each other."""
    found = audit(dped_tables(signal), canaries=canaries, kinds=["worst"])
    worst = of(found, signal, "worst")
    assert worst.right > 0.9 * worst.guesses
    assert worst.lower > found.claimed
    assert found.broken


@pytest.mark.slow
@pytest.mark.parametrize(("private", "part", "against"), [({}, 8, "gaussian"), (SKELLAM, 16, "renyi")])
def test_too_little_noise_is_refuted_in_a_real_plan(audit, dped_tables, noise, private, part, against):
    """Power: with a known stream; an eighth of it takes about 150 canaries, a quarter 1,000, half more than 20,000."""
    noise(1 / part, key=1)
    found = audit(dped_tables("counts", privacy=private), canaries=150, kinds=["worst"])
    assert found.against == against
    assert of(found, "counts", "worst").refuted
    assert "right more often than mechanisms that keep the claim let it in one audit of 10,000" in verdict(found)


@pytest.mark.slow
def test_a_party_that_does_not_clip_is_caught_though_the_attacker_assumes_it_does(audit, dped_tables, monkeypatch):
    """A worst case has pairs enough that, unclipped, it stands far above the noise of a clipped one."""
    own = CountsMechanism.contribute

    def unclipped(mechanism, units):
        rows = own(mechanism, units)
        return rows if units.shape[0] == 1 else own(mechanism, units) * 50

    assert not audit(dped_tables("counts"), canaries=100, kinds=["worst"]).broken
    monkeypatch.setattr(CountsMechanism, "contribute", unclipped)
    assert audit(dped_tables("counts"), canaries=100, kinds=["worst"]).broken


@pytest.mark.slow
def test_teachers_that_hold_canaries_show_it_where_there_is_no_noise(audit, dped_tables, no_noise):
    asked = {"queries": 30, "classes": 30, "teachers_per_party": 10}
    found = audit(dped_tables("votes", "hidden", dped=asked), canaries=40, kinds=["worst"])
    assert {each.attacked for each in found.attacks} == {"votes", "hidden", "student"}
    for name in ("votes", "hidden"):
        each = of(found, name, "worst")
        assert each.right / each.guesses > 0.6, name


@pytest.mark.slow
def test_the_same_seed_gives_the_same_canaries_and_coins(audit, dped_tables, no_noise):
    one, other = (audit(dped_tables("counts"), canaries=60) for _ in range(2))
    assert one == other
    assert audit(dped_tables("counts"), canaries=60, seed=1) != one


@pytest.mark.slow
def test_coins_are_the_systems_where_no_seed_is_given(audit, dped_tables, no_noise):
    found = audit(dped_tables("counts"), canaries=40, seed=None)
    assert found.coins == "system"
    assert of(found, "counts", "worst").lower > 0  # as many are guessed to be in as out, whatever the coins were


@pytest.mark.slow
def test_users_and_sentences_are_units_of_their_own(audit, dped_tables, no_noise, letters):
    by_user = {"privacy": {"unit": "user"}, "shards": {"user": "sender", "split": {"by": "hash", "parties": 1}}}
    found = audit(dped_tables("counts", **by_user), canaries=60)
    assert found.unit == "all text of one user"
    assert of(found, "counts", "natural").count == 6  # half of twelve senders
    assert of(found, "counts", "worst").lower > 1
    found = audit(dped_tables("counts", privacy={"record": "sentence"}), canaries=60)
    assert found.unit == "one sentence"
    assert of(found, "counts", "worst").lower > 1


PAIRS = {"record": "pair", "epsilon": 1.0}


@pytest.mark.slow
def test_where_pairs_are_records_a_canary_is_two_of_them_and_an_honest_run_stands(audit, dped_tables):
    found = audit(dped_tables("counts", privacy=PAIRS), canaries=36)
    assert found.unit == "one pair"
    assert {(each.canaries, each.count) for each in found.attacks} == {("worst", 36), ("natural", 36)}
    assert not found.broken
    assert found.says[0].startswith("A text of two words has their pair from either end, so a canary is two pairs.")


@pytest.mark.slow
@pytest.mark.parametrize(("signal", "canaries"), [("counts", 120), ("moments", 60)])
def test_without_noise_pairs_are_told_apart_and_the_claim_of_two_is_refuted(
    audit, dped_tables, no_noise, signal, canaries
):
    found = audit(dped_tables(signal, privacy=PAIRS | {"epsilon": 0.5}), canaries=canaries, kinds=["worst"])
    worst = of(found, signal, "worst")
    assert worst.right > 0.9 * worst.guesses
    assert worst.lower > 0.5
    assert worst.refuted


@pytest.mark.slow
def test_a_party_that_takes_every_pair_for_more_than_it_is_charged_for_is_caught(audit, dped_tables, monkeypatch):
    """Each canary then stands far above the noise: guesses are right too often even for two units together."""
    own = CountsMechanism.contribute
    assert not audit(dped_tables("counts", privacy=PAIRS), canaries=120, kinds=["worst"]).broken
    monkeypatch.setattr(CountsMechanism, "contribute", lambda mechanism, units: own(mechanism, units) * 50)
    assert audit(dped_tables("counts", privacy=PAIRS), canaries=120, kinds=["worst"]).broken


def test_a_worst_case_of_pairs_is_a_rare_word_twice_or_two_words_that_teachers_are_asked_about(dped_tables, tmp_path):
    from coordinator.systems.registry import plan_of, prepared, system

    for signals, more in ((["counts"], {}), (["votes"], {"queries": 30, "classes": 30, "teachers_per_party": 10})):
        recipe = prepared(plan_of(dped_tables(*signals, privacy=PAIRS, dped=more)), tmp_path, tmp_path / "cache")
        attacks = system("dped").audit(recipe)
        found = attacks.worst(20, [Document("a", "x", {"sender": "s1"})], np.random.default_rng(0))
        words = [tuple(each.text.split()) for each in found]
        assert len(set(words)) == len(words) == 20
        twice = sum(first == second for first, second in words)
        assert twice == (18 if signals == ["counts"] else 0)  # half of 36 words are the rarer ones
        each = attacks._parts(attacks._units([SimpleNamespace(texts=(row.text,)) for row in found]))
        assert all(part.shape[0] == 2 and (part.sum(axis=1) == 1).all() for part in each)  # two units, of one pair each


@pytest.mark.slow
def test_an_audit_says_what_it_cannot_show(audit, dped_tables):
    found = audit(dped_tables("counts"), canaries=4, records=100)
    assert (found.records, found.source) == (96, 300)
    fewer, few, seed = found.says
    assert fewer.startswith("The simulation has 100 of the source's 300 records.")
    assert few.startswith("4 canaries could not have refuted 1.000 at 99.99%")
    assert few.endswith("That takes 30 canaries or more.")
    assert "seed" in seed
    (_, none, _) = audit(dped_tables("counts", privacy={"epsilon": 12.0}), canaries=4, records=100).says
    assert none.endswith("No number of canaries up to 20,000 does in one run: audit the plan at a smaller epsilon.")


def test_too_few_records_for_canaries_are_told(audit, dped_tables, tmp_path):
    (tmp_path / "few.jsonl").write_text('{"text": "balam baner"}\n' * 3)
    tables = dped_tables("counts", shards={"source": str(tmp_path / "few.jsonl")})
    with pytest.raises(PlanError, match="The source has 3 units, too few to take canaries from"):
        audit(tables, canaries=4)


def test_a_worst_case_is_two_rare_words_that_reach_the_clip(dped_tables, tmp_path):
    from coordinator.systems.registry import plan_of, prepared, system

    recipe = prepared(plan_of(dped_tables("counts")), tmp_path, tmp_path / "cache")
    attacks = system("dped").audit(recipe)
    found = attacks.worst(30, [Document("a", "x", {"sender": "s1"})], np.random.default_rng(0))
    assert len({frozenset(each.text.split()) for each in found}) == len(found) == 30
    words = recipe.read.vocabulary.words
    assert all(words.index(word) >= len(words) // 2 for each in found for word in each.text.split())
    assert {each.fields["sender"] for each in found} == {"s1"}
    units = attacks._units([SimpleNamespace(texts=(each.text,)) for each in found])
    assert np.sqrt(units.multiply(units).sum(axis=1)).min() > recipe.plan.dped.clip
