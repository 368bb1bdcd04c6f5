"""Compares a plan's pairs of an input and an answer with the party's own file: which column holds the answers.

No row is read here: only the declarations of the plan and of the administrator are compared.
"""

from typing import Final

from party.releasing.mechanisms import broken
from party.shard_table import ShardTable
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

MOST_SEPARATOR: Final = 200
"""Characters between an input and its answer."""
MOST_ANSWER: Final = 1 << 20
"""Tokens of an answer."""


def admit_paired(terms: plan_pb2.Terms, shard: ShardTable) -> None:
    """Return when this shard can give the pairs that these terms read, if they read any.

    Raises `Refusal` naming the rule: PLAN for pairs that no party could read, POLICY where this party's file names no
    column of second texts.
    """
    if not terms.HasField("paired"):
        return
    if terms.privacy.record != plan_pb2.RECORD_DOCUMENT:
        raise broken('it reads answers to inputs, and these are of one row; use record = "document"')
    if terms.HasField("labelled") or terms.HasField("coded"):
        raise broken("it reads answers to inputs, and labels or control codes beside; a model learns one of these")
    if len(terms.paired.separator) > MOST_SEPARATOR:
        raise broken(f"it puts more than {MOST_SEPARATOR} characters between an input and its answer")
    if not 2 <= terms.paired.answer <= MOST_ANSWER:
        raise broken(f"it reads answers of {terms.paired.answer:,} tokens; use 2 to {MOST_ANSWER:,}")
    answers_in(shard)


def answers_in(shard: ShardTable) -> str:
    """The column of this shard that holds the answers. Raises `Refusal` (POLICY) where the party's file names none."""
    if shard.second is None:
        raise Refusal(
            Reason.POLICY,
            "policy [shard] second: this party's shard has no column of second texts, and the plan reads pairs.",
            "shard.second",
        )
    return shard.second
