"""Options that commands of a party share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[Path, typer.Option("--config", help="The party file.", metavar="FILE")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]
ConnectOption = Annotated[
    str | None,
    typer.Option(
        help="Listen on no port: dial this coordinator, and serve it over that connection. By default the file's.",
        metavar="HOST:PORT",
    ),
]
ProxyOption = Annotated[
    str | None,
    typer.Option(help='For who dials: the HTTP proxy on the way, or "none"; by default https_proxy.', metavar="URL"),
]
