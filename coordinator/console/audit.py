"""`coordinator audit`: attacks on a simulation of a run, beside what the run claims."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.console import shown
from protos.console.command_line import FAILURE

_PATH = Path("audit")


def audit(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A finished run's id, the beginning of one, or its folder; or a plan.")
    ],
    canaries: Annotated[
        int | None,
        typer.Option(min=2, max=20_000, help="How many canaries of each kind; by default the plan's, or 500."),
    ] = None,
    records: Annotated[
        int | None, typer.Option(min=10, help="How many records of the source are simulated at the most.")
    ] = None,
    texts: Annotated[
        int | None,
        typer.Option(min=10, help="How many texts a simulated teacher writes at the most; else 2,000."),
    ] = None,
    shadows: Annotated[
        int | None,
        typer.Option(
            min=0, max=256, help="How many more simulations are made, as shadow models for membership inference."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="A seed for coins and canaries, for an audit that can be repeated.")
    ] = None,
    output: Annotated[Path, typer.Option(metavar="DIR", help="For the audit of a plan; a run keeps its own.")] = _PATH,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Attack a simulation of a run or plan, with canaries; show the epsilon that attacks prove beside the claim.

    Ends with 1 when an attack refutes the claim.
    """
    from coordinator import api
    from coordinator.progress.terminal import Terminal
    from coordinator.publishing import audited

    progress = Terminal()
    try:
        found = api.audit(
            run,
            canaries=canaries,
            records=records,
            texts=texts,
            shadows=shadows,
            seed=seed,
            output=output,
            progress=progress,
        )
    finally:
        progress.close()
    shown.table(audited.HEADS, audited.rows(found.audit))
    for line in audited.summary(found.audit):
        shown.prose(line)
    shown.out.print(f"audit and picture: {found.folder}", markup=False)
    if as_json:
        shown.as_one_line({"folder": str(found.folder), **found.audit.model_dump(mode="json")})
    if found.audit.broken:
        raise typer.Exit(FAILURE)
