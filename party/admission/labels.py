"""Compares a plan's labelled text with the party's own file: which columns are read, and what their labels mean.

No row is read here: only the declarations of the plan and of the administrator are compared.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Final

from learning.text.labelled import LabelMap, LabelMapError, ScoreRange, TextColumns, TextKind
from party.releasing.mechanisms import broken
from party.shard_table import ShardTable, label_map
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

_KINDS: Final[Mapping[int, TextKind]] = {
    plan_pb2.TEXT_KIND_SINGLE: "single",
    plan_pb2.TEXT_KIND_PAIR: "pair",
    plan_pb2.TEXT_KIND_REGRESSION: "regression",
}
_SHOWN: Final = 40


def admit_labelled(terms: plan_pb2.Terms, shard: ShardTable) -> None:
    """Return when this shard can give the labelled text that these terms read, if they read any.

    Raises `Refusal` naming the rule: PLAN for a label map or range that no party could use, POLICY for columns or
    classes that this party's file does not have.
    """
    if not terms.HasField("labelled"):
        return
    if terms.privacy.record != plan_pb2.RECORD_DOCUMENT:
        raise broken('it reads labels, and a label belongs to a document; use record = "document"')
    columns_of(terms.labelled, shard)
    targets_of(terms.labelled, shard)
    for release in terms.releases:
        if release.joint.HasField("votes"):
            _admit_votes(release, terms.labelled)


def columns_of(labelled: plan_pb2.LabelledText, shard: ShardTable) -> TextColumns:
    """The columns of this shard that the plan's labelled text comes from. Raises `Refusal` as `admit_labelled` does."""
    if labelled.kind not in _KINDS:
        raise broken("it does not say what its labelled text is: single, pair or regression")
    if labelled.second and labelled.kind != plan_pb2.TEXT_KIND_REGRESSION:
        raise broken("it says whether a regression has second texts, and it has no regression")
    if shard.label is None:
        raise _against("shard.label", "label: this party's shard has no label column, and the plan reads labels")
    two = labelled.kind == plan_pb2.TEXT_KIND_PAIR or labelled.second
    if two and shard.second is None:
        raise _against(
            "shard.second", "second: this party's shard has no column of second texts, and the plan reads pairs"
        )
    try:
        return TextColumns(_KINDS[labelled.kind], shard.text, shard.second if two else None, shard.label)
    except LabelMapError as error:
        raise _against("shard.label", f"label: {str(error).rstrip('.')}") from None


def targets_of(labelled: plan_pb2.LabelledText, shard: ShardTable) -> LabelMap | ScoreRange:
    """What the labels of this shard become: the plan's range, or its classes.

    Labels are read by the values in the party's own file where it states a map, otherwise by the plan's. Raises
    `Refusal` as `admit_labelled` does.
    """
    try:
        if labelled.kind == plan_pb2.TEXT_KIND_REGRESSION:
            if labelled.labels or labelled.values:
                raise broken("it has both a range of scores and classes")
            scores = ScoreRange(labelled.low, labelled.high)
            _standard(scores)
            return scores
        if not labelled.low == labelled.high == 0:
            raise broken("it has both classes and a range of scores")
        plans = label_map(labelled.labels, labelled.values)
    except LabelMapError as error:
        raise broken(f"its labelled text: {str(error).rstrip('.')}") from None
    if shard.labels is None:
        return plans
    own = label_map(shard.labels, shard.values or ())
    if own.names != plans.names:
        raise _against("shard.labels", f"labels: {_difference(own, plans)}")
    return own


def _admit_votes(release: plan_pb2.Release, labelled: plan_pb2.LabelledText) -> None:
    """Raises `Refusal` (PLAN) for votes on anything but the classes of the labelled text."""
    if labelled.kind == plan_pb2.TEXT_KIND_REGRESSION:
        raise broken(f"release {release.name} is of votes, and its labelled text has scores; votes are of classes")
    if release.joint.votes.classes != len(labelled.labels):
        raise broken(
            f"release {release.name} is of votes on {release.joint.votes.classes:,} classes, and its labelled text has "
            f"{len(labelled.labels):,}"
        )


def _standard(scores: ScoreRange) -> None:
    """Raises `LabelMapError` for a range so wide or narrow that its scores cannot be scaled to -1 to 1."""
    if (
        not math.isfinite(scores.half)
        or scores.half <= 0
        or not math.isclose(scores.standard(scores.low), -1, rel_tol=1e-6)
        or not math.isclose(scores.standard(scores.high), 1, rel_tol=1e-6)
    ):
        raise LabelMapError(f"Scores from {scores.low:g} to {scores.high:g} cannot be told apart. Give another range.")


def _difference(own: LabelMap, plans: LabelMap) -> str:
    pairs = itertools.zip_longest(own.names, plans.names)
    place, (ours, theirs) = next((place, pair) for place, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    here, there = ("none" if name is None else repr(name[:_SHOWN]) for name in (ours, theirs))
    return (
        f"of {len(own.names):,} classes that this party's file states, class {place} is {here}, and in the plan it is "
        f"{there} of {len(plans.names):,}; both must have the same classes in the same order"
    )


def _against(rule: str, what: str) -> Refusal:
    return Refusal(Reason.POLICY, f"policy [shard] {what}.", rule)
