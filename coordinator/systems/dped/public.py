"""The public data of a run of `dped`, read and checked before any party is asked, so that a mistake costs nothing.

It also warns where the public texts do not look like text of the language or kind that the plan is for.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from coordinator.errors import PlanError
from coordinator.plan.public_text import source_of
from coordinator.systems.dped.plan import DpedPlan
from learning.embeddings.cooccurrence import counts_of, pair_counts, unit_counts
from learning.errors import DataError
from learning.text.source import Document, read
from learning.text.words import Vocabulary, sentences, tokenize

if TYPE_CHECKING:
    from learning.embeddings.moments import Directions
    from learning.embeddings.skipgram import SkipGram

FEW: Final = 0.8
"""A vocabulary may be of another kind than a text if it covers less than this part of what as many of the text's own
words cover. One of the same kind covers 0.86 and more of that, one of another kind 0.75 and less (Python's
documentation and film reviews, 100 to 5,000 words).
"""
_SCRIPTS: Final = {
    "CYRILLIC": ("be", "bg", "kk", "mk", "mn", "ru", "sr", "uk"),
    "GREEK": ("el",),
    "ARABIC": ("ar", "fa", "ur"),
    "HEBREW": ("he", "yi"),
    "DEVANAGARI": ("hi", "mr", "ne"),
    "THAI": ("th",),
    "HANGUL": ("ko",),
    "CJK": ("zh", "ja"),
    "LATIN": (
        "cs",
        "da",
        "de",
        "en",
        "es",
        "fi",
        "fr",
        "hu",
        "it",
        "nb",
        "nl",
        "no",
        "pl",
        "pt",
        "ro",
        "sv",
        "tr",
        "vi",
    ),
}
_MOST_TEXTS: Final = 2000
SAMPLE = 4000
"""Public units from which a clip is chosen."""
_WORDS_AT_ONCE = 200_000


@dataclass(frozen=True, slots=True)
class Public:
    """The public side of a plan.

    counts: float64 [words, words], the (word, context) counts of the vocabulary's own text. heldout: the documents of
    `[evaluation]`. queries, classes: positions in the vocabulary, each at most once; weights: how often each query was
    listed. reference: the skip-gram that teachers start from and directions come from, None where neither is needed.
    moments: directions and the clip that public text suggests, None for a plan without moments. frequencies: the same
    without any direction, for the floor.
    """

    vocabulary: Vocabulary
    counts: sparse.csr_array
    heldout: list[Document]
    queries: NDArray[np.int64]
    weights: NDArray[np.int64]
    classes: NDArray[np.int64]
    reference: "SkipGram | None"
    moments: "tuple[Directions, float] | None"
    frequencies: "tuple[Directions, float] | None"

    def heldout_counts(self, window: int) -> sparse.csr_array:
        """(word, context) counts [words, words] of the held-out text."""
        encoded = [self.vocabulary.encode(tokenize(each.text)) for each in self.heldout]
        return counts_of(encoded, len(self.vocabulary), window)


def prepare(plan: DpedPlan, base: Path, cache: Path) -> Public:
    """Read the public data of a plan.

    Raises `DataError` naming the source; `PlanError` for words that the vocabulary lacks and for a reference that does
    not fit.
    """
    table = plan.vocabulary
    source = source_of(table, base)
    vocabulary = Vocabulary.from_public((each.text for each in read(source, cache)), table.size)
    if len(vocabulary) < table.size:
        raise DataError(
            f"[vocabulary] {table.source} has {len(vocabulary):,} different words; the plan asks for "
            f"{table.size:,}. Set size = {len(vocabulary)} or take more public text.",
            code="C204",
        )
    queries, weights = _words("queries", plan.dped.queries, vocabulary)
    classes, _ = _words("classes", plan.dped.classes, vocabulary)
    encoded = (vocabulary.encode(tokenize(each.text)) for each in read(source, cache))
    counts = _counted(encoded, table.size, plan.dped.window)
    reference = _reference(plan, base, counts) if plan.dped.refers else None
    heldout = [] if plan.evaluation is None else list(read(source_of(plan.evaluation, base), cache))
    moments = frequencies = None
    if "moments" in plan.dped.signals:
        assert reference is not None
        units = _public_units(plan, vocabulary, (each.text for each in read(source, cache)))
        usual = units
        if heldout and _whole_documents(plan):
            # Documents of [evaluation] are of the same kind as private ones, so their size sets the clip.
            like = _public_units(plan, vocabulary, (each.text for each in heldout))
            usual = like if like.sum() > 0 else units
        rank = min(plan.dped.dimension, table.size)
        moments = _directions(plan, reference, units, usual, rank, plan.dped.moments_clip)
        frequencies = _directions(plan, reference, units, usual, 0, None)
    return Public(vocabulary, counts, heldout, queries, weights, classes, reference, moments, frequencies)


def _public_units(plan: DpedPlan, vocabulary: Vocabulary, texts: Iterable[str]) -> sparse.csr_array:
    """Pair counts [units, words * words] of at most `SAMPLE` public units of the plan's kind, from the beginning."""
    size, window = len(vocabulary), plan.dped.window
    whole = _whole_documents(plan)
    passages = (part for text in texts for part in ([text] if whole else sentences(text)))
    encoded = [vocabulary.encode(tokenize(part)) for part in islice(passages, SAMPLE)]
    if plan.privacy.record == "pair":
        pairs = pair_counts(encoded, size, window)
        return sparse.csr_array(pairs[:: max(1, pairs.shape[0] // SAMPLE)])
    return unit_counts([[passage] for passage in encoded], size, window)


def _whole_documents(plan: DpedPlan) -> bool:
    """Whether a unit is at least a document."""
    return plan.privacy.record == "document" or plan.privacy.unit == "user"


def _directions(
    plan: DpedPlan,
    reference: "SkipGram",
    units: sparse.csr_array,
    usual: sparse.csr_array,
    rank: int,
    clip: float | None,
) -> tuple["Directions", float]:
    """Directions of the reference, with the plan's clip or the one that public units suggest. Raises `DataError`."""
    from learning.embeddings.moments import public_directions

    try:
        directions, suggested = public_directions(reference, units, rank=rank, usual=usual)
    except IntegrityError as error:
        raise DataError(f"[vocabulary] {plan.vocabulary.source} gives no public directions: {error}") from None
    return directions, clip or suggested


def _counted(passages: Iterable[NDArray[np.int32]], size: int, window: int) -> sparse.csr_array:
    """Counts of a stream of passages, a few thousand words at a time."""
    total = sparse.csr_array((size, size))
    waiting: list[NDArray[np.int32]] = []
    words = 0
    for passage in passages:
        waiting.append(passage)
        words += len(passage)
        if words > _WORDS_AT_ONCE:
            total, waiting, words = total + counts_of(waiting, size, window), [], 0
    return sparse.csr_array(total + counts_of(waiting, size, window))


def _words(
    key: str, asked: int | list[str] | None, vocabulary: Vocabulary
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the words that a plan asks for, each once in order of first mention, and how often each is listed.

    asked: a list of words, or the number of words from the start of the vocabulary, None for all.
    """
    if not isinstance(asked, list):
        count = len(vocabulary) if asked is None else asked
        return np.arange(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    places = [vocabulary.position(word) for word in asked]
    unknown = [word for word, place in zip(asked, places, strict=True) if place < 0]
    if unknown:
        raise PlanError(
            f'[dped] {key} names "{unknown[0]}", a word that the vocabulary of {len(vocabulary):,} words lacks, so no '
            "teacher knows it. Take it out, or raise [vocabulary] size. Nothing was spent."
        )
    times = Counter(places)
    return np.array(list(times), dtype=np.int64), np.array(list(times.values()), dtype=np.int64)


def _reference(plan: DpedPlan, base: Path, counts: sparse.csr_array) -> "SkipGram":
    """The plan's public skip-gram, read from its file or fitted to the vocabulary's text."""
    from learning.embeddings.skipgram import fit
    from learning.embeddings.weights import from_bytes

    if plan.dped.reference is None:
        return fit(counts, dimension=plan.dped.dimension, seed=plan.run.seed)
    path = base / plan.dped.reference
    try:
        reference = from_bytes(path.read_bytes())
    except OSError as error:
        raise PlanError(f"[dped] reference = {path}: {(error.strerror or str(error)).lower()}.") from None
    except IntegrityError as error:
        raise PlanError(f"[dped] reference = {path} cannot be used: {error}") from None
    words, width = reference.inputs.shape
    if (words, width) != (plan.vocabulary.size, plan.dped.dimension):
        raise PlanError(
            f"[dped] reference = {path} has {words:,} words in {width} dimensions; this plan has "
            f"{plan.vocabulary.size:,} words in {plan.dped.dimension}. Set [dped] dimension and [vocabulary] size to "
            "its figures."
        )
    return reference


def doubts_of_text(plan: DpedPlan, public: Public) -> list[str]:
    """Doubts about the public texts themselves: whether they are in the plan's language, and all of one kind."""
    return [doubt for doubt in (_language(plan, public), _covered(plan, public)) if doubt is not None]


def _language(plan: DpedPlan, public: Public) -> str | None:
    """A doubt where the vocabulary is not written in letters of the language that the student is declared to be of."""
    language = plan.student.language.lower().split("-")[0]
    expected = next((script for script, languages in _SCRIPTS.items() if language in languages), None)
    if expected is None:
        return None
    letters = Counter(_script(letter) for word in public.vocabulary.words for letter in word)
    share = sum(count for script, count in letters.items() if script in _with(expected)) / letters.total()
    if share >= 0.5:
        return None
    return (
        f'[student] language = "{plan.student.language}", but {100 * (1 - share):.0f}% of the letters of the public '
        f"vocabulary are of another script. Name public text in the parties' language, or mend the language."
    )


def _covered(plan: DpedPlan, public: Public) -> str | None:
    """A doubt where the vocabulary lacks the words of the evaluation's text: two public texts of one kind share
    them.
    """
    words = Counter(word for each in public.heldout[:_MOST_TEXTS] for word in tokenize(each.text))
    if not words:
        return None
    size = len(public.vocabulary)
    known = sum(count for word, count in words.items() if word in public.vocabulary) / words.total()
    best = sum(count for _, count in words.most_common(size)) / words.total()
    if known >= FEW * best:
        return None
    return (
        f"[vocabulary] and [evaluation] are text of two kinds: the vocabulary knows {100 * known:.0f}% of the words of "
        f"the held-out text, and as many words of its own would know {100 * best:.0f}%. One of them is not of the "
        "parties' kind."
    )


def _script(letter: str) -> str:
    """The script of a letter: the first word of its Unicode name."""
    return unicodedata.name(letter, "?").split(" ")[0]


def _with(script: str) -> tuple[str, ...]:
    """The scripts that count as one: Japanese uses three, and Unicode's name for Chinese characters has two words."""
    return ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") if script == "CJK" else (script,)
