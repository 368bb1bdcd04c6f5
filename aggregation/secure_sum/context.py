"""The context of an attempt: which sum, which attempt, which parties, how many may fail. All signatures and keys are
bound to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from aggregation.errors import COORDINATOR, ConclaveError
from aggregation.secure_sum.wire import digest, pack_all


def least_threshold(parties: int, colluders: int) -> int:
    """The smallest whole number above (parties + colluders)/2.

    Two lists of survivors with that many signatures each would share more than `colluders` signers, so an honest one,
    and an honest party signs one list. A smaller threshold than `parties - dropouts` lets parties be lost in the last
    two rounds too.
    """
    return (parties + colluders) // 2 + 1


@dataclass(frozen=True)
class Context:
    """One attempt at one sum. Parties derive it from the plan, never from what a coordinator says.

    run, plan_hash (hex), sum: which release of which run of which plan.
    attempt: from 0; a retry is a new attempt with fresh noise, keys and charge.
    parties: names, sorted, each once.
    length: cells of the vector, each modulo 2^32.
    dropouts: parties that may be lost while the sum still holds the noise that is charged; with fewer than
        parties - dropouts survivors nothing is unmasked.
    colluders: parties that may pool what they know with the coordinator.
    threshold: signatures over one list of survivors before anything is revealed, and the shares that rebuild a secret
        on the complete graph: (parties + colluders)/2 < threshold <= parties - dropouts.

    Raises `ConclaveError` for figures that break that rule: no threshold could protect such a sum.
    """

    run: str
    plan_hash: str
    sum: str
    attempt: int
    parties: tuple[str, ...]
    length: int
    dropouts: int
    colluders: int
    threshold: int

    def __post_init__(self) -> None:
        if len(self.parties) < 2 or list(self.parties) != sorted(set(self.parties)):
            raise ConclaveError("A secure sum takes at least two parties, named in order and each once.")
        if "" in self.parties or COORDINATOR in self.parties:
            raise ConclaveError(f"A party of a secure sum has a name, and it is not '{COORDINATOR}'.")
        for name, value, least in (
            ("attempt", self.attempt, 0),
            ("length", self.length, 1),
            ("dropouts", self.dropouts, 0),
            ("colluders", self.colluders, 0),
        ):
            if value < least:
                raise ConclaveError(f"{name} is {value} in a secure sum; it must be at least {least}.")
        count = len(self.parties)
        if not (count + self.colluders < 2 * self.threshold <= 2 * (count - self.dropouts)):
            raise ConclaveError(
                f"A secure sum of {count} parties with threshold {self.threshold}, {self.dropouts} drop-outs and "
                f"{self.colluders} colluders is not safe: (parties + colluders)/2 < threshold <= parties - dropouts "
                "must hold. Plan for more parties, or for fewer drop-outs and colluders."
            )

    @classmethod
    def of(
        cls,
        *,
        run: str,
        plan_hash: str,
        sum: str,
        attempt: int,
        parties: Iterable[str],
        length: int,
        dropouts: int,
        colluders: int,
    ) -> "Context":
        """A context with sorted names and the smallest safe threshold."""
        names = tuple(sorted(parties))
        threshold = least_threshold(len(names), colluders)
        return cls(run, plan_hash, sum, attempt, names, length, dropouts, colluders, threshold)

    @property
    def fewest(self) -> int:
        """The fewest survivors whose sum may be unmasked."""
        return len(self.parties) - self.dropouts

    @cached_property
    def members(self) -> frozenset[str]:
        """The parties' names, to look one up."""
        return frozenset(self.parties)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over every field, to which messages, signatures and keys are bound."""
        return digest(
            "conclave secure sum v1",
            self.run,
            self.plan_hash,
            self.sum,
            self.attempt,
            pack_all(self.parties),
            self.length,
            self.dropouts,
            self.colluders,
            self.threshold,
        )

    @property
    def title(self) -> str:
        """The sum in words, for messages."""
        return f"sum '{self.sum}', attempt {self.attempt}, of run {self.run}"
