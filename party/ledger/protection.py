"""What an account's cap protects: one unit and one neighbouring relation, for the life of the account; or that there is
no cap, and nothing is protected.

Charges for different units cannot be added, in either direction (`party.admission.protection` says why). So a plan is
admitted for the account's unit only, and of accounts that share records but not their unit, only the one that was
charged first continues (`party.ledger.lineages`).
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from party.config import PolicyTable

Unit = Literal["pair", "sentence", "document", "user"]

FINENESS: Final[tuple[Unit, ...]] = get_args(Unit)
"""All units, the finest first: each unit is part of the next one."""


@dataclass(frozen=True, slots=True)
class Protection:
    """The unit of a cap; a neighbour is the same text with one unit more or less.

    relation: "none" of an account without a cap, whose unit says only what its plans read.
    """

    unit: Unit = "document"
    relation: Literal["add-or-remove", "none"] = "add-or-remove"

    def __str__(self) -> str:
        if not self.capped:
            return f"a {self.unit}, without a cap"
        return f"a {self.unit}, added or removed"

    @property
    def capped(self) -> bool:
        """Whether there is a cap that protects anything."""
        return self.relation != "none"

    @property
    def inside_documents(self) -> bool:
        """Whether the unit is part of a document, so that a document's own hashes do not identify it."""
        return FINENESS.index(self.unit) < FINENESS.index("document")

    @property
    def settings(self) -> str:
        """The unit in the words of a plan or a party file."""
        return 'unit = "user"' if self.unit == "user" else f'unit = "record" and record = "{self.unit}"'


def of_policy(policy: PolicyTable) -> Protection:
    """What the cap of a party file protects; nothing where it has none."""
    return Protection(
        "user" if policy.unit == "user" else policy.record, policy.relation if policy.guarantee else "none"
    )
