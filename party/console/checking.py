"""Checks before a party serves and before a run begins: whether everything is there, and whether there is room.

Nothing is served or charged, and no text of a record is shown. Only the gate that the party dials is told its name.
"""

from collections.abc import Iterator
from pathlib import Path

from party.config import PartyConfig, read_config, split_address
from party.console.checks.identity import identity
from party.console.checks.machine import device, disk, folder, memory, versions
from party.console.checks.rules import account, peers, policy
from party.console.checks.shard import codes, readable
from party.console.checks.way import way
from party.dialling.destination import dialled
from party.errors import PartyError
from party.node.serving import check_free
from party.node.traces import check_traces
from party.shard_table import located
from protos.console.checklist import Line, ok, to_do
from protos.console.mistakes import SettingsError
from protos.identity.identity import Identity
from protos.telemetry.tracing import is_url


def check(path: Path, connect: str | None = None, proxy: str | None = None) -> list[Line]:
    """Check everything about the party file `path` that must be right before `party serve`, one line each, in order.

    connect, proxy: of the gate that it will dial, as `party serve` takes them; the file's where they are None. Then
    the way there is tried.
    """
    try:
        config = read_config(path)
        base = path.absolute().parent
        shard = located(config.shard, base)
    except SettingsError as error:
        return [to_do("party file", str(error)), versions()]
    home = config.home(base)
    about, own = identity(config, base, home)
    return [
        ok("party file", f"{path.name}, party {config.name}, shard {config.shard.source}"),
        *about,
        peers(config),
        *_reached(config, own, connect, proxy),
        *_traces(config, base),
        folder(home),
        account(config, home),
        readable(shard, home),
        *codes(shard, home),
        policy(config),
        disk(shard, home),
        memory(),
        device(config),
        versions(),
    ]


def _reached(config: PartyConfig, own: Identity | None, connect: str | None, proxy: str | None) -> Iterator[Line]:
    """Lines on how the coordinator reaches this party, and on the port of its metrics."""
    try:
        dials = dialled(config, connect, proxy)
    except SettingsError as error:
        yield to_do("gate", str(error))
    else:
        yield from [_port(config, "port", config.listen)] if dials is None else way(config, dials, own)
    if config.metrics is not None:
        yield _port(config, "metrics port", config.metrics.listen)


def _port(config: PartyConfig, what: str, listen: str) -> Line:
    try:
        check_free(config.name, *split_address(listen))
    except PartyError as error:
        return to_do(what, f"{error} (If this party serves already, that is its own node.)")
    return ok(what, f"{listen} is free")


def _traces(config: PartyConfig, base: Path) -> Iterator[Line]:
    if config.traces is None:
        return
    try:
        check_traces(config, base)
    except PartyError as error:
        yield to_do("traces", str(error))
    else:
        how = "sent to the collector at" if is_url(config.traces.to) else "written to the file"
        yield ok("traces", f"this party's spans are {how} {config.traces.to}")
