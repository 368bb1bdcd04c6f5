"""`coordinator report`: what a run promises and how good its student is, on the terminal or as a page."""

from pathlib import Path
from typing import Annotated

import typer

from coordinator.console import shown

Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page, one file that loads nothing from outside."),
]


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or its folder.")],
    html: Html = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside", metavar="DIR", help="A comparison on the run's plan; the page shows its rows without privacy."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Show what a run promises, whom it trusts, what it does not protect, and how good its student is."""
    from coordinator import api
    from coordinator.publishing.report import render

    if beside is not None and html is None:
        raise typer.BadParameter("--beside needs --html: the page shows what it holds.")
    found = api.report(run)
    if html is None:
        shown.prose(render(found))
    else:
        api.page(run, file=html, beside=beside)
        shown.out.print(f"page  {html}", markup=False)
    if as_json:
        shown.as_one_line(found | ({} if html is None else {"page": str(html.absolute())}))
