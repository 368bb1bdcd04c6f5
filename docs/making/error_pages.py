"""The pages of errors' codes: those that `coordinator explain` prints, and a list of them."""

from typing import Final

from protos.console import explaining

NOTE: Final = "<!-- Made from protos/console/errors by docs/generate.py: change them there. -->\n\n"
_ABOVE: Final = """# Errors

The sentence of an error ends with a code, such as `[C102]`. There is a page for each trouble that is solved in one way;
`coordinator explain C102` and `party explain C102` print it. What `coordinator.api` raises has it as `code`.
"""


def pages() -> dict[str, str]:
    """The pages by their paths in `docs/reference`."""
    made = {code: explaining.page(code).replace("](docs/", "](../../") for code in explaining.titles()}
    return {f"errors/{name}.md": NOTE + text for name, text in {"index": _index(), **made}.items()}


def _index() -> str:
    parts = [_ABOVE]
    for group, what in explaining.GROUPS.items():
        parts += [f"\n## {group}: {what}\n\n| code | what happened |\n|---|---|\n"]
        parts += [f"| [{c}]({c}.md) | {title} |\n" for c, title in explaining.titles().items() if c.startswith(group)]
    return "".join(parts)
