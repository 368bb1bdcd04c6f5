"""Compares a plan's control codes with the party's own file: which columns are read for them, and by which values.

No row is read here: only the declarations of the plan and of the administrator are compared.
"""

from typing import Final

from learning.text.codes import CodeError, Codes
from learning.text.labelled import LabelMap, LabelMapError
from party.releasing.mechanisms import broken
from party.shard.coded import RowCodes
from party.shard_table import ShardTable, label_map
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

MOST_COLUMNS: Final = 12
"""The most columns of a template: each has two values or more, and together they have `MOST_CELLS` at most."""
_SHOWN: Final = 40


def admit_coded(terms: plan_pb2.Terms, shard: ShardTable) -> None:
    """Return when this shard can give the control codes that these terms read, if they read any.

    Raises `Refusal` naming the rule: PLAN for a template or values that no party could use, POLICY for columns that
    this party's file does not open.
    """
    if not terms.HasField("coded"):
        return
    if terms.privacy.record != plan_pb2.RECORD_DOCUMENT:
        raise broken('it reads control codes, and a code belongs to a document; use record = "document"')
    codes_of(terms.coded, shard)


def codes_of(coded: plan_pb2.CodedText, shard: ShardTable) -> RowCodes:
    """The plan's codes, and the columns of this shard that they come from. Raises `Refusal` as `admit_coded` does."""
    codes = _codes(coded)
    opened = shard.codes or {}
    closed = [name for name in codes.columns if name not in opened]
    if closed:
        raise Refusal(
            Reason.POLICY,
            f"policy [shard] codes: this plan reads the column {closed[0][:_SHOWN]!r} for control codes, and this "
            f"party's file opens {', '.join(sorted(opened)) or 'none'} for them.",
            "shard.codes",
        )
    return RowCodes(codes, {name: opened[name] for name in codes.columns}, tuple(codes.texts()))


def _codes(coded: plan_pb2.CodedText) -> Codes:
    if len(coded.columns) > MOST_COLUMNS:
        raise broken(f"its control codes have {len(coded.columns):,} columns; use {MOST_COLUMNS} at most")
    columns: dict[str, LabelMap] = {}
    try:
        for column in coded.columns:
            if column.name in columns:
                raise broken(f"its control codes have the column {column.name[:_SHOWN]!r} twice")
            columns[column.name] = label_map(column.labels, column.values)
        return Codes(coded.template, columns)
    except (CodeError, LabelMapError) as error:
        raise broken(f"its control codes: {_safe(str(error)).rstrip('.')}") from None


def _safe(sentence: str) -> str:
    """A sentence that quotes the plan, fit for a log."""
    return "".join(each if each.isprintable() else "?" for each in sentence[:400])
