"""The status page as HTML: runs, stages, parties and budget, from what is public or was released; no word of a party.

It has no script and asks nothing but itself, and every value in it is escaped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Final

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.pricing.release import rounded_up
from coordinator.serving.views import WORDS
from protos.conclave.v1 import coordinator_pb2
from protos.console.checklist import size

REFRESH_SECONDS: Final = 5

STYLE: Final = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
.muted { opacity: .7; } .wide { overflow-x: auto; }
"""


@dataclass(frozen=True, slots=True)
class Status:
    """What the page shows. submissions: open ones first. dialled: of each party that dials, whether it is connected.

    free: bytes of disk. draining: whether the coordinator is about to end.
    """

    name: str
    version: str
    at: float
    submissions: Sequence[coordinator_pb2.Submission]
    dialled: Mapping[str, bool]
    direct: Sequence[str]
    free: int
    draining: bool = False


def page(status: Status) -> str:
    """The page of a status."""
    doing = "ends" if status.draining else "up"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="{REFRESH_SECONDS}">
<title>Coordinator {escape(status.name)}</title>
<link rel="stylesheet" href="/style.css">
</head>
<body>
<h1>Coordinator {escape(status.name)}</h1>
<p class="muted">{doing} · Conclave {escape(status.version)} · {_time(status.at)} UTC ·
{escape(size(status.free))} of disk free</p>
<main>
<h2 id="runs">Runs</h2>
<div class="wide">{_runs(status.submissions)}</div>
<h2 id="parties">Parties</h2>
<div class="wide">{_parties(status)}</div>
</main>
</body>
</html>
"""


def _runs(submissions: Sequence[coordinator_pb2.Submission]) -> str:
    if not submissions:
        return "<p>No runs yet.</p>"
    rows = "".join(_run(each) for each in submissions)
    heads = ("run", "recipe", "state", "stage", "progress", "parties", "epsilon", "submitted (UTC)")
    return f'<table aria-labelledby="runs"><thead><tr>{_heads(heads)}</tr></thead><tbody>{rows}</tbody></table>'


def _run(run: coordinator_pb2.Submission) -> str:
    state = WORDS.get(run.state, "unknown")
    if run.cancelling and run.state not in (coordinator_pb2.STATE_CANCELLED,):
        state = f"{state}, being cancelled"
    elif run.state == coordinator_pb2.STATE_QUEUED:
        state = f"queued, {run.before} before it" if run.before else "queued, next"
    going = [stage.name for stage in run.stages if not stage.finished]
    stage = going[-1] if going else (run.stages[-1].name if run.stages else "-")
    parts = "<br>".join(
        f"{escape(part.label)} {part.done:,}"
        + (f" / {part.total:,}" if part.HasField("total") else "")
        + (f" · {escape(part.note)}" if part.note else "")
        for part in run.parts
    )
    parties = "<br>".join(
        f"{escape(name)} {escape(_word(run.states[name]))}".strip() if name in run.states else escape(name)
        for name in sorted({*run.parties, *run.states})
    )
    cells = (escape(run.id), escape(run.recipe), escape(state), escape(stage), parts or "-", parties)
    epsilon = rounded_up(run.epsilon, 2) if run.HasField("epsilon") else HEURISTIC if run.heuristic else "-"
    rest = f'<td class="number">{escape(epsilon)}</td><td>{_time(run.submitted)}</td>'
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}{rest}</tr>"


def _word(state: str) -> str:
    """Our own words on a party's state: what comes after a colon or in brackets may be the party's."""
    return state.partition(":")[0].partition(" (")[0]


def _parties(status: Status) -> str:
    rows = [(name, "connected" if there else "not connected") for name, there in sorted(status.dialled.items())]
    rows += [(name, "asked at its address") for name in sorted(status.direct)]
    if not rows:
        return "<p>None: plans bring their own.</p>"
    body = "".join(f"<tr><td>{escape(name)}</td><td>{escape(way)}</td></tr>" for name, way in sorted(rows))
    heads = _heads(("party", "way"))
    return f'<table aria-labelledby="parties"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'


def _heads(names: Sequence[str]) -> str:
    return "".join(f'<th scope="col">{escape(name)}</th>' for name in names)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
