"""Attacks on swing distillation: on what teachers say of the texts that are asked, and on the student.

A worst case is a number after a prompt that all have, and two words of its own in turn; where answers to inputs are
learned, as an answer to one input. The words are outcomes that the
public model names at many of the asked tokens, so a teacher that learned them says so wherever it is asked. The attack
trains the public model on each canary alone, and so knows along which direction a teacher moves that has it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.vectors import DifferencesMechanism
from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.auditing.sums import scores_in_sum
from coordinator.language_models.audit import (
    STUDENT,
    Read,
    exposures,
    fallen,
    losses_of_units,
    numbered,
    read_pairs,
    started,
)
from coordinator.published.audit import Exposed
from coordinator.systems.swing.questions import start_of
from coordinator.systems.swing.recipe import Swing
from coordinator.systems.swing.releases import DIFFERENCES, SOFTENED
from coordinator.systems.swing.softened import softened_of
from coordinator.systems.swing.student import model_of
from coordinator.text_models.auditing.steps import known
from coordinator.text_models.auditing.trained import ENOUGH, halves
from learning.errors import Diverged
from learning.language.soft_targets import STEP
from learning.models.batching import encode_documents
from learning.models.machine import processors
from learning.text.source import Document

if TYPE_CHECKING:
    from learning.language.generation import Texts
    from learning.models.batching import Tokens
    from learning.swing.differences import Cells

Floats: TypeAlias = NDArray[np.float64]

TURNS: Final = 30
"""How often each of two words stands in a worst case: most texts are cut before."""
_POOL: Final = 4
"""Words that worst cases are made of, for each of them."""
MOST_NUMBERS: Final = 1 << 24
"""Numbers of all canaries' directions together: of more asked tokens the attack takes some, spread evenly."""
_HOW: Final = (
    "Took what the teachers say without the canaries, which is known, from what they said, and looked for the "
    "direction in which training on each canary moves a model at the asked tokens."
)


@dataclass(frozen=True, slots=True)
class SwingAttacks:
    """A `coordinator.auditing.attacks.Attacks`."""

    recipe: Swing

    @property
    def compares(self) -> bool:
        return True

    @property
    def watches(self) -> bool:
        return False

    @property
    def most(self) -> int | None:
        """As many as leave a teacher little beside its canaries: the more it learns, the less each of them moves it."""
        return ENOUGH

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        tokenizer, words = self.recipe.read.tokenizer, iter(_pairs(self.recipe, count, rng))

        def more() -> str:
            return next(words, None) or halves(rows, rng)

        plan = self.recipe.plan
        room = plan.text.answer if plan.pairs else None
        return numbered(tokenizer, count, rows, rng, more, _second(self.recipe), room)

    def scores(self, seen: Seen) -> Iterator[Scores]:
        recipe, public = self.recipe, self.recipe.read
        read = _read(recipe, seen.units(recipe.plan))
        canaries = len(seen.planted.canaries)
        name = SOFTENED if recipe.plan.published else DIFFERENCES
        yield Scores(name, _HOW, _said(recipe, seen, read))
        started(public)
        model = known(public.model, read.rows, None, read.owner, read.units)
        student = model_of(recipe.plan, public, seen.ran.run.content)
        yield Scores("student", STUDENT, fallen(public, read, model, student)[:canaries])

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        student = model_of(self.recipe.plan, self.recipe.read, ran.run.content)
        return losses_of_units(_read(self.recipe, [canary.rows for canary in canaries]), student)

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        public = self.recipe.read
        student = model_of(self.recipe.plan, public, seen.ran.run.content)
        return exposures(public, seen, student, started(public), _second(self.recipe))


def _second(recipe: Swing) -> str | None:
    """The column of answers; None for single texts."""
    shards = recipe.plan.federation.shards
    assert shards is not None
    return shards.second if recipe.plan.pairs else None


def _read(recipe: Swing, units: Sequence[Sequence[Document]]) -> Read:
    """The units' texts, as parties read them."""
    public = recipe.read
    if (second := _second(recipe)) is not None:
        return read_pairs(public, units, second)
    texts = [row.text for rows in units for row in rows]
    owner = [number for number, rows in enumerate(units) for _ in rows]
    found = encode_documents(public.tokenizer, texts, longest=public.longest).rows
    return Read(list(found), owner, [-1] * len(texts), len(units))


def _pairs(recipe: Swing, count: int, rng: np.random.Generator) -> list[str]:
    """Texts of two words in turn, no two texts of the same words: of those whose probability a tilt of the public model
    changes most at the asked tokens together.
    """
    public = recipe.read
    tokenizer: Any = public.tokenizer
    asked = _asked(recipe, public.queries, range(len(public.queries)))
    own = asked.public[:, :-1]
    weight = np.bincount(asked.ids.ravel(), (own * (1 - own)).ravel(), minlength=len(tokenizer))[: len(tokenizer)]
    weight[[each for each in tokenizer.all_special_ids if each < len(weight)]] = 0
    order = np.argsort(-weight, kind="stable")
    pool = [int(each) for each in order[: _POOL * count] if weight[each] > 0 and _whole(tokenizer, int(each))]
    pairs: dict[frozenset[int], tuple[int, int]] = {}
    for attempt in range(_POOL * count if len(pool) > 1 else 0):
        first, second = pool[attempt % len(pool)], int(rng.choice(pool))
        if first != second and len(pairs) < count:
            pairs.setdefault(frozenset((first, second)), (first, second))
    return [str(tokenizer.decode([*pair] * TURNS)).strip() for pair in pairs.values()]


def _whole(tokenizer: Any, token: int) -> bool:
    """Whether a token stands for itself where it is written twice, and has a letter."""
    text = str(tokenizer.decode([token, token]))
    return any(map(str.isalpha, text)) and tokenizer(text, add_special_tokens=False)["input_ids"] == [token, token]


def _asked(recipe: Swing, texts: "Texts", places: Iterable[int]) -> "Cells":
    """What the public model says of some of the asked texts: the outcomes along which canaries are looked for."""
    from learning.language.speaker import Speaker
    from learning.swing.answers import cells_of_texts

    chosen = list(places)
    some = texts.of(np.array(chosen, np.int64))
    openings = [recipe.read.before[place] for place in chosen]
    return cells_of_texts(Speaker(start_of(recipe.read)), some, openings, _warmth(recipe, some), recipe.plan.distil.top)


def _warmth(recipe: Swing, texts: "Texts") -> Floats:
    """The temperature of every token, which is public: 1, or in the published form higher near clue words."""
    from learning.swing.clues import marked, read
    from learning.swing.temperature import Temperature, temperatures

    plan, public = recipe.plan, recipe.read
    if not plan.published:
        return np.ones(len(texts.ids))
    clues = np.zeros(len(texts.ids), np.bool_)
    if public.clues:
        with TemporaryDirectory(prefix="conclave-audit-") as folder:
            (path := Path(folder) / "clues.toml").write_bytes(public.clues)
            clues = marked(read(path), texts, public.tokenizer)
    settings = Temperature(plan.swing.temperature, plan.swing.strength, plan.swing.cap)
    return temperatures(settings, clues, texts.stops).each


def _said(recipe: Swing, seen: Seen, read: Read) -> Floats:
    """The scores in what teachers say, [canaries]: certified, a noisy sum; published, the mean of softened outcomes."""
    assert seen.without is not None
    texts, canaries = recipe.read.queries, len(seen.planted.canaries)
    cells = len(texts.ids) * (recipe.plan.distil.top + 1)
    few = max(1, min(len(texts), MOST_NUMBERS * len(texts) // (cells * canaries)))
    chosen = np.linspace(0, len(texts) - 1, few).round().astype(np.int64)
    tokens = np.concatenate([np.arange(texts.stops[place], texts.stops[place + 1]) for place in chosen])
    asked = _asked(recipe, texts, chosen)
    openings = [recipe.read.before[place] for place in chosen]
    moved = _movements(recipe, texts.of(chosen), openings, asked, read, canaries, seen.progress.bar)
    if recipe.plan.published:
        sigma, parts = 0.0, moved.reshape(canaries, -1)
        with_canaries, without = (_softened(recipe, ran, asked, tokens) for ran in (seen.ran, seen.without))
    else:
        release = seen.ran.run.priced.releases[0]
        mechanism = release.under(DifferencesMechanism)
        sigma = mechanism.noise_multiplier * mechanism.sensitivity
        total = np.concatenate([block for _, _, block in seen.ran.run.store.blocks(DIFFERENCES)])
        with_canaries = total[tokens].astype(np.float64)
        without = sum(_dense(each)[tokens] for each in seen.without.parties.bounded(DIFFERENCES))
        # Of the tokens that are looked at; the clip, which is of all tokens, cuts no more of these.
        some = replace(mechanism, tokens=len(tokens))
        parts = np.stack([some.contribute(each[None]).reshape(-1) for each in moved])
    found = sparse.csr_array(parts)
    return scores_in_sum(with_canaries.reshape(-1), without.reshape(-1), found, sigma)


def _dense(found: sparse.csr_array | NDArray[np.int32]) -> Floats:
    return np.asarray(found if isinstance(found, np.ndarray) else found.toarray(), np.float64)


def _softened(recipe: Swing, ran: Ran, asked: "Cells", tokens: NDArray[np.int64]) -> Floats:
    """The mean of what parties' teachers say, over the outcomes of the public model, [tokens, outcomes + 1]."""
    found = softened_of(recipe.plan, recipe.read, ran.run.store)
    chances = np.exp(found.codes[tokens].astype(np.float64) * -STEP)
    named = np.stack([(chances * (found.ids[tokens] == each[:, None])).sum(axis=1) for each in asked.ids.T], axis=1)
    return np.concatenate([named, 1 - named.sum(axis=1, keepdims=True)], axis=1)


def _movements(
    recipe: Swing,
    texts: "Texts",
    openings: Sequence[Sequence[int]],
    asked: "Cells",
    read: Read,
    canaries: int,
    told: Callable[[str, int, int, str], None],
) -> NDArray[np.float32]:
    """How far a teacher that learned one canary alone is from the public model, [canaries, tokens, outcomes + 1]."""
    from learning.classification.training import fit
    from learning.language.speaker import Speaker
    from learning.models.forked import in_processes
    from learning.swing.answers import differences_of_texts

    public, settings = recipe.read, recipe.plan.teachers.fit()
    warmth = _warmth(recipe, texts)
    own: list[list[Tokens]] = [[] for _ in range(read.units)]
    for row, unit in zip(read.rows, read.owner, strict=True):
        own[unit].append(row)

    def moved(number: int) -> NDArray[np.float32] | None:
        model = started(public)
        try:
            fit(model, own[number], None, settings, np.random.default_rng(recipe.plan.run.seed))
        except Diverged:
            return None
        return differences_of_texts(Speaker(model), texts, openings, warmth, asked).astype(np.float32)

    found = np.zeros((canaries, *asked.public.shape), np.float32)
    for done, (number, each) in enumerate(in_processes(moved, range(canaries), processors())):
        told("attack", done, canaries, "canaries")
        if each is not None:
            found[number] = each
    told("attack", canaries, canaries, "canaries")
    return found
