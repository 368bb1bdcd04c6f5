"""The output of the `coordinator` command: sentences, tables, and one line of JSON."""

import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from coordinator.comparing.comparison import Comparison
    from coordinator.systems.system import TrainedAlone

out: Final = Console(highlight=False, soft_wrap=True)

WIDE: Final = 200
"""The width, in characters, of a table that goes to a file or to another program."""


def finished(result: Any, as_json: bool) -> None:
    """Print how a run, or a training without parties, ended. result: from `coordinator.api.run`."""
    from coordinator.publishing.verdict import learned_nothing, verdict
    from coordinator.systems.system import TrainedAlone

    if isinstance(result, TrainedAlone):
        _alone(result, as_json)
        return
    _summary(result)
    if as_json:
        as_one_line(
            {
                "run": result.run,
                "student": str(result.student),
                "epsilon": result.epsilon,
                "delta": result.delta,
                "heuristic": result.statement.heuristic,
                "unit": result.statement.plan.privacy.unit,
                "record": result.statement.plan.privacy.record,
                "metrics": result.metrics,
                "learned_nothing": learned_nothing(result.metrics),
                "verdict": verdict(result.metrics).kind,
                "verified": result.verdict.ok,
            }
        )


def _alone(result: "TrainedAlone", as_json: bool) -> None:
    from coordinator.publishing.measured import measurements
    from coordinator.publishing.verdict import verdict

    prose(result.warning)
    prose(verdict(result.metrics).sentence)
    out.print(f"written  {result.student}", markup=False)
    for label, value in measurements(result.metrics):
        out.print(f"  {label}: {value}", markup=False)
    if as_json:
        as_one_line({"student": str(result.student), "epsilon": None, "delta": None, "metrics": result.metrics})


def _summary(result: Any) -> None:
    from coordinator.publishing.measured import measurements
    from coordinator.publishing.report import promise
    from coordinator.publishing.verdict import headline

    prose(headline(result.statement.privacy, result.metrics))
    out.print(f"published  {result.student}", markup=False)
    for sentence in (promise(result.statement), *result.statement.privacy["trust_means"]):
        prose(sentence)
    for label, value in measurements(result.metrics):
        out.print(f"  {label}: {value}", markup=False)
    if result.neighbours:
        out.print("nearest words")
        for word, near in result.neighbours.items():
            out.print(f"  {word}: {', '.join(near)}", markup=False)
    if not result.verdict.ok:
        from coordinator.verifying.verify import lines

        for line in lines(result.verdict):
            prose(line)
    trusting = "" if result.authority is None else f" --trust {quoted(result.authority)}"
    out.print(f"verify: {'ok' if result.verdict.ok else 'WRONG'}", markup=False)
    verify = f"coordinator verify {quoted(result.student)}{trusting}"
    out.print(f"next: coordinator report {quoted(result.run)} · {verify}", markup=False)


def comparison(found: "Comparison") -> None:
    """A comparison's table, and what is to be known of it."""
    from coordinator.comparing import table as chart

    table(*chart.rows(found))
    for line in chart.summary(found):
        prose(line)


def quoted(word: object) -> str:
    """A word as a shell takes it, for a line that people copy."""
    return shlex.quote(str(word))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: names in the first column, then figures; a column without a heading holds remarks."""
    table = Table(box=None, pad_edge=False)
    for number, heading in enumerate(heads):
        justify: Literal["left", "right"] = "right" if number and heading else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not number)
    for row in rows:
        table.add_row(*row)
    out.print(table, width=None if out.is_terminal else WIDE)


def prose(text: str) -> None:
    """Wrap text at spaces on a terminal; elsewhere print one line for each sentence, which is easier to search."""
    out.print(text, markup=False, soft_wrap=not out.is_terminal)


def as_one_line(value: dict[str, Any]) -> None:
    """Print the outcome as JSON, on the last line of standard output."""
    sys.stdout.flush()
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)
