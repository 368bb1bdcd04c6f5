"""Writes the pages of all settings files: the plan, its tables of each recipe, the party's and the coordinator's."""

from pathlib import Path

from markdown_text import prose
from pydantic import BaseModel
from tables import Section, description, key_table, keys_of, sections, written

CLASSIFIERS = ("dp_sgd", "pate", "fine_tune")
"""Recipes that one page explains together."""


def pages(systems: list[str], docs: Path) -> dict[str, str]:
    """The pages by their files' names. systems: the recipes, in order. docs: where pages lie that explain them."""
    from coordinator.plan.plan import Plan
    from coordinator.serving.config import ServeConfig
    from coordinator.systems.registry import system
    from party.config import PartyConfig

    made = {f"plan-{name.replace('_', '-')}.md": _recipe(system(name), docs) for name in systems}
    listed = "\n".join(f"- [`{name}`](plan-{name.replace('_', '-')}.md){_learned(system(name))}" for name in systems)
    made["plan.md"] = (
        "# The plan\n\nA plan is a TOML file that says everything of a run. `coordinator init` writes one to start "
        "from. These tables are in the plans of all recipes; each recipe adds its own:\n\n"
        f"{listed}\n\n{_tables(Plan)}"
    )
    made["party-file.md"] = (
        "# The party's file\n\n`party.toml` is the file of one party, and of nobody else: what it holds, and the "
        "policy that binds every plan. [parties.md](../parties.md) explains it.\n\n" + _file(PartyConfig)
    )
    made["coordinator-file.md"] = (
        "# The coordinator's file\n\n`coordinator.toml` is read by `coordinator serve` alone "
        "([serving.md](../serving.md)): a run of your own needs none.\n\n" + _file(ServeConfig)
    )
    return made


def _recipe(system, docs: Path) -> str:  # type: ignore[no-untyped-def]
    from coordinator.plan.plan import Plan

    name = system.name
    explained = "classifiers.md" if name in CLASSIFIERS else f"{name}.md"
    assert (docs / explained).is_file(), f"docs/{explained} is missing: it explains the recipe {name}."
    about = " ".join(prose(paragraph) for paragraph in description(system.plan).about)
    start = f"`coordinator init --recipe {name}` writes a plan of it. " if system.example is not None else ""
    common = {key: field.annotation for key, field in keys_of(Plan).items()}
    own = {key for key, field in keys_of(system.plan).items() if field.annotation != common.get(key)}
    return (
        f"# A plan's tables of `{name}`\n\n{about} {start}[{explained}](../{explained}) explains the recipe; "
        f"[the plan](plan.md) has the tables that it shares with all others.\n\n{_tables(system.plan, own)}"
    )


def _learned(system) -> str:  # type: ignore[no-untyped-def]
    return f": {system.about}" if system.about else ""


def _tables(model: type[BaseModel], only: set[str] | None = None) -> str:
    return "\n".join(written(section) for section in sections(model, only))


def _file(model: type[BaseModel]) -> str:
    """A file whose keys may stand before all tables."""
    top = Section("", model)
    return "## Keys before all tables\n\n" + "\n".join(key_table(top)) + "\n\n" + _tables(model)
