"""The forecast of a plan that was just written, if it takes few seconds: made in a process that can be ended."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.console import shown
from coordinator.errors import RunStopped
from protos.waiting import PATIENT

PATIENCE: Final = 10.0
"""Seconds that a forecast may take; a longer one is for the command that makes it."""
_CHILD: Final = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from coordinator.console.questions.look import tell; tell(sys.argv[1])",
)


def show(plan: Path, patience: float | None = None) -> None:
    """Print the forecast of a plan, or the command that makes it where it takes longer. Raises `RunStopped`.

    patience: seconds, by default `PATIENCE`.
    """
    patience = PATIENCE if patience is None else patience
    try:
        shown.out.print("\nThe forecast, from the plan and public text alone:")
        done = subprocess.run(
            [*_CHILD, str(plan)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience,
            env=dict(PATIENT) | os.environ,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        shown.prose(f"It takes longer than {patience:g} seconds here. Make it with: coordinator forecast {plan}")
        return
    except (IndexError, ValueError, OSError):
        shown.prose(f"It cannot be made just now. To see why: coordinator forecast {plan}")
        return
    except KeyboardInterrupt:
        raise RunStopped(f"stopped. {plan} is written; its forecast: coordinator forecast {plan}") from None
    if "error" in found:
        shown.prose(f"None yet: {found['error']}")
        shown.prose(f"When that is there: coordinator forecast {plan}")
        return
    shown.out.print(found["headline"], markup=False)
    shown.table(found["heads"], found["rows"])
    for line in found["summary"]:
        shown.prose(line)


def tell(plan: str) -> None:
    """Make the forecast and write it as one line of JSON, in the process that `show` starts."""
    from coordinator import api
    from coordinator.forecasting.forecast import headline, summary, table

    try:
        forecast = api.forecast(plan)
        heads, rows = table(forecast)
        found = {"headline": headline(forecast), "heads": heads, "rows": rows, "summary": summary(forecast)}
    except ConclaveError as error:
        found = {"error": str(error)}
    print(json.dumps(found), flush=True)
