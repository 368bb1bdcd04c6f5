"""The masking graph: complete up to 16 parties, above that a k-regular graph that the coordinator cannot choose.

Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead": parties stand in a random order on
a circle and are neighbours of the k/2 before and the k/2 after them. Each party deals the shares of its secrets to its
neighbours and itself; `threshold` of them rebuild a secret.

The signatures of a majority of *all* parties decide which list of survivors is valid (`consistency`), as on the
complete graph, so no honest party gives both kinds of share of one peer. What the graph must still guarantee:

  1. *secrets*: no honest party has `threshold` colluders among its neighbours, or they rebuild its secrets alone;
  2. *connection*: the honest survivors are connected, or the coordinator learns the sums of parts, with less noise.

The coordinator may choose whom to lose after it has seen the graph. Parties left on the circle fall apart only where
two separate runs of at least k/2 neighbouring places are empty: so never while k > colluders + dropouts. Condition 1
never fails while threshold > colluders. Both then hold with certainty, whatever the order on the circle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import comb

from aggregation.errors import ConclaveError
from aggregation.secure_sum.context import Context

LARGEST_COMPLETE = 16
FAILURE = 2.0**-40
STALL = 1e-6
MOST_BEGUN = 1000
"""Attempts at one sum that a party begins. Each draws a graph, which the coordinator sees before anything is charged.
"""
_QUICK = 50_000  # parties times dropouts up to which the exact failure takes seconds at the most


@dataclass(frozen=True, slots=True)
class Shape:
    """The degree and threshold of a context's graph, fixed before any party has sent a message.

    degree: neighbours of each party; parties - 1 or more means the complete graph.
    threshold: of the degree + 1 shares of a secret, how many rebuild it.
    failure: upper bound of the probability that the graph fails its two conditions, however the coordinator chooses
        among the graphs it can bring about; `failing` is what it adds to delta.
    stall: upper bound of the probability that `dropouts` losses, independent of the graph, leave a secret with fewer
        than `threshold` shares. That costs the attempt, not privacy.
    """

    degree: int
    threshold: int
    failure: float
    stall: float


def shape(context: Context) -> Shape:
    """The graph's shape, which all ends compute from the context alone."""
    count = len(context.parties)
    if count <= LARGEST_COMPLETE:
        return Shape(count - 1, context.threshold, 0.0, 0.0)
    return choose(count, context.colluders, context.dropouts)


def drawn(context: Context) -> bool:
    """Whether a graph is drawn, so that parties open nonces; otherwise the graph is complete."""
    return len(context.parties) > LARGEST_COMPLETE


def failing(parties: int, colluders: int, dropouts: int) -> float:
    """The part of delta for the graphs of one sum: an upper bound of the probability that any of its attempts' graphs
    fails.

    The coordinator may give up an attempt as soon as it has seen the graph, at no cost, so all `MOST_BEGUN` count. For
    very large sums it uses the bound that `choose` guarantees, instead of the graph's own. Raises as `choose` does.
    """
    if parties <= LARGEST_COMPLETE:
        return 0.0
    one = FAILURE if parties * dropouts > _QUICK else choose(parties, colluders, dropouts).failure
    return min(1.0, MOST_BEGUN * one)


@lru_cache(maxsize=64)
def choose(parties: int, colluders: int, dropouts: int) -> Shape:
    """The smallest even degree, not below 2 log2(parties), whose failure is at most 2^-40 and stall at most 1e-6.

    The floor keeps the graph from resting on the declared figures alone. The threshold is the largest that does not
    stall. Raises `ConclaveError` where even the complete graph does not suffice.
    Source: the conditions on the graph are those of Bell et al. 2020, see `failure`.
    """
    floor = 2 * parties.bit_length()
    for degree in range(floor, parties + 2, 2):
        for threshold in range(min(degree + 1, parties), colluders, -1):
            stalled = stall(parties, dropouts, degree, threshold)
            if stalled <= STALL:
                failed = failure(parties, colluders, dropouts, degree, threshold)
                if failed <= FAILURE:
                    return Shape(degree, threshold, failed, stalled)
                break
    raise ConclaveError(
        f"No graph protects a secure sum of {parties} parties against {colluders} colluders and {dropouts} drop-outs. "
        "Plan for fewer of either."
    )


def failure(parties: int, colluders: int, dropouts: int, degree: int, threshold: int) -> float:
    """Upper bound of the probability that the graph fails one of its two conditions.

    The order on the circle is a hash of the nonces of those who opened them. The coordinator sees nonces before it
    decides who is said to have opened, so it chooses among one graph for every set of at most `dropouts` missing
    parties; every one of them counts (union bound), with the dropouts that remain. It may show every honest party
    another list of advertisements, each before it has that party's nonce: another factor n for the second condition
    (the first is a sum over parties already). In a graph of m places, the number of colluders in k given places is
    hypergeometric(m, colluders, k):

        sum_(j <= dropouts) C(n, j) [ m P(H(m - 1, colluders, k) >= threshold)
                                      + n C(m, 2) P(H(m, colluders, k) >= k - (dropouts - j)) ],   m = n - j.

    The nonces are committed before any is seen, and SHA-256 is taken for a random function.
    Source: the two conditions are those of Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic
    Overhead".
    """
    total = Fraction(0)
    for missing in range(dropouts + 1):
        places = parties - missing
        neighbours = min(degree, places - 1)
        bad = places * tail(places - 1, colluders, neighbours, threshold)
        if neighbours < places - 1:
            bad += parties * comb(places, 2) * tail(places, colluders, neighbours, neighbours - (dropouts - missing))
        total += comb(parties, missing) * bad
    return min(1.0, float(total) * (1.0 + 1e-12))


def stall(parties: int, dropouts: int, degree: int, threshold: int) -> float:
    """Upper bound of the probability that some secret keeps fewer than `threshold` of its shares.

    A secret has degree + 1 holders, its owner among them; dropouts of all parties are lost, whoever they are:
    n P(H(n - 1, dropouts, degree) > degree - threshold), and 0 where threshold <= degree + 1 - dropouts.
    """
    neighbours = min(degree, parties - 1)
    if threshold <= neighbours + 1 - dropouts:
        return 0.0
    return min(1.0, float(parties * tail(parties - 1, dropouts, neighbours, neighbours - threshold + 1)))


def tail(population: int, marked: int, drawn: int, least: int) -> Fraction:
    """P(at least `least` of `drawn` members, out of a population with so many marked, are marked): exact."""
    ways = sum(
        comb(marked, k) * comb(population - marked, drawn - k) for k in range(max(least, 0), min(marked, drawn) + 1)
    )
    return Fraction(ways, comb(population, drawn))


def neighbours(members: Sequence[str], degree: int, randomness: bytes) -> dict[str, frozenset[str]]:
    """Each member's neighbours: the degree/2 before and after it on a circle ordered by SHA-256(randomness, name).

    Source: Bell et al. 2020, "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead".
    """
    count = len(members)
    if degree >= count - 1:
        everyone = frozenset(members)
        return {name: everyone - {name} for name in members}
    circle = sorted(members, key=lambda name: sha256(randomness + name.encode()).digest())
    near: dict[str, frozenset[str]] = {}
    for i, name in enumerate(circle):
        near[name] = frozenset(circle[(i + step) % count] for step in range(-(degree // 2), degree // 2 + 1)) - {name}
    return near
