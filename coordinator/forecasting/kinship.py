"""Whether public text is of the parties' kind, as far as public and declared facts tell; private text is never asked.

A vocabulary, a public start and an evaluation of another kind than the parties' text spend a budget and teach nothing:
what is counted is not what is there, and what is learned is not what is measured.
"""

import unicodedata
from collections import Counter
from typing import Any, Final

from coordinator.plan.plan import Plan
from coordinator.plan.public_text import SourceTable
from coordinator.systems.dped.public import Public
from learning.text import documentation
from learning.text.words import tokenize

FEW: Final = 0.8
"""Of what as many words of its own would cover of a text: a vocabulary of its kind covers 0.86 and more of it, one of
another kind 0.75 and less (Python's documentation and film reviews, 100 to 5,000 words)."""
_MEASURED: Final = ("vocabulary", "evaluation", "pate")
"""Tables whose text has to be of the parties' kind; a corpus is chosen from for its likeness."""
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


def doubts(plan: Plan, public: Any = None) -> list[str]:
    """A sentence for each reason to doubt that public text is like the parties'.

    public: what the recipe prepared; without it, only what the plan says is looked at.
    """
    tables = {name: table for name, table in plan.public_tables().items() if name in _MEASURED}
    found = [doubt for name, table in tables.items() if (doubt := _declared(plan, name, table)) is not None]
    return found + (doubts_of_text(plan, public) if isinstance(public, Public) else [])


def doubts_of_text(plan: Plan, public: Public) -> list[str]:
    """The same of the public texts themselves: of what language they are, and whether of one kind."""
    return [doubt for doubt in (_language(plan, public), _covered(plan, public)) if doubt is not None]


def _declared(plan: Plan, name: str, table: SourceTable) -> str | None:
    """What the plan itself says of one table and the parties' text."""
    shards, built_in = plan.federation.shards, table.source in documentation.NAMES
    if table.like_parties or (shards is not None and (shards.source in documentation.NAMES) == built_in):
        return None
    learns = (
        "what is measured on it says nothing of theirs" if name == "evaluation" else "little is learned from theirs"
    )
    cure = f"Name public text of their kind in [{name}], and say so there: like_parties = true."
    if built_in:
        return (
            f"[{name}] {table.source} is Python's documentation. Where parties hold text of another kind, {learns}, "
            f"and the run is paid for all the same. {cure}"
        )
    if shards is not None and shards.source in documentation.NAMES:
        return f"[{name}] {table.source} is a file, and the parties' text is Python's documentation: {learns}."
    if shards is None:
        return (
            f"[{name}] nobody has said that {table.source} is text of the kind that the parties hold. Else {learns}. "
            f"{cure}"
        )
    return None


def _language(plan: Plan, public: Public) -> str | None:
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


def _covered(plan: Plan, public: Public) -> str | None:
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
