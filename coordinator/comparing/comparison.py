"""Many methods on the same simulated text, at the same epsilons, over several seeds: one table and its total cost.

Every cell (method, epsilon, seed) is written to a file as soon as it is done, and until then the sums of its runs are
kept. A comparison that is run again computes only the cells that are missing, and goes on with the last one.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from aggregation.accounting.events import from_json, to_json
from aggregation.accounting.price import Guarantee, price
from coordinator.comparing.comparable import Comparable, Method, Outcome, SeedData, Spread, View, changed
from coordinator.comparing.simulated_run import kept_in
from coordinator.errors import ComparisonStopped, PlanError, RunError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import SAMPLER_SHARE, rounded_up
from coordinator.progress.progress import Progress
from coordinator.reading import shown
from coordinator.store.private_files import private_folder, write_whole

FORMAT = 1
METHODS = "methods.json"
"""The file of the labels of compared methods, by name."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The result for one student.

    epsilon: the epsilon that was asked for, None without privacy. paid: the epsilon that it cost by the accountant.
    claimed: the epsilon that the paper's own formula gives for the same noise, None where the paper has no formula.
    event: in the ledger's JSON. seconds: since the comparison was last started, where it was stopped meanwhile.
    """

    method: str
    epsilon: float | None
    seed: int
    paid: float | None
    claimed: float | None
    event: dict[str, object] | None
    metrics: dict[str, Any]
    notes: dict[str, float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A finished table.

    earlier: cells in the folder from earlier comparisons on the same data, for other methods, epsilons or seeds.
    total: what all private cells, including the earlier ones, cost together at the plan's delta if all are published;
    None of a plan without a guarantee, which has no private cell. open: whether the folder also has a cell without
    privacy; then no bound holds for the folder as a whole. missing: how many cells were not computed, since it was
    stopped.
    """

    plan: Plan
    view: View
    methods: tuple[Method, ...]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    earlier: tuple[Cell, ...]
    total: Guarantee | None
    open: bool
    folder: Path
    missing: int = 0

    def __repr__(self) -> str:
        lost = f", {self.missing} missing" if self.missing else ""
        rows = ", ".join(method.name for method in self.methods)
        return f"<comparison of {rows}: {len(self.cells)} cells{lost}, in {self.folder}>"

    def of(self, method: str, epsilon: float) -> list[Cell]:
        """The cells of one row at one epsilon, for all seeds; a row without privacy has the same cells at each."""
        return [cell for cell in self.cells if cell.method == method and cell.epsilon in (None, epsilon)]

    def spread(self, method: str, epsilon: float, metric: str) -> Spread | None:
        """Mean and standard deviation of a metric over the seeds; None where it was not measured."""
        found = [cell.metrics.get(metric) for cell in self.of(method, epsilon)]
        values = [value for value in found if value is not None]
        return (fmean(values), stdev(values) if len(values) > 1 else 0.0) if values else None


def compare(
    comparable: Comparable,
    folder: Path,
    *,
    methods: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    progress: Progress,
) -> Comparison:
    """Compute the cells of a table that `folder` does not hold yet; the total counts every cell that it holds.

    methods: names of methods; all where none is given. Memory: what the system's data and methods need.
    Raises `PlanError` for an unknown method, an epsilon that is out of range, or parties that are not simulated;
    `RunError` for a folder that holds another comparison; `ComparisonStopped` where it was interrupted.
    """
    plan = comparable.plan
    chosen = _methods(comparable.methods, methods)
    if not epsilons or min(epsilons) <= 0 or max(epsilons) > 100:
        raise PlanError(
            "--epsilons wants one number or more above 0 and up to 100, for example --epsilons 1,2,4.", code="C101"
        )
    if plan.evaluation is None:
        raise PlanError("[evaluation] is missing: methods are compared on public held-out text. Name a source.")
    wanted = [
        (method, epsilon, plan.run.seed + number)
        for number in range(seeds)
        for method in chosen
        for epsilon in (sorted(set(epsilons)) if method.private else [None])
    ]
    if not plan.privacy.guarantee and (private := [method.label for method in chosen if method.private]):
        raise PlanError(
            f"--recipes: {', '.join(private)} would be compared at epsilons, and [privacy] guarantee = false states no "
            "delta for them. Name other rows, or compare on a plan with epsilon and delta.",
            code="C101",
        )
    _claim(folder, plan)
    write_whole(folder / METHODS, json.dumps({each.name: each.label for each in comparable.methods.values()}).encode())
    done: dict[tuple[str, float | None, int], Cell] = {}
    for method, epsilon, seed in wanted:
        kept = _kept(folder, method, epsilon, seed)
        if kept is not None:
            done[method.name, epsilon, seed] = kept
    if done:
        progress.say(f"  {len(done)} of {len(wanted)} cells were there already")
    stopped = False
    try:
        _fill(comparable, folder, wanted, done, progress)
    except KeyboardInterrupt:
        stopped = True
    progress.doing("")
    cells, shown_here = tuple(done.values()), {_path(folder, *each) for each in wanted}
    earlier = tuple(_read(path) for path in sorted((folder / "cells").glob("*.json")) if path not in shown_here)
    every = (*cells, *earlier)
    events = [from_json(cell.event) for cell in every if cell.event is not None]
    total = price(events, plan.privacy.delta * (1 - SAMPLER_SHARE)) if plan.privacy.guarantee else None
    found = Comparison(
        plan,
        comparable.view,
        chosen,
        tuple(sorted(set(epsilons))),
        tuple(range(plan.run.seed, plan.run.seed + seeds)),
        cells,
        earlier,
        total,
        len(events) < len(every),
        folder,
        len(wanted) - len(done),
    )
    if stopped:
        raise ComparisonStopped(
            f"the comparison stopped: {len(done)} of {len(wanted)} cells are in {folder}. Run it again to go on.",
            found if done else None,
        )
    return found


def _fill(
    comparable: Comparable,
    folder: Path,
    wanted: Sequence[tuple[Method, float | None, int]],
    done: dict[tuple[str, float | None, int], Cell],
    progress: Progress,
) -> None:
    """Compute the cells that are not `done`, name each before it is begun, and keep each as soon as it is there."""
    data: SeedData | None = None
    for method, epsilon, seed in wanted:
        if (method.name, epsilon, seed) in done:
            continue
        at = "" if epsilon is None else f", epsilon {epsilon:g}"
        progress.doing(f"cell {len(done) + 1} of {len(wanted)}: {method.label}{at}, seed {seed}")
        if data is None or data.seed != seed:
            data = comparable.data(seed, folder / "work")
        path = _path(folder, method, epsilon, seed)
        unfinished = folder / "work" / f"unfinished-{path.stem}"
        with kept_in(unfinished):
            cell = _filled(method, epsilon, data, comparable)
        write_whole(path, json.dumps(asdict(cell)).encode())
        shutil.rmtree(unfinished, ignore_errors=True)
        done[method.name, epsilon, seed] = cell
        how_good = comparable.view.said(cell.metrics[comparable.view.metric])
        progress.say(f"  {method.label}{at}, seed {seed}: {how_good}  ({cell.seconds:.0f} s)")
        progress.bar("cells", len(done), len(wanted))


def _methods(known: Mapping[str, Method], names: Sequence[str]) -> tuple[Method, ...]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PlanError(f'--recipes: there is no "{unknown[0]}". There is {", ".join(known)}.', code="C101")
    return tuple(known[name] for name in dict.fromkeys(names or known))


def _claim(folder: Path, plan: Plan) -> None:
    """Mark a folder as the comparison of this plan. Raises `RunError` where it holds something else."""
    digest = plan_digest(plan)
    path = folder / "comparison.json"
    if not path.exists() and folder.exists() and any(folder.iterdir()):
        raise RunError(
            f"{folder} holds something that is not a comparison; it was left alone. Choose another --output.",
            code="C107",
        )
    private_folder(folder / "cells")
    folder.chmod(0o700)
    if not path.exists():
        write_whole(path, json.dumps({"format": FORMAT, "plan": digest}).encode())
    if json.loads(path.read_bytes()) != {"format": FORMAT, "plan": digest}:
        raise RunError(
            f"{folder} holds the comparison of another plan. Choose another --output, or remove it to start again.",
            code="C107",
        )


def plan_digest(plan: Plan) -> str:
    """By what a folder is known for the comparison of a plan, whatever epsilon it has, in hex."""
    same = changed(plan, epsilon=1.0) if plan.privacy.guarantee else plan
    return hashlib.sha256(same.document(places=True).encode()).hexdigest()


def cells_in(folder: Path, plan: Plan) -> tuple[dict[str, str], tuple[Cell, ...]]:
    """The labels of the methods that a folder compares on a plan, by name, and its cells.

    Raises `RunError` for a folder that holds no comparison, or that of another plan.
    """
    try:
        claimed = json.loads((folder / "comparison.json").read_bytes())
        labels = json.loads((folder / METHODS).read_bytes()) if (folder / METHODS).exists() else {}
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} holds no comparison that can be read ({shown(error)}).", code="C802") from None
    if claimed != {"format": FORMAT, "plan": plan_digest(plan)}:
        raise RunError(f"{folder} holds the comparison of another plan than this run's.")
    cells = tuple(_read(path) for path in sorted((folder / "cells").glob("*.json")))
    return {str(name): str(label) for name, label in labels.items()}, cells


def _path(folder: Path, method: Method, epsilon: float | None, seed: int) -> Path:
    return folder / "cells" / f"{method.name}-{'none' if epsilon is None else _exactly(epsilon)}-{seed}.json"


def _exactly(epsilon: float) -> str:
    """Write an epsilon as short as possible; different epsilons differ in writing, else one cell would hide another."""
    short = f"{epsilon:g}"
    return short if float(short) == epsilon else repr(epsilon)


def _kept(folder: Path, method: Method, epsilon: float | None, seed: int) -> Cell | None:
    path = _path(folder, method, epsilon, seed)
    return _read(path) if path.exists() else None


def _read(path: Path) -> Cell:
    """Read a cell's file. Raises `RunError` for a file that is no cell: its cost would be missing from the total."""
    try:
        return Cell(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path} is no cell of a comparison ({shown(error)}), so what this folder cost cannot be added up. Remove "
            "it if it is not yours, or choose another --output.",
            code="C802",
        ) from None


def _filled(method: Method, epsilon: float | None, data: SeedData, comparable: Comparable) -> Cell:
    started = time.monotonic()
    outcome: Outcome = method.make(data, math.inf if epsilon is None else epsilon)
    seconds = time.monotonic() - started
    paid = None
    if epsilon is not None and not method.leaks:
        assert outcome.event is not None
        paid = price([outcome.event], data.delta).epsilon
        if paid > epsilon:
            raise RunError(
                f"{method.label} cost epsilon {rounded_up(paid)} and was to cost {epsilon:g}: its row would be unfair.",
                code="C602",
            )
    metrics = comparable.metrics(data, outcome.model)
    event = None if outcome.event is None or method.heuristic else to_json(outcome.event)
    return Cell(method.name, epsilon, data.seed, paid, outcome.claimed, event, metrics, outcome.notes, seconds)
