"""The coordinator's side of one attempt: collects each round, closes it, and takes the sum.

An invalid message raises `Cheated` and changes nothing: the coordinator logs who did what and goes on as if that party
were lost. A round closes when the caller says so, with the parties that have answered.
"""

from collections.abc import Iterator
from typing import TypeVar

from aggregation.errors import Cheated
from aggregation.secure_sum.advertise import Advertisement, Advertisements, Roster
from aggregation.secure_sum.consistency import Agreement, Consent, Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.keys import Verify
from aggregation.secure_sum.keystream import Cells
from aggregation.secure_sum.mask import Arrivals, Blocks, MaskedBlock
from aggregation.secure_sum.opening import Group, Nonces, Opening, Openings, group_of
from aggregation.secure_sum.share import Inbox, Parcels, Relay
from aggregation.secure_sum.unmask import Recovery, Revealed, totals

Stage = TypeVar("Stage")


class Summation:
    """One attempt, round by round. Calls out of order are bugs and raise `RuntimeError`.

    verify: by the parties' long-lived keys. blocks: where masked blocks wait, empty.

    Before `survivors` is shown to any party, the masked blocks and that list must be on disk, so that a restarted
    coordinator shows the same list again.
    Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning", on the graph
    of Bell et al. 2020 above 16 parties.
    """

    def __init__(self, context: Context, verify: Verify, blocks: Blocks) -> None:
        self.context = context
        self._verify, self._blocks = verify, blocks
        self._advertisements = Advertisements(context, verify)
        self._roster: Roster | None = None
        self._nonces: Nonces | None = None
        self._openings: Openings | None = None
        self._group: Group | None = None
        self._relay: Relay | None = None
        self._dealers: frozenset[str] = frozenset()
        self._arrivals: Arrivals | None = None
        self._agreement: Agreement | None = None
        self._recovery: Recovery | None = None

    @property
    def group(self) -> Group:
        """The parties that take part, known once round 1, or 2, is closed."""
        return _due(self._group)

    def advertised(self, message: Advertisement) -> None:
        """Round 1."""
        self._advertisements.add(message)

    def roster(self) -> Roster:
        """Close round 1: the list that all parties are shown."""
        if self._roster is None:
            self._roster = self._advertisements.close()
            if drawn(self.context):
                self._nonces = Nonces(self.context, self._roster)
            else:
                self._form(None)
        return self._roster

    def opened(self, message: Opening) -> None:
        """Round 2, above 16 parties."""
        _due(self._nonces).add(message)

    def openings(self) -> Openings:
        """Close round 2: the list that all parties are shown."""
        if self._openings is None:
            self._openings = _due(self._nonces).close()
            self._form(self._openings)
        return self._openings

    def dealt(self, message: Parcels) -> None:
        """Round 3."""
        _due(self._relay).add(message)

    def inboxes(self) -> dict[str, Inbox]:
        """Close round 3: what each party that dealt receives."""
        inboxes = _due(self._relay).close()
        if self._arrivals is None:
            self._dealers = frozenset(inboxes)
            self._arrivals = Arrivals(_due(self._group), self._dealers, self._blocks)
        return inboxes

    def masked(self, message: MaskedBlock) -> None:
        """Round 4."""
        _due(self._arrivals).add(message)

    def survivors(self) -> Survivors:
        """Close round 4: the list of parties whose every block arrived. It never changes again."""
        if self._agreement is None:
            self._agreement = Agreement(_due(self._group), _due(self._arrivals).whole(), self._verify)
            self._recovery = Recovery(_due(self._group), self._dealers, self._agreement.survivors)
        return self._agreement.survivors

    def consented(self, message: Consent) -> None:
        """Round 5."""
        _due(self._agreement).add(message)

    def consents(self) -> Consents:
        """Close round 5: the signatures shown to all parties that are to reveal shares."""
        return _due(self._agreement).close()

    def revealed(self, message: Revealed) -> None:
        """Round 6."""
        _due(self._recovery).add(message)

    @property
    def enough(self) -> bool:
        """Whether the shares revealed so far open the sum."""
        return self._recovery is not None and self._recovery.enough

    @property
    def misfits(self) -> tuple[Cheated, ...]:
        """Parties whose revealed share did not fit the others', known after `totals`."""
        return tuple(self._recovery.misfits) if self._recovery else ()

    def totals(self) -> Iterator[Cells]:
        """Close round 6: the sum of the survivors' vectors, block by block, modulo 2^32."""
        remove = _due(self._recovery).close()
        return totals(_due(self._group), self.survivors(), remove, self._blocks)

    def _form(self, openings: Openings | None) -> None:
        self._group = group_of(self.context, _due(self._roster), openings)
        self._relay = Relay(self._group)


def _due(value: Stage | None) -> Stage:
    if value is None:
        raise RuntimeError("a round of the secure sum was used before the one that comes first was closed")
    return value
