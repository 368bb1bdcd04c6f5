"""Every block of code on the pages is executed by a test that is named, or is parsed here by what would read it."""

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
from pathlib import Path
from textwrap import dedent, indent
from typing import get_args, get_type_hints

import pytest
from pydantic import BaseModel
from typer.main import get_command

from coordinator import api
from coordinator.console.command import app as coordinator_app
from coordinator.console.provision import MakingFirst
from coordinator.serving.config import ServeConfig
from coordinator.systems.registry import check_plan, names, system
from party.config import PartyConfig
from party.console.command import app as party_app
from protos.console.mistakes import SettingsError

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("docs_blocks", ROOT / "docs/making/blocks.py")
blocks = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = blocks
_spec.loader.exec_module(blocks)

ALL = blocks.all_blocks()
COMMANDS = {"coordinator": get_command(coordinator_app), "party": get_command(party_app)}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SYSTEM_PAGES = {
    "dped": "dped", "classifiers": "dp_sgd", "privdistil": "privdistil", "distildp": "distildp", "swing": "swing",
    "nvdp": "nvdp",
}  # fmt: skip
"""Pages that explain a system, and the recipe of the plan that each works through."""
OURS = re.compile(r"(?:examples|benchmarks|deploy|docs|tests)/(?!public-model)[\w./-]+(?:::\w+)?$")
"""A word of a command that names a file of the project; examples/public-model is made by an earlier line."""
FRAGMENTS = {"docs/own-recipes.md", "docs/architecture.md"}
"""Pages that show parts of files of another project."""


def of(kind):
    found = [block for block in ALL if block.kind == kind]
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


class Wrong(Exception):
    """What a page says is not there."""


# What there is.


def test_every_block_is_of_a_kind_that_is_checked():
    assert [block.place for block in ALL if not block.kind] == [], (
        "give it a language, or name it in docs/making/blocks.py"
    )
    shown = [(block.page, block.text.lstrip()) for block in ALL if block.kind == "output"]
    unused = [each for each in blocks.OUTPUTS if not any(p == each[0] and t.startswith(each[1]) for p, t in shown)]
    assert not unused


def test_a_block_that_nothing_covers_is_found():
    page = "# A\n\n```\nx\n```\n\n```rust\nx\n```\n\n    frobnicate it\n\nThen\n\n    party serve\n\n```sh\nls\n```\n"
    found = list(blocks.blocks_of(page, "docs/new.md"))
    assert [(block.line, block.kind) for block in found] == [
        (3, ""), (7, ""), (17, "command"), (11, ""), (15, "command"),
    ]  # fmt: skip
    assert not any(block.executed for block in found)


def test_every_test_that_executes_blocks_reads_their_page():
    for page, _, test in blocks.EXECUTED:
        assert Path(page).name in (ROOT / test).read_text("utf-8"), test
        assert any(block.page == page and block.executed == test for block in ALL), page


def test_every_other_block_is_listed_with_the_reason_why_it_is_only_parsed():
    told = [each[:2] for each in blocks.PARSED]
    for page, start in [*told, *(each for named in blocks.NAMED.values() for each in named)]:
        found = [block for block in ALL if block.begins(page, start)]
        assert len(found) == 1, f"{page}: {start}"
        assert bool(found[0].executed) == ((page, start) not in told)
    listed = [block for block in ALL if any(block.begins(*each) for each in told)]
    assert [block.place for block in ALL if not (block.executed or block.kind == "output" or block in listed)] == []


def test_every_test_that_is_named_follows_all_blocks_that_it_is_named_for():
    """Each asks for its own by `executed_by`, or looks for their text in what it does."""
    for test in blocks.NAMED:
        assert f'executed_by("{test}")' in (ROOT / test).read_text("utf-8"), test


def test_the_page_of_results_says_how_many_there_are():
    told = (ROOT / "docs/results/code.md").read_text("utf-8")
    assert blocks.counts(ALL) in " ".join(told.split()), f"write there: {blocks.counts(ALL)}"


# Commands.


def commands(text):
    """The commands of a block, a list of words each; those within quotes too, as another shell gets them."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        said = shlex.shlex(re.sub(r"(?<!\S)#.*", "", line.removeprefix("$ ")), posix=True, punctuation_chars=True)
        said.whitespace_split = True
        words: list[str] = []
        for word in [*said, ";"]:
            if word in ("do", "then") or re.fullmatch(r"[();<>|&]+", word):
                if words:
                    yield words
                words = []
            elif re.search(r"\b(?:coordinator|party) ", word):
                yield from commands(word)
            elif words or not re.fullmatch(r"[A-Z_]+=\S*", word):
                words.append(word)


def command_of(words):
    """The command that words name, and the words that are left: of all names as long as there are commands below."""
    found, rest = COMMANDS[blocks.program(words[0])], list(words[1:])
    named = blocks.program(words[0])
    while hasattr(found, "commands") and rest and not rest[0].startswith("-"):
        if rest[0] not in found.commands and isinstance(found, MakingFirst):
            rest.insert(0, "make")
        if rest[0] not in found.commands:
            raise Wrong(f"{named} has no command {rest[0]}")
        named += f" {rest[0]}"
        found = found.commands[rest.pop(0)]
    return named, found, rest


def parse(words):
    """Have the real command read the words, and do nothing. Raises `Wrong`."""
    named, found, rest = command_of(words)
    context = found.context_class(found, info_name=named)
    try:
        given, left, _ = found.make_parser(context).parse_args(args=list(rest))
    except Exception as error:
        raise Wrong(f"{' '.join(words)}: {error}") from error
    if left and not hasattr(found, "commands"):
        raise Wrong(f"{' '.join(words)}: {named} takes no {left[0]}")
    missing = [each.name for each in found.params if each.required and given.get(each.name) is None]
    if missing and "--help" not in rest:
        raise Wrong(f"{' '.join(words)}: {named} needs {', '.join(missing)}")


def check_command(words, page):
    """Check a command of a page: its own command's options, its target of make, its files, its extras."""
    program = blocks.program(words[0])
    if program in COMMANDS:
        parse(words)
    elif program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
        if wrong := [word for word in words[1:] if "=" not in word and word not in targets]:
            raise Wrong(f"make has no target {wrong[0]}")
    elif program in ("python", "python3") and words[1:2] != ["-m"]:
        made = f"file={words[1]}" in page
        if not made and not (ROOT / words[1]).is_file():
            raise Wrong(f"there is no {words[1]}")
    for word in words[1:]:
        if OURS.match(word) and not (ROOT / word.partition("::")[0]).exists():
            raise Wrong(f"there is no {word}")
    if extras := re.search(r"conclave-distill\[([\w,]+)\]", " ".join(words)):
        for extra in extras[1].split(","):
            if extra not in PYPROJECT["project"]["optional-dependencies"]:
                raise Wrong(f"there is no extra {extra}")


@of("command")
def test_every_command_is_there_with_all_its_options(block):
    page = (ROOT / block.page).read_text("utf-8")
    for words in commands(block.text):
        check_command(words, page)


def test_the_commands_of_pages_that_are_made_from_the_code_are_there_too():
    for page in sorted((ROOT / "docs/reference").rglob("*.md")):
        for block in blocks.blocks_of(page.read_text("utf-8"), page.name):
            for words in commands(block.text):
                if blocks.program(words[0]) in COMMANDS and "[" not in " ".join(words):  # not a line of usage
                    parse(words)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("coordinator forecast plan.toml --loud", "--loud"),
        ("coordinator forcast plan.toml", "no command forcast"),
        ("coordinator forecast", "needs plan"),
        ("party budget --config", "--config"),
        (".venv/bin/coordinator run plan.toml --output", "--output"),
        ("coordinator verify student other", "takes no other"),
        ("make tests", "no target tests"),
        ("coordinator run examples/gone.toml", "no examples/gone.toml"),
        ("python benchmarks/gone.py", "no benchmarks/gone.py"),
        ("python -m pytest tests/gone.py", "no tests/gone.py"),
        ("pip install 'conclave-distill[gone]'", "no extra gone"),
    ],
)
def test_a_command_or_an_option_that_is_not_there_is_found(line, says):
    (words,) = commands(line)
    with pytest.raises(Wrong, match=re.escape(says)):
        check_command(words, "")


def spans():
    """Commands within sentences, of which options alone are checked: they leave out what goes without saying."""
    for page in blocks.pages():
        prose = blocks.FENCE.sub("", page.read_text("utf-8"))
        for said in re.findall(r"`((?:coordinator|party) [a-z][^`]*)`", prose):
            yield page.relative_to(ROOT).as_posix(), said


def check_span(said):
    words = re.sub(r"\.\.\.|\"|'", "", said).split()
    _, found, rest = command_of(words)
    known = {name for each in found.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    if wrong := [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]:
        raise Wrong(f"{said}: there is no option {wrong[0]}")


def test_every_option_within_a_sentence_is_there():
    found, wrong = list(spans()), []
    assert len(found) > 50
    for page, said in found:
        try:
            check_span(said)
        except Wrong as error:
            wrong.append(f"{page}: {error}")
    assert wrong == []
    with pytest.raises(Wrong, match="--loud"):
        check_span("coordinator report RUN --loud")


# Plans and other files.


def tables_of(block):
    return tomllib.loads(block.text)


def is_plan(tables):
    return "recipe" in tables.get("run", {})


def models(annotation):
    """The tables that an annotation of a field names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {annotation}
    return {found for each in get_args(annotation) for found in models(each)}


def unknown(tables, known, place=""):
    """The keys of tables that none of the models has."""
    for key, value in tables.items():
        fields = [model.model_fields[key] for model in known if key in model.model_fields]
        if not fields:
            yield f"{place}{key}"
            continue
        within = {found for field in fields for found in models(field.annotation)}
        named = any("dict[" in str(field.annotation) for field in fields)  # a table for each of some names
        tables = value if isinstance(value, list) else list(value.values()) if named else [value]
        for each in tables:
            if isinstance(each, dict) and within:
                yield from unknown(each, within, f"{place}{key}.")


def roots():
    return {PartyConfig, ServeConfig, *(system(name).plan for name in names() if "toy" not in name)}


@of("toml")
def test_every_plan_is_one_and_of_every_other_file_all_keys_are_there(block):
    tables = tables_of(block)
    if is_plan(tables):
        assert check_plan(tables, block.place).run.name
    elif block.page not in FRAGMENTS:
        assert list(unknown(tables, roots())) == []
    elif "project" in tables:
        assert set(tables["project"]["entry-points"]) <= set(PYPROJECT["project"]["entry-points"])


def test_a_plan_or_a_key_that_is_not_one_is_found():
    (block,) = [block for block in ALL if block.page == "docs/dped.md" and block.kind == "toml"]
    with pytest.raises(SettingsError, match="epsilom"):
        check_plan(tomllib.loads(block.text.replace("epsilon", "epsilom")), "docs/dped.md")
    assert list(unknown({"privacy": {"epsilom": 1}, "shard": {"text": "a"}}, roots())) == ["privacy.epsilom"]


@pytest.mark.parametrize(("page", "recipe"), SYSTEM_PAGES.items())
def test_the_page_of_a_system_works_through_a_short_plan_with_its_forecast(page, recipe):
    text = (ROOT / f"docs/{page}.md").read_text("utf-8")
    section = text.partition("\n## A worked plan\n")[2].partition("\n## ")[0]
    shown = list(blocks.blocks_of(section, f"docs/{page}.md"))
    plan, forecast = [each for each in shown if each.info in ("toml", "text")]
    assert tomllib.loads(plan.text)["run"]["recipe"] == recipe
    assert 10 <= sum(bool(line.strip()) for line in plan.text.splitlines()) <= 20
    assert section.count("\n- **") >= 4, "what each choice means"
    epsilon = float(tomllib.loads(plan.text)["privacy"]["epsilon"])
    assert re.search(rf"^epsilon [\d.]+ of {epsilon:g} at delta", forecast.text, re.MULTILINE)
    assert forecast.text.startswith(f"{recipe} · 4 parties")


# Python.


def check_imports(tree):
    """Raise `Wrong` for a name that its module has not, or a keyword that a function of `coordinator.api` has not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                importlib.import_module(each.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            for each in node.names:
                if not hasattr(module, each.name):
                    raise Wrong(f"{node.module} has no {each.name}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_api = isinstance(node.func.value, ast.Name) and node.func.value.id == "api"
            if of_api and not hasattr(api, node.func.attr):
                raise Wrong(f"coordinator.api has no {node.func.attr}")
            if of_api:
                signature = inspect.signature(getattr(api, node.func.attr))
                for keyword in node.keywords:
                    if keyword.arg not in signature.parameters:
                        raise Wrong(f"api.{node.func.attr} takes no {keyword.arg}")


def is_named(node, name=None):
    return isinstance(node, ast.Name) and name in (None, node.id)


def check_results(tree):
    """Raise `Wrong` for an attribute that what a function of `coordinator.api` gives has not."""
    given = {}
    for node in ast.walk(tree):
        function = node.value.func if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
        if isinstance(function, ast.Attribute) and is_named(function.value, "api") and is_named(node.targets[0]):
            found = get_type_hints(getattr(api, function.attr))["return"]
            given[node.targets[0].id] = get_args(found) or (found,)
    for node in ast.walk(tree):
        kinds = given.get(node.value.id, ()) if isinstance(node, ast.Attribute) and is_named(node.value) else ()
        if kinds and not any(hasattr(each, node.attr) for each in kinds):
            raise Wrong(f"a result has no {node.attr}")


def tree_of(text):
    """Code as Python reads it; the end of a function is one within a function."""
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.parse(f"def of_the_page():\n{indent(dedent(text), '    ')}")


def compiled(text):
    try:
        return compile(text, "page", "exec")
    except SyntaxError:
        return compile(f"def of_the_page():\n{indent(dedent(text), '    ')}", "page", "exec")


@of("python")
def test_every_block_of_python_compiles_and_names_what_is_there(block):
    assert compiled(block.text)
    check_imports(tree_of(block.text))
    check_results(tree_of(block.text))


@pytest.mark.parametrize(
    "text",
    ["from coordinator.api import gone", "from coordinator import api\napi.gone()", "api.run('p', outputs='x')"],
)
def test_a_name_that_is_not_there_is_found(text):
    with pytest.raises(Wrong, match=r"gone|outputs"):
        check_imports(tree_of(text))


def test_an_attribute_that_a_result_has_not_is_found():
    check_results(tree_of("result = api.run('p')\nresult.epsilon"))
    with pytest.raises(Wrong, match="gone"):
        check_results(tree_of("result = api.run('p')\nresult.gone"))
