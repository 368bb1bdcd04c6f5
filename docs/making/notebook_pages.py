"""A notebook as a page: its words, its code, and what its cells showed when it was last executed."""

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def page(path: Path) -> str:
    """The page of a notebook, in Markdown."""
    notebook = json.loads(path.read_text("utf-8"))
    return "\n\n".join(part for cell in notebook["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    text = "".join(cell["source"]).rstrip()
    if cell["cell_type"] == "markdown":
        yield text
        return
    yield f"```python\n{text}\n```"
    for output in cell.get("outputs", ()):
        yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    if output["output_type"] == "stream":
        yield _shown("".join(output["text"]))
        return
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    if "image/png" in data:
        yield f'<img alt="a picture that the cell made" src="data:image/png;base64,{data["image/png"].strip()}">'
    elif "text/markdown" in data:
        yield data["text/markdown"].strip()
    elif "text/html" in data:
        # A whole page is the attribute of a frame, in which a line's end is a sign like others.
        yield f"<div>{data['text/html'].strip().replace(chr(10), '&#10;')}</div>"
    elif "text/plain" in data:
        yield _shown(data["text/plain"])


def _shown(text: str) -> str:
    return f"<pre>{html.escape(text.rstrip())}</pre>"
