"""What teachers are asked, against the terms and what was provided: refused with a sentence before anything is paid."""

import math
import stat

import pytest

from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.ledger.accounts import read_account
from party.store.keys import insecure_key, slot_key
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

KINDS = ("joint", "private")


@pytest.fixture
def ready(opened, terms, releases):
    """`await ready(kind)`: a caller whose party joined and has what teachers need."""

    async def makes(kind="joint", **changes):
        asked = releases(*(("training", "free") if kind == "private" else (kind,)))
        for release in asked:
            for name, value in changes.pop(release.name, {}).items():
                *path, field = name.split(".")
                inside = getattr(release, release.WhichOneof("mechanism"))
                for step in path:
                    inside = getattr(inside, step)
                setattr(inside, field, value)
        policy = {"clear_votes": True, "epsilon": 40.0}
        caller = await opened(plan=terms(releases=asked, epsilon=40.0), policy=policy)
        return await caller.ready_to_teach()

    return makes


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    assert refusal.value.sentence.endswith(".")
    assert "\n" not in refusal.value.sentence
    return refusal.value


@pytest.fixture
def spent(tmp_path):
    """The ledger's reservations."""
    return lambda: read_account(tmp_path / "north.party" / "ledger.sqlite", "north").reservations


WRONG = (
    ({"queries": [0, 6]}, "a query is word 6, and the vocabulary has 6 words"),
    ({"classes": [0, 1, 2**32 - 1]}, "a class is word 4,294,967,295"),
    ({"queries": [0, 1, 0]}, "a query is listed twice"),
    ({"classes": [0, 2, 2]}, "a class is listed twice"),
    ({"layers": [1, 1]}, "a layer is listed twice"),
    ({"queries": []}, "no query is listed"),
    ({"classes": [0, 1]}, "2 classes are listed, and release answers bounds votes over 3"),
    ({"classes": [0, 1, 2, 3]}, "4 classes are listed"),
    ({"layers": [1]}, "1 layers are listed, and release answers bounds 2"),
    ({"layers": []}, "0 layers are listed"),
    ({"alignment": 0}, "an alignment, a layer or a kind of vote"),
    ({"alignment": 9}, "an alignment, a layer or a kind of vote"),
    ({"layers": [1, 7]}, "an alignment, a layer or a kind of vote"),
    ({"vote": 0}, "an alignment, a layer or a kind of vote"),
    ({"teachers": 0}, "0 teachers make no sense"),
    ({"teachers": 1001}, "1001 teachers make no sense; use 1 to 1000"),
    ({"window": 0}, "window = 0 makes no sense"),
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("trains_here")
async def test_a_request_that_the_terms_do_not_cover_is_refused_and_nothing_reserved(ready, spent, kind):
    caller = await ready(kind)
    for change, says in WRONG:
        refusal = await refused(caller.teach(**change))
        assert refusal.reason == Reason.REQUEST, change
        assert says in refusal.sentence
    assert spent() == ()
    assert (await caller.teach())[-1].finished


@pytest.mark.usefixtures("trains_here")
async def test_more_queries_than_the_release_was_charged_for_are_refused(ready, spent):
    caller = await ready()
    refusal = await refused(caller.teach(queries=[0, 1, 2, 3, 4]))
    assert "5 queries are asked, and release answers is paid for 4" in refusal.sentence
    assert spent() == ()
    assert (await caller.teach(queries=[0, 1, 2, 3]))[-1].finished


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_private_training_wants_its_settings_before_it_is_paid(ready, spent):
    caller = await ready("private")
    for setting in ("expected_batch", "learning_rate"):
        for value in (0.0, -1.0, math.nan, math.inf):
            refusal = await refused(caller.teach(**{setting: value}))
            assert "needs an expected batch and a learning rate" in refusal.sentence
    assert spent() == ()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("trains_here")
async def test_a_reference_that_does_not_fit_is_refused_and_nothing_reserved(ready, spent, reference, kind):
    caller = await ready(kind)
    refusal = await refused(caller.teach(reference=b"never sent"))
    assert (refusal.reason, "the reference was never provided" in refusal.sentence) == (Reason.ARTEFACT, True)
    for content, says in (
        (to_bytes(reference(7, 4)), "knows 7 words, the vocabulary has 6"),
        (to_bytes(reference(5, 4)), "knows 5 words, the vocabulary has 6"),
        (to_bytes(reference(6, 5)), "has 5 dimensions, and the plan's terms bound hidden states of 4"),
        (to_bytes(reference(6, 3)), "has 3 dimensions, and the plan's terms bound hidden states of 4"),
        (b"", "no skip-gram"),
        (b"not safetensors", "no skip-gram"),
        (Vocabulary(("a", "b")).to_bytes(), "no skip-gram"),
    ):
        await caller.provide_reference(content)
        refusal = await refused(caller.teach(reference=content))
        assert refusal.reason == Reason.ARTEFACT
        assert says in refusal.sentence
    assert spent() == ()


@pytest.mark.usefixtures("trains_here")
async def test_a_vocabulary_that_is_none_is_refused_before_private_training_is_paid(ready, spent):
    caller = await ready("private")
    await caller.provide(b"not a vocabulary")
    refusal = await refused(caller.teach(vocabulary_sha256=artefact_digest(b"not a vocabulary")))
    assert refusal.reason == Reason.ARTEFACT
    assert "the vocabulary that was provided cannot be used" in refusal.sentence
    assert spent() == ()


@pytest.mark.usefixtures("trains_here")
async def test_a_training_paid_for_other_parameters_is_refused_and_nothing_reserved(ready, spent):
    caller = await ready("private", training={"parameters": 53})
    refusal = await refused(caller.teach())
    assert "54 parameters, and the plan's terms pay for a training of 53" in refusal.sentence
    assert spent() == ()


@pytest.mark.parametrize(
    ("kind", "release", "says"),
    [
        ("joint", "counts", "no release"),
        ("private", "training", "release training of dped is given by no task"),
    ],
)
@pytest.mark.usefixtures("trains_here")
async def test_teachers_answer_for_releases_of_theirs_alone(ready, spent, kind, release, says):
    refusal = await refused((await ready(kind)).teach(release=release))
    assert says in refusal.sentence
    assert spent() == ()


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
async def test_each_kind_of_task_has_its_own_releases(opened, terms, releases):
    caller = await opened(plan=terms(releases=[*terms().releases, *releases("joint")], epsilon=30.0))
    await caller.ready_to_teach()
    assert "dped is given by cooccurrence, not by teachers" in (await refused(caller.teach(release="counts"))).sentence
    wrong = await refused(caller.train("a", release="answers"))
    assert "answers of dped is given by teachers, not by cooccurrence" in wrong.sentence


@pytest.mark.usefixtures("trains_here")
async def test_a_task_of_no_kind_is_refused(ready):
    caller = await ready()
    refusal = await refused(caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id="a")))
    assert "the request names no such task" in refusal.sentence


def test_the_slot_key_is_secret_and_stays(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    key = slot_key(one)
    assert len(key) == 32
    assert stat.S_IMODE((one / "slots.key").stat().st_mode) == 0o600
    assert slot_key(one) == key
    assert slot_key(other) != key
    assert [path.name for path in one.iterdir()] == ["slots.key"]


def test_keys_that_anyone_can_make_differ_by_seed_party_and_role():
    keys = {insecure_key(seed, party, role) for seed in (0, 1) for party in ("a", "b") for role in ("slots", "t")}
    assert len(keys) == 8
    assert insecure_key(7, "north", "slots") == insecure_key(7, "north", "slots")
