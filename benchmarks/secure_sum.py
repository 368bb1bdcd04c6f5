"""How long one secure sum takes: every party and the coordinator in one process, every round, every signature.

    python benchmarks/secure_sum.py [--repeats N] [--out FILE]

Vectors of 32-bit integers, modulo 2^32. All messages travel as bytes; signatures are Ed25519; masks and signatures use
every core. Keys of identity and the vectors are made before the clock starts, everything of the attempt itself
afterwards, until the last block of the sum. A dropped party deals its shares and is lost before its first masked block,
which costs the coordinator most.
"""

import argparse
import json
import platform
import secrets
import statistics
import time
from pathlib import Path

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregation.secure_sum.advertise import Advertisement, Roster
from aggregation.secure_sum.consistency import Consent, Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.mask import BLOCK_CELLS, MaskedBlock, MemoryBlocks
from aggregation.secure_sum.opening import Opening, Openings
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox, Parcels
from aggregation.secure_sum.summation import Summation
from aggregation.secure_sum.unmask import Revealed

CASES = ((5, 1_000_000, 0), (10, 1_000_000, 0), (10, 1_000_000, 2), (32, 100_000, 0))
COLLUDERS = 1


def run_case(parties, length, dropped):
    """Seconds of one sum of `length` int32 cells over `parties`, of whom `dropped` are lost after dealing shares.

    Made for one colluder and as many drop-outs as are dropped, at least a fifth of the parties but one. Raises
    `AssertionError` where the sum is not exact.
    """
    names = [f"party-{i:03}" for i in range(parties)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    pinned = {name: key.public_key() for name, key in identities.items()}

    def verify(name, statement, signature):
        try:
            pinned[name].verify(signature, statement)
        except InvalidSignature:
            return False
        return True

    rng = np.random.default_rng(parties)
    vectors = {name: rng.integers(-(2**31), 2**31, length, dtype=np.int32) for name in names}
    context = Context.of(
        run=secrets.token_hex(8),
        plan_hash="00",
        sum="benchmark",
        attempt=0,
        parties=names,
        length=length,
        dropouts=max(dropped, parties // 5 - 1),
        colluders=COLLUDERS,
    )
    remembered = []
    start = time.perf_counter()
    blocks = _whole_sum(context, identities, verify, vectors, names[parties - dropped :], remembered)
    seconds = time.perf_counter() - start

    left = names[: parties - dropped]
    expected = np.zeros(length, dtype=np.uint32)
    for name in left:
        expected += vectors[name].view(np.uint32)
    assert np.array_equal(np.concatenate(blocks), expected), "the sum is not exact"
    assert len(remembered) == len(left), "a survivor revealed shares without remembering the list"
    return seconds


def _whole_sum(context, identities, verify, vectors, lost, remembered):
    clients = {
        name: Participant(context, name, attempts=Attempts(), sign=key.sign, verify=verify, remember=remembered.append)
        for name, key in identities.items()
    }
    server = Summation(context, verify, MemoryBlocks(context))
    for name, client in clients.items():
        server.advertised(Advertisement.decode(client.advertise().encode(), name))
    shown = server.roster().encode()
    if drawn(context):
        for name, client in clients.items():
            server.opened(Opening.decode(client.open(Roster.decode(shown)).encode(), name))
        shown = server.openings().encode()
    kind = Openings if drawn(context) else Roster
    for name, client in clients.items():
        server.dealt(Parcels.decode(client.share(kind.decode(shown)).encode(), name))
    inboxes = server.inboxes()
    left = {name: client for name, client in clients.items() if name not in lost}
    for name, client in left.items():
        client.receive(Inbox.decode(inboxes[name].encode()))
        for at in range(0, context.length, BLOCK_CELLS):
            block = client.block(vectors[name][at : at + BLOCK_CELLS])
            server.masked(MaskedBlock.decode(block.encode(), name))
    survivors = server.survivors().encode()
    for name, client in left.items():
        server.consented(Consent.decode(client.consent(Survivors.decode(survivors)).encode(), name))
    consents = server.consents().encode()
    for name, client in left.items():
        server.revealed(Revealed.decode(client.reveal(Consents.decode(consents)).encode(), name))
    return list(server.totals())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for parties, length, dropped in CASES:
        times = sorted(run_case(parties, length, dropped) for _ in range(options.repeats))
        row = {"parties": parties, "length": length, "dropped": dropped}
        rows.append({**row, "median_seconds": statistics.median(times), "fastest": times[0], "slowest": times[-1]})
        print(
            f"{parties:3} parties x {length:,} cells, {dropped} dropped: {statistics.median(times):.3f} s "
            f"(fastest {times[0]:.3f}, slowest {times[-1]:.3f})"
        )
    if options.out:
        options.out.write_text(json.dumps({"machine": platform.processor(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
