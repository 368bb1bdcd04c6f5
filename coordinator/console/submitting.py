"""Runs at a coordinator that stays up: `enroll` and `fetch`, and `run`, `watch`, `runs` and `cancel` with `--at`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.table import Table

from coordinator.console import shown
from coordinator.errors import PlanError, RunError
from protos.console.explaining import divided

if TYPE_CHECKING:
    from coordinator.progress.terminal import Terminal
    from coordinator.submitting.client import Client

FILE: Final = Path("submitter.toml")

At = Annotated[
    str | None, typer.Option("--at", metavar="HOST:PORT", help="At the coordinator that stays up there (`serve`).")
]
As = Annotated[Path, typer.Option("--as", metavar="FILE", help="With --at: who you are.")]
AsJson = Annotated[bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")]
WantedAt = Annotated[str, typer.Option("--at", metavar="HOST:PORT", help="The coordinator that stays up (`serve`).")]


def enroll(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Your name there: small letters, digits, hyphens.")],
    authority: Annotated[
        str, typer.Option("--authority", metavar="SHA256:...", help="The federation's, as it was read out to you.")
    ],
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="Where keys and request are written.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Make your keys and a certificate request, to submit runs to a coordinator. The keys never leave this machine."""
    from coordinator.submitting.submitter import enroll as enrolls

    made = enrolls(name, authority, folder)
    if as_json:
        return shown.as_one_line(
            {
                "request": str(made.request),
                "key": str(made.key),
                "file": str(made.file),
                "fingerprint": made.fingerprint,
            }
        )
    print(f"{made.key}: {'the keys that were there, left alone' if made.kept else 'new keys; they stay here'}")
    print(f"{made.request}: the request, which holds no secret")
    print(f"  fingerprint  {made.fingerprint}")
    print("next: send the request to the federation's coordinator, and read the fingerprint out by telephone. There:")
    print(f"      coordinator provision sign {made.request.name} --federation FOLDER --submitter")
    print(f"      What comes back, {name}.pem, goes beside {made.file}.")
    return None


def fetch(
    wanted: Annotated[str, typer.Argument(metavar="RUN", help="The id of a submission or its run, or its beginning.")],
    at: WantedAt,
    who: As = FILE,
    output: Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Where its student goes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the student of a run that a coordinator finished, whole, and verify it."""
    with client(at, who) as asked:
        _fetched(asked, wanted, output or Path(f"{wanted}-student"), as_json)


def run(plan: Path, at: str, who: Path, output: Path | None, *, again: bool, as_json: bool) -> None:
    """Submit a plan, follow it, and fetch its student to where the plan, or `output`, says."""
    from coordinator.progress.terminal import Terminal
    from coordinator.publishing.publish import try_place

    text, folder = _plan(plan, output)
    try_place(folder)
    with client(at, who) as asked:
        said = asked.submit(text, again=again)
        made = said.submission.id
        progress = Terminal()
        try:
            progress.say(f"submission {made}{', submitted before' if said.same else ''}")
            for sentence in said.said:
                progress.say(f"  {sentence}")
            _followed(asked, made, progress)
        except KeyboardInterrupt:
            progress.say(f"  the run goes on at {at}. Follow it: coordinator watch {made} --at {at}")
            raise
        finally:
            progress.close()
        _fetched(asked, made, folder, as_json)


def watch(wanted: str, at: str, who: Path, *, as_json: bool) -> None:
    """Follow a submission until it is at rest."""
    from google.protobuf.json_format import MessageToDict

    from coordinator.progress.terminal import Terminal

    with client(at, who) as asked:
        progress = Terminal()
        try:
            last = _watched(asked, wanted, progress)
        finally:
            progress.close()
    shown.out.print(f"{last.id}  {_state(last)}  {last.why}".rstrip(), markup=False)
    if as_json:
        shown.as_one_line(MessageToDict(last, preserving_proto_field_name=True))


def cancel(wanted: str, at: str, who: Path, *, as_json: bool) -> None:
    """End a submission for good, and wait until it has ended."""
    with client(at, who) as asked:
        found = asked.cancel(wanted)
        for seen in asked.watch(found.id):
            found = seen
    said = f"{found.id} is {_state(found)}. {found.why}".rstrip()
    shown.prose(said)
    if as_json:
        shown.as_one_line({"run": found.id, "said": said})


def runs(at: str, who: Path, *, as_json: bool) -> None:
    """List this submitter's submissions."""
    from google.protobuf.json_format import MessageToDict

    from coordinator.pricing.release import rounded_up

    with client(at, who) as asked:
        found = asked.listed()
    if not found:
        shown.out.print(f"no submissions yet. Make one: coordinator run plan.toml --at {at}")
    table = Table(box=None, pad_edge=False)
    for heading in ("submission", "state", "epsilon", "submitted (UTC)", "run"):
        table.add_column(heading, overflow="fold", no_wrap=True)
    for each in found:
        when = datetime.fromtimestamp(each.submitted, UTC).strftime("%Y-%m-%d %H:%M")
        epsilon = rounded_up(each.epsilon, 2) if each.HasField("epsilon") else "-"
        table.add_row(each.id, _state(each), epsilon, when, each.run or "-")
    if found:
        shown.out.print(table)
    if as_json:
        shown.as_one_line({"runs": [MessageToDict(each, preserving_proto_field_name=True) for each in found]})


@contextmanager
def client(at: str, who: Path) -> Iterator["Client"]:
    """The coordinator at an address, asked by the submitter whose file is given. Raises `PlanError`, `RunError`."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would print what its caller says in a sentence
    from coordinator.submitting.client import Client
    from coordinator.submitting.submitter import identity_of

    with Client(at, identity_of(who)) as asked:
        yield asked


def check_local(**options: object) -> None:
    """Raises `PlanError` for options that mean something on this machine alone."""
    for name, value in options.items():
        if value:
            raise PlanError(
                f"--{name.replace('_', '-')} is for a run of this machine, and --at runs it elsewhere.", code="C101"
            )


def _plan(path: Path, output: Path | None) -> tuple[str, Path]:
    """A plan's text, and where its student goes. The coordinator checks the rest. Raises `PlanError`."""
    from coordinator.store.output import STUDENT
    from protos.console.mistakes import SettingsError
    from protos.console.settings import read_tables

    try:
        tables, text = read_tables(path)
    except SettingsError as error:
        raise PlanError(str(error)) from None
    if output is not None:
        return text, output.absolute() / STUDENT
    student = tables.get("student")
    publish = student.get("publish") if isinstance(student, dict) else None
    return text, path.absolute().parent / (publish if isinstance(publish, str) else "published")


def _followed(asked: "Client", made: str, progress: "Terminal") -> None:
    """Follow a submission to its end. Raises `RunError` unless it finished."""
    from protos.conclave.v1 import coordinator_pb2

    last = _watched(asked, made, progress)
    if last.state == coordinator_pb2.STATE_FINISHED:
        return
    more = ""
    if last.state == coordinator_pb2.STATE_STOPPED:
        more = "\n  The run is stored. Submit the plan again to go on: nothing is paid twice."
    why, code = divided(last.why)
    raise RunError(f"{made} is {_state(last)}: {why or 'nobody said why.'}{more}", code=code)


def _watched(asked: "Client", wanted: str, progress: "Terminal") -> Any:
    """Show a submission's progress until it is at rest; returns what was last seen of it."""
    last, said = None, ""
    for seen in asked.watch(wanted, lambda why: progress.say(f"  {why} Waiting for it to come back.")):
        last, line = seen, _line(seen)
        if line != said:
            progress.say(f"  {line}")
            said = line
        for name, state in sorted(seen.states.items()):
            progress.party(name, state)
        for stage in seen.stages:
            progress.at(stage.name, stage.seconds, finished=stage.finished)
        for part in seen.parts:
            if part.HasField("total"):
                progress.bar(part.label, part.done, part.total, part.note)
    if last is None:
        raise RunError(f"the coordinator said nothing of {wanted}. Ask again.")
    return last


def _line(seen: Any) -> str:
    """What is said when it changes: the state, and the run's id once there is one."""
    from protos.conclave.v1 import coordinator_pb2

    if seen.state == coordinator_pb2.STATE_QUEUED:
        before = f"queued, {seen.before} before it" if seen.before else "queued, next in turn"
        return f"{before}{f': {seen.why}' if seen.why else ''}"
    return f"{_state(seen)}{f', run {seen.run}' if seen.run else ''}"


def _state(seen: Any) -> str:
    from protos.conclave.v1 import coordinator_pb2

    word = coordinator_pb2.State.Name(seen.state).removeprefix("STATE_").lower()
    return f"{word}, being cancelled" if seen.cancelling and word in ("queued", "running", "stopped") else word


def _fetched(asked: "Client", wanted: str, folder: Path, as_json: bool) -> None:
    """Fetch a student, verify it, and say so."""
    from coordinator.verifying.check import Trust
    from coordinator.verifying.verify import lines, record, verify

    asked.fetch(wanted, folder)
    identity = asked.identity
    verdict = verify(folder, Trust(identity.authority, identity.revoked))
    shown.out.print(f"published  {folder}", markup=False)
    for line in lines(verdict):
        shown.prose(line)
    shown.out.print(f"verify: {'ok' if verdict.ok else 'WRONG'}", markup=False)
    if as_json:
        said = {"submission": wanted, "student": str(folder), "verified": verdict.ok}
        shown.as_one_line(said | {"verdict": record(verdict)})
    if not verdict.ok:
        raise RunError(
            f"{folder} was fetched whole, and does not verify: do not use it before you know why.", code="C801"
        )
