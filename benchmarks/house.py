"""How the product is built, in figures, of the tree that this file is in.

    python benchmarks/house.py [--json] [--out FILE]

lines: of every room's .py files, without generated stubs. code: those that are not blank, a comment or a docstring.
epsilon: files that read an attribute of that name. long_files: over 400 lines. full_folders: with more than 15
.py files, `__init__.py` among them. cycles: files that import one another, directly or over others, by the imports that
run when a module is loaded, and by all imports: in functions and for type checkers too. mechanism_tests: places that
ask which mechanism something is: an `isinstance` (one, however many classes it names), a class pattern of a `case`, or
a comparison with `type(...)`. sourced: public functions and classes, methods left out, whose docstring names a paper.
"""

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = ("protos", "aggregation", "learning", "party", "coordinator", "deploy")
GENERATED = Path("protos/conclave")
MOST_LINES = 400
MOST_FILES = 15
MORE_MECHANISMS = {"ThresholdedVotes", "FreeAnswers"}
"""Mechanisms whose names do not say so."""
PAPER = re.compile(r"\b(19[5-9]\d|20[0-3]\d)[a-z]?\b|arXiv|^ *Source: ", re.MULTILINE)

Graph = dict[str, set[str]]


def sources() -> dict[Path, str]:
    """The text of every file of the product, by its path in the tree."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))
    found = {path.relative_to(ROOT): path for path in paths}
    return {name: path.read_text() for name, path in found.items() if not name.is_relative_to(GENERATED)}


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(trees: dict[Path, ast.Module]) -> tuple[Graph, Graph]:
    """Which modules each module imports when it is loaded, and at any time."""
    modules = {module_of(path) for path in trees}
    loaded: Graph = defaultdict(set)
    ever: Graph = defaultdict(set)
    for path, tree in trees.items():
        own = module_of(path)
        package = own if path.name == "__init__.py" else own.rpartition(".")[0]
        for node, at_load in statements(tree):
            for name in named(node, package, modules):
                if name != own:
                    ever[own].add(name)
                    if at_load:
                        loaded[own].add(name)
    return loaded, ever


def statements(tree: ast.AST, at_load: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import, and whether it runs when the module is loaded."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, at_load
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for inner in node.body:
                yield from statements(ast.Module([inner], []), False)
            for inner in node.orelse:
                yield from statements(ast.Module([inner], []), at_load)
        else:
            yield from statements(
                node, at_load and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            )


def named(node: ast.Import | ast.ImportFrom, package: str, modules: set[str]) -> Iterator[str]:
    """The modules of the product that an import names; a package where it takes a name that is no module of it."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in modules)
        return
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        for name in (f"{base}.{alias.name}", base):
            if name in modules:
                yield name
                break


def cycles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, largest first (Tarjan 1972)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        open_.append(module)
        for other in sorted(graph.get(module, ())):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in open_:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            place = open_.index(module)
            if len(open_) - place > 1:
                found.append(sorted(open_[place:]))
            del open_[place:]

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return sorted(found, key=lambda each: (-len(each), each))


def mechanisms(trees: dict[Path, ast.Module]) -> set[str]:
    """The names of the classes of aggregation that are mechanisms."""
    classes = {
        node.name
        for path, tree in trees.items()
        if path.parts[0] == "aggregation"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    return {name for name in classes if re.search(r".Mechanism$", name) or name in MORE_MECHANISMS}


def mechanism_tests(trees: dict[Path, ast.Module]) -> Counter[str]:
    """How many places of each file ask which mechanism something is."""
    known, found = mechanisms(trees), Counter[str]()
    for path, tree in trees.items():
        for node in ast.walk(tree):
            asked: list[ast.expr] = []
            match node:
                case ast.Call(func=ast.Name("isinstance" | "issubclass"), args=[_, classes]):
                    asked = [classes]
                case ast.MatchClass(cls=pattern):
                    asked = [pattern]
                case ast.Compare(left=ast.Call(func=ast.Name("type")), comparators=others):
                    asked = others
            if known & {inner for each in asked for inner in names(each)}:
                found[path.as_posix()] += 1
    return found


def names(node: ast.expr) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def sourced(trees: dict[Path, ast.Module]) -> dict[str, dict[str, int]]:
    """By room, how many functions and classes are public, and how many of these name a paper."""
    found = {room: {"public": 0, "sourced": 0} for room in ROOMS}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
                counts = found[path.parts[0]]
                counts["public"] += 1
                counts["sourced"] += bool(PAPER.search(ast.get_docstring(node) or ""))
    return found


def code(text: str, tree: ast.Module) -> int:
    """The lines that are not blank, a comment, or a docstring or another string that stands alone."""
    said = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in said for number, line in lines)


def reads(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(tree))


def figures() -> dict[str, Any]:
    """All figures of the tree."""
    texts = sources()
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    rooms = {room: sum(count for path, count in lines.items() if path.parts[0] == room) for room in ROOMS}
    folders = Counter(path.parent.as_posix() for path in texts)
    loaded, ever = imports(trees)
    tests = mechanism_tests(trees)
    return {
        "lines": rooms | {"all": sum(rooms.values())},
        "files": len(texts),
        "code": sum(code(text, trees[path]) for path, text in texts.items()),
        "epsilon": sum(reads(tree, "epsilon") for tree in trees.values()),
        "long_files": {path.as_posix(): count for path, count in lines.items() if count > MOST_LINES},
        "full_folders": {folder: count for folder, count in sorted(folders.items()) if count > MOST_FILES},
        "cycles": {"when_loaded": cycles(loaded), "of_all_imports": cycles(ever)},
        "mechanism_tests": {"places": sum(tests.values()), "files": dict(sorted(tests.items()))},
        "sourced": sourced(trees),
    }


def told(found: dict[str, Any]) -> Iterator[str]:
    """The figures in sentences."""
    yield "lines: " + ", ".join(f"{room} {count:,}" for room, count in found["lines"].items())
    yield f"lines of code: {found['code']:,}, in {found['files']} files"
    yield f"files that read an epsilon: {found['epsilon']}"
    yield f"files over {MOST_LINES} lines: {len(found['long_files'])}"
    yield from (f"  {path} {count}" for path, count in found["long_files"].items())
    yield f"folders of more than {MOST_FILES} files: {len(found['full_folders'])}"
    yield from (f"  {folder} {count}" for folder, count in found["full_folders"].items())
    for kind, groups in found["cycles"].items():
        yield f"cycles, {kind.replace('_', ' ')}: {len(groups)}"
        yield from (f"  {len(group)}: {', '.join(group)}" for group in groups)
    tests = found["mechanism_tests"]
    yield f"tests of a mechanism's type: {tests['places']} in {len(tests['files'])} files"
    for room, counts in found["sourced"].items():
        yield f"public functions and classes of {room} that name a paper: {counts['sourced']} of {counts['public']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="a file to write the JSON to")
    given = parser.parse_args()
    found = figures()
    print(json.dumps(found, indent=1) if given.json else "\n".join(told(found)))
    if given.out is not None:
        command = f"python benchmarks/house.py --out {given.out}"
        given.out.write_text(json.dumps({"command": command} | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
