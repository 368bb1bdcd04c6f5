"""The `party` command: serve a shard, and look at it first."""

import json
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from aggregation.errors import ConclaveError, code_of
from party.console.accounts import accounts
from party.console.options import ConfigOption, ConnectOption, JsonOption, ProxyOption
from party.store.memory import keep_private
from protos.console.command_line import FAILURE, USAGE, run_command
from protos.console.explaining import explain
from protos.console.mistakes import SettingsError

if TYPE_CHECKING:
    from party.config import PartyConfig
    from party.dialling.destination import Destination
    from party.node.lifecycle import ServedNode
    from party.shard.looking import Look
    from party.shard_table import ShardTable

COMMON_WORDS = 1000
MOST_LABELS = 20

app = typer.Typer(
    name="party",
    help="One data holder of a Conclave run: its text stays here; only bounded and noised sums leave.",
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(accounts)
app.command()(explain)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed_version

        typer.echo(f"party {installed_version('conclave-distill')}")
        raise typer.Exit


@app.callback()
def party(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """One data holder of a Conclave run: its text stays here; only bounded and noised sums leave."""


@app.command()
def serve(
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log events as JSON, one a line; training logs to its own file.")
    ] = False,
    connect: ConnectOption = None,
    proxy: ProxyOption = None,
) -> None:
    """Serve this party. Ctrl-C ends it at once; SIGTERM ends it when its work in hand is done.

    A second signal of either kind ends it at once.
    """
    import asyncio

    from party.config import read_config
    from party.dialling.destination import dialled
    from protos.telemetry.logs import json_lines

    keep_private()
    settings = read_config(config)
    dials = dialled(settings, connect, proxy)
    if log_json:
        logging.basicConfig(level=logging.INFO, handlers=[json_lines(sys.stderr)])
    else:
        logging.basicConfig(
            level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S %z", stream=sys.stderr
        )
    logging.getLogger("conclave.party").setLevel(logging.INFO)
    ended_by = asyncio.run(_serve(settings, config.absolute().parent, as_json, dials, quiet=log_json))
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt


async def _serve(config: "PartyConfig", base: Path, as_json: bool, dials: "Destination | None", *, quiet: bool) -> int:
    """Serve until a signal; returns the signal."""
    import asyncio

    from party.node.heartbeat import beat
    from party.node.lifecycle import start

    signals: asyncio.Queue[int] = asyncio.Queue()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, signals.put_nowait, each)
    async with await start(config, base=base, quiet=quiet, dials=dials) as node:
        said: dict[str, object] = {"party": config.name, "dials" if dials else "address": node.address}
        if node.metrics_port:
            said["metrics_port"] = node.metrics_port
        doing = f"dialling {dials}" if dials else f"listening on {node.address}"
        print(json.dumps(said) if as_json else f"party {config.name} {doing}", flush=True)
        beating = asyncio.create_task(beat(node, config.home(base)))
        number = await signals.get()
        ending = asyncio.create_task(_end(node, drain=number == signal.SIGTERM))
        again = asyncio.create_task(signals.get())
        await asyncio.wait({ending, again}, return_when=asyncio.FIRST_COMPLETED)
        beating.cancel()
        if ending.done():
            again.cancel()
            ending.result()
            return number
        number = again.result()
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        await node.stop(grace=0)
        return number


async def _end(node: "ServedNode", *, drain: bool) -> None:
    if drain:
        await node.drain()
    await node.stop()


@app.command()
def check(
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
    connect: ConnectOption = None,
    proxy: ProxyOption = None,
) -> None:
    """Check everything that serving needs. Each line is ok or says what to do. Serves and charges nothing.

    Of a party that dials, the way to the gate is tried; the gate is told this party's name.

    Ends with 0 when nothing is left to do (a warning is for you to judge), else with 1.
    """
    from party.console.checking import check as look_over
    from protos.console.checklist import passed, record, shown

    lines = look_over(config, connect, proxy)
    print(json.dumps(record(lines)) if as_json else "\n".join(shown(lines)))
    if not passed(lines):
        raise typer.Exit(FAILURE)


@app.command()
def health(config: ConfigOption = Path("party.toml"), as_json: JsonOption = False) -> None:
    """Say whether this party's node is up: for a container's or a service's check, on the node's own machine.

    Ends with 0 while the node answers, also while it drains, or dials a coordinator that is away; else with 1. Asks
    nobody outside.
    """
    from party.config import read_config
    from party.node.heartbeat import look, shown

    settings = read_config(config)
    found = look(settings.home(config.absolute().parent))
    print(json.dumps(asdict(found)) if as_json else shown(settings.name, found))
    if not found.up:
        raise typer.Exit(FAILURE)


@app.command()
def enroll(config: ConfigOption = Path("party.toml"), as_json: JsonOption = False) -> None:
    """Make this party's keys and a certificate request. The keys never leave this machine."""
    from party.config import read_config
    from party.console.enrolling import enroll as enrolls

    settings = read_config(config)
    made = enrolls(settings, config.absolute().parent)
    if as_json:
        print(json.dumps({"request": str(made.request), "key": str(made.key), "fingerprint": made.fingerprint}))
        return
    print(f"{made.key}: {'the keys that were there, left alone' if made.kept else 'new keys; they stay here'}")
    print(f"{made.request}: the request, which holds no secret")
    print(f"  fingerprint  {made.fingerprint}")
    print("next: send the request to the federation's coordinator, and read the fingerprint out by telephone, to the")
    print("      coordinator, who signs, and to the other parties, who pin it in [peers]. What comes back goes where")
    print("      [identity] certificate says.")


@app.command()
def budget(
    config: ConfigOption = Path("party.toml"),
    every: Annotated[bool, typer.Option("--all", help="Show all of the ledger's accounts, not only the file's.")] = (
        False
    ),
    as_json: JsonOption = False,
) -> None:
    """Show what each run has charged the account, and what is left. Works beside a running node."""
    from party.config import read_config
    from party.ledger.budget import shown as lines_of
    from party.ledger.budget import statements, to_json

    settings = read_config(config)
    found = statements(settings.home(config.absolute().parent), None if every else settings.lineage)
    if as_json:
        print(json.dumps([to_json(each) for each in found] if every else to_json(found[0])))
        return
    texts = ["\n".join(f"  {name:<10} {line}".rstrip() for name, line in lines_of(each)) for each in found]
    print("\n\n".join(texts))


@app.command()
def purge(
    run: Annotated[str | None, typer.Argument(help="The run's id. Without it, list the runs that are kept.")] = None,
    config: ConfigOption = Path("party.toml"),
    as_json: JsonOption = False,
) -> None:
    """Remove everything kept of a run: its folder and its noise keys. What was charged stays charged."""
    from party.config import read_config
    from party.ledger.purging import kept, shown
    from party.ledger.purging import purge as remove

    settings = read_config(config)
    home = settings.home(config.absolute().parent)
    if run is not None:
        remove(home, run)
        print(json.dumps({"purged": run}) if as_json else f"Nothing of run {run} is kept now. Its charges stay.")
        return
    there = kept(home)
    if as_json:
        print(json.dumps([{"run": each.run, "joined_at": each.joined_at, "bytes": each.size} for each in there]))
        return
    table = Table("run", "joined", "size", title=f"party {settings.name} keeps", title_justify="left")
    for each in there:
        table.add_row(*shown(each))
    Console().print(table if there else f"party {settings.name} keeps nothing of any run.")


@app.command()
def preview(
    config: ConfigOption = Path("party.toml"),
    vocabulary: Annotated[
        Path | None, typer.Option(help="A vocabulary file, to see how much of the text it covers.", metavar="FILE")
    ] = None,
    words: Annotated[int, typer.Option(min=1, help="Without a file: coverage by so many of the text's words.")] = (
        COMMON_WORDS
    ),
    as_json: JsonOption = False,
) -> None:
    """Show which part of the shard would be used. Only reads: serves, sends and writes nothing."""
    import tempfile

    from party.config import read_config
    from party.shard_table import located

    settings = read_config(config)
    shard = located(settings.shard, config.absolute().parent)
    if vocabulary is not None and not vocabulary.is_file():
        raise SettingsError(f"{vocabulary}: there is no such file.", code="C102")
    with tempfile.TemporaryDirectory(prefix="conclave-preview-") as cache:
        found = _looked(shard, Path(cache), None if vocabulary is None else vocabulary.read_bytes(), words)
    print(json.dumps({"party": settings.name, **found})) if as_json else _show(settings.name, shard, found)


def _looked(shard: "ShardTable", cache: Path, vocabulary: bytes | None, words: int) -> dict[str, object]:
    """What a shard holds: columns, records, users, words, labels, skipped rows by reason, share of words covered.

    Private, all of it.
    """
    from learning.text.source import columns
    from learning.text.words import Vocabulary
    from party.shard.looking import Wanted, look, stored
    from party.shard.units import source_of

    named = columns(source_of(shard), cache)
    known = None if vocabulary is None else frozenset(Vocabulary.from_bytes(vocabulary).words)
    found = look(shard, replace(stored(shard), words=known), cache, some=True)
    users = None if shard.user is None else look(shard, Wanted("document", by_user=True), cache).units
    common = found.frequencies.most_common(words)
    covered = sum(count for _, count in common) if known is None else found.covered
    return {
        "columns": named,
        "records": found.passages,
        "users": users,
        "words": found.words,
        "distinct_words": len(found.frequencies),
        "labels": None if shard.label is None else _labelled(shard, found),
        "skipped": dict(found.unreadable),
        "vocabulary": len(common) if known is None else len(known),
        "vocabulary_is_public": known is not None,
        "coverage": covered / found.words if found.words else 0.0,
    }


def _labelled(shard: "ShardTable", found: "Look") -> dict[str, object]:
    """The rows of each label, the most frequent first, and those with no label or one that the file's map lacks."""
    known = None if shard.labels is None else set(shard.values or shard.labels)
    return {
        "rows": dict(found.labels.most_common(MOST_LABELS)),
        "different": len(found.labels),
        "outside_the_map": 0 if known is None else sum(n for label, n in found.labels.items() if label not in known),
        "left_out": dict(found.unreadable + found.left_out),
    }


def _labels(found: dict[str, Any]) -> str:
    shown = ", ".join(f"{label[:40]!r} {count:,}" for label, count in found["rows"].items())
    more = found["different"] - len(found["rows"])
    said = shown + (f" and {more:,} more" if more > 0 else "")
    if found["outside_the_map"]:
        said += f"; {found['outside_the_map']:,} outside the map of this file"
    return said


def _show(name: str, shard: "ShardTable", found: dict[str, object]) -> None:
    mapped = {shard.text: "text", shard.second: "second", shard.id: "id", shard.user: "user", shard.label: "label"}
    named = found["columns"]
    skipped = found["skipped"]
    assert isinstance(named, list)
    assert isinstance(skipped, dict)
    table = Table(title=f"party {name}: {shard.source}", show_header=False, title_justify="left")
    table.add_row("columns", ", ".join(f"{each} ({mapped[each]})" if each in mapped else each for each in named))
    if shard.part is not None:
        table.add_row("part", f"{shard.part.part + 1} of {shard.part.parts}, by {shard.part.by}")
    table.add_row("records", f"{found['records']:,}")
    if found["users"] is not None:
        table.add_row("users", f"{found['users']:,}")
    table.add_row("words", f"{found['words']:,} ({found['distinct_words']:,} different)")
    if found["labels"] is not None:
        assert isinstance(found["labels"], dict)
        table.add_row("labels", _labels(found["labels"]))
    table.add_row("skipped rows", ", ".join(f"{reason}: {count:,}" for reason, count in skipped.items()) or "none")
    against = "the vocabulary given" if found["vocabulary_is_public"] else "this text's own most frequent words"
    table.add_row("coverage", f"{found['coverage']:.1%} of words are in {against} ({found['vocabulary']:,})")
    Console().print(table)
    print("Nothing was served or sent. These figures are private: they are for this party's eyes.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 2 for usage and for a wrong party file, 1 for failure, 130 when it was stopped."""

    def errors() -> dict[type[Exception], int]:
        from protos.refusal import Refusal

        return {SettingsError: USAGE, Refusal: FAILURE, ConclaveError: FAILURE}

    return run_command(app, arguments, errors, code_of, command="party", private=True)


if __name__ == "__main__":
    sys.exit(main())
