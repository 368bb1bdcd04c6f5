"""Whatever is lost or late, in whatever order, whatever lists a coordinator shows: the sum is exact or stays masked."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aggregation.errors import AttemptLost, Cheated
from aggregation.secure_sum import mask
from aggregation.secure_sum.consistency import Consents, Survivors

pytestmark = pytest.mark.slow

BLOCKS = 3
CLOSES = {
    "advertise": "roster",
    "open": "openings",
    "share": "inboxes",
    "mask": "survivors",
    "consent": "consents",
}


class SecureSum(RuleBasedStateMachine):
    """One attempt. Any party may be lost at any time, any order of messages may come, rounds close at any moment.

    Messages cross as bytes. A party that missed a round is left behind. In the last two rounds the coordinator may show
    any party another list of survivors, and ask for shares under it once it has signatures enough.
    """

    make = None
    courses = None

    def __init__(self):
        super().__init__()
        self.scene = None
        self.over = None

    @initialize(data=st.data(), count=st.integers(3, 20))
    def begin(self, data, count):
        colluders = data.draw(st.integers(0, (count - 1) // 3), label="colluders")
        dropouts = data.draw(st.integers(0, (count - colluders - 1) // 2), label="dropouts")
        length = data.draw(st.integers((BLOCKS - 1) * mask.BLOCK_CELLS + 1, BLOCKS * mask.BLOCK_CELLS), label="length")
        self.scene = self.make(count, length=length, dropouts=dropouts, colluders=colluders)
        self.rounds = [name for name in self.scene.ROUNDS if name != "open" or count > 16]
        self.alive = list(self.scene.names)
        self.due = dict.fromkeys(self.alive, 1)
        self.cheat = None
        self.lists = {}
        self.signers = {}
        self.kinds = {}
        self.total = None

    @property
    def round(self):
        return self.rounds[0]

    @precondition(lambda self: self.over is None)
    @rule(data=st.data())
    def speak(self, data):
        """Some of those whose turn it is send their message, or their next block, in any order."""
        waiting = [n for n in self.alive if self.due[n]]
        order = data.draw(st.permutations(waiting), label="order")
        for name in order[: data.draw(st.integers(0, len(order)), label="how many")]:
            self.say(name)

    def say(self, name):
        if self.round == "mask":
            self.scene.block(name, BLOCKS - self.due[name])
        else:
            getattr(self.scene, self.round)([name])
        self.due[name] -= 1
        if self.round == "consent":
            self.signed(self.scene.server.survivors(), name)
        if self.round == "reveal":
            self.gave(self.scene.server.survivors(), self.scene.parties[name].reveal(self.scene.server.consents()))

    def signed(self, survivors, name):
        self.lists[survivors.digest] = survivors
        self.signers.setdefault(survivors.digest, set()).add(name)

    def gave(self, survivors, revealed):
        """Shares came from a party: only under a list of enough survivors with enough signatures, and of one kind."""
        context = self.scene.context
        assert revealed.survivors == survivors.digest
        assert len(survivors.names) >= context.fewest
        assert len(self.signers[survivors.digest]) >= context.threshold
        assert self.scene.remembered[revealed.party] == [survivors.digest]
        for owner, kind, _ in revealed.shares:
            self.kinds.setdefault(owner, set()).add(kind)

    @precondition(lambda self: self.over is None and len(self.alive) > 1)
    @rule(data=st.data())
    def lose(self, data):
        """A party is lost, now and for ever, wherever it stands."""
        self.alive.remove(data.draw(st.sampled_from(self.alive), label="lost"))

    @precondition(lambda self: self.over is None and self.rounds[0] in ("consent", "reveal"))
    @rule(data=st.data())
    def show_another_list(self, data):
        """The coordinator cheats: it shows some parties another list of survivors than it shows the rest."""
        honest = self.scene.server.survivors()
        if self.cheat is None:
            names = honest.names if data.draw(st.booleans(), label="drop from the list") else self.scene.names
            kept = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1), label="kept")
            if data.draw(st.booleans(), label="all but one"):
                kept = [n for n in names if n != kept[0]]
            self.cheat = Survivors(honest.group, tuple(sorted(kept)))
        if self.cheat == honest:
            return
        consents = {}
        for name in data.draw(st.permutations(self.alive), label="victims"):
            party = self.scene.parties[name]
            try:
                consents[name] = party.consent(self.cheat)
            except Cheated:
                continue
            self.signed(self.cheat, name)
            self.alive.remove(name)  # it has signed, and will not sign the list that the others were shown
        given = Consents(tuple(consents.values()))
        for name in consents:
            try:
                revealed = self.scene.parties[name].reveal(given)
            except Cheated:
                assert len(consents) < self.scene.context.threshold
            else:
                self.gave(self.cheat, revealed)

    @precondition(lambda self: self.over is None)
    @rule(patient=st.sampled_from((True, True, False)))
    def close(self, patient):
        """The round ends; those who have not spoken are left behind. A patient coordinator waits for the living."""
        while patient and any(self.due[n] for n in self.alive):
            for name in [n for n in self.alive if self.due[n]]:
                self.say(name)
        self.alive = [n for n in self.alive if not self.due[n]]
        ended = self.rounds.pop(0)
        try:
            if ended in CLOSES:
                getattr(self.scene.server, CLOSES[ended])()
            if not self.rounds:
                self.total = self.scene.total()
                self.over = "summed"
        except AttemptLost:
            self.over = f"lost in {ended}"
        self.due = dict.fromkeys(self.alive, BLOCKS if self.rounds and self.round == "mask" else 1)

    @precondition(lambda self: self.over is not None)
    @rule()
    def ask_for_the_sum_again(self):
        """A sum that did not come does not come later."""
        if self.over != "summed":
            with pytest.raises((AttemptLost, RuntimeError)):
                self.scene.total()

    @invariant()
    def nobody_gives_both_kinds_of_share_of_one_peer(self):
        if self.scene:
            assert all(len(kinds) == 1 for kinds in self.kinds.values())

    @invariant()
    def a_party_remembers_one_list_at_most(self):
        if self.scene:
            assert all(len(set(lists)) == len(lists) <= 1 for lists in self.scene.remembered.values())

    @invariant()
    def a_sum_is_exact_and_of_enough(self):
        if self.scene and self.total is not None:
            survivors = self.scene.server.survivors().names
            assert len(survivors) >= self.scene.context.fewest
            assert np.array_equal(self.total, self.scene.expected(survivors))

    def teardown(self):
        if self.scene:
            revealed = any(self.scene.remembered.values())
            self.courses.append((self.over, revealed, self.cheat is not None and self.cheat.digest in self.lists))


def run(make, examples):
    """Where that many courses ended: (how, whether anything was revealed, whether a party signed a cheat)."""
    courses = []
    machine = type("Machine", (SecureSum,), {"make": staticmethod(make), "courses": courses})
    machine.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True, database=None
    )
    machine.TestCase().runTest()
    return courses


def test_a_few_courses_of_a_sum_end_exact_or_masked(scene):
    assert len(run(scene, 12)) >= 12


def test_any_course_of_a_sum_ends_exact_or_masked(scene):
    """Among the courses must be sums that came, attempts lost early and late, and parties that signed a cheat."""
    courses = run(scene, 300)
    ends = {how for how, _, _ in courses}
    assert {"summed", "lost in advertise", "lost in mask", "lost in consent", "lost in reveal"} <= ends
    assert any(cheated for _, _, cheated in courses)
    assert any(revealed and how != "summed" for how, revealed, _ in courses)
