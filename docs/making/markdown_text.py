"""Words of docstrings as Markdown."""

import re

_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)(#[\w-]+)?")


def prose(text: str) -> str:
    """A docstring's sentence on a page of `docs/reference`, with links to the pages that it names."""
    return _PAGE.sub(lambda found: f"[{found[1]}](../{found[1]}{found[2] or ''})", text)


def cell(text: str) -> str:
    """A docstring's sentence in a row of a table."""
    return prose(text).replace("|", "\\|")


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(each or ' ' for each in cells)} |"
