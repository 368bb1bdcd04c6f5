"""A secure sum of four parties while one, or the coordinator, dies: exact for those that are in it, paid for once."""

import signal

import pytest

pytestmark = pytest.mark.slow

DROPOUTS = ("dropouts = 1",)
SECURELY = ('trust = "secure-sum"', *DROPOUTS)
"""A plan that can do without one of the four."""

COORDINATOR = {
    "when all have advertised": ("coordinator.federation.sum_attempt:SumRun._vectors", "before"),
    "when the survivors are stored, before any is asked to agree": (
        "coordinator.federation.sum_attempt:SumRun._survivors",
        "after",
    ),
    "when the sum could be unmasked, before it is stored": (
        "coordinator.federation.secure_sums:SecureSums._store_rows",
        "before",
    ),
    "when it is stored": ("coordinator.federation.secure_sums:SecureSums._store_rows", "after"),
}


@pytest.fixture(scope="module")
def secure(scenes, warm, tmp_path_factory):
    """Four parties that serve, and what a secure sum of theirs comes to."""
    with scenes.Scene(tmp_path_factory.mktemp("secure") / "scene", scenes.FOUR, warm) as scene:
        scene.serve_all()
        undisturbed = scene.undisturbed(scene.plan(privacy=SECURELY), "undisturbed")
        yield scene, undisturbed
        scene.stop()
        assert scene.left() == []


def test_a_secure_sum_gives_the_student_of_the_clear_one(scenes, secure):
    scene, undisturbed = secure
    code, said = scene.outcome(scene.run(scene.plan(privacy=DROPOUTS), output="clear"))
    assert code == 0, said
    assert scene.student("clear") == undisturbed.student


@pytest.mark.parametrize("when", COORDINATOR)
def test_a_coordinator_that_is_killed_in_a_secure_sum_goes_on_with_the_same_attempt(scenes, secure, when, request):
    scene, undisturbed = secure
    output = f"run-{list(COORDINATOR).index(when)}"
    where, side = COORDINATOR[when]
    assert (
        scene.run(scene.plan(privacy=SECURELY), where, side, "1", output=output).wait(scenes.SECONDS) == -signal.SIGKILL
    )
    code, said = scene.outcome(scene.resume(scene.started(output)))
    assert code == 0, said
    assert scene.student(output) == undisturbed.student
    run = scenes.last_json(said)["run"]
    assert all(len(charges) == 1 for charges in scene.charged(run).values()), "no attempt but the first"
    assert not list((scene.folder / output).glob("masked/*")), "no masked vector is kept"


ROUNDS = {
    "it advertised": ("aggregation.secure_sum.participant:Participant.advertise", True),
    "it dealt its shares": ("aggregation.secure_sum.participant:Participant.share", False),
    "its masked vector was charged": ("party.ledger.ledger:Ledger.mask", False),
    "it consented to the survivors": ("aggregation.secure_sum.participant:Participant.consent", True),
    "it promised what it reveals": ("party.ledger.ledger:Ledger.reveal", True),
}
"""When it dies, in each round before it can say so; and whether it is in the sum."""


@pytest.mark.parametrize("when", ROUNDS)
def test_a_party_that_is_killed_in_a_round_is_in_the_sum_if_its_vector_was(scenes, secure, four, when):
    where, in_it = ROUNDS[when]
    _, dying, *_ = four.serve_all({"north": (where, "after", "1")})
    coordinator = four.run(four.plan(privacy=SECURELY))
    assert dying.wait(scenes.SECONDS) == -signal.SIGKILL
    scenes.until(lambda: "north retrying" in four.said(coordinator.called), "north is missed")
    four.serve("north")
    code, said = four.outcome(coordinator)
    assert code == 0, said
    others = [name for name in scenes.FOUR if name != "north"]
    assert four.in_the_sum() == [list(scenes.FOUR) if in_it else others]
    assert "verify: ok" in said
    assert "Traceback" not in said
    if in_it:
        assert four.student() == secure[1].student
    charges = four.charged(scenes.last_json(said)["run"])
    assert [len(charges[name]) for name in others] == [1, 1, 1]
    assert len(charges["north"]) == 1, "its text was opened"
    paid = four.charged(scenes.last_json(said)["run"], standing=True)
    stays = in_it or when == "it dealt its shares"
    assert len(paid["north"]) == stays, "what a masked vector cost stays only for the sum that it is in"
    four.stop()
    assert four.left() == []


def test_more_deaths_than_the_plan_does_without_begin_the_sum_anew_with_all(scenes, secure, four):
    where = ("aggregation.secure_sum.participant:Participant.consent", "after", "1")
    _, north, _, west = four.serve_all({"north": where, "west": where})
    coordinator = four.run(four.plan(privacy=(*SECURELY, "attempts = 3")))
    for node in (north, west):
        assert node.wait(scenes.SECONDS) == -signal.SIGKILL
    four.serve_all(names=["north", "west"])
    code, said = four.outcome(coordinator)
    assert code == 0, said
    assert four.in_the_sum() == [list(scenes.FOUR)]
    charges = four.charged(scenes.last_json(said)["run"])
    assert all(1 <= len(each) <= 2 for each in charges.values()), charges
    four.stop()
    assert four.left() == []


def test_too_many_gone_for_good_end_the_run_with_their_names_and_the_command_that_goes_on(scenes, secure, four):
    where = ("aggregation.secure_sum.participant:Participant.consent", "after", "1")
    _, north, _, west = four.serve_all({"north": where, "west": where})
    coordinator = four.run(four.plan(privacy=(*SECURELY, "attempts = 3"), retry=2))
    code, said = four.outcome(coordinator)
    assert (north.wait(0), west.wait(0)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert code == 1, said
    assert "party north was lost" in said
    assert "west" in said
    assert "Traceback" not in said
    run = scenes.next_command(said)
    four.serve_all(names=["north", "west"])
    code, said = four.outcome(four.resume(run))
    assert code == 0, said
    assert four.in_the_sum() == [list(scenes.FOUR)]
    assert all(1 <= len(each) <= 2 for each in four.charged(run).values())
    four.stop()
    assert four.left() == []
