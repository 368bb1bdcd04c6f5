"""The `coordinator` command, for the person who starts runs."""

import logging
import os
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Table

from aggregation.errors import ConclaveError, code_of
from coordinator.console import shown, submitting
from coordinator.console.audit import audit
from coordinator.console.init import init
from coordinator.console.preview import preview
from coordinator.console.provision import provision
from coordinator.console.publish import publish, track
from coordinator.console.report import Html, report
from coordinator.console.seen import followed, seen
from coordinator.console.serving import serve
from coordinator.console.watching import watch
from coordinator.errors import ComparisonStopped, PlanError, RunError, RunStopped
from protos.console.command_line import FAILURE, INTERRUPTED, USAGE, run_command
from protos.console.explaining import explain
from protos.waiting import PATIENT

if TYPE_CHECKING:
    from protos.console.checklist import Line

app = typer.Typer(
    name="coordinator",
    help="Publish one model learned from the text of several parties, with a differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=True,
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
Files = Annotated[
    Path | None, typer.Option("--files", metavar="DIR", help="Where the plan's paths start; by default at its file.")
]
Output = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Keep the whole run in this folder.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as version_of

        shown.out.print(f"coordinator, Conclave {version_of('conclave-distill')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


app.command()(init)
app.command()(preview)


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
    files: Files = None,
    spare: Annotated[
        int | None, typer.Option(min=0, metavar="BYTES", help="Start only where the disk has so much more room.")
    ] = None,
    at: submitting.At = None,
    who: submitting.As = submitting.FILE,
    again: Annotated[bool, typer.Option("--again", help="With --at: run a plan that ran before; it pays again.")] = (
        False
    ),
    as_json: AsJson = False,
) -> None:
    """Run a plan and publish its student; with --at, at a coordinator that stays up."""
    if at is not None:
        own = {"replace": replace, "ray_address": ray_address, "metrics": metrics, "traces": traces, "files": files}
        submitting.check_local(**own, spare=spare, log_json=log_json)
        return submitting.run(plan, at, who, output, again=again, as_json=as_json)
    with seen(metrics, traces, log_json) as (progress, observer):
        from coordinator import api

        result = api.run(
            plan,
            output=output,
            replace=replace,
            ray_address=ray_address,
            files=files,
            spare=spare,
            progress=progress,
            observer=observer,
        )
    return shown.finished(result, as_json)


@app.command()
def resume(
    run: Run,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="Where the plan is now, if it was moved or mended.")
    ] = None,
    ray_address: RayAddress = None,
    metrics: Metrics = None,
    traces: Traces = None,
    log_json: LogJson = False,
    files: Files = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that was stopped, killed or lost its parties. No answer is asked for, or paid for, twice.

    Where no party was charged yet, the plan may have been mended: parties then join anew, under the mended plan.
    """
    with seen(metrics, traces, log_json) as (progress, observer):
        from coordinator import api

        result = api.resume(run, plan=plan, ray_address=ray_address, files=files, progress=progress, observer=observer)
    shown.finished(result, as_json)


app.command()(watch)


@app.command()
def cancel(run: Run, at: submitting.At = None, who: submitting.As = submitting.FILE, as_json: AsJson = False) -> None:
    """End a run for good: its parties forget it. What was charged stays charged."""
    if at is not None:
        return submitting.cancel(run, at, who, as_json=as_json)
    from coordinator import api

    said = api.cancel(run)
    shown.prose(said)
    if as_json:
        shown.as_one_line({"run": run, "said": said})
    return None


@app.command()
def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    ray_address: RayAddress = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run needs, here and at its parties. Each line is ok or says what to do. Spends nothing.

    Ends with 0 when nothing is left to do (a warning is for you to judge), else with 1.
    """
    from coordinator.run.before.checking import check as look_over

    _checklist(look_over(plan, ray_address, lambda line: shown.out.print(line, markup=False), output), as_json)


def _checklist(lines: "Sequence[Line]", as_json: bool) -> None:
    """Print the lines of a checklist. Raises `typer.Exit` where something is left to do."""
    from protos.console import checklist

    for line in checklist.shown(lines):
        shown.out.print(line, markup=False)
    if as_json:
        shown.as_one_line(checklist.record(lines))
    if not checklist.passed(lines):
        raise typer.Exit(FAILURE)


@app.command()
def doctor(
    federation: Annotated[
        Path | None,
        typer.Option("--federation", metavar="DIR", help="A federation's folder; else ./federation."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine before there is a plan: versions, memory, disk, device, ports, clock, certificates, models.

    Each line is ok or says what to do. Ends with 0 when nothing is left to do (a warning is for you to judge), else
    with 1.
    """
    from coordinator.run.checks.doctor import doctor as look_over

    _checklist(look_over(federation), as_json)


@app.command()
def forecast(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan, a TOML file.")],
    as_json: AsJson = False,
) -> None:
    """Forecast what a run costs and how much of its signals the noise leaves. Asks no party and spends nothing."""
    from coordinator.forecasting.forecast import headline, record, summary, table

    with followed():
        from coordinator import api

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
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same simulated data at the same epsilons. Run it again to go on after a stop."""
    try:
        with followed() as progress:
            from coordinator import api

            found = api.compare(
                plan,
                recipes=[name for name in recipes.split(",") if name],
                epsilons=_numbers(epsilons),
                seeds=seeds,
                output=output,
                progress=progress,
            )
    except ComparisonStopped as stopped:
        if stopped.so_far is not None:
            shown.comparison(stopped.so_far)
        raise
    shown.comparison(found)
    shown.out.print(f"table and picture: {found.folder}", markup=False)
    if html is not None:
        from coordinator.page.comparison_page import page as comparison_page
        from coordinator.page.file import write_page

        write_page(comparison_page(found), html)
        shown.out.print(f"page  {html}", markup=False)
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
app.command()(publish)
app.command()(track)
app.command()(serve)
app.command()(submitting.enroll)
app.command()(submitting.fetch)


@app.command()
def runs(at: submitting.At = None, who: submitting.As = submitting.FILE, as_json: AsJson = False) -> None:
    """List the runs on this machine, newest first; with --at, yours at a coordinator that stays up."""
    if at is not None:
        return submitting.runs(at, who, as_json=as_json)
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
    return None


app.command()(report)
app.command()(explain)


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
        raise RunError(f"{folder} does not verify: a line above says why.", code="C801")


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",") if each.strip()]
    except ValueError:
        raise PlanError(
            f'--epsilons = "{text}" is not a list of numbers. Write them with commas: 1,2,4.', code="C101"
        ) from None


def _terminated(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _plain_warnings() -> None:
    """What simulated parties warn of is a sentence; a library that sets logging up would put words before it."""
    if not logging.getLogger().handlers and logging.lastResort is not None:
        logging.getLogger().addHandler(logging.lastResort)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command: 2 for usage and for a wrong plan, 1 for failure, 130 when it was stopped."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    _plain_warnings()
    errors: dict[type[Exception], int] = {PlanError: USAGE, RunStopped: INTERRUPTED, ConclaveError: FAILURE}
    return run_command(app, arguments, lambda: errors, code_of, command="coordinator", private=False)
