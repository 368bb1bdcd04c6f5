"""Finds every block of code on the pages that people read, and says what it is and which test executes it.

Run as `python docs/making/blocks.py`: how many blocks there are, how many tests execute and how many are parsed.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2`*~* *$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:\A|\n\n)((?:    [^\n]*\n)+(?:\n(?:    [^\n]*\n)+)*)")
KINDS = {"sh": "command", "bash": "command", "console": "command", "python": "python", "toml": "toml", "text": "output"}
MADE = "<!-- Made from "
"""How a page begins that docs/generate.py writes."""
PROGRAMS = ("coordinator", "party", "make", "pip", "python", "python3", "kubectl", "cp", "cd", "CONCLAVE_GOLDEN")
"""What a line of commands begins with."""
OUTPUTS = (
    ("docs/auditing-runs.md", "audit: a simulation of the plan"),
    ("docs/own-recipes.md", "$ coordinator verify my-run/student"),
    ("docs/parties.md", "spent      epsilon"),
    ("docs/parties.md", "spent      no cap"),
    ("docs/report.md", "(1 + max over p"),
    ("docs/traces.md", "run                                 coordinator"),
)
"""Blocks without a language that show what is printed, or a formula: page, and how they begin."""
EXECUTED = (
    ("docs/tutorials/first-student.md", r"at=here", "tests/docs/test_tutorials.py"),
    ("docs/tutorials/own-table.md", r"at=here", "tests/docs/test_tutorials.py"),
    ("docs/sites.md", r"at=\w+", "tests/docs/test_sites.py"),
    ("docs/deploy.md", r"at=(party|machine|cluster)", "tests/docs/test_deploy.py"),
    ("docs/ray.md", r"at=launcher", "tests/deploy/test_ray_up.py"),
    ("docs/serving.md", r"at=coordinator file=coordinator.toml", "tests/docs/test_serving.py"),
    ("docs/own-recipes.md", r"python|toml", "tests/docs/test_own_recipes.py"),
)
"""Who executes a block: page, what stands behind its fence, the test."""
NAMED = {
    "tests/docs/test_commands.py": (
        ("README.md", ".venv/bin/coordinator doctor"),
        ("README.md", "from gensim.models"),
        ("README.md", "from coordinator import api"),
        ("README.md", ".venv/bin/coordinator verify my-run/student"),
        ("README.md", ".venv/bin/coordinator forecast examples/dped/plan.toml"),
        ("README.md", ".venv/bin/coordinator run examples/classifier/plan.toml"),
        ("README.md", ".venv/bin/coordinator run examples/privdistil/plan.toml"),
        ("README.md", ".venv/bin/coordinator run examples/distildp/plan.toml"),
        ("README.md", ".venv/bin/coordinator run examples/swing/plan.toml"),
        ("README.md", ".venv/bin/coordinator run examples/nvdp/plan.toml"),
        ("README.md", ".venv/bin/party serve --config examples/dped/parties/north.toml"),
        ("docs/auditing-runs.md", "coordinator audit RUN\n"),
        ("docs/auditing-runs.md", "coordinator audit RUN --shadows"),
        ("docs/classifiers.md", "from transformers import pipeline"),
        ("docs/classifiers.md", "make install"),
        ("docs/distildp.md", "from datasets import load_dataset"),
        ("docs/distildp.md", ".venv/bin/coordinator forecast"),
        ("docs/distildp.md", ".venv/bin/coordinator compare"),
        ("docs/parties.md", ".venv/bin/party preview"),
        ("docs/parties.md", ".venv/bin/party serve"),
        ("docs/parties.md", ".venv/bin/coordinator run examples/dped/four-parties.toml"),
        ("docs/privdistil.md", "make install"),
        ("docs/privdistil.md", ".venv/bin/coordinator compare"),
        ("docs/report.md", "coordinator report RUN"),
        ("docs/report.md", "coordinator compare PLAN"),
        ("docs/swing.md", ".venv/bin/coordinator forecast"),
        ("docs/swing.md", ".venv/bin/coordinator run examples/swing/private.toml"),
        ("docs/swing.md", ".venv/bin/coordinator audit"),
        ("docs/swing.md", ".venv/bin/coordinator compare"),
        ("docs/traces.md", "pip install"),
        ("docs/verifying.md", "coordinator verify published"),
        ("docs/verifying.md", "coordinator publish RUN"),
        ("docs/verifying.md", "coordinator track RUN"),
        ("docs/verifying.md", "openssl x509"),
        ("examples/classifier/README.md", "pip install"),
        ("examples/distildp/README.md", "python examples/public_model.py"),
        ("examples/dped/README.md", "coordinator run examples/dped/demo.toml"),
        ("examples/nvdp/README.md", "pip install"),
        ("examples/privdistil/README.md", "pip install"),
        ("examples/swing/README.md", "python examples/public_model.py"),
    ),
    "tests/docs/test_fragments.py": (
        ("docs/auditing-runs.md", "[audit]"),
        ("docs/deploy.md", 'identity = "federation"'),
        ("docs/dialling.md", "[federation]"),
        ("docs/distildp.md", "[dp_sgd]"),
        ("docs/parties.md", "[policy]"),
        ("docs/ray.md", '[federation]\nlaunch = "ray"'),
        ("docs/ray.md", "[federation.cluster]"),
        ("docs/secure-sum.md", "[privacy]"),
        ("docs/swing.md", "[federation.shards]"),
        ("docs/swing.md", "[queries]"),
        ("docs/traces.md", "# the party's file"),
    ),
    "tests/docs/test_worked_plans.py": tuple(
        (f"docs/{page}.md", "[run]") for page in ("dped", "classifiers", "privdistil", "distildp", "swing", "nvdp")
    ),
    "tests/docs/test_own_recipes.py": (("docs/own-recipes.md", "cp -r examples/own_recipe"),),
    "tests/coordinator/systems/test_toy_system.py": (
        ("docs/architecture.md", "def releases"),
        ("docs/architecture.md", "RECIPE = Recipe"),
        ("docs/architecture.md", "[project.entry-points"),
    ),
    "tests/deploy/test_kubernetes.py": (("deploy/kubernetes/README.md", "kubectl kustomize"),),
}
"""Who executes a block without a word behind its fence, by test: page, and how the block begins."""
CI = "it is what continuous integration itself does, or begins with it"
ANOTHER_CLOUD = "it needs an account with a provider of machines"
HOSTS = "it names other machines; tests of serving and of sites type such lines with addresses of their own"
PARSED = (
    ("README.md", "coordinator serve --config coordinator.toml", HOSTS),
    ("docs/dialling.md", "party serve --connect", HOSTS),
    ("docs/dialling.md", "party check --connect", HOSTS),
    ("docs/dialling.md", "coordinator check plan.toml", HOSTS),
    ("docs/serving.md", "coordinator provision server", HOSTS),
    ("docs/serving.md", "coordinator serve", HOSTS),
    ("docs/serving.md", "coordinator enroll", HOSTS),
    ("docs/serving.md", "coordinator provision sign", HOSTS),
    ("docs/serving.md", "coordinator run", HOSTS),
    ("CONTRIBUTING.md", "make install", CI),
    ("CONTRIBUTING.md", ".venv/bin/python -m pytest", CI),
    ("CONTRIBUTING.md", "CONCLAVE_GOLDEN=store", "it writes what the tests compare with"),
    ("README.md", "make demo", CI),
    ("README.md", "make check", "it is what continuous integration does, then fuzzing and benchmarks for hours"),
    ("README.md", ".venv/bin/coordinator run plan.toml --ray-address", "tests/deploy/test_ray_up.py types it, longer"),
    ("docs/architecture.md", ".venv/bin/python -m pytest", CI),
    ("docs/ray.md", "ray dashboard", "its tunnel stays open; tests/deploy/test_ray_up.py types the second line"),
    ("docs/ray.md", "GROUP=", ANOTHER_CLOUD),
    ("docs/ray.md", "ray down", ANOTHER_CLOUD),
    (
        "docs/ray.md",
        "python -m pip wheel --quiet --no-deps --wheel-dir dist .\ndocker",
        "it needs Docker and a Kubernetes cluster",
    ),
    ("docs/ray.md", "kubectl delete", "it needs a Kubernetes cluster"),
    ("docs/report.md", "python benchmarks/page.py", "it is a benchmark of minutes"),
)
"""Blocks that no test executes: page, how they begin, why. tests/docs/test_blocks.py parses them."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block. page: from the project's folder. info: what stands behind the fence, empty without one."""

    page: str
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"{self.page}:{self.line}"

    @property
    def kind(self) -> str:
        """`command`, `python`, `toml`, `output`, or empty where nobody knows."""
        language = self.info.split(" ")[0]
        if language:
            return KINDS.get(language, "")
        if any(self.page == page and self.text.lstrip().startswith(start) for page, start in OUTPUTS):
            return "output"
        words = [line.split()[0] for line in self.text.splitlines() if line.strip()]
        return "command" if words and program(words[0]) in PROGRAMS else ""

    @property
    def executed(self) -> str:
        """The test that executes it, or empty."""
        for page, info, test in EXECUTED:
            if page == self.page and self.info and re.search(info, self.info):
                return test
        return next((test for test, named in NAMED.items() if any(self.begins(*each) for each in named)), "")

    def begins(self, page: str, start: str) -> bool:
        """Whether it is the block of a page that begins so."""
        return self.page == page and self.text.lstrip("\n").startswith(start)


def program(word: str) -> str:
    """What a command's first word starts, wherever it lies."""
    return word.partition("=")[0].rpartition("/")[2]


def pages() -> list[Path]:
    """The pages that people write: all but those that are made from the code."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found += [*(ROOT / "examples").glob("*/README.md"), *(ROOT / "deploy").rglob("*.md")]
    return sorted(page for page in found if not page.read_text("utf-8").startswith(MADE))


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """All blocks of a page, fenced and indented."""
    for found in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[3].strip(), dedent(found[4]))
    plain = FENCE.sub(lambda found: "x" + "\n" * found[0].count("\n"), text)  # lines keep their numbers
    for found in INDENTED.finditer(plain):
        if not re.match(r" *(?:[-*]|\d+\.) ", found[1]):
            yield Block(page, plain.count("\n", 0, found.start(1)) + 1, "", dedent(found[1]))


def all_blocks() -> list[Block]:
    """All blocks of all pages."""
    return [
        block for page in pages() for block in blocks_of(page.read_text("utf-8"), page.relative_to(ROOT).as_posix())
    ]


def executed_by(test: str) -> list[Block]:
    """The blocks that a test executes, which it has to follow all."""
    return [block for block in all_blocks() if block.executed == test]


def counts(blocks: list[Block]) -> str:
    """How many there are of each kind, in a sentence."""
    kinds = Counter(block.kind for block in blocks)
    code = [block for block in blocks if block.kind != "output"]
    executed = sum(bool(block.executed) for block in code)
    named = ", ".join(
        f"{kinds[kind]} of {name}" for kind, name in (("command", "commands"), ("python", "Python"), ("toml", "TOML"))
    )
    return (
        f"{len(code)} blocks of code on {len({block.page for block in code})} pages ({named}): tests execute "
        f"{executed} and parse {len(code) - executed}; {kinds['output']} blocks more show what is printed"
    )


if __name__ == "__main__":
    print(counts(all_blocks()))
