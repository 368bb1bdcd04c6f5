"""Fills templates: every text that is put into a page is escaped, and the page may load nothing from outside.

A page has its style inside, and a script only where rows can be sorted. Its Content-Security-Policy names the digests
of both and forbids everything else.
"""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES: Final = Path(__file__).parent / "templates"
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What no page may hold: controls but tab and the ends of lines, and halves of characters."""
_FRAME: Final = Markup('<iframe title="{}" sandbox="{}" srcdoc="{}" width="100%" height="760"></iframe>')


def rendered(template: str, *, script: bool = False, **values: Any) -> str:
    """A whole page. script: whether it has the script that sorts rows."""
    style, code = _file("page.css"), _file("sort.js") if script else ""
    policy = f"default-src 'none'; style-src '{_digest(style)}'; base-uri 'none'; form-action 'none'"
    if code:
        policy += f"; script-src '{_digest(code)}'"
    page = _environment().get_template(template)
    made = page.render(style=Markup(style), script=Markup(code), policy=policy, **values)
    return _CONTROLS.sub("\ufffd", made)


def in_frame(page: str, title: str, *, script: bool = False) -> str:
    """The page as a notebook shows it: in a frame of its own, which can reach nothing around it."""
    return str(_FRAME.format(title, "allow-scripts" if script else "", page))


@cache
def _environment() -> Environment:
    # Escaping is on whatever the template is called, and an unknown name is an error, not an empty place.
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
