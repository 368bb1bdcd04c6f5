"""Both ends compute the same digest of the same thing, and another of anything else."""

import hashlib

import pytest

from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest, batch_digest, canonical, operation_digest, plan_hash


def a_plan(**terms):
    return plan_pb2.Plan(document="{}", terms=plan_pb2.Terms(recipe="dped", seed=7, parties=["a", "b"], **terms))


def test_a_plan_hash_survives_the_wire():
    plan = a_plan(privacy=plan_pb2.Privacy(epsilon=0.1 + 0.2, delta=1e-6))
    assert plan_hash(plan_pb2.Plan.FromString(plan.SerializeToString())) == plan_hash(plan)
    assert len(plan_hash(plan)) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"minimum_parties": 2},
        {"privacy": plan_pb2.Privacy(epsilon=1.0)},
        {"privacy": plan_pb2.Privacy(insecure_reproducible_noise=True)},
        {"releases": [plan_pb2.Release(name="counts")]},
    ],
)
def test_any_other_term_gives_another_plan_hash(change):
    assert plan_hash(a_plan(**change)) != plan_hash(a_plan())


def test_the_smallest_difference_in_a_number_counts():
    one = a_plan(privacy=plan_pb2.Privacy(epsilon=1.0))
    other = a_plan(privacy=plan_pb2.Privacy(epsilon=1.0 + 2**-52))
    assert plan_hash(one) != plan_hash(other)


def test_a_number_that_is_none_has_a_plan_hash_like_no_other():
    hashes = {plan_hash(a_plan(privacy=plan_pb2.Privacy(epsilon=float(x)))) for x in ("nan", "inf", "-inf", "0")}
    assert len(hashes) == 4


def test_a_batch_digest_covers_run_release_number_and_rows_but_not_itself():
    def request(run="r", release="counts", batch=0, start=0, digest=b""):
        return party_pb2.AnswerRequest(
            run=party_pb2.RunContext(run_id=run, plan_hash=b"p"),
            release=release,
            batch=batch,
            digest=digest,
            rows=party_pb2.RowRange(start=start, stop=9),
        )

    same = batch_digest(request())
    assert batch_digest(request(digest=b"anything")) == same
    others = [request(run="s"), request(release="votes"), request(batch=1), request(start=1)]
    assert len({batch_digest(other) for other in others} | {same}) == 5


def test_digests_of_different_kinds_never_meet():
    batch = party_pb2.AnswerRequest()
    operation = party_pb2.TrainRequest()
    assert batch_digest(batch) != hashlib.sha256(canonical(batch)).digest()
    assert operation_digest(operation) != batch_digest(batch)


def test_an_artefact_is_named_as_any_other_tool_would():
    assert artefact_digest(b"words") == hashlib.sha256(b"words").digest()
