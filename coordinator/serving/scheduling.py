"""Which submissions may start now: in the order in which they came, and never two that ask one party."""

from collections.abc import Collection, Sequence

from coordinator.serving.submissions import Submission


def startable(queued: Sequence[Submission], running: Collection[Submission], most: int) -> list[Submission]:
    """The queued submissions that may start now. queued: in their order. most: how many may run at once.

    One account at a time: a party is asked by one run. Whoever waits for a party keeps it from those who came later, so
    that nobody is overtaken for ever.
    """
    taken = {party for each in running for party in each.asks}
    found: list[Submission] = []
    for each in queued:
        if taken.isdisjoint(each.asks) and len(running) + len(found) < most:
            found.append(each)
        taken.update(each.asks)
    return found


def before(submission: Submission, queued: Sequence[Submission]) -> int:
    """How many in the queue came before this one."""
    return sum(each.number < submission.number for each in queued)
