"""Names of headings, for links to them: what GitHub and the site make of a heading's words."""

import re


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading: small letters, digits, `_` and `-`, with a separator for each space."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)
