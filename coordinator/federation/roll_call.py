"""The roll call before a run: every party is asked at the same time who it is and whether it would join.

No party is bound to anything.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from coordinator.errors import PartyRefused
from coordinator.federation.admission import new_nonce, proven
from coordinator.identity.identity import Own
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.launchers import PartyAddress
from coordinator.transport.link import Answered, Lost, Refused, Way
from coordinator.transport.reachable import unreachable
from protos import PROTOCOL_VERSION, software_version
from protos.conclave.v1 import party_pb2
from protos.console.checklist import LARGEST_DIFFERENCE, Line, apart, ok, to_do, warning
from protos.digest import plan_hash
from protos.identity.certificates import fingerprint
from protos.identity.validity import ending, ends_soon, moment

DIAL_SECONDS: Final = 45.0
"""Seconds to wait for a party that dials: more than the longest pause between two of its tries."""
SAY_SECONDS: Final = 5.0


@dataclass(slots=True)
class Seen:
    """What was found about one party. left: seconds for which it may still be waited for. certificate: its signing
    certificate, once it has proven its identity. ahead: seconds by which its clock is ahead of ours, None if unknown.
    """

    name: str
    link: GrpcLink
    left: float
    lines: list[Line] = field(default_factory=list)
    certificate: bytes | None = None
    ahead: float | None = None


async def ask_all(
    plan: Plan,
    own: Own,
    priced: PricedPlan[Plan] | None,
    needs: party_pb2.Needs | None,
    addresses: Sequence[PartyAddress],
    say: Callable[[str], None],
) -> list[Line]:
    """Ask every party who it is and, given the plan's message and needs, whether it would join; returns lines by party.

    No party is waited for longer than the plan's deadline, and one that dials for `DIAL_SECONDS` before. say: is told
    who is waited for.
    """
    identity = own.identity if own.tls else None
    patience = plan.federation.deadline_seconds
    places = {each.name: each for each in sorted(addresses, key=lambda each: each.name)}
    seen = [
        Seen(name, GrpcLink(name, each.address, identity=identity, way=each.way, deadline=patience), patience)
        for name, each in places.items()
    ]
    try:
        await asyncio.gather(*(_described(each, places[each.name], own, say) for each in seen))
        clocks = [each.ahead for each in seen if each.ahead is not None]
        for each in seen:
            if each.ahead is not None:
                each.lines.append(clock_line(each.name, each.ahead, clocks))
        if priced is not None and needs is not None:
            await asyncio.gather(*(_joining(each, seen, priced, needs) for each in seen))
    finally:
        await asyncio.gather(*(each.link.close() for each in seen))
    return [line for each in seen for line in each.lines]


def clock_line(name: str, ahead: float, others: Sequence[float]) -> Line:
    """A line on a party's clock that is this many seconds ahead of ours; others: of every party, its own included.

    A clock that agrees with most of all clocks is taken to be right.
    """
    off, far = apart(ahead)
    if not far:
        return ok(f"{name} clock", off)
    clocks = [0.0, *others]

    def most_agree(with_clock: float) -> bool:
        near = sum(abs(each - with_clock) <= LARGEST_DIFFERENCE for each in clocks)
        return 2 * near > len(clocks)

    if most_agree(0.0):
        cure = f"Most clocks agree with this one: set {name}'s by a time server."
    elif most_agree(ahead):
        cure = "Most parties' clocks agree with each other: set this machine's by a time server."
    else:
        here = datetime.now(UTC)
        there = here + timedelta(seconds=ahead)
        cure = f"Here it is {moment(here)}, there {moment(there)}: set the one that is wrong by a time server."
    return warning(f"{name} clock", f"{off}. {cure}")


async def _described(seen: Seen, place: PartyAddress, own: Own, say: Callable[[str], None]) -> None:
    """Lines on a party's address, transport, name and versions."""
    name, address = seen.name, place.address
    if place.way is not None:
        address = "dialled in"
        if (missing := await _awaited(name, place.way, say)) is not None:
            seen.lines.append(to_do(f"{name} address", f"{missing}."))
            return
    elif (why := await unreachable(address)) is not None:
        seen.lines.append(to_do(f"{name} address", str(why)))
        return
    nonce, asked = new_nonce(), time.time()
    try:
        async with asyncio.timeout(seen.left):
            outcome = await seen.link.describe(nonce)
    except TimeoutError:
        seen.lines.append(to_do(f"{name} address", f"{address} takes connections and does not answer."))
        return
    heard = time.time()
    seen.left -= heard - asked
    if isinstance(outcome, Lost):
        seen.lines.append(to_do(f"{name} address", f"{outcome.why}."))
        return
    transport = "mutual TLS" if own.tls else "plain text, on this machine"
    seen.lines.append(ok(f"{name} address", f"{address}, {transport}"))
    if isinstance(outcome, Refused):
        seen.lines.append(to_do(f"{name} name", outcome.refusal.sentence))
        return
    answer = outcome.value
    seen.ahead = answer.clock - (asked + heard) / 2
    seen.lines.append(_name(seen, answer, nonce, own))
    seen.lines.append(_version(name, answer))


def _name(seen: Seen, answer: party_pb2.DescribeResponse, nonce: bytes, own: Own) -> Line:
    what = f"{seen.name} name"
    if answer.name != seen.name:
        return to_do(what, f'the node there is party "{answer.name}". Mend the addresses in [federation] parties.')
    try:
        seen.certificate = proven(seen.name, answer, nonce, own)
    except PartyRefused as error:
        return to_do(what, str(error))
    certificate = x509.load_der_x509_certificate(seen.certificate)
    said = f"{seen.name}, signing key {fingerprint(certificate)}"
    if not own.tls:
        return ok(what, said)
    said += f", valid until {(end := ending(certificate)):%Y-%m-%d}"
    if ends_soon(end):
        return warning(what, f"{said}; sign its request again, and send it what comes (coordinator provision sign)")
    return ok(what, said)


def _version(name: str, answer: party_pb2.DescribeResponse) -> Line:
    what, here = f"{name} versions", f"here it is Conclave {software_version()}, protocol {PROTOCOL_VERSION}"
    there = f"Conclave {answer.software_version}, protocol {answer.protocol_version}"
    if answer.protocol_version != PROTOCOL_VERSION:
        return to_do(what, f"{there}; {here}. Install the same version at both ends.")
    return ok(what, there if answer.software_version == software_version() else f"{there}; {here}, which go together")


async def _joining(seen: Seen, everyone: Sequence[Seen], priced: PricedPlan[Plan], needs: party_pb2.Needs) -> None:
    """Whether a party would join: its policy, its budget, and its memory and disk."""
    if seen.certificate is None:
        return
    what = f"{seen.name} plan"
    peers = [
        party_pb2.Peer(name=each.name, certificate=each.certificate)
        for each in everyone
        if each.certificate is not None and each.name != seen.name
    ]
    run_id = f"check-{secrets.token_hex(8)}"
    try:
        async with asyncio.timeout(seen.left):
            outcome = await seen.link.join(run_id, priced.binding, plan_hash(priced.binding), peers=peers, needs=needs)
    except TimeoutError:
        seen.lines.append(to_do(what, "it did not say within [federation] deadline_seconds whether it would join."))
        return
    match outcome:
        case Answered(value=computed):
            seen.lines.append(ok(what, "would join: its policy admits the plan, its budget pays, and there is room"))
            seen.lines.append(ok(f"{seen.name} device", f"would compute on {computed}"))
        case Lost(why=why):
            seen.lines.append(to_do(what, f"{why}."))
        case Refused(refusal=refusal) if refusal.rule == "peers" and len(peers) < len(everyone) - 1:
            seen.lines.append(warning(what, "cannot be said before the other parties answer: it has pinned their keys"))
        case Refused(refusal=refusal):
            seen.lines.append(to_do(what, refusal.sentence))


async def _awaited(name: str, way: Way, say: Callable[[str], None]) -> str | None:
    """Wait for a party that dials; why it has not come, None where it has."""
    until = time.monotonic() + DIAL_SECONDS
    missing = await way.missing(min(SAY_SECONDS, DIAL_SECONDS))
    while missing is not None and (left := until - time.monotonic()) > 0:
        say(f"  waiting for {name} to dial in, {left:.0f} s more: {missing}")
        missing = await way.missing(min(SAY_SECONDS, left))
    return missing
