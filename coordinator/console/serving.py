"""`coordinator serve`: a coordinator that stays up and takes runs from those who may submit them."""

import logging
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from coordinator.console import shown
from protos.console.command_line import INTERRUPTED, SUCCESS


def serve(
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The coordinator's file.")] = Path(
        "coordinator.toml"
    ),
    log_json: Annotated[bool, typer.Option("--log-json", help="Write events as JSON lines on standard error.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say the addresses as one JSON object.")] = False,
) -> None:
    """Stay up: take runs from those who may submit them, and parties that dial in. SIGTERM ends it in order.

    Runs that go on are stopped when their block in hand is stored, and go on by themselves at the next start.
    """
    import asyncio

    from coordinator.serving.config import read_config
    from coordinator.serving.server import Serving, described
    from coordinator.serving.server import serve as serves
    from protos.telemetry.logs import json_lines

    def told(where: Serving) -> None:
        if as_json:
            shown.as_one_line(described(where))
            return
        gate = f" · parties dial {where.gate}" if where.gate else ""
        print(f"coordinator up: submit at {where.submit}{gate} · status http://{where.status}/", flush=True)

    settings = read_config(config)
    with ExitStack() as stack:
        logger = logging.getLogger("conclave.coordinator")
        handler = json_lines(sys.stderr) if log_json else logging.StreamHandler(sys.stderr)
        if not log_json:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        number = asyncio.run(serves(settings, config.absolute().parent, told))
    raise typer.Exit(SUCCESS if number == signal.SIGTERM else INTERRUPTED)
