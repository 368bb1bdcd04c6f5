"""`coordinator init`: write a plan to start from, asking what it is to say where somebody can answer."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.console import shown
from coordinator.console.questions.first import Importing, ask_first
from coordinator.errors import RunStopped
from coordinator.systems.new_plan import check_new

if TYPE_CHECKING:
    from coordinator.systems.starting import Choices


def init(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The file to write.")] = Path("plan.toml"),
    launch: Annotated[
        str | None, typer.Option(help='"ray": try it on this machine, the default; "connect": parties run elsewhere.')
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The system whose plan to write, by name; by default that for word embeddings.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The text of simulated parties: a file, pattern or folder."),
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Its column of texts.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Its column of labels.")] = None,
    user: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Its column of users: all text of one is then protected.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The whole run's cost; smaller is more private.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Write a commented plan to start from. On a terminal, without options, it asks what the plan is to say."""
    silent = as_json or any(each is not None for each in (launch, recipe, source, text, label, user, epsilon))
    asking = not silent and sys.stdin.isatty() and sys.stdout.isatty()
    if asking:
        check_new(plan)
        choices = _asked(plan)
        from coordinator.systems.first_plan import write

        write(plan, choices)
    else:
        from coordinator.systems import first_plan

        columns = {"text": text, "label": label, "user": user}
        first_plan.init(plan, recipe=recipe, launch=launch or "ray", source=source, epsilon=epsilon, **columns)
    shown.out.print(f"wrote {plan}", markup=False)
    if asking:
        from coordinator.console.questions.look import show

        show(plan)
    shown.out.print(f"next: coordinator run {shown.quoted(plan)}", markup=False)
    if as_json:
        shown.as_one_line({"plan": str(plan.absolute())})


def _asked(plan: Path) -> "Choices":
    importing = Importing()
    try:
        first = ask_first(importing)
        importing.join()
        from coordinator.console.questions.others import ask

        return ask(plan, first)
    except (KeyboardInterrupt, EOFError):
        shown.out.print()
        raise RunStopped("stopped. Nothing was written.") from None
