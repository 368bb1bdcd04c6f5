"""A party's end of a secure sum over the wire: real nodes, four, or so many that they draw a graph, and a coordinator
made of the protocol's own pieces.
"""

import asyncio
import dataclasses
import json
from dataclasses import dataclass
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from aggregation.secure_sum.absence import Absence, absence
from aggregation.secure_sum.advertise import Advertisement
from aggregation.secure_sum.consistency import Consent, Consents, Survivors, consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.disclaim import Disclaimer, Disclaimers, disclaim, least_signers
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.mask import MaskedBlock, MemoryBlocks
from aggregation.secure_sum.opening import Opening
from aggregation.secure_sum.share import Inbox, Parcels
from aggregation.secure_sum.summation import Summation
from aggregation.secure_sum.unmask import Revealed
from coordinator.errors import PartyRefused
from coordinator.federation.attendance import Attendance
from coordinator.federation.federation import Federation
from coordinator.federation.refunds import Refunds, owed
from coordinator.federation.rounds import Rounds
from coordinator.federation.secure_sums import SecureSums
from coordinator.federation.sum_attempt import verifier
from coordinator.progress.progress import Silent
from coordinator.store.store import RunStore
from coordinator.transport.grpc_link import GrpcLink
from party.admission.admit import event_of
from party.ledger.accounts import read_account
from party.releasing.answers import noised
from party.releasing.mechanisms import answering
from party.store.runs import Runs
from party.tasks.result import load_counts
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest, plan_hash
from protos.identity.certificates import Role
from protos.identity.credentials import bearer
from protos.identity.identity import self_made
from protos.refusal import Reason, Refusal, refusal_of
from protos.steps import step_of

pytestmark = pytest.mark.usefixtures("trains_here")

NAMES = ("east", "north", "south", "west")
ROWS = 4
ADVERTISE, OPEN, SHARE, MASK, CONSENT, REVEAL, DISCLAIM, REFUND = (
    party_pb2.SUM_ROUND_ADVERTISE,
    party_pb2.SUM_ROUND_OPEN,
    party_pb2.SUM_ROUND_SHARE,
    party_pb2.SUM_ROUND_MASK,
    party_pb2.SUM_ROUND_CONSENT,
    party_pb2.SUM_ROUND_REVEAL,
    party_pb2.SUM_ROUND_DISCLAIM,
    party_pb2.SUM_ROUND_REFUND,
)


@dataclass
class Four:
    """The callers of parties, four if nothing is said, that joined one run and trained, and the coordinator's state."""

    callers: dict
    certificates: dict
    terms: plan_pb2.Terms
    opened: object
    folder: object
    release: str = "counts"
    cells: int = 36
    names: tuple[str, ...] = NAMES

    def context(self, attempt=0):
        run = self.callers[self.names[0]].run
        privacy = self.terms.privacy
        return Context.of(
            run=run.run_id, plan_hash=run.plan_hash.hex(), sum=self.release, attempt=attempt, parties=self.names,
            length=self.cells, dropouts=privacy.dropouts, colluders=privacy.colluders,
        )  # fmt: skip

    def sum(self, attempt=0):
        context = self.context(attempt)
        return Summation(context, verifier(self.certificates), MemoryBlocks(context))

    async def ask(self, name, kind, message=b"", attempt=0, **more):
        """What a party says in a round, message by message. Raises its `Refusal`."""
        caller = self.callers[name]
        request = party_pb2.SecureSumRequest(
            run=caller.run, release=self.release, attempt=attempt, round=kind, message=message,
            rows_at_once=more.get("rows_at_once", ROWS), first_block=more.get("first_block", 0),
        )  # fmt: skip
        try:
            calls = caller.stub.SecureSum(request, metadata=bearer(caller.token))
            return [each.message async for each in calls]
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) or error from None

    async def to_shares(self, attempt=0, names=()):
        """Rounds up to the shares; the sum and what every party receives."""
        total, names = self.sum(attempt), names or self.names
        for name in names:
            (said,) = await self.ask(name, ADVERTISE, attempt=attempt)
            total.advertised(Advertisement.decode(said, name))
        shown = total.roster().encode()
        if drawn(total.context):
            for name in names:
                (said,) = await self.ask(name, OPEN, shown, attempt)
                total.opened(Opening.decode(said, name))
            shown = total.openings().encode()
        for name in names:
            (said,) = await self.ask(name, SHARE, shown, attempt)
            total.dealt(Parcels.decode(said, name))
        return total, {name: inbox.encode() for name, inbox in total.inboxes().items()}

    async def to_masks(self, attempt=0, names=(), lost=()):
        total, inboxes = await self.to_shares(attempt, names)
        for name in names or self.names:
            if name not in lost:
                for said in await self.ask(name, MASK, inboxes[name], attempt):
                    total.masked(MaskedBlock.decode(said, name))
        return total

    async def to_the_end(self, attempt=0, names=(), lost=()):
        """The sum [36] of whoever is not lost before its vector is sent."""
        total = await self.to_masks(attempt, names, lost)
        survivors = total.survivors()
        for name in survivors.names:
            (said,) = await self.ask(name, CONSENT, survivors.encode(), attempt)
            total.consented(Consent.decode(said, name))
        consents = total.consents().encode()
        for name in survivors.names:
            (said,) = await self.ask(name, REVEAL, consents, attempt)
            total.revealed(Revealed.decode(said, name))
        return np.concatenate(list(total.totals()))

    def noisy(self, name):
        """What a party's vector must be, from what it keeps: only where its noise can be reproduced."""
        caller = self.callers[name]
        run = Runs(self.folder / f"{name}.party/runs").find(caller.run.run_id, caller.run.plan_hash)
        clean, release = load_counts(run.counts("counts")), run.release("counts")
        parts = [
            noised(
                clean[start : start + ROWS],
                answering(release),
                NoiseStream.insecure(self.terms.seed, name, "counts", str(batch)),
            )
            for batch, start in enumerate(range(0, 6, ROWS))
        ]
        return np.vstack(parts).reshape(-1).view(np.uint32)

    def charged(self, name):
        account = read_account(self.folder / f"{name}.party/ledger.sqlite", name)
        return [each.attempt for each in account.reservations if each.stands]

    async def disclaimed(self, names=(), attempt=0):
        """What parties sign of an attempt, as it is shown to those that were charged."""
        said = {name: await self.ask(name, DISCLAIM, attempt=attempt) for name in names or self.names}
        return [Disclaimer.decode(message, name) for name, (message,) in said.items()]

    async def refund(self, name, disclaimers, attempt=0):
        return await self.ask(name, REFUND, Disclaimers(tuple(disclaimers)).encode(), attempt)


@pytest.fixture
def four(opened, terms, tmp_path):
    """Four parties of one plan, or those that are named, joined and trained; each has pinned the others."""

    async def joins(dropouts=0, attempts=1, colluders=0, names=NAMES):
        identities = {name: self_made(name, Role.PARTY, tmp_path / f"{name}.party/identity") for name in names}
        count = len(names)
        plan = terms(
            parties=list(names), minimum_parties=count - dropouts, trust=plan_pb2.TRUST_SECURE_SUM, dropouts=dropouts,
            attempts=attempts, colluders=colluders, insecure_reproducible_noise=True,
            shares=count - dropouts - colluders,
        )  # fmt: skip
        certificates = {name: each.signing.public_bytes(Encoding.DER) for name, each in identities.items()}
        callers = {}
        for name in names:
            pins = {other: identities[other].fingerprint for other in names if other != name}
            caller = await opened(plan=plan, name=name, peers=pins, policy={"simulation": True, "epsilon": 200.0})
            peers = [party_pb2.Peer(name=other, certificate=certificates[other]) for other in pins]
            await caller.join(peers=peers)
            await caller.provide()
            await caller.train()
            callers[name] = caller
        return Four(callers, certificates, plan, opened, tmp_path, names=names)

    return joins


@pytest.fixture
def joined(opened, terms, films, pooled, tmp_path):
    """Four parties of labelled text that joined one plan and have the model, `caller.model`."""

    async def joins(release, columns, **plan):
        films()
        identities = {name: self_made(name, Role.PARTY, tmp_path / f"{name}.party/identity") for name in NAMES}
        certificates = {name: each.signing.public_bytes(Encoding.DER) for name, each in identities.items()}
        labelled = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=["no", "yes"])
        settings = {"parties": list(NAMES), "minimum_parties": 4, "trust": plan_pb2.TRUST_SECURE_SUM, "attempts": 2}
        settings |= {"recipe": "privdistil", "labelled": labelled, "epsilon": 100.0}
        settings |= {"insecure_reproducible_noise": True}
        whole = terms(**settings | plan)
        callers = {}
        for name in NAMES:
            pins = {other: identities[other].fingerprint for other in NAMES if other != name}
            rules = {"simulation": True, "epsilon": 200.0, "recipes": ["privdistil"]}
            caller = await opened(plan=whole, name=name, peers=pins, policy=rules, shard={"label": "stars"})
            await caller.join(peers=[party_pb2.Peer(name=other, certificate=certificates[other]) for other in pins])
            files = await caller.provide_model(pooled)
            caller.model = party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_HEAD, longest=16)
            callers[name] = caller
        return Four(callers, certificates, whole, opened, tmp_path, release, columns)

    return joins


@pytest.fixture
def stepping(joined, descent):
    """Four parties of one plan of steps; `train(step, attempt)` has all of them trained."""

    async def joins(**plan):
        release = descent(shares=4)
        width = release.gradients.parameters
        parties = await joined("steps.0", width, **{"releases": [release]} | plan)

        async def train(step, attempt=0):
            parties.release = f"steps.{step}"
            for caller in parties.callers.values():
                await caller.step(step, caller.model, np.zeros(width), attempt)

        parties.train = train
        return parties

    return joins


def noiseless(parties, step, attempt):
    """What a step's sum is without noise: of what every party keeps for an attempt."""
    files = [f"{parties.release}.counts.npz", f"{parties.release}.{attempt}.counts.npz"]
    kept = [parties.folder / f"{name}.party/runs/run-1/{files[attempt > 0]}" for name in NAMES]
    return [load_counts(path).reshape(-1) for path in kept]


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


@pytest.mark.slow
async def test_the_sum_is_that_of_the_noised_vectors_and_is_charged_once(four):
    parties = await four()
    total = await parties.to_the_end()
    assert np.array_equal(total, sum(parties.noisy(name) for name in NAMES))
    assert [parties.charged(name) for name in NAMES] == [[0]] * 4


@pytest.mark.slow
async def test_a_party_lost_before_its_vector_is_left_out(four):
    parties = await four(dropouts=1)
    total = await parties.to_the_end(lost=("east",))
    assert np.array_equal(total, sum(parties.noisy(name) for name in NAMES if name != "east"))
    assert parties.charged("east") == [0]  # its text was opened; what is asked again is not charged again


@pytest.mark.slow
async def test_under_the_secure_sum_nothing_is_answered_in_clear(four):
    parties = await four()
    caller = parties.callers["north"]
    refusal = await refused(caller.answer(caller.batch(0, 0, 3)))
    assert (refusal.reason, "sums alone" in refusal.sentence) == (Reason.PLAN, True)
    assert not await parties.callers["north"].node.verbs.ledger.sent("run-1", "counts")


async def test_a_plan_with_a_trusted_aggregator_has_no_secure_sum(opened):
    caller = await (await opened()).ready()
    parties = Four({"north": caller}, {}, caller.plan.terms, opened, None)
    for kind in (ADVERTISE, DISCLAIM, REFUND):
        assert (await refused(parties.ask("north", kind))).reason == Reason.PLAN


@pytest.mark.slow
async def test_the_masked_vector_takes_over_what_was_charged_before_the_text_was_opened(four):
    parties = await four()
    ledger = parties.callers["north"].node.verbs.ledger
    _, inboxes = await parties.to_shares()
    assert (parties.charged("north"), await ledger.sent("run-1", "counts")) == ([0], False)
    await parties.ask("north", MASK, inboxes["north"])
    assert (parties.charged("north"), await ledger.sent("run-1", "counts")) == ([0], True)


@pytest.mark.slow
async def test_a_block_that_was_lost_on_its_way_comes_again_as_it_was(four):
    parties = await four()
    _, inboxes = await parties.to_shares()
    first = await parties.ask("north", MASK, inboxes["north"])
    assert await parties.ask("north", MASK, inboxes["north"]) == first
    assert await parties.ask("north", MASK, inboxes["north"], first_block=1) == []
    refusal = await refused(parties.ask("north", MASK, inboxes["north"], rows_at_once=3))
    assert (refusal.reason, "in other rows than before" in refusal.sentence) == (Reason.SECURE_SUM, True)
    assert parties.charged("north") == [0]


@pytest.mark.slow
@pytest.mark.parametrize("round_", ["roster", "inbox", "survivors"])
async def test_another_question_in_a_round_that_was_answered_is_refused(four, round_):
    parties = await four(dropouts=1)
    total = await parties.to_masks()
    if round_ == "roster":
        fewer = parties.sum()
        for name in NAMES[:3]:
            (said,) = await parties.ask(name, ADVERTISE)
            fewer.advertised(Advertisement.decode(said, name))
        asked = (SHARE, fewer.roster().encode())
    elif round_ == "inbox":
        asked = (MASK, b"")
    else:
        survivors = total.survivors()
        await parties.ask("north", CONSENT, survivors.encode())
        asked = (CONSENT, Survivors(survivors.group, survivors.names[:3]).encode())
    refusal = await refused(parties.ask("north", *asked))
    assert refusal.reason == Reason.SECURE_SUM
    assert "coordinator" in refusal.sentence


@pytest.mark.slow
async def test_a_sum_of_too_few_is_never_agreed_to(four):
    parties = await four(dropouts=1)
    total = await parties.to_masks()
    survivors = total.survivors()
    two = Survivors(survivors.group, ("north", "south"))
    refusal = await refused(parties.ask("north", CONSENT, two.encode()))
    assert "single a party out" in refusal.sentence


@pytest.mark.slow
async def test_nothing_is_revealed_without_the_others_signatures(four):
    parties = await four()
    total = await parties.to_masks()
    survivors = total.survivors()
    for name in NAMES:
        (said,) = await parties.ask(name, CONSENT, survivors.encode())
        total.consented(Consent.decode(said, name))
    from aggregation.secure_sum.consistency import Consents

    few = Consents(total.consents().consents[:1]).encode()
    refusal = await refused(parties.ask("north", REVEAL, few))
    assert "are needed" in refusal.sentence


@pytest.mark.slow
async def test_a_node_that_was_started_again_has_forgotten_its_secrets_and_takes_a_new_attempt(four):
    parties = await four(attempts=2)
    await parties.to_masks()
    again = await restarted(parties, "north")
    refusal = await refused(again.ask("north", ADVERTISE))
    assert (refusal.reason, "secrets are gone" in refusal.sentence) == (Reason.SECURE_SUM, True)
    assert "secrets are gone" in (await refused(again.ask("north", CONSENT, b""))).sentence
    total = await again.to_the_end(attempt=1)
    assert np.array_equal(total, sum(again.noisy(name) for name in NAMES))
    assert again.charged("north") == [0, 1]


@pytest.mark.slow
async def test_attempts_that_the_plan_does_not_pay_for_are_refused(four):
    parties = await four()
    await parties.to_masks()
    _, inboxes = await parties.to_shares(attempt=1)
    refusal = await refused(parties.ask("north", MASK, inboxes["north"], attempt=1))
    assert (refusal.reason, "pays for 1 attempt at counts, and it is charged" in refusal.sentence) == (
        Reason.BUDGET,
        True,
    )
    assert parties.charged("north") == [0]


@pytest.mark.slow
async def test_an_earlier_attempt_is_over_when_a_later_one_began(four):
    parties = await four(attempts=2)
    await parties.to_shares(attempt=1)
    refusal = await refused(parties.ask("north", ADVERTISE, attempt=0))
    assert refusal.reason == Reason.SECURE_SUM


@pytest.mark.slow
async def test_a_substituted_peer_is_refused(four):
    parties = await four()
    total = parties.sum()
    for name in NAMES:
        (said,) = await parties.ask(name, ADVERTISE)
        total.advertised(Advertisement.decode(said, name))
    impostor = self_made("east", Role.PARTY, None)
    context = parties.context()
    from aggregation.secure_sum.advertise import Roster, advertise
    from aggregation.secure_sum.keys import Secrets

    theirs = advertise(context, "east", Secrets.draw(), impostor.signing_key.sign)
    roster = Roster((theirs, *total.roster().advertisements[1:]))
    refusal = await refused(parties.ask("north", SHARE, roster.encode()))
    assert "not of the key pinned for it" in refusal.sentence


@pytest.mark.slow
async def test_enough_disclaimers_take_a_lost_attempts_charge_back_and_the_next_one_is_paid(four):
    parties = await four()
    await parties.to_masks()
    again = await restarted(await restarted(parties, "north"), "east")
    assert [again.charged(name) for name in NAMES] == [[0]] * 4
    shown = await again.disclaimed(("east", "north", "south"))
    assert "has not disclaimed it" in (await refused(again.refund("west", shown))).sentence
    shown += await again.disclaimed(("west",))
    assert [await again.refund(name, shown) for name in NAMES] == [[b""]] * 4
    assert await again.refund("north", []) == [b""], "there is nothing left to take back"
    assert [again.charged(name) for name in NAMES] == [[]] * 4
    for kind in (ADVERTISE, SHARE, MASK, CONSENT, REVEAL):
        assert (await refused(again.ask("south", kind))).reason == Reason.SECURE_SUM
    total = await again.to_the_end(attempt=1)
    assert np.array_equal(total, sum(again.noisy(name) for name in NAMES))
    assert [again.charged(name) for name in NAMES] == [[1]] * 4
    statement = (await again.callers["west"].attest()).statement
    assert [each["attempt"] for each in json.loads(statement.payload)["releases"]] == [1]
    assert not list((again.folder / "west.party/runs").glob("*/counts.0.masked"))


@pytest.mark.slow
@pytest.mark.parametrize(("colluders", "needed"), [(0, 2), (1, 3)])
async def test_disclaimers_that_are_too_few_forged_foreign_or_replayed_take_nothing_back(four, colluders, needed):
    parties = await four(colluders=colluders)
    await parties.to_masks()
    context, impostor = parties.context(), self_made("east", Role.PARTY, None).signing_key
    earlier = await parties.disclaimed(attempt=7)
    signed = await parties.disclaimed()
    by_name = {each.party: each for each in signed}
    enough = [by_name[name] for name in ("north", "south", "west")][:needed]
    for shown, said in (
        (enough[:-1], f"it takes {needed}"),
        ([enough[0]] * 4, f"it takes {needed}"),
        ([*enough[:-1], disclaim(context, "east", impostor.sign)], "not the one pinned for it"),
        ([*enough, disclaim(context, "nobody", impostor.sign)], "without having a part"),
        (earlier, "another attempt"),
        ([Disclaimer(context.digest, each.party, each.signature) for each in earlier], "not the one pinned for it"),
    ):
        refusal = await refused(parties.refund("north", shown))
        assert (refusal.reason, said in refusal.sentence) == (Reason.SECURE_SUM, True), refusal.sentence
        assert parties.charged("north") == [0]
    assert await parties.refund("north", enough) == [b""]
    assert parties.charged("north") == []


@pytest.mark.slow
async def test_a_party_that_revealed_signs_nothing_and_stays_charged(four):
    parties = await four()
    total = await parties.to_masks()
    survivors = total.survivors().encode()
    for name in NAMES:
        (said,) = await parties.ask(name, CONSENT, survivors)
        total.consented(Consent.decode(said, name))
    await parties.ask("north", REVEAL, total.consents().encode())
    again = parties
    for _ in range(2):
        assert "revealed shares of it" in (await refused(again.ask("north", DISCLAIM))).sentence
        again = await restarted(again, "north")
    shown = await again.disclaimed(("east", "south", "west"))
    assert "revealed shares of it" in (await refused(again.refund("north", shown))).sentence
    assert await again.refund("east", shown) == [b""], "north alone can reveal, and that is too few"
    assert [again.charged(name) for name in NAMES] == [[], [0], [0], [0]]


@pytest.mark.slow
async def test_a_share_that_is_about_to_leave_when_its_attempt_is_disclaimed_stays(four):
    parties = await four()
    total = await parties.to_masks()
    survivors = total.survivors().encode()
    for name in NAMES:
        (said,) = await parties.ask(name, CONSENT, survivors)
        total.consented(Consent.decode(said, name))
    sums = parties.callers["north"].node.verbs._sums
    (session,) = sums._sessions.values()
    await parties.disclaimed(("north",))
    with pytest.raises(ConclaveError, match="gave up"):
        sums._block(session, 0)
    with pytest.raises(Refusal, match="will never reveal"):
        await asyncio.to_thread(session.participant.reveal, total.consents())
    for _ in range(2):
        refusal = await refused(parties.ask("north", REVEAL, total.consents().encode()))
        assert "not going on here" in refusal.sentence
        assert "given up before" in (await refused(parties.ask("north", ADVERTISE))).sentence
        parties = await restarted(parties, "north")


@pytest.mark.slow
async def test_a_party_names_whose_shares_it_could_not_open(four):
    parties = await four()
    _, inboxes = await parties.to_shares()
    inbox = Inbox.decode(inboxes["north"])
    (dealer, sealed), *rest = inbox.sealed
    changed = Inbox(inbox.group, "north", ((dealer, bytes(len(sealed))), *rest))
    refusal = await refused(parties.ask("north", MASK, changed.encode()))
    assert (refusal.reason, refusal.who, dealer) == (Reason.SECURE_SUM, "east", "east")
    assert not await parties.callers["north"].node.verbs.ledger.sent("run-1", "counts")


class Befallen(Rounds):
    """Rounds that are put to parties when something has befallen them, by kind."""

    def __init__(self, parties, befalls):
        super().__init__(parties)
        self.befalls = befalls

    async def ask(self, requests, on_message, doing):
        kind = next(iter(requests.values())).round
        if kind in self.befalls():
            on_message = await self.befalls()[kind](on_message) or on_message
        return await super().ask(requests, on_message, doing)

    async def attempt(self, requests, on_message):
        kind = next(iter(requests.values())).round
        if kind in self.befalls():
            requests = await self.befalls()[kind](requests)
        return await super().attempt(requests, on_message)


class Driving(Federation):
    """A coordinator's end of the four parties; `befalls` is what befalls a round."""

    def __init__(self, parties, store, lines):
        links = []
        for name, caller in parties.callers.items():
            link = GrpcLink(name, caller.node.address, caller.token)
            link.bind(caller.run.run_id, caller.run.plan_hash)
            links.append(link)
        progress = Silent()
        progress.say = lines.append
        minimum = parties.terms.minimum_parties
        super().__init__(links, None, minimum, Attendance(progress, None, 0.0))
        self._certificates = parties.certificates
        self._sums = SecureSums(self._parties, Befallen(self._parties, lambda: self.befalls), self._arrived)
        self.parties, self.store, self.befalls = parties, store, {}

    async def sums(self):
        release = SimpleNamespace(name="counts", rows=6, columns=6)
        try:
            count = await self.sum_securely(release, self.parties.terms, ROWS, self.store)
        finally:
            await self.close()
        total = np.vstack([block for _, _, block in self.store.blocks("counts")])
        return count, total.reshape(-1).astype(np.uint32)

    async def restart(self, *names):
        for name in names:
            self.parties = await restarted(self.parties, name)
            caller = self.parties.callers[name]
            links = self._parties._here
            await links[name].close()
            links[name] = GrpcLink(name, caller.node.address, caller.token)
            links[name].bind(caller.run.run_id, caller.run.plan_hash)


def driving(parties, tmp_path, lines, store=None):
    run = parties.callers[parties.names[0]].run
    store = store or RunStore.create(tmp_path / "coordinator", run.run_id, "sums", run.plan_hash)
    return Driving(parties, store, lines)


class Killed(Exception):
    """Stands for the death of the coordinator."""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, DISCLAIM, REFUND], ids=["", "before disclaimers", "before refunds"])
async def test_a_run_that_pays_for_one_attempt_outlives_parties_restarted_amid_it(four, tmp_path, killed):
    """Two of four have forgotten an attempt whose masked vectors all left: too few to open it."""
    parties, lines = await four(attempts=1), []
    coordinator = driving(parties, tmp_path, lines)

    async def restarts(on_message):
        del coordinator.befalls[CONSENT]
        await coordinator.restart("north", "east")

    async def kills(requests):
        raise Killed

    coordinator.befalls = {CONSENT: restarts, killed: kills}
    if killed is not None:
        with pytest.raises(Killed):
            await coordinator.sums()
        coordinator = driving(coordinator.parties, tmp_path, lines, coordinator.store)
    count, total = await coordinator.sums()
    parties = coordinator.parties
    assert (count, [parties.charged(name) for name in NAMES]) == (4, [[1]] * 4)
    assert np.array_equal(total, sum(parties.noisy(name) for name in NAMES))
    told = "attempt 1 at the sum of counts: 4 parties signed to reveal nothing of it; 4 are free of its cost"
    assert [line.strip() for line in lines if "signed to reveal" in line] == [told]


@pytest.mark.slow
async def test_an_attempt_that_too_few_disclaim_stays_charged_and_is_told(four, tmp_path):
    parties, lines = await four(attempts=1), []
    coordinator = driving(parties, tmp_path, lines)

    async def restarts(on_message):
        await coordinator.restart("north", "east")

    async def one_alone(requests):
        return {name: request for name, request in requests.items() if name == "south"}

    coordinator.befalls = {CONSENT: restarts, DISCLAIM: one_alone}
    with pytest.raises(PartyRefused, match="the plan pays for 1 attempt at counts, and it is charged"):
        await coordinator.sums()
    assert any("1 party signed" in line and "none is free of its cost, which takes 2" in line for line in lines), lines
    assert all(coordinator.parties.charged(name) == [0] for name in NAMES)


@pytest.mark.slow
async def test_a_dealer_whose_shares_most_peers_cannot_open_is_left_out_of_the_next_attempt(four, tmp_path):
    parties, lines = await four(dropouts=1), []
    coordinator = driving(parties, tmp_path, lines)

    async def spoils(on_message):
        def hears(who, said):
            if who == "east":
                parcels = Parcels.decode(said, who)
                sealed = tuple((name, bytes(len(each))) for name, each in parcels.sealed)
                said = Parcels(parcels.group, who, sealed).encode()
            on_message(who, said)

        return hears

    coordinator.befalls = {SHARE: spoils}
    count, total = await coordinator.sums()
    assert count == 3
    assert np.array_equal(total, sum(parties.noisy(name) for name in NAMES if name != "east"))
    assert [parties.charged(name) for name in NAMES] == [[], [1], [1], [1]]
    told = [line for line in lines if "left out" in line]
    assert len(told) == 1
    assert "east is left out of sum 'counts', attempt 1" in told[0]
    assert "3 of 3 parties could not open the shares that it dealt" in told[0]


async def restarted(parties, name):
    """The same parties, one of them by a new node in the same folder."""
    caller = parties.callers[name]
    await caller.node.stop()
    changes = json.loads(caller.node.config.model_dump_json(include={"peers"}))
    other = await parties.opened(
        plan=parties.terms, name=name, policy={"simulation": True, "epsilon": 200.0}, peers=changes["peers"]
    )
    assert plan_hash(other.plan) == caller.run.plan_hash
    await asyncio.sleep(0)
    return dataclasses.replace(parties, callers=parties.callers | {name: other})


@pytest.mark.slow
async def test_a_step_is_summed_securely_and_every_attempt_has_a_sample_of_its_own(stepping):
    parties = await stepping()
    await parties.train(0)
    first = noiseless(parties, 0, 0)
    total = await parties.to_the_end()
    noise = [
        answering(step_of(parties.terms.releases[0], "steps.0")).noise_share(
            (parties.cells,), NoiseStream.insecure(7, name, "steps.0", "0")
        )
        for name in NAMES
    ]
    assert np.array_equal(total, (sum(noise) + sum(first)).astype(np.uint32))
    assert [parties.charged(name) for name in NAMES] == [[0]] * 4


@pytest.mark.slow
async def test_an_attempt_at_a_step_is_masked_of_its_own_sample_alone(stepping):
    parties = await stepping()
    await parties.train(0)
    _, inboxes = await parties.to_shares()
    await parties.ask("north", MASK, inboxes["north"])  # the others are lost
    first = noiseless(parties, 0, 0)
    refusal = await refused(parties.ask("north", ADVERTISE, attempt=1))
    assert refusal.reason == Reason.REQUEST
    assert "steps.0 is trained for attempt 0, not 1" in refusal.sentence

    # Keys of the second attempt, and then a third one's sample: it is not masked for the second.
    await parties.train(0, 1)
    second = noiseless(parties, 0, 1)
    assert any(not np.array_equal(*each) for each in zip(first, second, strict=True))
    _, inboxes = await parties.to_shares(1)
    north = parties.callers["north"]
    await north.step(0, north.model, np.zeros(parties.cells), 2)
    refusal = await refused(parties.ask("north", MASK, inboxes["north"], 1))
    assert "steps.0 is trained for attempt 2, not 1" in refusal.sentence
    assert parties.charged("north") == [0, 2]  # nothing had left of the second, whose charge is now the third's
    refusal = await refused(north.step(0, north.model, np.zeros(parties.cells), 1, operation="again"))
    assert refusal.reason == Reason.CONFLICT
    kept = sorted(path.name for path in (parties.folder / "north.party/runs/run-1").glob("steps.0*"))
    assert kept == ["steps.0.0.masked", "steps.0.2.counts.npz", "steps.0.operation.json"]

    # Once an attempt is charged, what it was charged for is gone for good.
    south = parties.callers["south"]
    await parties.ask("south", MASK, inboxes["south"], 1)
    (parties.folder / "south.party/runs/run-1/steps.0.operation.json").unlink()
    refusal = await refused(south.step(0, south.model, np.zeros(parties.cells), 1, operation="again"))
    assert "was answered from already" in refusal.sentence


@pytest.mark.slow
async def test_a_step_of_which_nothing_was_sent_serves_the_next_attempt_under_one_charge(stepping):
    """So that a sum lost in its first rounds costs nothing more, and no second sample is drawn for it."""
    parties = await stepping(attempts=2)
    await parties.train(0)
    first = noiseless(parties, 0, 0)
    await parties.train(0, 1)
    assert all(np.array_equal(*each) for each in zip(first, noiseless(parties, 0, 1), strict=True))
    assert [parties.charged(name) for name in NAMES] == [[1]] * 4
    await parties.to_masks(1)
    await parties.train(0, 2)
    assert any(not np.array_equal(*each) for each in zip(first, noiseless(parties, 0, 2), strict=True))
    assert [parties.charged(name) for name in NAMES] == [[1, 2]] * 4


@pytest.mark.slow
async def test_a_step_is_opened_for_other_parameters_as_often_as_the_plan_pays_and_no_more(stepping):
    parties = await stepping(attempts=2)
    north = parties.callers["north"]
    await north.step(0, north.model, np.zeros(parties.cells), 0)
    await north.step(0, north.model, np.ones(parties.cells), 1)
    assert parties.charged("north") == [0, 1]
    refusal = await refused(north.step(0, north.model, np.full(parties.cells, 2.0), 2))
    assert (refusal.reason, "the plan pays for 2 attempts at steps.0" in refusal.sentence) == (Reason.BUDGET, True)
    await north.step(0, north.model, np.ones(parties.cells), 3)  # what was opened before serves on
    assert parties.charged("north") == [0, 3]


@pytest.mark.slow
async def test_sessions_and_masked_vectors_of_a_step_go_with_it(stepping):
    parties = await stepping()
    await parties.train(0)
    await parties.to_the_end()
    await parties.train(1)
    for caller in parties.callers.values():
        assert not caller.node.verbs._sums._sessions
    names = [path.name for path in (parties.folder / "north.party/runs/run-1").glob("steps.*")]
    assert sorted(names) == ["steps.1.counts.npz", "steps.1.operation.json"]


@pytest.mark.slow
async def test_scores_of_public_texts_are_summed_without_noise_and_without_a_charge(joined, descent):
    """What PrivDistil asks where no party lets its classifier out: nobody sees one party's scores."""
    training = descent("domain", weights=True)
    training.form = plan_pb2.FORM_TRAINING
    free = plan_pb2.FreeAnswers(after="domain", classes=0, layers=1, width=1, clip=1.0, levels=1000)
    scores = plan_pb2.Release(name="scores", charges=6, form=plan_pb2.FORM_FREE, free=free)
    parties = await joined("scores", 6, releases=[training, scores])
    public, scored = (json.dumps(texts).encode() for texts in (["a dull plot"], ["good", "bad", "", "end", "we", "it"]))
    for caller in parties.callers.values():
        for content in (public, scored):
            await caller.provide(content, kind="texts")
        await caller.train_alone(
            caller.model, np.zeros(66), release="scores", objective=party_pb2.OBJECTIVE_DOMAIN,
            texts_sha256=artefact_digest(public), scored_sha256=artefact_digest(scored),
        )  # fmt: skip
    total = await parties.to_the_end()
    kept = [load_counts(parties.folder / f"{name}.party/runs/run-1/scores.counts.npz")[:, 0] for name in NAMES]
    assert total.tolist() == sum(kept).tolist()
    assert len({each.tobytes() for each in kept}) == 4  # each trained alone, under noise of its own
    for name in NAMES:
        account = read_account(parties.folder / f"{name}.party/ledger.sqlite", name)
        assert [(each.release, each.event) for each in account.reservations] == [
            ("domain", event_of(training)), ("scores", event_of(scores)),
        ]  # fmt: skip


OTHERS = ("east", "south", "west")


async def left_out(parties, attempt=0, lost="north"):
    """All vectors leave, one does not arrive, the rest agrees without it: the sum, and what shows who is absent."""
    total, inboxes = await parties.to_shares(attempt)
    for name in parties.names:
        for said in await parties.ask(name, MASK, inboxes[name], attempt):
            if name != lost:
                total.masked(MaskedBlock.decode(said, name))
    survivors = total.survivors()
    for name in survivors.names:
        (said,) = await parties.ask(name, CONSENT, survivors.encode(), attempt)
        total.consented(Consent.decode(said, name))
    openings = total.openings().encode() if drawn(total.context) else b""
    return total, absence(total.group, openings, survivors, total.consents())


@pytest.mark.slow
async def test_a_party_that_is_not_on_the_signed_list_takes_its_charge_back_and_never_speaks_of_it_again(four):
    parties = await four(dropouts=1, attempts=2)
    total, shown = await left_out(parties)
    parties = await restarted(parties, "north")
    assert parties.charged("north") == [0]
    assert await parties.ask("north", REFUND, shown.encode()) == [b""]
    assert await parties.ask("north", REFUND, shown.encode()) == [b""], "again, when the answer was lost"
    assert [parties.charged(name) for name in NAMES] == [[0], [], [0], [0]]
    statement = (await parties.callers["north"].attest()).statement
    assert json.loads(statement.payload)["releases"] == []
    for _ in range(2):
        for kind in (ADVERTISE, MASK, CONSENT, REVEAL):
            assert (await refused(parties.ask("north", kind))).reason == Reason.SECURE_SUM
        parties = await restarted(parties, "north")
    assert "by a list that names it" in (await refused(parties.ask("east", REFUND, shown.encode()))).sentence
    total = await parties.to_the_end(attempt=1)
    assert np.array_equal(total, sum(parties.noisy(name) for name in NAMES))
    assert parties.charged("north") == [1]


@pytest.mark.slow
async def test_a_party_that_was_not_restarted_drops_its_secrets_with_the_charge(four):
    parties = await four(dropouts=1)
    _, shown = await left_out(parties)
    masked = parties.folder / "north.party/runs"
    assert list(masked.glob("*/counts.0.masked"))
    assert await parties.ask("north", REFUND, shown.encode()) == [b""]
    assert not list(masked.glob("*/counts.0.masked"))
    refusal = await refused(parties.ask("north", CONSENT, Survivors(bytes(32), NAMES).encode()))
    assert "not going on here" in refusal.sentence


@pytest.mark.slow
async def test_signatures_that_are_too_few_forged_mixed_foreign_or_replayed_take_nothing_back(four):
    parties = await four(dropouts=1, attempts=2)
    _, other = await left_out(parties, lost="west")
    total, shown = await left_out(parties, attempt=1)
    survivors = total.survivors()
    impostor = self_made("east", Role.PARTY, None).signing_key
    east, *rest = shown.consents.consents
    with_north = Survivors(total.group.digest, NAMES)
    for changed, said in (
        (dataclasses.replace(shown, consents=Consents(tuple(rest[:-1]))), "it takes 3"),
        (dataclasses.replace(shown, consents=Consents((east, east, rest[0]))), "it takes 3"),
        (dataclasses.replace(shown, consents=Consents((consent(survivors, "east", impostor.sign), *rest))), "pinned"),
        (dataclasses.replace(shown, consents=Consents((consent(with_north, "east", impostor.sign), *rest))), "another"),
        (dataclasses.replace(shown, names=NAMES), "by a list that names it"),
        (dataclasses.replace(shown, names=("east", "south")), "on which it does not stand|another list"),
        (dataclasses.replace(other, names=OTHERS), "on which it does not stand|another list"),
        (dataclasses.replace(other, names=OTHERS, consents=shown.consents), "another list"),
    ):
        refusal = await refused(parties.ask("north", REFUND, changed.encode(), attempt=1))
        assert refusal.reason == Reason.SECURE_SUM
        assert any(each in refusal.sentence for each in said.split("|")), refusal.sentence
        assert parties.charged("north") == [0, 1]
    replayed = await refused(parties.ask("north", REFUND, shown.encode()))
    assert "another list" in replayed.sentence
    assert await parties.ask("north", REFUND, shown.encode(), attempt=1) == [b""]
    assert parties.charged("north") == [0]


@pytest.mark.slow
async def test_a_party_that_revealed_stays_charged_whatever_it_is_shown(four):
    parties = await four(dropouts=1)
    total = await parties.to_masks()
    survivors = total.survivors()
    for name in NAMES:
        (said,) = await parties.ask(name, CONSENT, survivors.encode())
        total.consented(Consent.decode(said, name))
    await parties.ask("north", REVEAL, total.consents().encode())
    shown = forged_with_the_keys(parties, total)
    assert "two lists" in (await refused(parties.ask("north", REFUND, shown))).sentence
    for _ in range(2):
        parties = await restarted(parties, "north")
        assert "revealed shares of it" in (await refused(parties.ask("north", REFUND, shown))).sentence
        assert parties.charged("north") == [0]


@pytest.mark.slow
async def test_a_party_that_agreed_to_a_list_with_itself_refuses_a_second_list_of_a_coordinator_that_holds_keys(four):
    parties = await four(dropouts=1)
    total = await parties.to_masks()
    await parties.ask("north", CONSENT, total.survivors().encode())
    shown = forged_with_the_keys(parties, total)
    refusal = await refused(parties.ask("north", REFUND, shown))
    assert "two lists of survivors" in refusal.sentence
    assert parties.charged("north") == [0]


def forged_with_the_keys(parties, total):
    """What a coordinator could show that holds the keys of all others: more colluders than the plan's."""
    survivors = Survivors(total.group.digest, OTHERS)
    keys = {name: parties.callers[name].node.verbs._sums._identity.signing_key for name in OTHERS}
    given = Consents(tuple(consent(survivors, name, keys[name].sign) for name in OTHERS))
    return Absence(total.group.roster.digest, b"", OTHERS, given).encode()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [None, "before the last round", "when all is summed"])
async def test_a_run_has_a_party_that_was_restarted_amid_it_take_back_what_it_paid_for_nothing(four, tmp_path, killed):
    parties, lines = await four(dropouts=1), []
    coordinator = driving(parties, tmp_path, lines)

    async def loses_north(on_message):
        del coordinator.befalls[MASK]

        def hears(who, said):
            if who != "north":
                on_message(who, said)

        return hears

    async def restarts(on_message):
        del coordinator.befalls[CONSENT]
        await coordinator.restart("north")

    async def kills(given):
        raise Killed

    coordinator.befalls = {MASK: loses_north, CONSENT: restarts}
    if killed is not None:
        coordinator.befalls[REVEAL if killed == "before the last round" else REFUND] = kills
        with pytest.raises(Killed):
            await coordinator.sums()
        assert coordinator.parties.charged("north") == [0]
        coordinator = driving(coordinator.parties, tmp_path, lines, coordinator.store)
    if killed == "when all is summed":
        assert coordinator.store.summed("counts") == OTHERS
        await coordinator.repay(coordinator.store, last=True)
        await coordinator.close()
    else:
        count, total = await coordinator.sums()
        assert (count, coordinator.store.summed("counts")) == (3, OTHERS)
        assert np.array_equal(total, sum(coordinator.parties.noisy(name) for name in OTHERS))
    assert [coordinator.parties.charged(name) for name in NAMES] == [[0], [], [0], [0]]
    assert [line.strip() for line in lines if "free of its cost" in line] == [
        "north is not in attempt 1 at the sum of counts and is free of its cost"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("back", [True, False])
async def test_a_party_that_was_lost_is_asked_when_the_run_is_about_to_end_and_is_not_waited_for(
    four, tmp_path, monkeypatch, back
):
    monkeypatch.setattr("coordinator.federation.secure_sums.BACK_SECONDS", 5.0 if back else 0.2)
    parties, lines = await four(dropouts=1), []
    coordinator = driving(parties, tmp_path, lines)
    _, shown = await left_out(parties)
    coordinator.store.note(**owed(coordinator.store, "counts", 0, ["north"], shown.encode()))
    lost = coordinator._parties._here.pop("north")
    if not back:
        monkeypatch.setattr(lost, "sum_round", never)
    await coordinator.repay(coordinator.store)
    assert parties.charged("north") == [0]
    await coordinator.repay(coordinator.store, last=True)
    await coordinator.close()
    assert parties.charged("north") == ([] if back else [0])
    assert Refunds(coordinator.store).owed == (set() if back else {"north"})


async def never(request):
    """A party that says nothing."""
    await asyncio.Event().wait()
    yield


def many(count):
    """The names of so many parties; above sixteen they draw a graph."""
    return tuple(f"party-{number:02}" for number in range(count))


@pytest.mark.slow
async def test_above_sixteen_parties_the_neighbours_disclaimers_count_and_for_who_forgot_them_all(four):
    count = 24
    parties = await four(dropouts=2, colluders=1, names=many(count))
    total = await parties.to_masks()
    context, (first, second, third, *_) = parties.context(), parties.names
    near = total.group.holders(first)
    assert len(near) < count
    signed = {each.party: each for each in await parties.disclaimed()}
    needed = least_signers(context, near)
    strangers = [signed[name] for name in parties.names if name not in near]
    few = [signed[name] for name in near[: needed - 1]]
    refusal = await refused(parties.refund(first, [*few, *strangers]))
    assert f"{needed - 1} of the {len(near)} parties that may hold shares" in refusal.sentence
    assert f"it takes {needed}" in refusal.sentence
    assert parties.charged(first) == [0]
    assert await parties.refund(first, [signed[name] for name in near[:needed]]) == [b""]
    parties = await restarted(parties, second)
    needed = least_signers(context, parties.names)
    near = total.group.holders(second)
    assert len(near) < needed
    refusal = await refused(parties.refund(second, [signed[name] for name in near]))
    assert f"{len(near)} of the {count} parties" in refusal.sentence
    assert f"it takes {needed}" in refusal.sentence
    assert parties.charged(second) == [0]
    assert await parties.refund(second, [signed[name] for name in parties.names[-needed:]]) == [b""]
    assert [parties.charged(name) for name in (first, second, third)] == [[], [], [0]]
    for kind in (ADVERTISE, OPEN, SHARE, MASK, CONSENT, REVEAL):
        assert (await refused(parties.ask(first, kind))).reason == Reason.SECURE_SUM
        assert (await refused(parties.ask(second, kind))).reason == Reason.SECURE_SUM


@pytest.mark.slow
@pytest.mark.parametrize("count", [24, 40])
async def test_a_run_of_many_takes_back_a_lost_attempt_and_what_one_left_out_paid_in_the_next(four, tmp_path, count):
    """Half of the parties are restarted before they agree; in the next attempt one is, after its vector left."""
    parties, lines = await four(dropouts=2, colluders=1, names=many(count)), []
    coordinator = driving(parties, tmp_path, lines)
    first, *rest = parties.names

    async def restarts_half(on_message):
        coordinator.befalls = {MASK: loses_the_first, CONSENT: restarts_the_first}
        await coordinator.restart(*rest[: count // 2])

    async def loses_the_first(on_message):
        def hears(who, said):
            if who != first:
                on_message(who, said)

        return hears

    async def restarts_the_first(on_message):
        coordinator.befalls = {}
        await coordinator.restart(first)

    coordinator.befalls = {CONSENT: restarts_half}
    reached, total = await coordinator.sums()
    parties = coordinator.parties
    assert (reached, coordinator.store.summed("counts")) == (count - 1, tuple(rest))
    assert np.array_equal(total, sum(parties.noisy(name) for name in rest))
    assert parties.charged(first) == []
    assert [parties.charged(name) for name in rest] == [[1]] * (count - 1)
    assert Refunds(coordinator.store).owed == set()
    told = [line.strip() for line in lines if "free of its cost" in line]
    assert told == [
        f"attempt 1 at the sum of counts: {count} parties signed to reveal nothing of it; {count} are free of its cost",
        f"{first} is not in attempt 2 at the sum of counts and is free of its cost",
    ]


@pytest.mark.slow
async def test_above_sixteen_parties_a_list_without_the_nonces_that_drew_the_graph_takes_nothing_back(four):
    parties = await four(dropouts=2, colluders=1, names=many(24))
    first, other, *_ = parties.names
    _, shown = await left_out(parties, lost=first)
    signed = shown.consents.consents
    for changed, said in (
        (dataclasses.replace(shown, openings=b""), "left out the nonces"),
        (dataclasses.replace(shown, openings=shown.openings + b"\0"), "another list"),
        (dataclasses.replace(shown, consents=Consents(signed[1:])), f"it takes {parties.context().threshold}"),
        (dataclasses.replace(shown, names=parties.names), "by a list that names it"),
    ):
        refusal = await refused(parties.ask(first, REFUND, changed.encode()))
        assert (refusal.reason, said in refusal.sentence) == (Reason.SECURE_SUM, True), refusal.sentence
        assert parties.charged(first) == [0]
    assert "by a list that names it" in (await refused(parties.ask(other, REFUND, shown.encode()))).sentence
    assert await parties.ask(first, REFUND, shown.encode()) == [b""]
    assert (parties.charged(first), parties.charged(other)) == ([], [0])
