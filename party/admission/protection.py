"""Whether a plan protects what this party's account counts (`party.ledger.protection`).

Charges for different units do not add up, in either direction, so a plan is admitted for the account's unit alone:
  - A plan for a finer unit (sentences, where the account counts documents) bounds what one sentence does. A document
    has any number of them, and nothing here bounds how many.
  - A plan for a coarser unit (users, where the account counts documents) bounds what a user does who comes or goes as
    a whole. A document that goes leaves its user there with other text: within the clipping bound C that is a step of
    up to 2 C, from one place in the ball to any other, or two users apart. So it may cost more than the plan's price,
    about twice the epsilon, and under sampling another amount again. Sentences in documents are the same case, and a
    sentence that stands in several documents moves all of them.
Both would need a group bound of each mechanism. Without one they are refused, and an account of the other unit is
opened for such plans. Of accounts that share records but not their unit, the one that was charged first goes on alone
(`party.ledger.lineages`).
"""

from typing import Final, cast

from party.config import PartyConfig
from party.ledger.protection import FINENESS, Protection, Unit, of_policy
from protos.conclave.v1 import plan_pb2
from protos.fields import words
from protos.refusal import Reason, Refusal

_RECORDS: Final = cast(dict[int, Unit], words(plan_pb2.Record))


def of_terms(terms: plan_pb2.Terms) -> Protection | None:
    """The unit that a plan protects; None where it does not say, which `party.admission.admit.admit` refuses."""
    if terms.privacy.unit == plan_pb2.UNIT_USER:
        return Protection("user")
    unit = _RECORDS.get(terms.privacy.record)
    return None if unit is None else Protection(unit)


def admit_unit(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Return when a plan protects the same unit as this party's account, otherwise raise `Refusal` (POLICY, rule
    `unit`).
    """
    own, asked = of_policy(config.policy), of_terms(terms)
    if asked is None or asked.unit == own.unit:
        return
    if not own.capped:
        raise Refusal(
            Reason.POLICY,
            f"policy unit: this party's account is for {own}, and this plan reads units of another kind, "
            f"{asked.unit}s. Plan with {own.settings}, or ask this party for such an account of {asked.unit}s.",
            "unit",
        )
    finer = FINENESS.index(asked.unit) < FINENESS.index(own.unit)
    why = (
        f"its price says nothing of a {own.unit}, which holds any number of them"
        if finer
        else f"a {own.unit} that is added or removed may move what its {asked.unit} contributes by twice the bound, "
        "which its price does not cover"
    )
    raise Refusal(
        Reason.POLICY,
        f"policy unit: this party's cap is for {own}, and this plan protects {asked}: {why}. "
        f"Plan with {own.settings}, or ask this party for an account of {asked.unit}s.",
        "unit",
    )
