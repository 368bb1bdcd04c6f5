"""The `coordinator` command, for the person who starts runs."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from aggregation.errors import ConclaveError
from coordinator.console import shown
from coordinator.console.audit import audit
from coordinator.console.provision import provision
from coordinator.errors import PlanError, RunStopped
from protos.console.command_line import FAILURE, INTERRUPTED, USAGE, run_command
from protos.waiting import PATIENT

if TYPE_CHECKING:
    from coordinator.progress.events import Observer
    from coordinator.progress.progress import Progress

app = typer.Typer(
    name="coordinator",
    help="Publish one model learned from the text of several parties, with a differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(provision)

AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or its folder.")]
Metrics = Annotated[
    str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve the run's metrics for Prometheus there.")
]
LogJson = Annotated[
    bool, typer.Option("--log-json", help="Write events as JSON lines on standard error, in place of the display.")
]
Traces = Annotated[
    str | None,
    typer.Option("--traces", metavar="URL|FILE", help="Trace the run: to an OpenTelemetry collector, or into a file."),
]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="ADDR", help='Put the parties on a Ray cluster: "auto", or HOST:PORT.'),
]
Output = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Keep the whole run in this folder.")]


def _version(wanted: bool) -> None:
    if wanted:
        shown.out.print(f"coordinator, Conclave {version_of('conclave-distill')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def init(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The file to write.")] = Path("plan.toml"),
    launch: Annotated[
        str, typer.Option(help='"ray": try it on this machine; "connect": parties run elsewhere.')
    ] = "ray",
    recipe: Annotated[
        str | None, typer.Option(help="The system whose plan to write, by name; by default that for word embeddings.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a commented plan to start from."""
    from coordinator.systems.registry import template

    text = template(launch, recipe)
    try:
        with plan.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise PlanError(f"{plan} exists already and was left alone. Name another file.") from None
    except OSError as error:
        raise PlanError(f"{plan} cannot be written: {error.strerror}.") from None
    shown.out.print(f"wrote {plan}\nnext: coordinator run {plan}", markup=False)
    if as_json:
        shown.as_one_line({"plan": str(plan.absolute())})


@app.command()
def run(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    output: Output = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Remove the run that DIR holds once this run has begun.")
    ] = False,
    ray_address: RayAddress = None,
    metrics: Metrics = None,
    traces: Traces = None,
    log_json: LogJson = False,
    as_json: AsJson = False,
) -> None:
    """Run a plan and publish its student."""
    from coordinator import api

    with _seen(metrics, traces, log_json) as (progress, observer):
        result = api.run(
            plan, output=output, replace=replace, ray_address=ray_address, progress=progress, observer=observer
        )
    shown.finished(result, as_json)


@app.command()
def resume(
    run: Run,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Where the plan is now, if it was moved.")
    ] = None,
    ray_address: RayAddress = None,
    metrics: Metrics = None,
    traces: Traces = None,
    log_json: LogJson = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, killed or lost its parties. No answer is asked for, or paid for, twice."""
    from coordinator import api

    with _seen(metrics, traces, log_json) as (progress, observer):
        result = api.resume(run, plan=plan, ray_address=ray_address, progress=progress, observer=observer)
    shown.finished(result, as_json)


@app.command()
def watch(run: Run, as_json: AsJson = False) -> None:
    """Show a run's progress, from its store alone, until the run ends or stops. Ctrl-C stops watching, not the run."""
    from contextlib import closing
    from dataclasses import asdict

    from rich.live import Live
    from rich.text import Text

    from coordinator.store.index import RunIndex
    from coordinator.store.watching import look, render

    with closing(RunIndex().find(run)) as store:
        view = look(store)
        with Live(console=shown.out, auto_refresh=False, transient=True) as live:
            while not view.at_rest:
                if shown.out.is_terminal:
                    live.update(Text("\n".join(render(view))), refresh=True)
                time.sleep(1.0)
                view = look(store)
    for line in render(view):
        shown.out.print(line, markup=False)
    if as_json:
        shown.as_one_line(asdict(view))


@app.command()
def cancel(run: Run, as_json: AsJson = False) -> None:
    """End a run for good: its parties forget it. What was charged stays charged."""
    from coordinator import api

    said = api.cancel(run)
    shown.prose(said)
    if as_json:
        shown.as_one_line({"run": run, "said": said})


@app.command()
def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run needs, here and at its parties. Each line is ok or says what to do. Spends nothing.

    Ends with 0 when nothing is left to do (a warning is for you to judge), else with 1.
    """
    from coordinator.run.checking import check as look_over
    from protos.console import checklist

    lines = look_over(plan, ray_address, lambda line: shown.out.print(line, markup=False))
    for line in checklist.shown(lines):
        shown.out.print(line, markup=False)
    if as_json:
        shown.as_one_line(checklist.record(lines))
    if not checklist.passed(lines):
        raise typer.Exit(FAILURE)


@app.command()
def forecast(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    as_json: AsJson = False,
) -> None:
    """Forecast what a run costs and how much of its signals the noise leaves. Asks no party and spends nothing."""
    from coordinator import api
    from coordinator.forecasting.forecast import headline, record, summary, table

    found = api.forecast(plan)
    shown.out.print(headline(found), markup=False)
    shown.out.print()
    shown.table(*table(found))
    shown.out.print()
    for line in summary(found):
        shown.prose(line)
    if as_json:
        shown.as_one_line(record(found))


@app.command()
def compare(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan whose parties are simulated.")],
    recipes: Annotated[str, typer.Option(help="The rows, by name, separated by commas; all by default.")] = "",
    epsilons: Annotated[str, typer.Option(help="The epsilons, separated by commas.")] = "1,2,4",
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds, starting at the plan's.")] = 3,
    output: Annotated[Path, typer.Option(metavar="DIR", help="For table, picture and cells.")] = Path("comparison"),
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same simulated data at the same epsilons. Run it again to go on after a stop."""
    from coordinator import api
    from coordinator.comparing import table as chart
    from coordinator.progress.progress import Terminal

    progress = Terminal()
    try:
        found = api.compare(
            plan,
            recipes=[name for name in recipes.split(",") if name],
            epsilons=_numbers(epsilons),
            seeds=seeds,
            output=output,
            progress=progress,
        )
    finally:
        progress.close()
    shown.table(*chart.rows(found))
    for line in chart.summary(found):
        shown.prose(line)
    shown.out.print(f"table and picture: {found.folder}", markup=False)
    metric = found.view.metric
    if as_json:
        shown.as_one_line(
            {
                "folder": str(found.folder),
                "methods": [method.name for method in found.methods],
                "epsilons": list(found.epsilons),
                "seeds": list(found.seeds),
                "total_epsilon": None if found.total is None else found.total.epsilon,
                "earlier_cells": len(found.earlier),
                "delta": None if found.total is None else found.plan.privacy.delta,
                "heuristics": [method.name for method in found.methods if method.heuristic],
                "metric": metric,
                metric: {
                    method.name: [(found.spread(method.name, each, metric) or (None,))[0] for each in found.epsilons]
                    for method in found.methods
                },
            }
        )


app.command()(audit)


@app.command()
def runs(as_json: AsJson = False) -> None:
    """List the runs on this machine, newest first."""
    from aggregation.mechanisms.mechanism import HEURISTIC
    from coordinator import api
    from coordinator.pricing.release import rounded_up

    entries = api.runs()
    if not entries:
        shown.out.print("no runs yet. Start one: coordinator run plan.toml")
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("run", "status", "epsilon", "started (UTC)", "folder"):
            table.add_column(heading, overflow="fold", no_wrap=heading != "folder")
        for entry in entries:
            started = datetime.fromtimestamp(entry.started, UTC).strftime("%Y-%m-%d %H:%M")
            epsilon = HEURISTIC if entry.heuristic else "-"
            epsilon = epsilon if entry.epsilon is None else rounded_up(entry.epsilon, 2)
            table.add_row(entry.id, entry.status, epsilon, started, str(entry.folder))
        shown.out.print(table)
    if as_json:
        keys = ("id", "name", "status", "epsilon", "heuristic", "started", "plan_hash")
        shown.as_one_line(
            {"runs": [{key: getattr(e, key) for key in keys} | {"folder": str(e.folder)} for e in entries]}
        )


@app.command()
def report(
    run: Run,
    as_json: AsJson = False,
) -> None:
    """Show what a run promises, whom it trusts, what it does not protect, and how good its student is."""
    from coordinator import api
    from coordinator.publishing.report import render

    found = api.report(run)
    shown.prose(render(found))
    if as_json:
        shown.as_one_line(found)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A student's published folder.")],
    trust: Annotated[
        Path | None, typer.Option("--trust", metavar="FILE", help="The federation's ca.pem, from someone you trust.")
    ] = None,
    revoked: Annotated[
        Path | None, typer.Option("--revoked", metavar="FILE", help="The federation's revoked.pem.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a student's folder: every file, its signatures, what the parties attest, and the promise that follows."""
    from coordinator import api
    from coordinator.verifying.verify import lines, record

    if revoked is not None and trust is None:
        raise typer.BadParameter("--revoked needs --trust: nobody else can take a certificate back.")
    verdict = api.verify(folder, trust=trust, revoked=revoked)
    for line in lines(verdict):
        shown.prose(line)
    if as_json:
        shown.as_one_line(record(verdict))
    if not verdict.ok:
        raise typer.Exit(FAILURE)


@contextmanager
def _seen(metrics: str | None, traces: str | None, log_json: bool) -> Iterator[tuple["Progress", "Observer"]]:
    """Follow a run on the terminal, or as JSON lines on standard error; with metrics and traces where wanted."""
    from prometheus_client import CollectorRegistry

    from coordinator.progress import events
    from coordinator.progress.progress import Silent, Terminal
    from protos.telemetry.logs import json_lines

    observers: list[Observer] = []
    with ExitStack() as stack:
        if metrics is not None:
            registry = CollectorRegistry()
            stack.enter_context(events.serve_metrics(metrics, registry))
            observers.append(events.Metrics(registry))
        if traces is not None:
            stack.enter_context(events.traced_to(traces))
        if log_json:
            logger, handler = logging.getLogger("conclave.coordinator"), json_lines(sys.stderr)
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            observers.append(events.Logged(logger))
            yield Silent(), events.Everyone(observers)
        else:
            progress = Terminal()
            stack.callback(progress.close)
            yield progress, events.Everyone(observers)


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise PlanError(f'--epsilons = "{text}" is not a list of numbers. Write them with commas: 1,2,4.') from None


def _terminated(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 2 for usage and for a wrong plan, 1 for failure, 130 when it was stopped."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    return run_command(
        app, arguments, {PlanError: USAGE, RunStopped: INTERRUPTED, ConclaveError: FAILURE}, private=False
    )
