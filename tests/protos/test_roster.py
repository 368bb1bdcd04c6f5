"""Who takes part in a release, as both ends read it from a plan's terms."""

import pytest

from protos.conclave.v1 import plan_pb2
from protos.digest import plan_hash
from protos.roster import among, fewest, fewest_of, odd_roster, own_terms, roster_of, summing

ALL = ["clinic", "east", "north", "south"]
SUMMED, WEIGHTS = plan_pb2.FORM_SUMMED, plan_pb2.FORM_WEIGHTS


def release(name, *parties, form=SUMMED):
    made = plan_pb2.Release(name=name, form=form)
    if parties:
        made.roster.parties.extend(parties)
    return made


def terms(*releases, minimum=3):
    return plan_pb2.Terms(parties=ALL, minimum_parties=minimum, releases=releases)


DIVIDED = terms(release("said", "east", "north", "south"), release("learned", "clinic", form=WEIGHTS))


def test_a_release_without_a_roster_is_of_all_and_its_plan_has_the_hash_that_it_had():
    plain = terms(release("said"))
    assert roster_of(plain.releases[0], plain) == tuple(ALL)
    assert own_terms(plain, "clinic") is plain
    # The hash of this very plan before rosters were known.
    assert plan_hash(plan_pb2.Plan(terms=plain)).hex().startswith("97a2563f71ff8470")


@pytest.mark.parametrize(
    ("party", "own"), [("clinic", ["learned"]), ("east", ["said"]), ("south", ["said"]), ("nobody", [])]
)
def test_a_party_has_its_own_releases_alone(party, own):
    assert [each.name for each in own_terms(DIVIDED, party).releases] == own
    assert len(DIVIDED.releases) == 2


def test_what_is_of_all_is_everybodys_beside_what_is_not():
    both = terms(release("counts"), release("learned", "clinic", form=WEIGHTS))
    assert [each.name for each in own_terms(both, "clinic").releases] == ["counts", "learned"]
    assert [each.name for each in own_terms(both, "east").releases] == ["counts"]


def test_of_some_parties_as_many_are_left_as_the_plan_keeps_of_all():
    said, learned = DIVIDED.releases
    assert (fewest_of(said, DIVIDED), fewest_of(learned, DIVIDED)) == (2, 1)
    assert (fewest(4, 3, 4), fewest(4, 0, 4), fewest(4, 1, 2), fewest(5, 4, 4)) == (3, 0, 1, 3)
    seen = among(DIVIDED, roster_of(said, DIVIDED))
    assert (list(seen.parties), seen.minimum_parties) == (["east", "north", "south"], 2)
    assert among(DIVIDED, ALL) is DIVIDED


def test_noise_is_counted_in_the_smallest_sum():
    assert summing(DIVIDED) == ("east", "north", "south")
    assert summing(terms(release("a"), release("b", "east", "north"))) == ("east", "north")
    assert summing(terms(release("learned", "clinic", form=WEIGHTS))) == tuple(ALL)


@pytest.mark.parametrize(
    "parties",
    [["north", "east"], ["east", "east"], ["east", "west"], [""], ALL],
    ids=["not sorted", "twice", "strange", "nobody's name", "all"],
)
def test_a_roster_is_some_of_the_plans_parties_sorted_and_each_once(parties):
    assert "release said" in odd_roster(terms(release("said", *parties)))
    assert odd_roster(DIVIDED) is None
    assert odd_roster(terms(release("said"))) is None


def test_an_empty_roster_is_not_all_parties():
    odd = release("said")
    odd.roster.SetInParent()
    assert "release said" in odd_roster(terms(odd))
