"""Make the reference pages from the code, or check that the committed ones match it.

Run as `python docs/generate.py [--check [FOLDER ...]]` from anywhere; without a folder it looks at docs/reference.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
sys.path[:0] = [str(ROOT), str(ROOT / "docs/making")]

import commands  # noqa: E402
import error_pages  # noqa: E402
import python_api  # noqa: E402
import settings_pages  # noqa: E402

NOTE = "<!-- Made from the code by docs/generate.py: change the docstrings there, then run `make reference`. -->\n\n"


def pages() -> dict[str, str]:
    """Every page of the reference by its path in the folder."""
    from coordinator import api
    from coordinator.console.command import app as coordinator
    from party.console.command import app as party

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    systems = sorted(listed["conclave.systems"])
    made = {
        "coordinator-command.md": commands.page(coordinator),
        "party-command.md": commands.page(party),
        "python.md": python_api.page(api),
        **settings_pages.pages(systems, ROOT / "docs"),
    }
    return {name: NOTE + text for name, text in made.items()} | error_pages.pages()


def check(folders: list[Path]) -> int:
    """Return 0 when the pages in each folder equal freshly made ones, otherwise name those that differ and return 1."""
    made = pages()
    differing = []
    for folder in folders:
        there = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}
        differing += sorted(folder / name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
    for path in differing:
        print(f"{path} is not what the code gives. Run `make reference`, and commit what it writes.")
    return 1 if differing else 0


def write() -> None:
    """Write all pages, and remove those of what is there no more."""
    made = pages()
    for path in REFERENCE.rglob("*.md"):
        if path.relative_to(REFERENCE).as_posix() not in made:
            path.unlink()
    for name, text in made.items():
        (REFERENCE / name).parent.mkdir(parents=True, exist_ok=True)
        (REFERENCE / name).write_text(text, "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check([Path(name) for name in sys.argv[2:]] or [REFERENCE]))
    write()
