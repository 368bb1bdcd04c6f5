"""What an account's cap is about: one unit and one neighbouring relation, for the life of the account.

Charges for different units do not add up, in either direction (`party.admission.protection` says why), so a plan is
admitted for the account's unit alone, and of accounts that share records but not their unit, the one that was charged
first goes on alone (`party.ledger.lineages`).
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from party.config import PolicyTable

Unit = Literal["pair", "sentence", "document", "user"]

FINENESS: Final[tuple[Unit, ...]] = get_args(Unit)
"""All units, the finest first: each is part of the next."""


@dataclass(frozen=True, slots=True)
class Protection:
    """The unit of a cap, and what a neighbour is: the same text with one unit more or less."""

    unit: Unit = "document"
    relation: Literal["add-or-remove"] = "add-or-remove"

    def __str__(self) -> str:
        return f"a {self.unit}, added or removed"

    @property
    def inside_documents(self) -> bool:
        """Whether the unit is a part of a document, so that a document's own hashes do not tell it."""
        return FINENESS.index(self.unit) < FINENESS.index("document")

    @property
    def settings(self) -> str:
        """How a plan or a party file says it."""
        return 'unit = "user"' if self.unit == "user" else f'unit = "record" and record = "{self.unit}"'


def of_policy(policy: PolicyTable) -> Protection:
    """What the cap of a party file is about."""
    return Protection("user" if policy.unit == "user" else policy.record, policy.relation)
