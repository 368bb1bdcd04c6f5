"""Attacks on DPED: on the noisy sums of counts and moments, on what teachers answer, and on the embeddings.

A worst case is two rare words in turn: its pairs are in few cells, where hardly any other record has one, and there are
enough of them to reach the clip. Teachers are asked what stands beside the first word of the two. Where pairs are
records it is a rare word twice, whose two pairs are in one cell, and two words once, where teachers are asked or rare
words are few.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.auditing.sums import scores_in_sum
from coordinator.pricing.release import Release
from coordinator.published.audit import Exposed, units_of_canary
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.dped.releases import ANSWERS, COUNTS, MOMENTS, VOTES
from coordinator.systems.dped.signals import Signals, signals_of
from learning.embeddings.cooccurrence import unit_counts
from learning.text.source import Document
from learning.text.words import tokenize

Floats = NDArray[np.float64]

TURNS: Final = 150
"""How often each of two words stands in a worst case: more pairs than any usual clip admits."""
_ATTEMPTS: Final = 20
"""Tries for each worst case: a small vocabulary has few pairs that are not taken."""
_SUM: Final = (
    "Took the other records' sum, which is known, from the noisy one, and looked for each canary's own bounded part."
)
_ANSWERS: Final = "Looked up what the teachers answer of each canary's first word about its second, less the others."
_STUDENT: Final = "Compared how likely each canary's pairs are under the published embeddings with other pairs."


@dataclass(frozen=True, slots=True)
class DpedAttacks:
    """A `coordinator.auditing.attacks.Attacks`."""

    recipe: Dped

    @property
    def compares(self) -> bool:
        return True

    @property
    def watches(self) -> bool:
        return False

    @property
    def most(self) -> None:
        return None

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        """Two words of the rarer half of the vocabulary in turn, each pair of words once; the first is asked about."""
        words, public, plan = self.recipe.read.vocabulary.words, self.recipe.read, self.recipe.plan
        rare = np.arange(len(words) // 2, len(words))
        firsts, seconds = rare, rare
        if plan.dped.teaches:
            firsts, seconds = public.queries, public.classes
        pairs: dict[frozenset[int], tuple[int, int]] = {}
        if self._of_pairs and not plan.dped.teaches:
            pairs = {frozenset((int(word),)): (int(word), int(word)) for word in rng.permutation(rare)[:count]}
        order = rng.permutation(firsts)
        for attempt in range(_ATTEMPTS * count):
            first, second = int(order[attempt % len(order)]), int(rng.choice(seconds))
            if first != second and len(pairs) < count:
                pairs.setdefault(frozenset((first, second)), (first, second))
        turns = 1 if self._of_pairs else TURNS
        made = [" ".join([words[first], words[second]] * turns) for first, second in pairs.values()]
        return self._made(made, rows, rng)

    @property
    def _of_pairs(self) -> bool:
        """Whether each pair of words is a record."""
        return units_of_canary(self.recipe.plan.privacy.unit, self.recipe.plan.privacy.record) > 1

    @staticmethod
    def _made(texts: Sequence[str], rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        """Records of these texts, their other columns those of some record."""
        likes = rng.integers(0, len(rows), len(texts))
        return [replace(rows[like], text=text) for like, text in zip(likes, texts, strict=True)]

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> None:
        """Embeddings give no text a loss."""
        return

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        return ()

    def scores(self, seen: Seen) -> Iterator[Scores]:
        assert seen.without is not None
        units = self._units(seen.planted.canaries)
        for release in seen.ran.run.priced.releases:
            if release.name == COUNTS:
                bound = release.under(CountsMechanism).contribute
                yield Scores(COUNTS, _SUM, _summed(seen, release, self._parts(units), bound))
            elif release.name == MOMENTS:
                yield Scores(MOMENTS, _SUM, _summed(seen, release, self._parts(units), self._moments(release)))
        if {ANSWERS, VOTES} & {release.name for release in seen.ran.run.priced.releases}:
            yield from self._answers(seen, units)
        yield Scores("student", _STUDENT, self._student(seen, units))

    def _units(self, canaries: Sequence[Canary]) -> sparse.csr_array:
        """The pair counts of every canary, [canaries, words * words], counted as a party counts a unit's."""
        vocabulary = self.recipe.read.vocabulary
        encoded = [[vocabulary.encode(tokenize(text)) for text in canary.texts] for canary in canaries]
        return unit_counts(encoded, len(vocabulary), self.recipe.plan.dped.window)

    def _parts(self, units: sparse.csr_array) -> list[sparse.csr_array]:
        """Of each canary the units that a party bounds, [its units, words * words]: where pairs are records, a row for
        each of its pairs.
        """
        whole = [units[[row]] for row in range(units.shape[0])]
        if not self._of_pairs:
            return whole
        found = []
        for each in whole:
            cells = np.repeat(each.indices, each.data.astype(np.int64))
            shape = (len(cells), units.shape[1])
            found.append(sparse.csr_array((np.ones(len(cells)), cells, np.arange(len(cells) + 1)), shape=shape))
        return found

    def _moments(self, release: Release) -> Callable[[sparse.csr_array], sparse.csr_array]:
        from learning.embeddings.moments import contribute

        public, mechanism = self.recipe.read, release.under(VectorMechanism)
        assert public.moments is not None
        directions = public.moments[0]
        return lambda unit: sparse.csr_array(contribute(unit, directions, mechanism)[None, :])

    def _answers(self, seen: Seen, units: sparse.csr_array) -> Iterator[Scores]:
        """Votes for the second word at the first; hidden states along the second word's public vector."""
        assert seen.without is not None
        firsts, seconds = self._pairs(units)
        with_canaries, others = (self._signals(ran) for ran in (seen.ran, seen.without))
        queries = _places(self.recipe.read.queries, firsts)
        asked = queries >= 0
        if with_canaries.histogram is not None and others.histogram is not None:
            classes = _places(self.recipe.read.classes, seconds)
            known = asked & (classes >= 0)
            values = np.zeros(len(firsts))
            apart = with_canaries.histogram - others.histogram
            values[known] = apart[queries[known], classes[known]]
            yield Scores("votes", _ANSWERS, values)
        if with_canaries.labels is not None and others.labels is not None:
            values = np.zeros(len(firsts))
            own = with_canaries.labels[queries[asked]] == seconds[asked]
            before = others.labels[queries[asked]] == seconds[asked]
            values[asked] = own.astype(np.float64) - before
            yield Scores("labels", _ANSWERS, values)
        if with_canaries.hidden is not None and others.hidden is not None:
            reference = self.recipe.read.reference
            assert reference is not None
            values = np.zeros(len(firsts))
            for place, layer in enumerate(self.recipe.plan.dped.layers):
                towards = reference.outputs if layer == "centre" else reference.inputs
                apart = (with_canaries.hidden - others.hidden)[queries[asked], place]
                unit = towards[seconds[asked]] / np.linalg.norm(towards[seconds[asked]], axis=1, keepdims=True)
                values[asked] += (apart * unit).sum(axis=1)
            yield Scores("hidden", _ANSWERS, values)

    def _signals(self, ran: Ran) -> Signals:
        return signals_of(ran.run.priced, self.recipe.read, ran.run.present, ran.run.store)

    def _pairs(self, units: sparse.csr_array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The most frequent pair of two words of every canary, as (first, second); (0, 0) for one without any."""
        size = len(self.recipe.read.vocabulary)
        firsts, seconds = (np.zeros(units.shape[0], np.int64) for _ in range(2))
        for row in range(units.shape[0]):
            own = slice(units.indptr[row], units.indptr[row + 1])
            first, second = np.divmod(units.indices[own].astype(np.int64), size)
            counted = np.where(first != second, units.data[own], 0.0)
            wanted = counted * (1 + np.isin(first, self.recipe.read.queries))
            if len(wanted) and wanted.max() > 0:
                best = int(wanted.argmax())
                firsts[row], seconds[row] = first[best], second[best]
        return firsts, seconds

    def _student(self, seen: Seen, units: sparse.csr_array) -> Floats:
        """The mean over a canary's pairs of log p(context | word), less its mean over words."""
        from learning.embeddings.weights import from_bytes

        size = len(self.recipe.read.vocabulary)
        logs = from_bytes(seen.ran.run.content).log_probabilities(np.arange(size)).astype(np.float64)
        logs -= logs.mean(axis=0)
        counted = np.maximum(np.asarray(units.sum(axis=1)).reshape(-1), 1.0)
        return np.asarray(np.asarray(units @ logs.reshape(-1)).reshape(-1) / counted, np.float64)


def _summed(
    seen: Seen, release: Release, units: list[sparse.csr_array], bound: Callable[[sparse.csr_array], sparse.csr_array]
) -> Floats:
    """The scores in a sum that was released once. units: of each canary."""
    assert seen.without is not None
    mechanism = release.under(CountsMechanism) if release.name == COUNTS else release.under(VectorMechanism)
    total = np.concatenate([block for _, _, block in seen.ran.run.store.blocks(release.name)]).reshape(-1)
    others = sum(_flat(each) for each in seen.without.parties.bounded(release.name))
    parts = sparse.vstack([bound(each) for each in units], format="csr")
    sigma = mechanism.noise_multiplier * mechanism.levels
    return scores_in_sum(total.astype(np.float64), np.asarray(others, np.float64), sparse.csr_array(parts), sigma)


def _flat(found: sparse.csr_array | NDArray[np.int32]) -> Floats:
    dense = found if isinstance(found, np.ndarray) else found.toarray()
    return np.asarray(dense, np.float64).reshape(-1)


def _places(listed: NDArray[np.int64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each word in a list of words, -1 for one that is not in it."""
    places = {int(word): place for place, word in enumerate(listed)}
    return np.array([places.get(int(word), -1) for word in words], np.int64)
