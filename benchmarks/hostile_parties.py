"""Whole runs of four parties of which one is hostile: what becomes of the run, how long it takes, who is named.

    python benchmarks/hostile_parties.py [--only NAME] [--out FILE]

`coordinator.api.run` of a plan under the secure sum that can do without one party, with `drop_after` of 2 seconds. The
parties are servers of this process that keep to the protocol, with noise for data; a case changes one thing of one of
them. `CASES` says what, and what must become of it: the run ends well without the party, with it where nothing can be
told, or ends at once where it has nothing to go on with. `python benchmarks/hostile.py` runs this too.
"""

import argparse
import asyncio
import json
import math
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from aggregation.accounting.events import to_json
from aggregation.errors import Cheated, ConclaveError
from aggregation.secure_sum.advertise import Roster
from aggregation.secure_sum.consistency import Consents, Survivors, consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.mask import block_count, block_length
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox, Parcels
from coordinator import api
from coordinator.federation.sum_attempt import verifier
from coordinator.progress.progress import Silent
from coordinator.systems.registry import price_of, read_plan
from party.admission.admit import event_of
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.identity.signing import RELATION, sign
from protos.refusal import REASON_KEY, RULE_KEY, WHO_KEY, Reason, Refusal, abort

NAMES = ("east", "north", "south", "west")
HOSTILE = "north"
DROP_AFTER, TRAIN_WITHIN = 2.0, 5.0
LONGEST_RUN = 30.0
EVIL = (
    "\x1b[2J\x1b]0;owned\x07\u202efdp\n# [free](http://evil.example) <script>alert(1)</script> | `rm -rf` " + "A" * 900
)
ADVERTISE, SHARE, MASK, CONSENT, REVEAL = (
    party_pb2.SUM_ROUND_ADVERTISE,
    party_pb2.SUM_ROUND_SHARE,
    party_pb2.SUM_ROUND_MASK,
    party_pb2.SUM_ROUND_CONSENT,
    party_pb2.SUM_ROUND_REVEAL,
)
PLAN = """
[run]
name = "hostile"
recipe = "dped"
seed = 3
[privacy]
epsilon = 8.0
delta = 1e-6
trust = "secure-sum"
dropouts = 1
attempts = 2
[federation]
launch = "connect"
minimum_parties = 3
deadline_seconds = 1.0
retry_seconds = 1.0
stragglers = {{ drop_after = {drop_after}, train_within = {train_within} }}
parties = [{parties}]
[vocabulary]
source = "public.jsonl"
size = {words}
[dped]
signals = ["counts"]
dimension = 4
window = 3
block_rows = 8
[student]
publish = "published"
"""
WORDS = 24


class Party(PartyServicer):
    """A party by the book; what a case changes is a method, or one of the fields."""

    def __init__(self, name: str = HOSTILE) -> None:
        self.name = name
        self.identity = self_made(name, Role.PARTY, None)
        self.plan: Any = None
        self.peers: dict[str, bytes] = {}
        self.cells = 0
        self.run = party_pb2.RunContext()
        self.charged: list[int] = []
        self.going: dict[int, Participant] = {}
        self.sent: dict[int, list[bytes]] = {}
        self.attempts = Attempts()
        self.percents: Callable[[], AsyncIterator[party_pb2.TrainProgress]] = finished

    async def Describe(self, request: Any, context: Any) -> party_pb2.DescribeResponse:  # noqa: N802
        return self.described(request.nonce)

    def described(self, nonce: bytes) -> party_pb2.DescribeResponse:
        """Who it is."""
        said = sign(self.identity, "conclave describe 1", {"party": self.name, "nonce": nonce.hex()})
        return party_pb2.DescribeResponse(
            name=self.name, protocol_version=PROTOCOL_VERSION, software_version="1.0", identity=said.message()
        )

    async def Join(self, request: Any, context: Any) -> party_pb2.JoinResponse:  # noqa: N802
        self.plan, self.run = request.plan, request.run
        self.peers = {each.name: each.certificate for each in request.peers}
        self.peers[self.name] = self.identity.signing.public_bytes(Encoding.DER)
        return party_pb2.JoinResponse(party=self.name, protocol_version=PROTOCOL_VERSION)

    async def Leave(self, request: Any, context: Any) -> party_pb2.LeaveResponse:  # noqa: N802
        return party_pb2.LeaveResponse()

    async def Provide(self, requests: Any, context: Any) -> party_pb2.ProvideResponse:  # noqa: N802
        async for _ in requests:
            pass
        return party_pb2.ProvideResponse()

    async def Train(self, request: Any, context: Any) -> AsyncIterator[party_pb2.TrainProgress]:  # noqa: N802
        async for each in self.percents():
            yield each

    async def Attest(self, request: Any, context: Any) -> party_pb2.AttestResponse:  # noqa: N802
        said = sign(self.identity, "conclave attestation 1", self.attests())
        return party_pb2.AttestResponse(statement=said.message())

    def attests(self) -> dict[str, Any]:
        """What the run has cost it."""
        (release,) = self.plan.terms.releases
        event = to_json(event_of(release))
        return {
            "party": self.name,
            "run": self.run.run_id,
            "plan_hash": self.run.plan_hash.hex(),
            "account": "account",
            "unit": "record",
            "record": "document",
            "relation": RELATION,
            "insecure_reproducible_noise": False,
            "simulation": False,
            "releases": [{"name": release.name, "attempt": each, "event": event} for each in self.charged],
            "software": "1.0",
            "signed_at": time.time(),
        }

    async def SecureSum(self, request: Any, context: Any) -> AsyncIterator[party_pb2.SecureSumResponse]:  # noqa: N802
        try:
            async for said in self.says(request):
                yield party_pb2.SecureSumResponse(message=said)
        except Cheated as error:
            who = error.who if error.who in NAMES else ""
            await abort(context, Refusal(Reason.SECURE_SUM, str(error), who=who))
        except Refusal as refusal:
            await abort(context, refusal)

    async def says(self, request: Any) -> AsyncIterator[bytes]:
        """Its part of a round."""
        end, message = self.participant(request), request.message
        match request.round:
            case party_pb2.SUM_ROUND_ADVERTISE:
                yield end.advertise().encode()
            case party_pb2.SUM_ROUND_SHARE:
                yield end.share(Roster.decode(message)).encode()
            case party_pb2.SUM_ROUND_MASK:
                end.receive(Inbox.decode(message))
                for each in self.masked(end, request)[request.first_block :]:
                    yield each
            case party_pb2.SUM_ROUND_CONSENT:
                yield end.consent(Survivors.decode(message)).encode()
            case party_pb2.SUM_ROUND_REVEAL:
                yield end.reveal(Consents.decode(message)).encode()
            case _:
                raise Refusal(Reason.SECURE_SUM, f"attempt {request.attempt} stays charged.")

    def participant(self, request: Any) -> Participant:
        """Its end of an attempt."""
        if request.attempt not in self.going:
            self.going[request.attempt] = Participant(
                self.context(request),
                self.name,
                attempts=self.attempts,
                sign=self.identity.signing_key.sign,
                verify=verifier(self.peers),
                remember=lambda survivors: None,
            )
        return self.going[request.attempt]

    def context(self, request: Any) -> Context:
        """The attempt, as every end makes it of the plan."""
        privacy = self.plan.terms.privacy
        return Context.of(
            run=self.run.run_id,
            plan_hash=self.run.plan_hash.hex(),
            sum=request.release,
            attempt=request.attempt,
            parties=self.plan.terms.parties,
            length=self.cells,
            dropouts=privacy.dropouts,
            colluders=privacy.colluders,
        )

    def masked(self, end: Participant, request: Any) -> list[bytes]:
        """Its vector: noise of no data."""
        if request.attempt not in self.sent:
            self.charged.append(request.attempt)
            context, rng = self.context(request), np.random.default_rng(0)
            blocks = [rng.normal(0, 40, block_length(context, index)) for index in range(block_count(context))]
            self.sent[request.attempt] = [end.block(self.values(each.astype(np.int64))).encode() for each in blocks]
        return self.sent[request.attempt]

    def values(self, cells: np.ndarray) -> np.ndarray:
        """What it puts under the mask."""
        return cells


async def finished() -> AsyncIterator[party_pb2.TrainProgress]:
    """A training that is done."""
    yield party_pb2.TrainProgress(percent=100, finished=True)


def beating(*percents: int, seconds: float = 0.0) -> Callable[[], AsyncIterator[party_pb2.TrainProgress]]:
    """Signs of life for ever."""

    async def beats() -> AsyncIterator[party_pb2.TrainProgress]:
        while True:
            for percent in percents:
                yield party_pb2.TrainProgress(percent=percent, seconds=seconds)
                await asyncio.sleep(0.1)

    return beats


def trains(percents: Callable[[], AsyncIterator[party_pb2.TrainProgress]]) -> Callable[[], Party]:
    """A party whose training goes so."""

    def made() -> Party:
        party = Party()
        party.percents = percents
        return party

    return made


async def creeping() -> AsyncIterator[party_pb2.TrainProgress]:
    """A percent each second, without an end in time."""
    for percent in range(101):
        yield party_pb2.TrainProgress(percent=percent)
        await asyncio.sleep(1.0)


async def odd_seconds() -> AsyncIterator[party_pb2.TrainProgress]:
    """Times that are none."""
    for seconds in (math.nan, math.inf, -1.0, 1e308):
        yield party_pb2.TrainProgress(percent=7, seconds=seconds)
    yield party_pb2.TrainProgress(percent=100, finished=True, seconds=-math.inf)


async def unfinished() -> AsyncIterator[party_pb2.TrainProgress]:
    """A training that only ends."""
    yield party_pb2.TrainProgress(percent=99)


class Named(Party):
    def described(self, nonce: bytes) -> party_pb2.DescribeResponse:
        said = super().described(nonce)
        said.name = EVIL
        return said


class Versioned(Party):
    def described(self, nonce: bytes) -> party_pb2.DescribeResponse:
        said = super().described(nonce)
        said.protocol_version, said.software_version = 1, EVIL * 1000
        return said


class Boasting(Party):
    def described(self, nonce: bytes) -> party_pb2.DescribeResponse:
        said = super().described(nonce)
        said.software_version, said.clock = EVIL, math.nan
        said.facts[EVIL], said.facts["size-to-nearest-1000"] = EVIL, "-1" * 500_000
        said.trains.extend([EVIL] * 100)
        return said


class Refusing(Party):
    async def SecureSum(self, request: Any, context: Any) -> AsyncIterator[party_pb2.SecureSumResponse]:  # noqa: N802
        told = ((REASON_KEY, Reason.POLICY), (RULE_KEY, "<script>" * 99), (WHO_KEY, "[free](http://evil.example)"))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, EVIL, told)
        yield party_pb2.SecureSumResponse()


class Mute(Party):
    """Says nothing in one round."""

    at = ADVERTISE

    async def says(self, request: Any) -> AsyncIterator[bytes]:
        if request.round == self.at:
            await asyncio.sleep(3600)
        async for each in super().says(request):
            yield each


class MuteAtVectors(Mute):
    at = MASK


class MuteAtShares(Mute):
    at = REVEAL


class Changing(Party):
    """Changes what it says in one round."""

    at = ADVERTISE

    async def says(self, request: Any) -> AsyncIterator[bytes]:
        async for each in super().says(request):
            if request.round == self.at:
                async for other in self.changed(request, each):
                    yield other
            else:
                yield each

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        yield random.Random(0).randbytes(200)


class Endless(Changing):
    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        while True:
            yield said


class EndlessBlocks(Endless):
    at = MASK


class TwoKeys(Changing):
    """Advertises two sets of keys."""

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        yield said
        self.attempts, self.going = Attempts(), {}
        yield self.participant(request).advertise().encode()


class BadSeals(Changing):
    at = SHARE

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        parcels = Parcels.decode(said, self.name)
        yield Parcels(parcels.group, self.name, tuple((who, bytes(len(x))) for who, x in parcels.sealed)).encode()


class BadShares(Party):
    """Deals shares of another seed than it advertised."""

    def participant(self, request: Any) -> Participant:
        end = super().participant(request)
        if request.round == SHARE:
            end._secrets = replace(end._secrets, seed=bytes(32))
        return end


class OtherList(Changing):
    """Agrees to another list of survivors than it was shown."""

    at = CONSENT

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        shown = Survivors.decode(request.message)
        yield consent(Survivors(shown.group, shown.names[:-1]), self.name, self.identity.signing_key.sign).encode()


class OtherShares(Changing):
    """Reveals shares that it was not dealt."""

    at = REVEAL

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        yield said[:-16] + bytes(16)


class OtherBlocks(Changing):
    at = MASK

    async def changed(self, request: Any, said: bytes) -> AsyncIterator[bytes]:
        yield said[:-4]


class WrongNoise(Party):
    def values(self, cells: np.ndarray) -> np.ndarray:
        return cells + 2**30


class Attesting(Party):
    """Signs something else than what the run has cost it."""

    changes: dict[str, Any] = {}  # noqa: RUF012

    def attests(self) -> dict[str, Any]:
        return super().attests() | self.changes


def attests(**changes: Any) -> Callable[[], Party]:
    """A party that signs other things."""

    def made() -> Party:
        party = Attesting()
        party.changes = changes
        return party

    return made


@dataclass(frozen=True)
class Case:
    """makes: the hostile party. ends: None where the run must end well, else what it must end with. in_it: whether the
    party is in the sum. says: what must be told of it, where anything can be.
    """

    makes: Callable[[], Party]
    says: str = ""
    ends: str | None = None
    in_it: bool = False


CASES: dict[str, Case] = {
    "keeps to the protocol": Case(Party, in_it=True),
    "trains at 0% for ever": Case(trains(beating(0)), "no further than 0%"),
    "trains up and down for ever": Case(trains(beating(5, 80, 3, 255)), "no further than 80%"),
    "trains at no percent for ever": Case(trains(beating(255)), "not done after 5 s"),
    "trains a percent a second": Case(trains(creeping), "not done after 5 s"),
    "trains for NaN, giant and negative seconds": Case(trains(odd_seconds), in_it=True),
    "never finishes its training": Case(trains(unfinished), "ended without saying that it finished"),
    "is called by escape codes and Markdown": Case(Named, "is party", ends="PartyRefused"),
    "runs a version of escape codes, 1 MB": Case(Versioned, "older protocol", ends="PartyRefused"),
    "tells facts that lie, of escape codes, 1 MB": Case(Boasting, in_it=True),
    "refuses in escape codes and Markdown": Case(Refusing, "it refused to sum"),
    "says nothing in the first round": Case(Mute, "no sign of its work"),
    "says nothing when its vector is due": Case(MuteAtVectors, "no sign of its work"),
    "says nothing when shares are due": Case(MuteAtShares, "no sign of its work", in_it=True),
    "sends garbage for keys": Case(Changing, "breaks off|something else where"),
    "sends messages without end": Case(Endless, "more than one thing", in_it=True),
    "sends blocks without end": Case(EndlessBlocks, r"sent masked block \d+ where", in_it=True),
    "sends blocks of another length": Case(OtherBlocks, "breaks off"),
    "advertises two sets of keys": Case(TwoKeys, "two different sets of keys|more than one thing"),
    "seals shares that do not open": Case(BadSeals, "left out of sum"),
    "deals shares of another seed": Case(BadShares, "do not reconstruct"),
    "agrees to another list": Case(OtherList, "signed another list", in_it=True),
    "reveals other shares": Case(OtherShares, "does not fit|could not be|did not reveal|reconstruct", in_it=True),
    "adds 2^30 to every number": Case(WrongNoise, in_it=True),
    "attests another run": Case(attests(run="another"), "nothing is promised for", in_it=True),
    "attests nothing": Case(attests(releases=[]), "nothing is promised for", in_it=True),
    "signs in 1970": Case(attests(signed_at=1.0), "nothing is promised for", in_it=True),
    "signs in 2100": Case(attests(signed_at=4102444800.0), "nothing is promised for", in_it=True),
}
"""What nobody can see behind a mask is in the sum, as wrong noise is."""


class Told(Silent):
    """Keeps all that a person would see."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def party(self, name: str, state: str) -> None:
        self.lines.append(f"{name} {state}")


class Serving:
    """Four parties, served in a thread; `addresses` by name."""

    def __init__(self, parties: list[Party]) -> None:
        self._parties, self._loop = parties, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> "Serving":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def __exit__(self, *failure: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._servers = []
        for party in self._parties:
            server = grpc.aio.server()
            add_PartyServicer_to_server(party, server)
            serving = health.aio.HealthServicer()
            await serving.set("", health_pb2.HealthCheckResponse.SERVING)
            health_pb2_grpc.add_HealthServicer_to_server(serving, server)
            self.addresses[party.name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            self._servers.append(server)

    async def _stop(self) -> None:
        await asyncio.gather(*(server.stop(0) for server in self._servers))


def whole_run(case: Case, folder: Path, longest: float = LONGEST_RUN) -> dict[str, Any]:
    """One run in an empty folder: how it ended, who is in the sum, what was told, and what of it is wrong.

    longest: seconds after which it counts as held up.
    """
    os.environ["CONCLAVE_HOME"] = str(folder / "home")
    write_texts(folder)
    hostile = case.makes()
    parties = [hostile if name == HOSTILE else Party(name) for name in NAMES]
    told = Told()
    with Serving(parties) as serving:
        path = folder / "plan.toml"
        entries = ", ".join(f'{{ name = "{name}", address = "{at}" }}' for name, at in serving.addresses.items())
        path.write_text(PLAN.format(parties=entries, words=WORDS, drop_after=DROP_AFTER, train_within=TRAIN_WITHIN))
        (release,) = [each for each in price_of(read_plan(path)).releases if each.rows]
        for party in parties:
            party.cells = release.rows * release.columns
        began, ended, in_it = time.monotonic(), "well", None
        try:
            result = api.run(path, output=folder / "out", progress=told)
            privacy = json.loads((result.student / "privacy.json").read_text())
            in_it = HOSTILE in privacy["releases"][0]["parties"]
        except ConclaveError as error:
            ended = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
    said = "\n".join([*told.lines, ended])
    found: dict[str, Any] = {"ended": ended, "in_the_sum": in_it, "seconds": round(seconds, 1)}
    named = [line for line in said.splitlines() if HOSTILE in line and (not case.says or re.search(case.says, line))]
    found["told"] = named[0].strip()[:200] if case.says and named else ""
    found["wrong"] = wrong(case, found, said, folder, longest)
    return found


def wrong(case: Case, found: dict[str, Any], said: str, folder: Path, longest: float) -> list[str]:
    """What of a run is not as it must be."""
    odd = []
    if not found["ended"].startswith(case.ends or "well"):
        odd.append(f"it ended with {found['ended'][:300]}")
    elif case.ends is None and found["in_the_sum"] != case.in_it:
        odd.append(f"in the sum: {found['in_the_sum']}")
    if case.says and not found["told"]:
        odd.append("the party is not named with what it did")
    if found["seconds"] > longest:
        odd.append(f"it took {found['seconds']} s")
    if any(not each.isprintable() for each in said.replace("\n", "")) or any(len(x) > 3000 for x in said.splitlines()):
        odd.append("what was told cannot be shown, or is too long")
    published = folder / "out/student"
    for path in published.rglob("*"):
        if path.suffix in (".md", ".json") and re.search("evil.example|<script|\x1b|\u202e", path.read_text()):
            odd.append(f"{path.name} holds what the party said")
    return odd


def write_texts(folder: Path) -> None:
    """Public text of made-up words."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(WORDS)])
    rows = [json.dumps({"text": " ".join(rng.choice(words, 40))}) for _ in range(60)]
    (folder / "public.jsonl").write_text("\n".join(rows))


def measured(only: str = "") -> dict[str, Any]:
    """Every case, by its name."""
    with tempfile.TemporaryDirectory(prefix="hostile-party-") as folder:
        whole_run(Case(Party), Path(folder))  # what is loaded once counts for no case
    found = {}
    for name, case in CASES.items():
        if only in name:
            with tempfile.TemporaryDirectory(prefix="hostile-party-") as folder:
                found[name] = whole_run(case, Path(folder))
    return found


def table(found: dict[str, Any]) -> str:
    """What was found, to be read."""
    lines = []
    for name, each in found.items():
        became = "without it" if each["in_the_sum"] is False else "with it" if each["in_the_sum"] else "none"
        ended = each["ended"].partition(":")[0]
        lines.append(f"  {name}: run {ended}, sum {became}, {each['seconds']} s. {each['told']}")
        lines += [f"    WRONG {what}" for what in each["wrong"]]
    return "\n".join(lines)


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--out", type=Path, metavar="FILE", help="under parties in it, beside what else it holds")
    options = parser.parse_args()
    found = measured(options.only)
    print(table(found))
    if options.out is not None:
        kept = json.loads(options.out.read_text()) if options.out.exists() else {}
        options.out.write_text(json.dumps(kept | {"parties": found}, indent=1) + "\n")
    return int(any(each["wrong"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
