"""A charge goes when the one list of survivors that honest parties can have signed does not name the charged party."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import COORDINATOR, Cheated, ConclaveError
from aggregation.secure_sum.absence import Absence, absence, check_absent, shows_absence
from aggregation.secure_sum.consistency import Consents, Survivors, consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.disclaim import Disclaimers
from aggregation.secure_sum.field import combine
from aggregation.secure_sum.graph import choose, shape
from aggregation.secure_sum.unmask import Kind


def gone(stage, lost=("p00",)):
    """What the coordinator has of an attempt that went on without some, and the round of signatures is over."""
    stage.up_to("mask", lost, at="mask")
    left = [name for name in stage.names if name not in lost]
    stage.consent(left)
    shown = stage.server.openings().encode() if len(stage.names) > 16 else b""
    return absence(stage.server.group, shown, stage.server.survivors(), stage.server.consents())


def accepted(stage, shown, party="p00"):
    try:
        check_absent(stage.context, party, shown, stage.signing.verify)
    except ConclaveError:
        return False
    return True


def signed(stage, names, signers, group=None, signing=None):
    """An absence over any list of names, signed by whoever."""
    survivors = Survivors(group or stage.server.group.digest, tuple(names))
    signing = signing or stage.signing
    given = Consents(tuple(consent(survivors, each, signing.signer(each)) for each in signers))
    return Absence(stage.server.group.roster.digest, b"", survivors.names, given)


@pytest.mark.parametrize("count", [5, 40])
def test_a_party_that_was_lost_after_its_vector_began_to_leave_is_shown_that_it_is_out(scene, count):
    stage = scene(count)
    shown = gone(stage)
    assert Absence.decode(shown.encode()) == shown
    check_absent(stage.context, "p00", shown, stage.signing.verify)
    assert shows_absence(shown.encode())
    assert not shows_absence(Disclaimers(()).encode())


def test_who_is_in_the_sum_is_not_out_of_it(scene):
    stage = scene(5)
    shown = gone(stage)
    with pytest.raises(Cheated, match="by a list that names it") as refusal:
        check_absent(stage.context, "p01", shown, stage.signing.verify)
    assert refusal.value.who == COORDINATOR


@pytest.mark.parametrize("colluders", [0, 1, 2])
def test_it_takes_the_threshold_of_signatures_and_not_one_fewer(scene, colluders):
    stage = scene(7, dropouts=1, colluders=colluders)
    gone(stage)
    left, needed = stage.names[1:], stage.context.threshold
    assert accepted(stage, signed(stage, left, left[:needed]))
    few = left[: needed - 1]
    with pytest.raises(ConclaveError, match=f"{needed - 1} parties signed .* takes {needed}") as refusal:
        check_absent(stage.context, "p00", signed(stage, left, few), stage.signing.verify)
    assert not isinstance(refusal.value, Cheated)
    assert not accepted(stage, signed(stage, left, [*few, few[-1]])), "one party counts once"


def test_forged_mixed_foreign_and_reordered_signatures_are_refused(scene, signing):
    stage = scene(7)
    whole = gone(stage)
    left = stage.names[1:]
    forged = signed(stage, left, left, signing=signing("forger"))
    mixed = dataclasses.replace(
        whole, consents=Consents((*whole.consents.consents[:-1], *signed(stage, left[1:], left[-1:]).consents.consents))
    )
    own = signed(stage, left, [*left, "p00"])
    relabelled = dataclasses.replace(whole, names=tuple(left[1:]))
    for shown, said in (
        (forged, "not the one pinned for it"),
        (mixed, "signed another list"),
        (own, "on which it does not stand"),
        (relabelled, "signed|does not stand"),
        (signed(stage, [*left, "p99"], left), "who took no part"),
        (signed(stage, left[::-1], left), "out of order"),
        (signed(stage, left, [*left, *left]), "more signatures"),
        (dataclasses.replace(whole, openings=b"nonces"), "nonces"),
        (dataclasses.replace(whole, roster=bytes(32)), "signed another list"),
    ):
        with pytest.raises(Cheated, match=said):
            check_absent(stage.context, "p00", shown, stage.signing.verify)


@pytest.mark.parametrize("field", ["run", "plan_hash", "sum", "attempt", "length", "dropouts"])
def test_signatures_of_another_attempt_run_plan_or_sum_show_nothing_of_this(scene, field):
    changed = {"run": "other", "plan_hash": "cd" * 32, "sum": "counts", "attempt": 1, "length": 3, "dropouts": 0}
    stage = scene(7)
    shown = gone(stage)
    elsewhere = dataclasses.replace(stage.context, **{field: changed[field]})
    with pytest.raises(Cheated, match="signed another list"):
        check_absent(elsewhere, "p00", shown, stage.signing.verify)


def test_above_sixteen_parties_the_nonces_that_drew_the_graph_must_be_those_that_were_signed(scene):
    stage = scene(40)
    shown = gone(stage)
    with pytest.raises(Cheated, match="left out the nonces"):
        check_absent(stage.context, "p00", dataclasses.replace(shown, openings=b""), stage.signing.verify)
    with pytest.raises(Cheated, match="signed another list"):
        check_absent(stage.context, "p00", dataclasses.replace(shown, openings=b"others"), stage.signing.verify)


def test_a_graph_whose_colluders_could_rebuild_a_seed_has_no_refund(scene, monkeypatch):
    stage = scene(40, colluders=2)
    shown = gone(stage)
    weak = dataclasses.replace(shape(stage.context), threshold=2)
    monkeypatch.setattr("aggregation.secure_sum.absence.shape", lambda context: weak)
    with pytest.raises(ConclaveError, match="2 colluders hold enough shares"):
        check_absent(stage.context, "p00", shown, stage.signing.verify)


@given(st.integers(2, 60), st.integers(0, 12), st.data())
def test_colluders_who_sign_two_lists_never_bring_both_to_the_threshold(count, colluders, data):
    """Honest parties divide among the two lists in any way; the least threshold already keeps one of them short."""
    if colluders >= count:
        return
    names = [f"p{i:02}" for i in range(count)]
    try:
        context = Context.of(
            run="r", plan_hash="ab", sum="s", attempt=0, parties=names, length=1, dropouts=0, colluders=colluders
        )
    except ConclaveError:
        return
    honest = count - colluders
    first = data.draw(st.integers(0, honest))
    assert min(first, honest - first) + colluders < context.threshold


@given(st.integers(17, 200), st.integers(0, 40), st.integers(0, 20))
def test_no_graph_lets_colluders_alone_rebuild_a_seed(count, colluders, dropouts):
    if 2 * dropouts + colluders >= count:
        return
    try:
        form = choose(count, colluders, dropouts)
    except ConclaveError:
        return
    assert form.threshold > colluders


@pytest.mark.parametrize("count", [6, 40])
def test_all_that_survivors_reveal_and_all_that_colluders_hold_rebuild_no_seed_of_the_absent(scene, count):
    """By hand: every honest share that leaves is of the mask key; with the colluders' own the seed stays unknown."""
    stage = scene(count, dropouts=1, colluders=1)
    gone(stage)
    stage.reveal(stage.names[1:])
    owner, group = stage.parties["p00"], stage.server.group
    revealed = stage.server._recovery._shares["p00"]
    assert stage.server._recovery._kinds["p00"] is Kind.MASK_KEY
    holders = group.holders("p00")
    colluder = next(name for name in holders if name != "p00")
    known = {group.points[colluder]: stage.parties[colluder]._held["p00"].seed}
    assert combine(known) != owner._secrets.seed
    for name, share in revealed.items():
        if name != colluder:
            known[group.points[name]] = share
    assert combine(dict(list(known.items())[: group.threshold])) != owner._secrets.seed


def test_a_coordinator_that_shows_two_rosters_finds_signers_for_one_alone(scene):
    """Half is shown p00's advertisement and half is not: a majority of all parties signs one list or neither."""
    stage = scene(5, dropouts=1, colluders=1)
    gone(stage)
    threshold = stage.context.threshold
    without, colluder = stage.names[1:], stage.names[4]
    honest = stage.names[1:4]
    for split in range(len(honest) + 1):
        short = signed(stage, without, [*honest[:split], colluder])
        other = [*honest[split:], colluder, "p00"]
        assert not (accepted(stage, short) and len(other) >= threshold)
