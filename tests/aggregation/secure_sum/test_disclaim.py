"""A charge goes when too few parties are left that could ever reveal a share of the charged party's seed."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.consistency import consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.disclaim import (
    Disclaimer,
    Disclaimers,
    check_disclaimer,
    check_disclaimers,
    disclaim,
    least_signers,
)
from aggregation.secure_sum.field import combine
from aggregation.secure_sum.graph import shape
from aggregation.secure_sum.opening import group_of


def disclaimed(stage, names, context=None, signing=None):
    signing = signing or stage.signing
    return Disclaimers(tuple(disclaim(context or stage.context, n, signing.signer(n)) for n in names))


def accepted(stage, shown, holders=None):
    """Whether a charged party would take its charge back."""
    try:
        check_disclaimers(stage.context, holders or stage.names, shown, stage.signing.verify)
    except ConclaveError:
        return False
    return True


def test_disclaimers_come_back_from_their_bytes(scene):
    stage = scene(5)
    shown = disclaimed(stage, stage.names[:3])
    assert Disclaimers.decode(shown.encode()) == shown
    first = shown.disclaimers[0]
    assert Disclaimer.decode(first.encode(), "p00") == first
    with pytest.raises(Cheated, match="in the name of 'p00'"):
        Disclaimer.decode(first.encode(), "p01")


@pytest.mark.parametrize(("count", "colluders", "needed"), [(4, 0, 2), (4, 1, 3), (5, 0, 3), (5, 3, 4), (16, 2, 9)])
def test_it_takes_so_many_signatures_and_not_one_fewer(scene, count, colluders, needed):
    stage = scene(count, dropouts=0, colluders=colluders)
    assert least_signers(stage.context, stage.names) == needed
    assert accepted(stage, disclaimed(stage, stage.names[:needed]))
    few = disclaimed(stage, stage.names[: needed - 1])
    with pytest.raises(ConclaveError, match=f"{needed - 1} of the {count} parties .* takes {needed}") as refusal:
        check_disclaimers(stage.context, stage.names, few, stage.signing.verify)
    assert not isinstance(refusal.value, Cheated)
    twice = Disclaimers((*few.disclaimers, few.disclaimers[-1]))
    assert not accepted(stage, twice), "one party counts once"


@given(st.data())
def test_whoever_may_still_speak_is_too_few_to_rebuild_and_all_signing_always_suffices(data):
    count = data.draw(st.integers(2, 40))
    dropouts = data.draw(st.integers(0, (count - 1) // 3))
    colluders = data.draw(st.integers(0, max(0, min(count - 1 - 2 * dropouts, count // 4))))
    try:
        context = Context.of(
            run="r", plan_hash="ab", sum="s", attempt=0, parties=[f"p{i:02}" for i in range(count)], length=1,
            dropouts=dropouts, colluders=colluders,
        )  # fmt: skip
        form = shape(context)
    except ConclaveError:
        return
    near = context.parties[: min(form.degree + 1, count)]
    for holders in (near, context.parties):
        needed = least_signers(context, holders)
        silent = len(holders) - needed
        assert silent + colluders < form.threshold <= silent + 1 + colluders
    assert least_signers(context, near) <= len(near)
    # All parties in place of the neighbours, and as few signatures as that takes: too few neighbours are left too.
    left = min(len(near), count - least_signers(context, context.parties))
    assert left + colluders < form.threshold


def test_the_shares_of_those_who_did_not_sign_and_of_colluders_rebuild_nothing(scene):
    """By hand: one fewer signature, and the rest of the holders has the seed."""
    stage = scene(6, dropouts=0, colluders=1)
    stage.up_to("mask")
    owner, names = stage.parties["p00"], stage.names
    group = group_of(stage.context, stage.server.roster(), None)
    needed = least_signers(stage.context, names)

    def rebuilt(signers):
        lying = signers[-1:]  # one that signed collude
        chosen = [n for n in names if n not in signers] + lying
        shares = {group.points[n]: stage.parties[n]._held["p00"].seed for n in chosen}
        return len(shares) >= group.threshold and combine(shares) == owner._secrets.seed

    assert owner.holders == set(names)
    assert not rebuilt(names[:needed])
    assert rebuilt(names[: needed - 1])


def test_neighbours_count_and_nobody_else_does(scene):
    stage = scene(40, dropouts=1, colluders=1)
    stage.up_to("share")
    holders = stage.parties["p00"].holders
    assert holders == {*stage.server.group.near["p00"], "p00"} != set(stage.names)
    assert scene(5).parties["p00"].holders is None
    needed = least_signers(stage.context, holders)
    others = [n for n in stage.names if n not in holders]
    assert accepted(stage, disclaimed(stage, sorted(holders)[:needed]), holders)
    few = [*sorted(holders)[: needed - 1], *others]
    assert not accepted(stage, disclaimed(stage, few), holders)
    assert least_signers(stage.context, stage.names) > needed


@pytest.mark.parametrize("field", ["run", "plan_hash", "sum", "attempt", "length", "dropouts"])
def test_a_disclaimer_of_another_attempt_run_plan_or_sum_is_none_of_this(scene, field):
    stage = scene(7, dropouts=1)
    changed = {"run": "other", "plan_hash": "cd" * 32, "sum": "counts", "attempt": 1, "length": 3, "dropouts": 0}
    other = disclaimed(stage, stage.names, dataclasses.replace(stage.context, **{field: changed[field]}))
    with pytest.raises(Cheated, match="another attempt, sum or run"):
        check_disclaimers(stage.context, stage.names, other, stage.signing.verify)
    relabelled = dataclasses.replace(other.disclaimers[0], context=stage.context.digest)
    with pytest.raises(Cheated, match="not the one pinned for it"):
        check_disclaimer(stage.context, relabelled, stage.signing.verify)


def test_forged_and_foreign_disclaimers_are_refused(scene, signing):
    stage = scene(5)
    for shown, said in (
        (disclaimed(stage, stage.names, signing=signing("forger")), "not the one pinned for it"),
        (disclaimed(stage, ["p99"]), "without having a part"),
        (disclaimed(stage, [*stage.names, "p00"]), "showed more disclaimers"),
    ):
        with pytest.raises(Cheated, match=said) as refusal:
            check_disclaimers(stage.context, stage.names, shown, stage.signing.verify)
        assert refusal.value.who in ("p00", "p99", COORDINATOR)
    stage.up_to("mask")
    survivors = stage.server.survivors()
    signed = consent(survivors, "p00", stage.signing.signer("p00"))
    passed_off = Disclaimer(stage.context.digest, "p00", signed.signature)
    with pytest.raises(Cheated, match="not the one pinned for it"):
        check_disclaimer(stage.context, passed_off, stage.signing.verify)


def test_bytes_that_are_no_disclaimers_are_the_coordinators(scene):
    with pytest.raises(Cheated, match="where 'conclave secure sum disclaimers v1' was due") as refusal:
        Disclaimers.decode(scene(5).parties["p00"].advertise().encode())
    assert refusal.value.who == COORDINATOR
