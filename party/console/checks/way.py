"""The way from a party to the gate that it dials: tried as serving will, and what the coordinator there shows."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from party.config import PartyConfig
from party.dialling.destination import Destination
from party.dialling.reaching import Met, Unreached, look
from protos import PROTOCOL_VERSION, software_version
from protos.console.checklist import Line, apart, ok, to_do, warning
from protos.identity.certificates import subject_of
from protos.identity.identity import Identity
from protos.identity.validity import ending, ends_soon


def way(config: PartyConfig, dials: Destination, own: Identity | None) -> Iterator[Line]:
    """Lines on the proxy, the gate, and the coordinator's certificate, clock and version.

    own: None where the party has no identity that could be shown there.
    """
    if own is None:
        yield to_do(
            "gate",
            f"{dials} was not tried: only a certificate shows a coordinator who dials. "
            + ("Run `party enroll`, and take plaintext out of the party's file." if config.plaintext else "See above."),
        )
        return
    try:
        met = asyncio.run(look(dials, own))
    except Unreached as error:
        if dials.proxy is not None and not error.proxied:
            yield ok("proxy", f"{dials.proxy} was asked")
        yield to_do("proxy" if error.proxied else "gate", str(error))
        return
    if dials.proxy is not None:
        yield ok("proxy", f"{dials.proxy} connects to {dials.address}")
    yield _gate(dials, met)
    yield _clock(met, own)
    yield _versions(met)


def _gate(dials: Destination, met: Met) -> Line:
    subject, end = subject_of(met.certificate), ending(met.certificate)
    name = subject[1] if subject is not None else "the coordinator"
    there = "; a node of this party is connected there now" if met.connected else ""
    said = f"{dials.address} let this party in: {name}, valid until {end:%Y-%m-%d}{there}"
    if ends_soon(end):
        return warning("gate", f"{said}; ask whoever runs it to renew its certificate (coordinator provision renew)")
    return ok("gate", said)


def _clock(met: Met, own: Identity) -> Line:
    what = "gate clock"
    if met.ahead is None:
        return warning(what, "the coordinator there does not say what time it is")
    off, far = apart(met.ahead)
    if not far:
        return ok(what, off)
    there = datetime.now(UTC) + timedelta(seconds=met.ahead)
    cure = "Set the one that is wrong by a time server."
    starts = max(own.transport.not_valid_before_utc, own.signing.not_valid_before_utc)
    if not starts <= there <= ending(own.transport, own.signing):
        return to_do(what, f"{off}, by which this party's certificates are not valid. {cure}")
    return warning(what, f"{off}: certificates that begin or end in between are refused at one end. {cure}")


def _versions(met: Met) -> Line:
    what, here = "gate versions", f"Conclave {software_version()}, protocol {PROTOCOL_VERSION}"
    if not met.protocol:
        return warning(what, f"the coordinator there is of an earlier version, and does not say which; here {here}")
    there = f"Conclave {met.software}, protocol {met.protocol}"
    if met.protocol != PROTOCOL_VERSION:
        return to_do(what, f"{there}; here {here}. Install the same version at both ends.")
    return ok(what, there if met.software == software_version() else f"{there}; here {here}, which go together")
