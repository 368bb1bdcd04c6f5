"""A party's side of one attempt: the rounds in order, each of them once.

The coordinator may lose an answer and ask again: the same question gets the same answer. Another question in the same
round is refused, in this attempt for ever.
"""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import COORDINATOR, Cheated
from aggregation.secure_sum.advertise import Advertisement, Roster, advertise, check_roster
from aggregation.secure_sum.consistency import Consent, Consents, Survivors, check_consents, check_survivors, consent
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.keys import Secrets, Sign, Verify
from aggregation.secure_sum.mask import MaskedBlock, Masking
from aggregation.secure_sum.opening import Group, Opening, Openings, group_of
from aggregation.secure_sum.share import Inbox, Parcels, Shares, channels, deal, open_inbox
from aggregation.secure_sum.unmask import Remember, Revealed, reveal

Answer = TypeVar("Answer")


class Attempts:
    """The attempts that a party has begun in this process; its ledger enforces the same rule across processes.

    A second vector under one attempt would be a second release for one charge.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], int] = {}

    def begin(self, context: Context) -> None:
        """Raises `Cheated` unless the attempt is later than every one begun for the same sum."""
        sum_ = (context.run, context.plan_hash, context.sum)
        if context.attempt <= self._last.get(sum_, -1):
            raise Cheated(COORDINATOR, f"asks for {context.title} again; a retry is a new attempt.")
        self._last[sum_] = context.attempt


class Participant:
    """One party in one attempt. All secrets are drawn here, stay in memory and end with this object.

    The caller must durably record in its ledger:

      - before `Participant` is made: that this attempt is begun (`Attempts`);
      - before the first `block`: the cost of the release, charged under the context's digest, since from the first
        masked block on the coordinator has something that other parties' shares may open;
      - in `remember`: the digest of the list of survivors under the context's digest, before a share is revealed.

    sign: with this party's long-lived key. verify: by the keys pinned for its peers; `Verify`.
    """

    def __init__(
        self, context: Context, party: str, *, attempts: Attempts, sign: Sign, verify: Verify, remember: Remember
    ) -> None:
        """Raises `Cheated` where the attempt was begun before."""
        if party not in context.members:
            raise ValueError(f"{party!r} has no part in {context.title}")
        attempts.begin(context)
        self._context, self._party = context, party
        self._sign, self._verify, self._remember = sign, verify, remember
        self._secrets = Secrets.draw()
        self._advertisement = advertise(context, party, self._secrets, sign)
        self._lock = Lock()
        self._answered: dict[str, tuple[bytes, object]] = {}
        self._roster: Roster | None = None
        self._group: Group | None = None
        self._agreed: dict[str, bytes] = {}
        self._held: dict[str, Shares] = {}
        self._masking: Masking | None = None
        self._survivors: Survivors | None = None

    @property
    def holders(self) -> frozenset[str] | None:
        """The parties that may hold shares of our secrets, including us; None before we dealt any."""
        return None if self._group is None else frozenset(self._group.holders(self._party))

    @property
    def agreed(self) -> bool:
        """Whether we signed a list of survivors, which names us."""
        return self._survivors is not None

    def advertise(self) -> Advertisement:
        """Round 1: the public halves of our secrets."""
        return self._advertisement

    def open(self, roster: Roster) -> Opening:
        """Round 2, above 16 parties: our nonce, for a list that passes its checks. Raises `Cheated` for any other."""
        if not drawn(self._context):
            raise Cheated(COORDINATOR, f"asks {self._party} for a nonce where no graph is drawn.")

        def answer() -> Opening:
            check_roster(self._context, roster, self._advertisement, self._verify)
            self._roster = roster
            return Opening(roster.digest, self._party, self._secrets.nonce)

        return self._once("showed a list of advertisements", roster.encode(), answer)

    def share(self, shown: Roster | Openings) -> Parcels:
        """Round 3: sealed shares for our neighbours. shown: the nonces, or the advertisements up to 16 parties.

        Raises `Cheated` for a list that fails its checks, and for a round out of turn.
        """

        def answer() -> Parcels:
            if isinstance(shown, Roster):
                check_roster(self._context, shown, self._advertisement, self._verify)
                group = group_of(self._context, shown, None)
            elif self._roster is None:
                raise self._early("nonces")
            else:
                group = group_of(self._context, self._roster, shown)
                mine = Opening(self._roster.digest, self._party, self._secrets.nonce)
                if mine not in shown.openings:
                    raise Cheated(COORDINATOR, f"showed {self._party} a list of nonces without its own.")
            agreed = channels(group, self._party, self._secrets)
            own, parcels = deal(group, self._party, self._secrets, agreed)
            self._group, self._agreed = group, agreed
            self._held[self._party] = own
            return parcels

        return self._once("showed a list of parties", shown.encode(), answer)

    def receive(self, inbox: Inbox) -> None:
        """Round 4, at its start: take the shares that our neighbours dealt us; we share a mask with each of them.

        Raises `Cheated` for shares that fail their checks, and for a round out of turn.
        """
        group = self._group

        def answer() -> None:
            if group is None:
                raise self._early("shares")
            opened = open_inbox(group, self._party, self._agreed, inbox)
            self._masking = Masking(group, self._party, self._secrets, opened)
            self._held.update(opened)

        self._once("relayed shares", inbox.encode(), answer)

    def block(self, values: NDArray[np.integer]) -> MaskedBlock:
        """Round 4: mask the next block of our vector, each once; its noise is in it and its cost is on disk.

        Raises `Cheated` for a round out of turn.
        """
        if self._masking is None:
            raise self._early("masked blocks")
        with self._lock:
            return self._masking.block(values)

    def consent(self, survivors: Survivors) -> Consent:
        """Round 5: our signature over the list of survivors.

        Raises `Cheated` for a list that fails its checks, and for a round out of turn.
        """
        group, masking = self._group, self._masking

        def answer() -> Consent:
            if group is None or masking is None or not masking.done:
                raise self._early("consent")
            check_survivors(group, self._party, frozenset(self._held) - {self._party}, survivors)
            given = consent(survivors, self._party, self._sign)
            self._survivors = survivors
            return given

        return self._once("showed a list of survivors", survivors.digest, answer)

    def reveal(self, consents: Consents) -> Revealed:
        """Round 6: one share of every neighbour, once enough survivors have signed the list that we signed.

        Raises `Cheated` for signatures that fail their checks, and for a round out of turn.
        """
        group, survivors = self._group, self._survivors
        if group is None or survivors is None:
            raise self._early("shares in clear")
        check_consents(group, survivors, consents, self._verify)

        def answer() -> Revealed:
            self._remember(survivors.digest)
            return reveal(survivors, self._party, self._held)

        return self._once("asked to unmask", survivors.digest, answer)

    def _once(self, what: str, question: bytes, answer: Callable[[], Answer]) -> Answer:
        """The answer to the first question of a round; the same question gets it again, another is refused."""
        with self._lock:  # two requests at once must not both count as the first
            if what not in self._answered:
                made = answer()
                self._answered[what] = (question, made)
                return made
            first, given = self._answered[what]
        if first != question:
            raise Cheated(COORDINATOR, f"{what} to {self._party} twice in {self._context.title}, and not the same.")
        return given  # type: ignore[return-value]

    def _early(self, what: str) -> Cheated:
        return Cheated(COORDINATOR, f"asks {self._party} for {what} before the rounds that come first.")
