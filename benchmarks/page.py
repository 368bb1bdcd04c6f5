"""Looks at the pages of examples in Chromium: their size, and what the browser's own tools say of them.

    python benchmarks/page.py [--plan FILE ...] [--run NAME=DIR ...] [--no-comparison] [--out FILE]

plan: runs the plan and looks at the page of its run; by default the demo's. run: a run that is there already, and what
to call it. The page of a comparison is that of the demo's plan, three rows of it. Needs Chromium and its driver
(Debian: chromium, chromium-driver). Of every page: bytes; the most that it is wider than a window of 360 and of 1,440
pixels, and elements
that stick out; texts whose contrast is below 4.5, in the light and the dark scheme and in print; controls that Tab
reaches, of how many, and those without an outline; what is wrong with headings, landmarks and names in the tree that a
screen reader gets; what the browser logged. `tests/coordinator/page/looking.py` has the checks, and tests use the same.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples/dped/demo.toml"


def looking() -> ModuleType:
    """`tests/coordinator/page/looking.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("looking", ROOT / "tests/coordinator/page/looking.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def looked_at(looks: ModuleType, driver: Any, page: Path) -> dict[str, Any]:
    """What the browser finds on one page."""
    found: dict[str, Any] = {"bytes": page.stat().st_size, "overflow": {}, "sticking_out": [], "cut_off": []}
    found["faint"] = {}
    looks.logged(driver)
    for width in looks.WIDTHS:
        for scheme in looks.SCHEMES:
            looks.show(driver, page, width, scheme)
            over, outside = driver.execute_script(looks.OVERFLOWING)
            found["overflow"][f"{width}"] = max(over, found["overflow"].get(f"{width}", over))
            found["sticking_out"] += outside
            found["cut_off"] += driver.execute_script(looks.CUT_OFF)
            found["faint"][scheme] = driver.execute_script(looks.FAINT)
    looks.show(driver, page, 794, "print")
    found["faint"]["print"] = driver.execute_script(looks.FAINT)
    began = time.perf_counter()
    looks.show(driver, page)
    found["opened_in_seconds"] = round(time.perf_counter() - began, 2)
    seen = looks.tree(driver)
    found["tree"] = {"nodes": len(seen), "wrong": looks.disordered(seen)}
    pressed, reached, wanted = looks.pressing_tab(driver)
    found["keyboard"] = {
        "controls": wanted,
        "reached": reached,
        "unseen_or_without_outline": [
            text[:40] for text, inside, outline in pressed if not inside or outline == "none"
        ],
    }
    found["logged"] = looks.logged(driver)
    return found


def made(folder: Path, given: argparse.Namespace) -> dict[str, Path]:
    """The pages to look at, by name."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CONCLAVE_HOME": str(folder / "home")}

    def coordinator(*words: str) -> None:
        code = "import sys; from coordinator.console.start import main; sys.exit(main())"
        subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True, cwd=folder)

    pages: dict[str, Path] = {}
    runs = {name: Path(place) for name, _, place in (each.partition("=") for each in given.run)}
    for plan in given.plan or ([] if given.run else [DEMO]):
        name = str(plan.resolve().relative_to(ROOT))
        runs[name] = folder / name.replace("/", "-").removesuffix(".toml")
        coordinator("run", str(plan.resolve()), "--output", str(runs[name]))
    for number, (name, run) in enumerate(runs.items()):
        pages[name] = folder / f"page-{number}.html"
        coordinator("report", str(run.resolve()), "--html", str(pages[name]))
    if not given.no_comparison:
        pages["comparison"] = folder / "comparison.html"
        rows = ["--recipes", "moments,unigram,non-private", "--epsilons", "4,8", "--seeds", "1"]
        coordinator("compare", str(DEMO), *rows, "--output", str(folder / "c"), "--html", str(pages["comparison"]))
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, nargs="*", default=[])
    parser.add_argument("--run", nargs="*", default=[], metavar="NAME=DIR")
    parser.add_argument("--no-comparison", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    looks = looking()
    if looks.DRIVER is None or looks.BROWSER is None:
        raise SystemExit("no browser on this machine: install chromium and chromium-driver")
    with tempfile.TemporaryDirectory() as folder:
        pages = made(Path(folder), given)
        driver = looks.started(Path(folder) / "profile")
        try:
            found = {name: looked_at(looks, driver, page) for name, page in pages.items()}
            found = {"browser": driver.capabilities["browserVersion"], "pages": found}
        finally:
            driver.quit()
    text = json.dumps(found, indent=1)
    print(text)
    if given.out is not None:
        given.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
