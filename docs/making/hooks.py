"""What MkDocs does besides: pages may link to any file of the project, and notebooks are pages.

A file outside docs/ that a page links to comes along, in `project/` of the site. Notebooks are in `notebooks/`.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))
import notebook_pages
from headings import slug

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = "project"
NOTEBOOKS = "examples/notebooks"
_FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2`*~* *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\(\s*)([^)\s#]+)((?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\s*\))")
_ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|/)")


def on_config(config: Any) -> Any:
    """Headings are named as GitHub names them, so that one link works at both places."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add notebooks, and whatever outside docs/ is linked to, to begin with from the pages of docs/."""
    for path in sorted((ROOT / NOTEBOOKS).glob("*.ipynb")):
        files.append(File.generated(config, _place(path), content=notebook_pages.page(path)))
    waiting = [(file, file.content_string) for file in files if file.src_uri.endswith(".md")]
    known = {file.src_uri for file in files}
    while waiting:
        file, text = waiting.pop()
        for target in _outside(text, _source(file.src_uri)):
            place = _place(target)
            if place in known:
                continue
            known.add(place)
            added = _added(config, target, place)
            files.append(added)
            if place.endswith(".md"):
                waiting.append((added, added.content_string))
    return files


def _added(config: Any, target: Path, place: str) -> File:
    """A file of the project, or a page that lists a folder, as a file of the site."""
    if target.is_dir():
        names = sorted(f"{path.name}/" if path.is_dir() else path.name for path in target.iterdir())
        listed = "\n".join(f"- `{name}`" for name in names if not name.startswith(("_", ".")))
        text = f"# {target.relative_to(ROOT)}\n\nThis folder of the project holds:\n\n{listed}\n"
        return File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
    if target.suffix == ".md":
        return File.generated(config, place, content=target.read_text("utf-8"), inclusion=InclusionLevel.NOT_IN_NAV)
    return File.generated(config, place, abs_src_path=str(target), inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """A page's links as the site needs them, and its blocks of code without what tests read of them."""
    here, source = page.file.src_uri, _source(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        target = _target(found[2], source)
        if target is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(_place(target), posixpath.dirname(here))}{found[3]}"

    pieces, end = [], 0
    for fence in _FENCE.finditer(markdown):
        pieces.append(_LINK.sub(moved, markdown[end : fence.start()]))
        language = fence[3].split()[0] if fence[3].split() else ""
        pieces.append(f"{fence[1]}{fence[2]}{language}\n{fence[4]}{fence[1]}{fence[2]}")
        end = fence.end()
    return "".join([*pieces, _LINK.sub(moved, markdown[end:])])


def _outside(text: str, source: Path) -> Iterator[Path]:
    """The files outside docs/ that a page links to."""
    for found in _LINK.finditer(_FENCE.sub("", text)):
        target = _target(found[2], source)
        if target is not None and not target.is_relative_to(ROOT / "docs") and not _is_notebook(target):
            yield target


def _target(link: str, source: Path) -> Path | None:
    """The file or folder of the project that a link of a page means; None for one elsewhere, or one that is wrong."""
    if _ELSEWHERE.match(link):
        return None
    target = (source.parent / link).resolve()
    return target if target.is_relative_to(ROOT) and target.exists() else None


def _source(place: str) -> Path:
    """The project's file that is at a place of the site."""
    first, _, rest = place.partition("/")
    if first == OUTSIDE:
        return ROOT / rest
    if first == "notebooks":
        return (ROOT / NOTEBOOKS / rest).with_suffix(".ipynb")
    return ROOT / "docs" / place


def _place(target: Path) -> str:
    """The place of the site at which a file or folder of the project is."""
    if _is_notebook(target):
        return f"notebooks/{target.stem}.md"
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    if target.is_dir():
        readme = target / "README.md"
        target = readme if readme.is_file() else target / "index.md"
    return f"{OUTSIDE}/{target.relative_to(ROOT).as_posix()}"


def _is_notebook(target: Path) -> bool:
    return target.parent == ROOT / NOTEBOOKS and target.suffix == ".ipynb"
