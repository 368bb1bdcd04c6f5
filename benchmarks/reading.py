"""How hard the README, the first page and the tutorials are to read: the grade of Flesch and Kincaid, by `textstat`.

    python benchmarks/reading.py [--beside COMMIT] [--out FILE]

Code, tables, headings and links that stand in brackets are left out; a word in code counts as one word. words: a
sentence has, mean. long: the part of sentences with more than 25 words. beside: the same files at a commit.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path

import textstat

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/index.md", "docs/tutorials/first-student.md", "docs/tutorials/own-table.md")
LONG = 25
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2`*~* *$", re.DOTALL | re.MULTILINE)
LEFT_OUT = re.compile(r"^(?:#.*|\|.*|    .*)$", re.MULTILINE)
POINTER = re.compile(r"\s*\(\[[^\]]*\]\([^)]*\)\)")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")

Figures = dict[str, float]


def prose(text: str) -> str:
    """The sentences of a page, a paragraph or item of a list a line, each with an end."""
    text = LEFT_OUT.sub("", FENCE.sub("", text))
    text = re.sub(r"`[^`]+`", "code", LINK.sub(r"\1", POINTER.sub("", text)))
    text = re.sub(r"\n(?= *(?:[-*]|\d+\.) )", "\n\n", text).replace("**", "").replace("*", "")
    paragraphs = (" ".join(part.split()).lstrip("- ") for part in re.split(r"\n\s*\n", text))
    return "\n".join(part if part[-1] in ".!?" else f"{part}." for part in paragraphs if part)


def sentences(text: str) -> list[str]:
    """The sentences of prose."""
    return [part for line in text.splitlines() for part in re.split(r"(?<=[.!?])\s+", line) if part]


def measured(text: str) -> Figures:
    """The figures of a page."""
    said = prose(text)
    found = sentences(said)
    lengths = [len(each.split()) for each in found]
    return {
        "grade": round(float(textstat.flesch_kincaid_grade(said)), 1),
        "sentences": len(found),
        "words": round(sum(lengths) / len(found), 1),
        "longest": max(lengths),
        "long": round(sum(length > LONG for length in lengths) / len(found), 3),
    }


def at(commit: str, page: str) -> str:
    """A page as it was at a commit."""
    asked = ["git", "-C", str(ROOT), "show", f"{commit}:{page}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


def of(texts: dict[str, str]) -> dict[str, Figures]:
    """The figures of every page, and of all together."""
    return {page: measured(text) for page, text in texts.items()} | {"all": measured("\n\n".join(texts.values()))}


def main() -> int:
    """Measure, print, and write the figures; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--beside", metavar="COMMIT", help="measure the same files at a commit, too")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    now = of({page: (ROOT / page).read_text("utf-8") for page in PAGES})
    before = of({page: at(asked.beside, page) for page in PAGES}) if asked.beside else {}
    for page, figures in now.items():
        was = before.get(page)
        print(f"{page}: {figures}" + ("" if was is None else f", before: {was}"))
    if asked.out is not None:
        library = f"textstat {'.'.join(map(str, textstat.__version__))}"
        found = {"library": library, "commit": asked.beside, "now": now, "before": before}
        asked.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
