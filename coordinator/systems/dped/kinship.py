"""Whether the public texts of a plan are of the parties' kind, as far as their own words tell."""

import unicodedata
from collections import Counter
from typing import Final

from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public
from learning.text.words import tokenize

FEW: Final = 0.8
"""Of what as many words of its own would cover of a text: a vocabulary of its kind covers 0.86 and more of it, one of
another kind 0.75 and less (Python's documentation and film reviews, 100 to 5,000 words)."""
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


def doubts_of_text(plan: DpedPlan, public: Public) -> list[str]:
    """The same of the public texts themselves: of what language they are, and whether of one kind."""
    return [doubt for doubt in (_language(plan, public), _covered(plan, public)) if doubt is not None]


def _language(plan: DpedPlan, public: Public) -> str | None:
    """Whether the vocabulary is in letters of the language that the student is said to be of."""
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
    """Whether the vocabulary knows the words of the evaluation's text: two public texts of one kind share them."""
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
    """The script of a letter, as its Unicode name begins."""
    return unicodedata.name(letter, "?").split(" ")[0]


def _with(script: str) -> tuple[str, ...]:
    """What counts as a script: Japanese is written in three, and Chinese characters are two words of Unicode's."""
    return ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA") if script == "CJK" else (script,)
