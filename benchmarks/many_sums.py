"""A secure sum over its graph among many parties of which some are lost in every round, beside a model of its bytes.

    python benchmarks/many_sums.py [--parties 100,300,1000] [--cells 40000] [--lost 0.05] [--lost-in none,open,every]
                                   [--out FILE]

All parties and the coordinator are in one process and take turns; every message travels as bytes, every signature and
mask is real (`aggregation/secure_sum/`). There is no network, no ledger and no disk: `thousand.py` measures whole runs.
Two kinds of losses: a twentieth of the parties once, in one of the rounds, where the plan allows for a twentieth; and a
twentieth in each of the rounds, where it allows for a quarter. A party is lost before it answers in a round.

Seconds are processor seconds. A party's, once as the first of its process, which finds nothing decoded or verified, and
once on average over all parties, which share what the first made of public lists, as simulated parties of one actor do.
A party's memory is what Python allocates for one that is alone (tracemalloc). Bytes of a party are those that it sends
and receives, on average; the model is in `modelled`.
"""

import argparse
import json
import platform
import secrets
import time
import tracemalloc
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregation.secure_sum import advertise, consistency, opening
from aggregation.secure_sum.advertise import Advertisement, Roster
from aggregation.secure_sum.consistency import Consent, Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn, shape
from aggregation.secure_sum.mask import BLOCK_CELLS, MaskedBlock, MemoryBlocks
from aggregation.secure_sum.opening import Opening, Openings
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox, Parcels
from aggregation.secure_sum.summation import Summation
from aggregation.secure_sum.unmask import Revealed

ROUNDS = ("open", "share", "mask", "consent", "reveal")
"""The rounds in which parties are lost. One that is lost in the first, advertise, has no part in anything."""
SHARED = (advertise._roster, opening._openings, opening.group_of, consistency._survivors, consistency._consents)
COLLUDERS = 1


class Meter:
    """Bytes and processor seconds, by round, of the coordinator and of parties; memory of the party that is alone."""

    def __init__(self, names):
        self.bytes = dict.fromkeys(names, 0)
        self.coordinator = 0.0
        self.parties = defaultdict(list)
        self.alone = 0.0
        self.memory = 0
        self._kept = 0
        self._weighed, self._timed = names[0], names[1]

    def said(self, name, act, question=b""):
        """What a party says to a question; both are counted."""
        if name in (self._weighed, self._timed):
            for each in SHARED:
                each.cache_clear()
            verified.cache_clear()
        if name == self._weighed:
            tracemalloc.start()
        began = time.process_time()
        answers = act()
        seconds = time.process_time() - began
        if name == self._weighed:
            now, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            self.memory, self._kept = max(self.memory, self._kept + most), self._kept + now
        elif name == self._timed:
            self.alone += seconds
        else:
            self.parties[name].append(seconds)
        self.bytes[name] += len(question) + sum(map(len, answers))
        return answers

    def heard(self, act, *given):
        """What the coordinator makes of something."""
        began = time.process_time()
        found = act(*given)
        self.coordinator += time.process_time() - began
        return found


@lru_cache(maxsize=8192)
def verified(key, statement, signature):
    """As the nodes of one process check a signature: once (`party.releasing.secure_sums`)."""
    try:
        key.verify(signature, statement)
    except InvalidSignature:
        return False
    return True


class Keys:
    """Public keys of the parties, which the cache of `verified` can look up."""

    def __init__(self, key):
        self.public = key.public_key()

    def verify(self, signature, statement):
        self.public.verify(signature, statement)


def summed(parties, cells, dropouts, losses):
    """One sum; `losses`: how many parties are lost in each round. Raises `AssertionError` where it is not exact."""
    names = [f"party-{number:04}" for number in range(parties)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    pinned = {name: Keys(key) for name, key in identities.items()}

    def verify(name, statement, signature):
        return verified(pinned[name], statement, signature)

    def verify_here(name, statement, signature):
        try:
            pinned[name].verify(signature, statement)
        except InvalidSignature:
            return False
        return True

    context = Context.of(
        run=secrets.token_hex(8), plan_hash="00", sum="sum", attempt=0, parties=names, length=cells, dropouts=dropouts,
        colluders=COLLUDERS,
    )  # fmt: skip
    rng = np.random.default_rng(parties)
    vectors = {name: rng.integers(-(2**31), 2**31, cells, dtype=np.int32) for name in names}
    shape(context)  # what it takes to choose the graph's shape is known before, and the same for every sum of a plan
    before = psutil.Process().memory_info().rss
    meter, wall = Meter(names), time.perf_counter()
    server = Summation(context, verify_here, MemoryBlocks(context))
    clients = {}

    def begin(name):
        clients[name] = Participant(
            context, name, attempts=Attempts(), sign=identities[name].sign, verify=verify, remember=lambda digest: None
        )
        return [clients[name].advertise().encode()]

    left = list(names)

    def lose(round_):
        """Some are lost: of the last, so that the parties that are looked at stay."""
        del left[len(left) - losses.get(round_, 0) :]

    def round_of(read, take, answer, shown):
        for name in left:
            (said,) = meter.said(name, lambda name=name: [answer(clients[name], read(shown)).encode()], shown)
            meter.heard(take, said, name)

    for name in left:
        (said,) = meter.said(name, lambda name=name: begin(name))
        meter.heard(lambda said, name: server.advertised(Advertisement.decode(said, name)), said, name)
    shown = meter.heard(lambda: server.roster().encode())
    read: Any = Roster.decode
    if drawn(context):
        lose("open")
        round_of(read, lambda said, name: server.opened(Opening.decode(said, name)), Participant.open, shown)
        shown, read = meter.heard(lambda: server.openings().encode()), Openings.decode
    lose("share")
    round_of(read, lambda said, name: server.dealt(Parcels.decode(said, name)), Participant.share, shown)
    inboxes = {name: each.encode() for name, each in meter.heard(server.inboxes).items()}
    lose("mask")
    for name in left:

        def mask(name=name):
            clients[name].receive(Inbox.decode(inboxes[name]))
            starts = range(0, cells, BLOCK_CELLS)
            return [clients[name].block(vectors[name][at : at + BLOCK_CELLS]).encode() for at in starts]

        for said in meter.said(name, mask, inboxes[name]):
            meter.heard(lambda said, name: server.masked(MaskedBlock.decode(said, name)), said, name)
    whole = list(left)
    shown = meter.heard(lambda: server.survivors().encode())
    lose("consent")
    round_of(
        Survivors.decode, lambda said, name: server.consented(Consent.decode(said, name)), Participant.consent, shown
    )
    shown = meter.heard(lambda: server.consents().encode())
    lose("reveal")
    round_of(
        Consents.decode, lambda said, name: server.revealed(Revealed.decode(said, name)), Participant.reveal, shown
    )
    blocks = meter.heard(lambda: list(server.totals()))
    seconds = time.perf_counter() - wall
    expected = sum((vectors[name].view(np.uint32) for name in whole), np.zeros(cells, np.uint32))
    assert np.array_equal(np.concatenate(blocks), expected), "the sum is not exact"
    there = [name for name in left if name in meter.parties]
    own, form = [sum(meter.parties[name]) for name in there], shape(context)
    modelled_bytes = modelled(parties, cells, form.degree, context, losses)
    return {
        "parties": parties,
        "cells": cells,
        "allowed": dropouts,
        "lost": dict(losses),
        "degree": form.degree,
        "threshold": form.threshold,
        "in_the_sum": len(whole),
        "seconds": round(seconds, 2),
        "coordinator_seconds": round(meter.coordinator, 2),
        "party_seconds_alone": round(meter.alone, 4),
        "party_seconds_sharing": round(sum(own) / len(own), 4),
        "party_bytes": round(sum(meter.bytes[name] for name in there) / len(there)),
        "party_bytes_modelled": round(modelled_bytes),
        "party_kibibytes_alone": round(meter.memory / 1024),
        "kibibytes_a_party": round((psutil.Process().memory_info().rss - before) / parties / 1024),
    }


def modelled(parties, cells, degree, context, losses):
    """Bytes that a party which stays sends and receives: lists grow with the parties, the rest with the graph's degree.

    In a list an advertisement takes 296 bytes and a name, a nonce 114, a survivor 4, a signature 146. A sealed pair of
    shares takes 102 bytes and a name, a revealed share 49, a cell 4. A party's own messages in the lists and the heads
    of all messages are a thousand bytes.
    """
    name = len(context.parties[0])
    opened = parties - losses.get("open", 0)
    dealt = opened - losses.get("share", 0)
    whole = dealt - losses.get("mask", 0)
    near = min(degree, opened - 1)
    lists = parties * (296 + name) + opened * (114 + name) + whole * (4 + name) + context.threshold * (146 + name)
    heard = near * dealt / opened
    return lists + (near + heard) * (102 + name) + (heard + 1) * (49 + name) + 4 * cells + 1000


def main():
    """Measure the asked sums, print a line each, and write all where --out says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parties", default="100,300,1000")
    parser.add_argument("--cells", type=int, default=40_000)
    parser.add_argument("--lost", type=float, default=0.05)
    parser.add_argument("--lost-in", default=",".join(("none", *ROUNDS, "every")), help="none, a round, or every")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out and options.out.exists() else []
    for parties in map(int, options.parties.split(",")):
        few = round(parties * options.lost)
        for lost in options.lost_in.split(","):
            losses = {"none": {}, "every": dict.fromkeys(ROUNDS, few)}.get(lost, {lost: few})
            rows.append(summed(parties, options.cells, len(ROUNDS) * few if lost == "every" else few, losses))
            print(json.dumps(rows[-1]), flush=True)
            if options.out:
                record = {"machine": platform.processor() or platform.machine(), "rows": rows}
                options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
