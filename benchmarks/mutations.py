"""Deliberate one-line breaks of the product, and whether the tests notice each of them.

    python benchmarks/mutations.py [--only NAME,NAME] [--tests REVISION] [--label LABEL] [--out FILE]

A copy of the tracked files is made; each break of `mutations.toml` is applied to it alone, and the tests that
should notice run until the first fails. First they run without a break: then all must pass. `--tests` takes the folder
`tests` from another revision, so that two suites can be compared on the same breaks.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
UNSHRUNK = "from hypothesis import Phase, settings\n" + (
    "settings.register_profile('first', phases=[Phase.explicit, Phase.generate], database=None)\n"
    "settings.load_profile('first')\n"
)
"""A plugin of pytest: an example that fails is enough, and a smaller one is not looked for."""
PASSED, FAILED, BROKEN = 0, 1, 2
"""What pytest exits with where all tests pass, where one fails, and where a file of tests cannot be collected."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One break: `old`, found once in `file`, becomes `new`. says: what no longer holds. tests: what should notice."""

    name: str
    says: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """by: the tests that failed. cpu_seconds: of the tests until then, user and system."""

    caught: bool
    by: tuple[str, ...]
    cpu_seconds: float


def mutations(path: Path) -> list[Mutation]:
    """The breaks in a file. Raises ValueError where two have one name."""
    found = [
        Mutation(name, each["says"], each["file"], each["old"], each["new"], tuple(each["tests"]))
        for name, each in tomllib.loads(path.read_text()).items()
    ]
    if len({each.says for each in found}) != len(found):
        raise ValueError("two breaks say the same")
    return found


def copied(tree: Path, revision: str | None) -> None:
    """The tracked files as they are now into `tree`; its tests as they were at a revision, where one is given."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    if revision is not None:
        names = [name for name in names if not name.startswith("tests/")]
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    (tree / "unshrunk.py").write_text(UNSHRUNK)
    if revision is not None:
        kept = subprocess.run(["git", "archive", revision, "tests"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", tree], input=kept, check=True)


def tried(tree: Path, tests: tuple[str, ...], *, first: bool) -> Outcome:
    """Run tests of a tree, slow ones too, until the first that fails if `first`.

    Raises RuntimeError where pytest can neither pass nor fail them, as for tests that are not there.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    settings = (
        "-q",
        "-rfE",
        "-m",
        "not long",
        "--timeout=600",
        "-p",
        "unshrunk",
        "-p",
        "no:cacheprovider",
        *["-x"] * first,
    )
    command = [sys.executable, "-m", "pytest", *settings, *tests]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (PASSED, FAILED, BROKEN):
        raise RuntimeError(
            f"pytest {' '.join(tests)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr}"
        )
    lines = [line.split(" ") for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(done.returncode != PASSED, tuple(line[1] for line in lines), round(seconds, 1))


def broken(tree: Path, mutation: Mutation) -> Outcome:
    """Whether the tests notice one break, which is taken back. Raises ValueError where it can not be made."""
    path = tree / mutation.file
    whole = path.read_text()
    if whole.count(mutation.old) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has {whole.count(mutation.old)} times {mutation.old!r}")
    path.write_text(whole.replace(mutation.old, mutation.new))
    try:
        return tried(tree, mutation.tests, first=True)
    finally:
        path.write_text(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of breaks, with commas")
    parser.add_argument("--tests", help="a revision whose tests are run, instead of those here")
    parser.add_argument("--label", default="here", help="under which name the outcomes are kept")
    parser.add_argument("--unbroken", action=argparse.BooleanOptionalAction, default=True, help="first without a break")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/mutations.json")
    given = parser.parse_args()
    known = {each.name: each for each in mutations(LIST)}
    chosen = list(known.values()) if given.only is None else [known[name] for name in given.only.split(",")]
    written = json.loads(given.out.read_text()) if given.out.exists() else {"commands": {}, "breaks": {}}
    kept = written["breaks"]
    written["commands"][given.label] = " ".join(["python", "benchmarks/mutations.py", *sys.argv[1:]])
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        tree = Path(folder)
        copied(tree, given.tests)
        if given.unbroken:
            whole = tried(tree, tuple(sorted({test for each in chosen for test in each.tests})), first=False)
            if whole.caught:
                raise SystemExit(f"without a break these fail already: {', '.join(whole.by)}")
        for each in chosen:
            outcome = broken(tree, each)
            print(
                f"{'caught' if outcome.caught else 'NOT CAUGHT':<11} {each.name:<40} {' '.join(outcome.by)}", flush=True
            )
            entry = kept.setdefault(each.name, {"says": each.says, "file": each.file, "outcomes": {}})
            entry["outcomes"][given.label] = asdict(outcome)
            given.out.write_text(json.dumps(written, indent=1) + "\n")
    missed = [each.name for each in chosen if not kept[each.name]["outcomes"][given.label]["caught"]]
    if missed:
        raise SystemExit(f"not noticed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
