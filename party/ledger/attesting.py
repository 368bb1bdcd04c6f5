"""What a party signs: its identity, and what a run has cost it according to its ledger."""

import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from aggregation.accounting.events import to_json
from aggregation.accounting.library import DpEvent
from party.store.runs import Run
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.fields import word
from protos.identity.identity import Identity
from protos.identity.signing import ATTESTATION, DESCRIBED, NO_RELATION, RELATION, sign
from protos.refusal import Reason, Refusal

NONCE_BYTES: Final = range(16, 65)


def described(identity: Identity, nonce: bytes) -> party_pb2.SignedStatement:
    """The caller's nonce and this party's name, signed. Raises `Refusal` (REQUEST) for a nonce of a wrong length."""
    if len(nonce) not in NONCE_BYTES:
        raise Refusal(
            Reason.REQUEST,
            f"a description is asked for with {NONCE_BYTES.start} to {NONCE_BYTES.stop - 1} random bytes, and "
            f"{len(nonce)} came.",
        )
    return sign(identity, DESCRIBED, {"party": identity.name, "nonce": nonce.hex()}).message()


def attestation(
    identity: Identity,
    run: Run,
    charged: Sequence[tuple[str, int, DpEvent]],
    account: str,
    *,
    simulation: bool,
) -> party_pb2.SignedStatement:
    """The signed list of events that a run has cost this party's account so far.

    charged: release, attempt and event of every reservation. Nothing else of the ledger leaves: the account only by its
    random id, none of its other runs, and nothing of the shard.
    """
    privacy = run.terms.privacy
    return sign(
        identity,
        ATTESTATION,
        {
            "party": identity.name,
            "run": run.id,
            "plan_hash": run.plan_hash.hex(),
            "account": account,
            "unit": word(plan_pb2.Unit, privacy.unit),
            "record": word(plan_pb2.Record, privacy.record),
            "relation": NO_RELATION if privacy.unproven else RELATION,
            "insecure_reproducible_noise": privacy.insecure_reproducible_noise,
            "simulation": simulation,
            "releases": [
                {"name": release, "attempt": attempt, "event": to_json(event)} for release, attempt, event in charged
            ],
            "software": version("conclave-distill"),
            "signed_at": time.time(),
            **({"guarantee": False} if privacy.unproven else {}),
        },
    ).message()
