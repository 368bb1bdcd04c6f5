"""Tells a simulation before it joins, and so before anything is charged, where its text has none of a plan's labels.

Only where the party's policy calls itself a simulation is any row read here: the text is then nobody's secret. Of any
other party neither the outcome nor a word of `Join` depends on a record.
"""

from pathlib import Path

from aggregation.errors import ConclaveError
from party.admission.codes import codes_of
from party.admission.labels import columns_of, targets_of
from party.config import PartyConfig
from party.shard.fitting import Fitting, check_fits
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal


def admit_text(terms: plan_pb2.Terms, config: PartyConfig, cache: Path) -> None:
    """Raises `Refusal` (SHARD) for a simulation of whose source no row has a label, or a control code, of the plan."""
    if not config.policy.simulation:
        return
    shard = config.shard
    labelled = terms.labelled if terms.HasField("labelled") else None
    wanted = Fitting(
        None if labelled is None else columns_of(labelled, shard),
        None if labelled is None else targets_of(labelled, shard),
        codes_of(terms.coded, shard) if terms.HasField("coded") else None,
    )
    try:
        check_fits(shard, wanted, cache)
    except ConclaveError as error:
        raise Refusal(Reason.SHARD, str(error)) from None
