"""What was measured of a student, in words: for the report, the model card and the terminal."""

import math
from typing import Any, Final

_CLASSIFIER = {
    "accuracy": ("accuracy on public test text", ".3f"),
    "majority": ("of always saying the most frequent class", ".3f"),
    "macro_f1": ("macro F1", ".3f"),
    "f1": ("F1 of the second class", ".3f"),
    "calibration_error": ("expected calibration error", ".3f"),
    "pearson": ("Pearson correlation on public test text", ".3f"),
    "spearman": ("Spearman correlation", ".3f"),
    "error": ("root mean square error", ".3f"),
    "public_start": ("of the public start, untrained", ".3f"),
    "public_rule": ("of the public text's own rule (the floor)", ".3f"),
    "cosine": ("of the pairs' cosine alone", ".3f"),
    "named_texts": ("of samples whose text an attacker names among the test texts", ".3f"),
    "infinite_pairs": ("of pairs of test texts that are infinitely far apart", ".3f"),
    "examples": ("test examples", ",d"),
    "parameters": ("parameters", ",d"),
    "of_teacher": ("of the teacher's", ".3f"),
    "agreement": ("agreement of the parties' domain classifiers, Spearman", ".3f"),
}
"""Metrics of classifiers and regressions by their key: the name in words, and the format of the number."""

_LANGUAGE = {
    "token_perplexity": "perplexity of a token on public held-out text",
    "teacher_perplexity": "of the private teacher",
    "taught_perplexity": "of the student before it was trained privately",
    "floor_perplexity": "of the public model with the counts alone (the floor)",
    "public_perplexity": "of the public model",
}
"""Perplexities of language models by their key: the name in words."""
_WRITTEN = {
    "tokens": ("tokens measured", ",d"),
    "heeded": ("part of the teachers' answers that stands out of the noise, mean over tokens", ".2f"),
    "texts": ("texts that the teacher wrote", ",d"),
    "repeated": ("of them empty or repeated, and left out", ",d"),
    "rouge_1": ("ROUGE-1 of the likeliest answers on public text", ".1f"),
    "rouge_2": ("ROUGE-2", ".1f"),
    "rouge_l": ("ROUGE-L", ".1f"),
    "public_rouge_1": ("ROUGE-1 of the public model's", ".1f"),
    "public_rouge_2": ("its ROUGE-2", ".1f"),
    "public_rouge_l": ("its ROUGE-L", ".1f"),
    "written": ("answers written", ",d"),
}

DIVERGED: Final = 1e5
"""From this perplexity on a model is worse than a guess among the words of any vocabulary: digits say nothing more."""


def shown_perplexity(value: float) -> str:
    """A perplexity with one decimal, or "diverged" where it is above that of a guess among all words there are."""
    return f"{value:.1f}" if value < DIVERGED else "diverged"


def measurements(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """Each metric with its name in words and its value as it is shown."""
    shown: list[tuple[str, str]] = []
    if "perplexity" in metrics:
        shown.append(("context perplexity on public held-out text", shown_perplexity(metrics["perplexity"])))
    for key, label in (
        ("unigram_floor", "noised unigram model (the floor)"),
        ("public_unigram", "public text's unigram"),
        ("public_start", "public start"),
    ):
        if key in metrics and "perplexity" in metrics:
            shown.append((f"of the {label}", shown_perplexity(metrics[key])))
    shown += [(label, shown_perplexity(metrics[key])) for key, label in _LANGUAGE.items() if key in metrics]
    shown += [(label, format(metrics[key], form)) for key, (label, form) in _WRITTEN.items() if key in metrics]
    if "sentiment" in metrics:
        shown.append(("sentiment probe, accuracy", f"{metrics['sentiment']:.3f}"))
    if "wordsim" in metrics:
        shown += _word_lists(metrics)
    for key, (label, form) in _CLASSIFIER.items():
        if key in metrics and not (key == "public_start" and "perplexity" in metrics):
            value = metrics[key]
            shown.append((label, "not defined" if value is None else format(value, form)))
    return shown + [("warning", warning) for warning in metrics.get("warnings", ())]


def _word_lists(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    shown = []
    wordsim, analogies = metrics["wordsim"], metrics["analogies"]
    pairs = f"{wordsim['pairs_used']} of {wordsim['pairs_total']} pairs are in the vocabulary"
    shown.append(("WordSim-353, Spearman", f"{_or_none(wordsim['spearman'])} ({pairs})"))
    known = f"{analogies['used']:,} of {analogies['total']:,} questions are in the vocabulary"
    shown.append(("analogies, accuracy", f"{_or_none(analogies['accuracy'])} ({known})"))
    return shown


def _or_none(value: float | None) -> str:
    return "not measured" if value is None or math.isnan(value) else f"{value:.3f}"
